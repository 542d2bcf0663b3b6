"""Convolutional networks: convolutions and pools, then dense layers.

The two of the papers, written as `layers`. Their 256 and 4096 are the widths of the flattened pictures, which follow from the rest.
  28 x 28 grey, "6-pool-16-pool-256-128": kernel 5 without padding, as in LeNet: 28 -> 24 -> 12 -> 8 -> 4, and 4 * 4 * 16 = 256.
      {kind: convnet, layers: [6, pool, 16, pool, 128], kernel: 5}
  32 x 32 colours, "32-64-pool-128-128-pool-256-256-pool-4096-1024-512": kernel 3 with padding: 32 -> 16 -> 8 -> 4, and
  4 * 4 * 256 = 4096.
      {kind: convnet, layers: [32, 64, pool, 128, 128, pool, 256, 256, pool, 1024, 512], kernel: 3, padded: true}
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.models.layers import POOLS, Activation, Conv, Layer, Network, Pool
from sweeper.models.mlp import dense_stack

POOL = "pool"


@dataclass(frozen=True, kw_only=True)
class ConvNet(Network):
    """Convolutional network: filters and 2 x 2 pools, then dense layers, one logit per class, cross-entropy loss.

    layers: numbers before the last `pool` are filters of convolutions, numbers after it widths of dense layers.
    picture: channels, height, width; left out, it is a square of 1 or 3 channels, whichever the row's width is.
    A row holds one channel after another, each row by row.
    """

    layers: tuple[int | str, ...] = (6, POOL, 16, POOL, 128)
    kernel: int = 5
    padded: bool = False  # with zeros, so that a convolution keeps height and width
    pool: str = "max"  # or average
    picture: tuple[int, ...] | None = None
    kind: ClassVar[str] = "convnet"
    example: ClassVar[str] = "{kind: convnet, layers: [6, pool, 16, pool, 128], kernel: 5}"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of(POOLS, pool=self.pool)
        checks.whole(1, kernel=self.kernel)
        checks.flag(padded=self.padded)
        if self.padded and self.kernel % 2 == 0:
            raise FieldError("kernel", self.kernel, "must be odd where padded: true", "Use 3 or 5.")
        if not isinstance(self.layers, (list, tuple)) or POOL not in self.layers or isinstance(self.layers[0], str):
            hint = "As in layers: [6, pool, 16, pool, 128]."
            raise FieldError("layers", self.layers, "must be a list of numbers of filters, `pool` and widths", hint)
        for layer in self.layers:
            if layer != POOL:
                checks.whole(1, layers=layer)
        object.__setattr__(self, "layers", tuple(self.layers))
        if self.picture is not None:
            if not isinstance(self.picture, (list, tuple)) or len(self.picture) != 3:
                raise FieldError("picture", self.picture, "must be channels, height, width", "As in picture: [3, 32, 32].")
            for side in self.picture:
                checks.whole(1, picture=side)
            object.__setattr__(self, "picture", tuple(self.picture))

    def stack(self, features: int, classes: int) -> tuple[Layer, ...]:
        shape, layers = self._picture(features), []
        first_dense = len(self.layers) - self.layers[::-1].index(POOL)
        for at, layer in enumerate(self.layers[:first_dense]):
            channels, height, width = shape
            if isinstance(layer, int):
                conv = Conv(
                    channels=channels,
                    height=height,
                    width=width,
                    filters=layer,
                    kernel=self.kernel,
                    padding=self.kernel // 2 if self.padded else 0,
                )
                # The largest of a window's ReLUs is the ReLU of its largest: pooling first leaves a quarter of the work.
                pool_first = self.pool == "max" and self.layers[at + 1] == POOL
                layers += [conv] if pool_first else [conv, Activation(how=self.activation)]
                shape = conv.out
            else:
                pool = Pool(channels=channels, height=height, width=width, how=self.pool)
                pool_first = self.pool == "max" and self.layers[at - 1] != POOL
                layers += [pool, Activation(how=self.activation)] if pool_first else [pool]
                shape = pool.out
            if min(shape) < 1:
                hint = "Use fewer layers, a smaller kernel, or padded: true."
                rule = f"leaves nothing of a picture of {' x '.join(map(str, self._picture(features)))} after {at + 1} of them"
                raise FieldError("layers", list(self.layers), rule, hint)
        widths = [layer for layer in self.layers[first_dense:] if isinstance(layer, int)]
        return *layers, *dense_stack((math.prod(shape), *widths, classes), self.activation)

    def _picture(self, features: int) -> tuple[int, ...]:
        if self.picture is not None:
            if math.prod(self.picture) != features:
                rule = f"holds {math.prod(self.picture):,} numbers, and a row has {features:,} features"
                raise FieldError("picture", list(self.picture), rule)
            return self.picture
        for channels in (1, 3):
            side = math.isqrt(features // channels)
            if channels * side * side == features:
                return channels, side, side
        rule = f"is not given, and {features:,} features are no square picture of 1 or 3 channels"
        raise FieldError("picture", checks.MISSING, rule, "Give picture: [channels, height, width], or use model: {kind: mlp}.")
