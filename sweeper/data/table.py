"""The rows a source gives: the only shape in which data travels."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, cast

from sweeper.checks import FieldError

if TYPE_CHECKING:
    import numpy

GZIP_MAGIC = b"\x1f\x8b"
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """n records of d features with their labels. Row positions are public, contents are not.

    A null record (valid False: a row that could not be read) has features 0 and label 0. It contributes 0 to every sum and is
    never counted correct, so that a table with it is a zero-out neighbour of the table with any record in its place.
    """

    features: numpy.ndarray  # float32, C-contiguous, [n, d], no bias column
    labels: numpy.ndarray  # int64, [n]
    valid: numpy.ndarray  # bool, [n]
    ids: tuple[str, ...] | None = None  # public keys of all rows, null records included, where the source has some

    def __post_init__(self) -> None:
        import numpy as np

        for field, dtype, axes in (("features", np.float32, 2), ("labels", np.int64, 1), ("valid", np.bool_, 1)):
            array = getattr(self, field)
            if not isinstance(array, np.ndarray):
                raise FieldError(field, type(array).__name__, "must be a numpy array")
            if array.dtype != dtype or array.ndim != axes:
                raise FieldError(field, f"{array.dtype} with {array.ndim} axes", f"must be {np.dtype(dtype)} with {axes}")
            if len(array) != len(self.features):
                raise FieldError(field, f"{len(array):,} rows", f"must have one row per record, {len(self.features):,}")
        if not self.features.flags.c_contiguous:
            raise FieldError("features", "strided memory", "must be C-contiguous", "Use numpy.ascontiguousarray.")
        if not np.isfinite(self.features).all():
            raise FieldError("features", "NaN or infinity", "must be finite", "Make the row a null record.")
        if (self.labels < 0).any():
            raise FieldError("labels", "a negative number", "must be at least 0", "Make the row a null record.")
        if self.ids is not None and len(self.ids) != self.rows:
            raise FieldError("ids", f"{len(self.ids):,} keys", f"must be one key per record, {self.rows:,}")
        null = ~self.valid
        if self.features[null].any() or self.labels[null].any():
            raise FieldError("valid", False, "marks a null record, whose features and label must be 0")

    @property
    def rows(self) -> int:
        return len(self.features)


def digest(*paths: str) -> str:
    """SHA-256 of a file's content, gzip unpacked, so that repacking a table does not make it another one.

    Of several files: the SHA-256 of their digests, one after the other.
    """
    digests = []
    for path in paths:
        content = hashlib.sha256()
        with open_content(path) as file:
            while chunk := file.read(_CHUNK):
                content.update(chunk)
        digests.append(content.digest())
    return digests[0].hex() if len(digests) == 1 else hashlib.sha256(b"".join(digests)).hexdigest()


def open_content(path: str) -> IO[bytes]:
    """The file, unpacked if it is a gzip file whatever its name."""
    with open(path, "rb") as file:
        packed = file.read(2) == GZIP_MAGIC
    return cast(IO[bytes], gzip.open(path)) if packed else open(path, "rb")
