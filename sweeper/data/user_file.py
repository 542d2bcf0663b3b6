"""What the user's own files have in common: a declaration, a path, and rows that are read one by one."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sweeper import checks
from sweeper.checks import MISSING, FieldError, RequestError
from sweeper.data.columns import Categorical, Column, Numeric, Unreadable, norm_bound
from sweeper.data.declared import columns_to_list, read_classes, read_columns, text_of
from sweeper.spec.protocols import USER, Description

if TYPE_CHECKING:
    import numpy

    from sweeper.data.table import Table

MOST_ROWS = 100_000_000


@dataclass(frozen=True, kw_only=True)
class UserFile:
    """A table in a file of the user's own, with its public declaration.

    Guarantee: a record's features and label are a function of that record and the declaration alone; a record that breaks the
    declaration is a null record in its place. So a table is a zero-out neighbour of the table with any record in that place.
    Relation: zero-out. `rows`, the names and types of columns, and the ids (where `id` names a column) are public; no message
    says anything else of the file.
    """

    path: str  # relative to the file of the sweep, or absolute
    rows: int  # how many records the table has: a public number, broken ones counted
    label: str  # the column to predict
    classes: Any  # every word the label may have, in order, or their number
    columns: Any  # name -> {low, high}, list of categories, or ignored; columns that are not named are not read
    id: str | None = None  # a column of public row keys, which decide who is held out
    kind: ClassVar[str]

    def __post_init__(self) -> None:
        if not self.path or not self.path.isprintable():
            raise FieldError("path", self.path, "must be the path of a file")
        checks.whole(2, MOST_ROWS, rows=self.rows)
        object.__setattr__(self, "path", os.path.abspath(os.path.expanduser(self.path)))
        object.__setattr__(self, "classes", read_classes(self.classes))
        object.__setattr__(self, "columns", read_columns(self.columns))
        for field, name in (("label", self.label), ("id", self.id)):
            if any(column.name == name for column in self.columns):
                raise FieldError(f"columns.{name}", MISSING, f"is the {field}, which is no feature", "Drop it from columns.")
        if self.label == self.id:
            raise FieldError("id", self.id, "is the label, which is private")

    @property
    def description(self) -> Description:
        return Description(
            rows=self.rows,
            features=sum(column.width for column in self.columns),
            classes=len(self.classes),
            ids=self.id is not None,
            stated_by=USER,
            norm_bound=norm_bound(self.columns),
        )

    @property
    def budget_name(self) -> str:
        """What the ledger calls the table unless the sweep says: the file's name up to its first dot."""
        return budget_name(os.path.basename(self.path).split(".")[0])

    def to_dict(self) -> dict[str, Any]:
        """The fields as a sweep's file writes them, columns as a list, for their order is that of the features."""
        own = {"path": self.path, "rows": self.rows, "label": self.label, "classes": list(self.classes)}
        return {**own, "columns": columns_to_list(self.columns), **({} if self.id is None else {"id": self.id})}

    def present(self, cache: str) -> bool:
        return os.path.isfile(self.path)

    def fetch(self, cache: str) -> list[str]:
        if not self.present(cache):
            raise FieldError("data.source.path", self.path, "is no file", "A path is relative to the sweep's file, or absolute.")
        return [self.path]

    def digest(self, cache: str) -> str:
        from sweeper.data.table import digest

        try:
            return digest(*self.fetch(cache))
        except (OSError, EOFError, zlib.error) as error:
            raise self._unreadable(error) from None

    def load(self, cache: str) -> Table:
        raise NotImplementedError

    def row_ids(self, cache: str) -> tuple[str, ...]:
        """The public keys of all rows. Reads nothing else."""
        raise NotImplementedError

    @property
    def _used(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.width)

    def _table(self, cells: Mapping[str, Any], ids: tuple[str, ...] | None) -> Table:
        """A table from whole columns: arrays of numbers, or anything that lists its cells."""
        import numpy as np

        from sweeper.data.table import Table

        places = {word: place for place, word in enumerate(self.classes)}
        labels_n = np.array([places.get(text_of(cell), -1) for cell in cells[self.label]], dtype=np.int64)
        parts, valid_n = [], labels_n >= 0
        for column in self._used:
            features_nw, readable_n = _encode(column, cells[column.name])
            parts.append(features_nw)
            valid_n &= readable_n
        features_nd = np.ascontiguousarray(np.concatenate(parts, axis=1), dtype=np.float32)
        features_nd[~valid_n], labels_n[~valid_n] = 0, 0
        return Table(features=features_nd, labels=labels_n, valid=valid_n, ids=ids)

    def _check_rows(self, rows: int) -> None:
        """The length of the table is public, and stated wrongly if it is not the file's."""
        if rows != self.rows:
            raise RequestError(
                f"{self.path}: does not hold the {self.rows:,} rows that data.source.rows states; lines that are not records and "
                "records over several lines are usual reasons"
            )

    def _check_names(self, names: Sequence[str]) -> None:
        """Every column that is declared is in the file, once."""
        wanted = [("label", self.label), *((f"columns.{column.name}", column.name) for column in self._used)]
        for field, name in [*wanted, *([("id", self.id)] if self.id is not None else [])]:
            if names.count(name) != 1:
                found = "is in the file twice" if name in names else f"is not a column of the file{checks.suggestion(name, names)}"
                raise FieldError(f"data.source.{field}", name if field in ("label", "id") else MISSING, found)

    def _unreadable(self, error: BaseException) -> RequestError:
        reason = getattr(error, "strerror", None) or type(error).__name__
        return RequestError(f"{self.path}: cannot be read as {self.kind} ({reason}); is it the file that data.source.path means?")


def budget_name(text: str) -> str:
    """Any text as a name for the ledger."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in text).lstrip("-_.")[:100] or "table"


def _encode(column: Column, cells: Any) -> tuple[numpy.ndarray, numpy.ndarray]:
    """(features [n, width], bool [n]: whether the row can be read). Numbers at once, words and text one by one."""
    import numpy as np

    if isinstance(column, Numeric) and isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
        return column.encode_all(cells.reshape(len(cells), column.width).astype(np.float64))
    features_nw = np.zeros((len(cells), column.width), np.float32)
    readable_n = np.zeros(len(cells), np.bool_)
    for row, cell in enumerate(cells):
        try:
            features_nw[row] = column.encode(text_of(cell) if isinstance(column, Categorical) else cell)
        except Unreadable:
            continue
        readable_n[row] = True
    return features_nw, readable_n
