"""How a column of text becomes features in [0, 1], by constants declared in public. Nothing is ever computed from the rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweeper import checks
from sweeper.checks import FieldError

if TYPE_CHECKING:
    import numpy


class Unreadable(ValueError):
    """A cell that breaks its column's declaration: its row becomes a null record."""


@dataclass(frozen=True, kw_only=True)
class Numeric:
    """Numbers, clipped to the declared range and scaled to [0, 1]: (x - low) / (high - low), or the same of log(1 + x - low)."""

    name: str
    low: float
    high: float
    log: bool = False  # for amounts whose declared range spans orders of magnitude
    width: int = 1  # how many a record has
    scaled: bool = True  # False: clipped only, for features whose geometry matters, as of a frozen network

    def __post_init__(self) -> None:
        checks.real(low=self.low, high=self.high)
        checks.whole(1, 1_000_000, width=self.width)
        checks.flag(log=self.log, scaled=self.scaled)
        if not self.low < self.high:
            raise FieldError("low", self.low, f"must be below high = {self.high:g}")
        if not math.isfinite(self.high - self.low):
            raise FieldError("low", self.low, f"is too far below high = {self.high:g}")
        if self.log and not self.scaled:
            raise FieldError("log", True, "belongs to a scaled column", "Drop scaled: false.")

    @property
    def summary(self) -> str:
        what = "number" if self.width == 1 else f"{self.width} numbers, each"
        how = ", log scale" if self.log else "" if self.scaled else ", not scaled"
        return f"{what}{',' if self.width == 1 else ''} clipped to {self.low:g} .. {self.high:g}{how}"

    def encode(self, text: str | float) -> tuple[float, ...]:
        """One number, as text or as it is."""
        try:
            value = float(text)
        except (ValueError, TypeError):
            value = math.nan
        if not math.isfinite(value):
            raise Unreadable
        return (self._encoded(min(max(value, self.low), self.high), math.log1p),)

    def encode_all(self, values_nw: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
        """(features [n, width] float32, bool [n]: whether the row can be read), each row by itself."""
        import numpy as np

        readable_n = np.isfinite(values_nw).all(axis=1)
        clipped_nw = np.clip(np.where(readable_n[:, None], values_nw, self.low), self.low, self.high)
        return self._encoded(clipped_nw, np.log1p).astype(np.float32), readable_n

    def _encoded(self, clipped: Any, log1p: Callable[[Any], Any]) -> Any:
        if not self.scaled:
            return clipped
        above, span = clipped - self.low, self.high - self.low
        return log1p(above) / log1p(span) if self.log else above / span


@dataclass(frozen=True, kw_only=True)
class Categorical:
    """One of the declared words, as one indicator per word; of two words the second has the only indicator."""

    name: str
    categories: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.categories) < 2 or len(set(self.categories)) < len(self.categories):
            raise FieldError("categories", list(self.categories), "must be at least two different words")

    @property
    def width(self) -> int:
        return 1 if len(self.categories) == 2 else len(self.categories)

    @property
    def summary(self) -> str:
        return f"one of {len(self.categories)}: {', '.join(self.categories)}"

    def encode(self, text: str) -> tuple[float, ...]:
        try:
            place = self.categories.index(text)
        except ValueError:
            raise Unreadable from None
        if self.width == 1:
            return (float(place),)
        return tuple(float(place == other) for other in range(self.width))


@dataclass(frozen=True, kw_only=True)
class Ignored:
    """A column that is counted and never read."""

    name: str
    why: str

    @property
    def width(self) -> int:
        return 0

    @property
    def summary(self) -> str:
        return f"not used: {self.why}"

    def encode(self, text: str) -> tuple[float, ...]:
        return ()


@dataclass(frozen=True, kw_only=True)
class Block:
    """Like features that a file format gives ready."""

    name: str
    width: int
    summary: str


Column = Numeric | Categorical | Ignored


def norm_bound(columns: Iterable[Column]) -> float:
    """Largest ||[x, 1]|| that the declarations let a record have, whatever it holds."""
    squares = [1.0]
    for column in columns:
        if isinstance(column, Numeric):
            squares.append(column.width * (1.0 if column.scaled else max(column.low**2, column.high**2)))
        elif isinstance(column, Categorical):
            squares.append(1.0)  # one indicator at most
    return math.sqrt(math.fsum(squares))
