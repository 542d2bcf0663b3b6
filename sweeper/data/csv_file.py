"""A csv file of the user's own, plain or packed with gzip."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, ClassVar

from sweeper.checks import FieldError, RequestError
from sweeper.data.columns import Numeric, Unreadable
from sweeper.data.user_file import UserFile

if TYPE_CHECKING:
    from sweeper.data.table import Table


@dataclass(frozen=True, kw_only=True)
class CsvFile(UserFile):
    """A csv file with a header line, plain or .gz; every other line is one record.

    A line is read by itself, so that no quote or line break in one record reaches another: a record that is spread over several
    lines is as many null records. Text is UTF-8; spaces around a cell do not count.
    """

    delimiter: str = ","
    kind: ClassVar[str] = "csv"
    example: ClassVar[str] = (
        "{source: {kind: csv, path: people.csv, rows: 50000, label: income, classes: [low, high], "
        "columns: {age: {low: 17, high: 90}, sex: [Female, Male]}}, holdout: 0.2}"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.delimiter) != 1 or self.delimiter in '\r\n" ':
            raise FieldError("delimiter", self.delimiter, "must be one character, as , or ;")
        for column in self.columns:
            if isinstance(column, Numeric) and column.width > 1:
                raise FieldError(f"columns.{column.name}.width", column.width, "is refused: a cell of a csv file holds one number")

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | ({} if self.delimiter == "," else {"delimiter": self.delimiter})

    def load(self, cache: str) -> Table:
        import numpy as np

        from sweeper.data.table import Table

        features_nd = np.zeros((self.rows, self.description.features), np.float32)
        labels_n, valid_n = np.zeros(self.rows, np.int64), np.zeros(self.rows, np.bool_)
        with self._open(cache) as file:
            names = self._header(file)
            used = [(column, names.index(column.name)) for column in self._used]
            label, words = names.index(self.label), {word: place for place, word in enumerate(self.classes)}
            ids = []
            for row, (line, cells) in enumerate(self._records(file)):
                if self.id is not None:
                    ids.append(self._id(line, cells, names))
                if len(cells) != len(names) or cells[label] not in words:
                    continue
                try:
                    features_nd[row] = [value for column, place in used for value in column.encode(cells[place])]
                except Unreadable:
                    continue
                labels_n[row], valid_n[row] = words[cells[label]], True
        features_nd[~valid_n] = 0
        return Table(features=features_nd, labels=labels_n, valid=valid_n, ids=tuple(ids) if self.id is not None else None)

    def row_ids(self, cache: str) -> tuple[str, ...]:
        with self._open(cache) as file:
            names = self._header(file)
            return tuple(self._id(line, cells, names) for line, cells in self._records(file))

    def header(self) -> list[str]:
        """The names in the file's first line. Reads no record."""
        with self._open("") as file:
            return self._names(file)

    @contextmanager
    def _open(self, cache: str) -> Iterator[IO[bytes]]:
        """The file, unpacked; what fails while it is read is said without a word of what was read."""
        from sweeper.data.table import open_content

        try:
            with open_content(self.fetch(cache)[0]) as file:
                yield file
        except (OSError, EOFError, zlib.error) as error:
            raise self._unreadable(error) from None

    def _header(self, file: IO[bytes]) -> list[str]:
        names = self._names(file)
        self._check_names(names)
        return names

    def _names(self, file: IO[bytes]) -> list[str]:
        return self._split(file.readline().removeprefix(b"\xef\xbb\xbf"))

    def _records(self, file: IO[bytes]) -> Iterator[tuple[bytes, list[str]]]:
        """Every record and its cells, none where it cannot be parsed. Blank lines after the last record are no records.

        Raises:
          RequestError: another number of records than stated.
        """
        count = 0
        for line in file:
            if count < self.rows:
                yield line, self._split(line)
            elif line.strip():
                self._check_rows(count + 1)
            count += count < self.rows
        self._check_rows(count)

    def _split(self, line: bytes) -> list[str]:
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        try:
            cells = next(csv.reader([text], delimiter=self.delimiter, strict=True, skipinitialspace=True), [])
        except csv.Error:
            return []
        return [cell.strip() for cell in cells]

    def _id(self, line: bytes, cells: list[str], names: list[str]) -> str:
        """The key of a record, broken or not: where the line cannot be parsed, what lies between delimiters counts."""
        place = names.index(self.id or "")
        cells = cells or [cell.strip() for cell in line.decode("utf-8", "replace").split(self.delimiter)]
        if len(cells) <= place or not cells[place]:
            raise RequestError(f'{self.path}: a row has no id in column "{self.id}"; ids are public, and every row needs one')
        return cells[place]
