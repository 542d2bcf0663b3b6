"""A file of numpy arrays of the user's own."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sweeper.checks import MISSING, FieldError, RequestError
from sweeper.data.columns import Numeric
from sweeper.data.declared import text_of
from sweeper.data.user_file import UserFile

if TYPE_CHECKING:
    import numpy

    from sweeper.data.table import Table


@dataclass(frozen=True, kw_only=True)
class NpzFile(UserFile):
    """Named numpy arrays in one .npz file, one record per row; a picture is a column with `width` numbers.

    Names, types and shapes are public. Arrays of Python objects are refused: reading one would run code from the file.
    """

    kind: ClassVar[str] = "npz"
    example: ClassVar[str] = (
        "{source: {kind: npz, path: digits.npz, rows: 70000, label: y, classes: 10, "
        "columns: {x: {low: 0, high: 255, width: 784}}}, holdout: 0.2}"
    )

    def load(self, cache: str) -> Table:
        arrays = self._read(cache, [self.label, *(column.name for column in self._used), *([] if self.id is None else [self.id])])
        cells: dict[str, Any] = {self.label: self._column(arrays, self.label, 1, "label").tolist()}
        for column in self._used:
            found = self._column(arrays, column.name, column.width if isinstance(column, Numeric) else 1, f"columns.{column.name}")
            numbers = isinstance(column, Numeric) and found.dtype.kind in "biuf"
            if isinstance(column, Numeric) and not numbers and (column.width > 1 or found.dtype.kind not in "US"):
                raise FieldError(f"data.source.columns.{column.name}", MISSING, f"is of type {found.dtype}, which is no number")
            cells[column.name] = found if numbers else found.tolist()
        return self._table(cells, None if self.id is None else self._ids(arrays))

    def row_ids(self, cache: str) -> tuple[str, ...]:
        return self._ids(self._read(cache, [self.id or ""]))

    def _read(self, cache: str, names: list[str]) -> dict[str, numpy.ndarray]:
        import numpy as np

        try:
            with np.load(self.fetch(cache)[0], allow_pickle=False) as file:
                self._check_names(list(file.files))
                return {name: file[name] for name in names}
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error, ValueError, AttributeError, TypeError) as error:
            # A ValueError of numpy's says that an array holds Python objects; what is no zip file is no set of arrays.
            raise self._unreadable(error) from None

    def _column(self, arrays: dict[str, numpy.ndarray], name: str, width: int, field: str) -> numpy.ndarray:
        """[n] or [n, width]."""
        array = arrays[name]
        self._check_rows(len(array) if array.ndim else 0)
        own = array.size // len(array)
        if own != width:
            hint = f"State width: {own}." if field.startswith("columns.") else ""
            raise FieldError(f"data.source.{field}", MISSING, f"has {own:,} numbers a record in the file, not {width:,}", hint)
        return array.reshape(len(array), width) if width > 1 else array.reshape(len(array))

    def _ids(self, arrays: dict[str, numpy.ndarray]) -> tuple[str, ...]:
        ids = tuple(text_of(cell) for cell in self._column(arrays, self.id or "", 1, "id").tolist())
        if not all(ids):
            raise RequestError(f'{self.path}: a row has no id in array "{self.id}"; ids are public, and every row needs one')
        return ids
