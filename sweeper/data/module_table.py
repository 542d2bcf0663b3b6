"""A table that a function of the user's own returns."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from sweeper import checks
from sweeper.checks import FieldError, RequestError
from sweeper.data.fetch import notice
from sweeper.data.user_file import MOST_ROWS, budget_name
from sweeper.spec.protocols import USER, Description

if TYPE_CHECKING:
    from sweeper.data.table import Table

MOST_FEATURES = 10_000_000
_RETURNS = "must return (features [n, d], labels [n]) as numpy arrays"
_last: list[tuple[weakref.ref[ModuleTable], Table]] = []  # of this process: one at most, for a table may fill the memory


@dataclass(frozen=True, kw_only=True)
class ModuleTable:
    """A function of your own that returns features and labels as numpy arrays; what is public of them is stated here.

    Guarantee: the user's, in two points: a row of features may depend on that record and on public constants alone, never on other
    records (no mean, no vocabulary, no dropped or reordered rows); and every call must return the same table. Here: a row with a
    number that is not finite, or a label that is no whole number from 0 to classes - 1, is a null record in its place. A process
    calls the function once for a sweep, so that the ledger binds the very table that trials see.
    Relation: zero-out. `rows`, `features`, `classes` and the ids are public; no message says anything else of the arrays.
    """

    module: str  # package.module:function
    rows: int  # how many records the function returns: a public number, broken ones counted
    features: int
    classes: int
    args: dict[str, Any] = field(default_factory=dict, hash=False)  # given to the function, by name
    ids: bool = False  # the function returns public row keys as a third array, which decide who is held out
    kind: ClassVar[str] = "module"
    example: ClassVar[str] = "{source: {module: 'my_package.data:load', rows: 50000, features: 20, classes: 2}, holdout: 0.2}"

    def __post_init__(self) -> None:
        place, colon, function = self.module.partition(":")
        if not colon or not function.isidentifier() or not all(part.isidentifier() for part in place.split(".")):
            raise FieldError("module", self.module, "must be package.module:function")
        checks.whole(2, MOST_ROWS, rows=self.rows)
        checks.whole(1, MOST_FEATURES, features=self.features)
        checks.whole(2, MOST_FEATURES, classes=self.classes)
        checks.flag(ids=self.ids)
        if not isinstance(self.args, dict) or not all(isinstance(key, str) and key.isidentifier() for key in self.args):
            raise FieldError("args", self.args, "must be a mapping from names of parameters to values")

    @property
    def description(self) -> Description:
        return Description(rows=self.rows, features=self.features, classes=self.classes, ids=self.ids, stated_by=USER)

    @property
    def budget_name(self) -> str:
        return budget_name(self.module)

    def to_dict(self) -> dict[str, Any]:
        own = {"module": self.module, "rows": self.rows, "features": self.features, "classes": self.classes}
        return {**own, **({"args": self.args} if self.args else {}), **({"ids": True} if self.ids else {})}

    def present(self, cache: str) -> bool:
        return True

    def fetch(self, cache: str) -> list[str]:
        return []

    def digest(self, cache: str) -> str:
        """SHA-256 of what the function returns: its arrays are the table, whatever files it reads."""
        import hashlib

        table = self.load(cache)
        content = hashlib.sha256(f"{table.features.shape} {self.classes}".encode())
        for array in (table.features, table.labels, table.valid):
            content.update(array.data)
        content.update("\0".join(table.ids or ()).encode("utf-8", "surrogatepass"))
        return content.hexdigest()

    def row_ids(self, cache: str) -> tuple[str, ...]:
        """The public keys of all rows."""
        return self.load(cache).ids or ()

    def load(self, cache: str) -> Table:
        """What the function returns as a table; it is called once for each instance of this class."""
        if not _last or _last[0][0]() is not self:
            _last[:] = [(weakref.ref(self, lambda _: _last.clear()), self._read())]
        return _last[0][1]

    def _read(self) -> Table:
        import numpy as np

        from sweeper.data.table import Table

        features_nd, labels_n, ids = self._arrays()
        with np.errstate(over="ignore", invalid="ignore"):
            features_nd = np.array(features_nd, dtype=np.float32, order="C")
            numbers_n = np.asarray(labels_n).astype(np.float64)
        valid_n = np.isfinite(features_nd).all(axis=1) & (numbers_n >= 0) & (numbers_n < self.classes)
        valid_n &= numbers_n == np.floor(numbers_n)
        features_nd[~valid_n] = 0
        return Table(features=features_nd, labels=np.where(valid_n, numbers_n, 0).astype(np.int64), valid=valid_n, ids=ids)

    def _arrays(self) -> tuple[Any, Any, tuple[str, ...] | None]:
        """What the function returned, its types and shapes checked (they are public)."""
        import numpy as np

        from sweeper.data.declared import text_of

        found = self._call()
        wanted = _RETURNS.replace("labels [n])", "labels [n], ids [n])") if self.ids else _RETURNS
        if not isinstance(found, tuple) or len(found) != 2 + self.ids:
            more = "; with a third array of row keys, say ids: true" if isinstance(found, tuple) and len(found) == 3 else ""
            raise RequestError(f"{self.module} {wanted}{more}")
        try:
            arrays = [np.asarray(array) for array in found]
        except Exception:  # rows of different lengths, say; the words may quote them
            raise RequestError(f"{self.module} {wanted}") from None
        if any(array.dtype.kind not in "biuf" for array in arrays[:2]) or [a.ndim for a in arrays] != [2, 1, 1][: len(arrays)]:
            raise RequestError(f"{self.module} {wanted}, features and labels as numbers")
        if any(len(array) != self.rows for array in arrays):
            raise RequestError(f"{self.module} does not return the {self.rows:,} rows that data.source.rows states")
        if arrays[0].shape[1] != self.features:
            raise FieldError("data.source.features", self.features, f"is not what {self.module} returns, {arrays[0].shape[1]:,}")
        ids = tuple(text_of(key) for key in arrays[2].tolist()) if self.ids else None
        if ids is not None and not all(ids):
            raise RequestError(f"{self.module} returns a row without an id; ids are public, and every row needs one")
        return arrays[0], arrays[1], ids

    def _call(self) -> Any:
        """The function is found on Python's path and in the current folder. What it raises may quote rows, so it stays unsaid."""
        place, _, name = self.module.partition(":")
        with _in_this_folder(), notice(f"calling {self.module} ..."):
            try:
                function = getattr(importlib.import_module(place), name)
            except (Exception, SystemExit) as error:
                hint = "Install its package, run from the folder that holds it, or set PYTHONPATH."
                raise FieldError("data.source.module", self.module, f"cannot be imported ({_cause(error, place)})", hint) from None
            try:
                return function(**self.args)
            except (Exception, SystemExit) as error:
                rule = f"raised {type(error).__name__}, whose words may quote rows and are not shown; call it in Python to see them"
                raise RequestError(f"{self.module} {rule}") from None


@contextlib.contextmanager
def _in_this_folder() -> Iterator[None]:
    """Modules of the current folder can be imported, and what the user's code prints stays out of the results."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        with contextlib.suppress(ValueError):  # the user's code may have taken it off the path
            sys.path.remove(here)


def _cause(error: BaseException, place: str) -> str:
    """The kind of error, and the module that is missing where it is another than the one that was asked for."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return type(error).__name__ + (f": no {missing}" if missing and not f"{place}.".startswith(f"{missing}.") else "")
