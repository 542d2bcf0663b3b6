"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), in the python format that torchvision keeps: 32 x 32 colour pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper.checks import RequestError
from sweeper.data.fetch import PublishedFiles
from sweeper.data.given import given
from sweeper.data.pictures import Pictures, table_of_pictures

if TYPE_CHECKING:
    from sweeper.data.table import Table

SHAPE = (3, 32, 32)
_AT = "https://www.cs.toronto.edu/~kriz/cifar.html (the python version), unpacked"
_TEN, _HUNDRED = "cifar-10-batches-py", "cifar-100-python"
MD5_10 = {
    f"{_TEN}/data_batch_1": "c99cafc152244af753f735de768cd75f",
    f"{_TEN}/data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    f"{_TEN}/data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    f"{_TEN}/data_batch_4": "634d18415352ddfa80567beed471001a",
    f"{_TEN}/data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    f"{_TEN}/test_batch": "40351d587109b95175f43aff81a1287e",
}
MD5_100 = {f"{_HUNDRED}/train": "16019d7e3df5f24257cddd939b257f8d", f"{_HUNDRED}/test": "f0ef6b0ae62326f3e7ffdfab6717acfc"}
FILES_10 = given("cifar-10", tuple(MD5_10), _AT, MD5_10)
FILES_100 = given("cifar-100", tuple(MD5_100), _AT, MD5_100)


@dataclass(frozen=True, kw_only=True)
class Cifar10(Pictures):
    """CIFAR-10: 60,000 colour pictures, 3,072 pixels, 10 classes; files as torchvision keeps them, brought by the user."""

    kind: ClassVar[str] = "cifar-10"
    example: ClassVar[str] = "{source: cifar-10, holdout: test, public: true}"
    shape: ClassVar[tuple[int, int, int]] = SHAPE
    stated_by: ClassVar[str] = "the CIFAR-10 page of the University of Toronto"

    @property
    def sizes(self) -> tuple[int, int, int]:
        return 50_000, 10_000, 10

    @property
    def files(self) -> PublishedFiles:
        return FILES_10

    def load(self, cache: str) -> Table:
        contents = self.files.contents(cache)
        return read_batches(contents, (10_000,) * 6, "labels", 10, self.kind, cache if self.features else None)


@dataclass(frozen=True, kw_only=True)
class Cifar100(Pictures):
    """CIFAR-100: 60,000 colour pictures, 3,072 pixels, 100 classes; files as torchvision keeps them, brought by the user."""

    kind: ClassVar[str] = "cifar-100"
    example: ClassVar[str] = "{source: cifar-100, holdout: test, public: true}"
    shape: ClassVar[tuple[int, int, int]] = SHAPE
    stated_by: ClassVar[str] = "the CIFAR-100 page of the University of Toronto"

    @property
    def sizes(self) -> tuple[int, int, int]:
        return 50_000, 10_000, 100

    @property
    def files(self) -> PublishedFiles:
        return FILES_100

    def load(self, cache: str) -> Table:
        contents = self.files.contents(cache)
        return read_batches(contents, (50_000, 10_000), "fine_labels", 100, self.kind, cache if self.features else None)


def read_batches(
    contents: list[bytes], rows: tuple[int, ...], labels: str, classes: int, kind: str, cache: str | None = None
) -> Table:
    """The pickled batches, one below the other: red, green and blue planes of 32 x 32. No code of the file is run.

    Raises:
      RequestError: another format, or another number of records than stated.
    """
    import numpy as np

    from sweeper.data.plain_pickle import read_pickle

    pictures, numbers = [], []
    for content, count in zip(contents, rows, strict=True):
        batch = read_pickle(content, kind)
        parts = batch if isinstance(batch, dict) else {}
        named = {key.decode("latin1") if isinstance(key, bytes) else key: part for key, part in parts.items()}
        data, words = named.get("data"), named.get(labels)
        good = isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape == (count, int(np.prod(SHAPE)))
        if not good or not isinstance(words, list) or len(words) != count:
            raise RequestError(f"{kind}: a file is not a batch of {count:,} pictures and labels in the published python format")
        pictures.append(data.reshape(count, *SHAPE))
        numbers.append(np.array([word if type(word) is int else -1 for word in words], dtype=np.int64))
    return table_of_pictures(np.concatenate(pictures), np.concatenate(numbers), classes, cache)
