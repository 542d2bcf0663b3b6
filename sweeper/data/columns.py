"""How a column of text becomes features in [0, 1], by constants declared in public. Nothing is ever computed from the rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from sweeper.checks import FieldError


class Unreadable(ValueError):
    """A cell that breaks its column's declaration: its row becomes a null record."""


@dataclass(frozen=True, kw_only=True)
class Numeric:
    """A number, clipped to the declared range and scaled to [0, 1]: (x - low) / (high - low), or the same of log(1 + x - low)."""

    name: str
    low: float
    high: float
    log: bool = False  # for amounts whose declared range spans orders of magnitude
    width: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise FieldError("low", self.low, f"must be below high = {self.high:g}")

    @property
    def summary(self) -> str:
        return f"number, clipped to {self.low:g} .. {self.high:g}{', log scale' if self.log else ''}"

    def encode(self, text: str) -> tuple[float, ...]:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise Unreadable
        above, span = min(max(value, self.low), self.high) - self.low, self.high - self.low
        return (math.log1p(above) / math.log1p(span) if self.log else above / span,)


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
