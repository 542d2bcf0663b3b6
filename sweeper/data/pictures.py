"""Sources of pictures: bytes with labels, as a table of pixels or of a frozen network's features."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sweeper import checks
from sweeper.checks import RequestError
from sweeper.data import efficientnet
from sweeper.data.columns import Block
from sweeper.data.fetch import PublishedFiles
from sweeper.spec.protocols import Description

if TYPE_CHECKING:
    import numpy

    from sweeper.data.table import Table

_UBYTE = 0x08  # the idx format's word for elements of one byte


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """What the sources of pictures have in common: training rows first, then the published test rows."""

    features: str | None = None  # None: pixels
    kind: ClassVar[str]
    shape: ClassVar[tuple[int, int, int]]  # channels, height, width
    stated_by: ClassVar[str]

    def __post_init__(self) -> None:
        if self.features is not None:
            checks.one_of((efficientnet.NAME,), features=self.features)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Training rows, test rows, classes."""
        raise NotImplementedError

    @property
    def files(self) -> PublishedFiles:
        raise NotImplementedError

    @property
    def pixels(self) -> bool:
        """Whether features are k/255, whole k: one byte each in memory."""
        return self.features is None

    @property
    def width(self) -> int:
        channels, height, width = self.shape
        return channels * height * width if self.features is None else efficientnet.WIDTH

    def to_dict(self) -> dict[str, Any]:
        return {} if self.features is None else {"features": self.features}

    @property
    def description(self) -> Description:
        train, test, classes = self.sizes
        return Description(
            rows=train + test,
            features=self.width,
            classes=classes,
            test_rows=(train, train + test),
            stated_by=self.stated_by,
            norm_bound=(self.width + 1) ** 0.5 if self.pixels else None,  # pixels are in [0, 1]
        )

    @property
    def columns(self) -> tuple[Block, ...]:
        channels, height, width = self.shape
        what = f"{height} x {width} {'grey levels' if channels == 1 else f'pixels of {channels} colours'} 0 .. 255"
        if self.features is not None:
            return (Block(name="picture", width=self.width, summary=f"{what}, as features of {self.features}"),)
        return (Block(name="pixels", width=self.width, summary=f"{what}, scaled to [0, 1]"),)

    def present(self, cache: str) -> bool:
        return all(files.present(cache) for files in self._all_files)

    def fetch(self, cache: str) -> list[str]:
        return [path for files in self._all_files for path in files.fetch(cache)]

    def digest(self, cache: str) -> str:
        return self.files.digest(cache)

    @property
    def _all_files(self) -> tuple[PublishedFiles, ...]:
        return (self.files,) if self.features is None else (self.files, efficientnet.WEIGHTS)


def table_of_pictures(pictures: numpy.ndarray, labels: numpy.ndarray, classes: int, cache: str | None = None) -> Table:
    """A table of bytes [n, channels, height, width], scaled to [0, 1]; with a `cache`, of EfficientNet-Lite0's features of them.

    A record whose label is not in [0, classes) is a null record in its place.
    """
    import numpy as np

    from sweeper.data.table import Table

    valid = (labels >= 0) & (labels < classes)
    if cache is None:
        features = np.divide(pictures.reshape(len(pictures), -1), 255, dtype=np.float32)
    else:
        features = efficientnet.picture_features(pictures, cache)
    features[~valid] = 0.0
    return Table(features=features, labels=np.where(valid, labels, 0).astype(np.int64), valid=valid)


def read_idx(content: bytes, shape: tuple[int, ...], kind: str) -> numpy.ndarray:
    """The unsigned bytes of an idx file: 0, 0, type, number of axes, each axis as a big-endian 32-bit number, then the elements."""
    import numpy as np

    header = struct.pack(f">BBBB{len(shape)}I", 0, 0, _UBYTE, len(shape), *shape)
    elements = int(np.prod(shape))
    if not content.startswith(header) or len(content) != len(header) + elements:
        stated = " x ".join(f"{axis:,}" for axis in shape)
        raise RequestError(
            f'{kind}: a file is not the idx file of {stated} bytes that source "{kind}" states. '
            f"Delete it and run: sweeper data fetch {kind}"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=len(header)).reshape(shape)
