"""EMNIST (Cohen et al. 2017): handwritten letters and digits, in the idx files that torchvision keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sweeper import checks
from sweeper.data.fetch import PublishedFiles
from sweeper.data.given import given
from sweeper.data.pictures import Pictures, read_idx, table_of_pictures

if TYPE_CHECKING:
    from sweeper.data.table import Table

SIDE = 28
PARTS = {  # training rows, test rows, classes
    "balanced": (112_800, 18_800, 47),
    "byclass": (697_932, 116_323, 62),
    "bymerge": (697_932, 116_323, 47),
    "letters": (124_800, 20_800, 26),
    "digits": (240_000, 40_000, 10),
    "mnist": (60_000, 10_000, 10),
}
FIRST = {"letters": 1}  # the number of the first class in the file, where it is not 0
_AT = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip, unpacked"


@dataclass(frozen=True, kw_only=True)
class Emnist(Pictures):
    """EMNIST: handwritten characters, 784 pixels in [0, 1]; files brought by the user, as torchvision keeps them.

    part: balanced (131,600 pictures, 47 classes), byclass, bymerge, letters, digits or mnist. Pictures stand upright.
    """

    part: str = "balanced"
    kind: ClassVar[str] = "emnist"
    example: ClassVar[str] = "{source: {kind: emnist, part: balanced}, holdout: test, public: true}"
    shape: ClassVar[tuple[int, int, int]] = (1, SIDE, SIDE)
    stated_by: ClassVar[str] = "the EMNIST page of NIST"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of(PARTS, part=self.part)

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"part": self.part}

    @property
    def sizes(self) -> tuple[int, int, int]:
        return PARTS[self.part]

    @property
    def files(self) -> PublishedFiles:
        ends = ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")
        return given(self.kind, tuple(f"emnist-{self.part}-{end}-ubyte" for end in ends), _AT)

    def load(self, cache: str) -> Table:
        train, test, classes = self.sizes
        first = FIRST.get(self.part, 0)
        return read_table(self.files.contents(cache), (train, test), classes, first, cache if self.features else None)


def read_table(contents: list[bytes], rows: tuple[int, int], classes: int, first: int, cache: str | None = None) -> Table:
    """Pictures and labels of both parts. The files hold each picture on its side: rows and columns change places."""
    import numpy as np

    kind = Emnist.kind
    images = [read_idx(content, (n, SIDE, SIDE), kind) for content, n in zip(contents[0::2], rows, strict=True)]
    words = [read_idx(content, (n,), kind) for content, n in zip(contents[1::2], rows, strict=True)]
    upright = np.ascontiguousarray(np.concatenate(images).transpose(0, 2, 1)[:, None])
    return table_of_pictures(upright, np.concatenate(words).astype(np.int64) - first, classes, cache)
