"""A parquet file of the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sweeper.checks import MISSING, FieldError, RequestError
from sweeper.data.columns import Numeric
from sweeper.data.user_file import UserFile

if TYPE_CHECKING:
    import pyarrow

    from sweeper.data.table import Table


@dataclass(frozen=True, kw_only=True)
class ParquetFile(UserFile):
    """A parquet file: columns of numbers, words, or lists of `width` numbers.

    The types of columns are public; a missing cell, or a list of another length, makes its record a null record.
    """

    kind: ClassVar[str] = "parquet"
    example: ClassVar[str] = (
        "{source: {kind: parquet, path: people.parquet, rows: 50000, label: income, classes: [low, high], "
        "columns: {age: {low: 17, high: 90}, sex: [Female, Male]}}, holdout: 0.2}"
    )

    def load(self, cache: str) -> Table:
        names = [self.label, *(column.name for column in self._used)]
        table = self._read(cache, [*names, *([] if self.id is None else [self.id])])
        cells: dict[str, Any] = {self.label: table.column(self.label).to_pylist()}
        for column in self._used:
            found = table.column(column.name).combine_chunks()
            cells[column.name] = _numbers(column, found) if isinstance(column, Numeric) else found.to_pylist()
        return self._table(cells, None if self.id is None else self._ids(table))

    def row_ids(self, cache: str) -> tuple[str, ...]:
        return self._ids(self._read(cache, [self.id or ""]))

    def _read(self, cache: str, names: list[str]) -> pyarrow.Table:
        import pyarrow
        import pyarrow.parquet

        try:
            with pyarrow.parquet.ParquetFile(self.fetch(cache)[0]) as file:
                self._check_names(file.schema_arrow.names)
                self._check_rows(file.metadata.num_rows)
                return file.read(columns=names)
        except (OSError, pyarrow.ArrowException) as error:
            raise self._unreadable(error) from None

    def _ids(self, table: pyarrow.Table) -> tuple[str, ...]:
        from sweeper.data.declared import text_of

        ids = tuple(text_of(cell) for cell in table.column(self.id).to_pylist())
        if not all(ids):
            raise RequestError(f'{self.path}: a row has no id in column "{self.id}"; ids are public, and every row needs one')
        return ids


def _numbers(column: Numeric, cells: pyarrow.Array) -> Any:
    """float64 [n, width] with NaN where there is no number; text as it is, which is read cell by cell."""
    import numpy as np
    import pyarrow
    import pyarrow.compute

    kind = cells.type
    if pyarrow.types.is_dictionary(kind):
        cells, kind = cells.dictionary_decode(), kind.value_type
    if column.width == 1 and (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
        return cells.to_pylist()
    lists = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind)
    inner = kind.value_type if lists else kind
    plain = pyarrow.types.is_integer(inner) or pyarrow.types.is_floating(inner) or pyarrow.types.is_boolean(inner)
    if not (plain or pyarrow.types.is_decimal(inner)) or (not lists and column.width > 1):
        wanted = "numbers" if column.width == 1 else f"lists of {column.width} numbers"
        raise FieldError(f"data.source.columns.{column.name}", MISSING, f"is of type {kind} in the file, and must be {wanted}")
    if not lists:
        return _floats(cells).reshape(-1, 1)
    lengths_n = _floats(pyarrow.compute.list_value_length(cells))
    whole_n = lengths_n == column.width
    numbers_nw = np.full((len(cells), column.width), np.nan)
    values = pyarrow.compute.list_flatten(cells.filter(pyarrow.array(whole_n)))
    numbers_nw[whole_n] = _floats(values).reshape(-1, column.width)
    return numbers_nw


def _floats(cells: pyarrow.Array) -> Any:
    import pyarrow

    return cells.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)
