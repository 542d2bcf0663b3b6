"""How candidates are found. A search sees the public space and public randomness, never a score."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from sweeper import checks
from sweeper.spec.space import Choices, Domain, Space

MOST_POINTS = 100_000
ADAPTIVE = ("tpe", "asha", "pbt", "hyperband", "bayesian", "optuna")  # they read scores while trials run; none is in this version


@dataclass(frozen=True, kw_only=True)
class RandomSearch:
    """Candidates drawn independently from the public law of the space, with replacement."""

    kind: ClassVar[str] = "random"
    example: ClassVar[str] = "{kind: random}"
    iid: ClassVar[bool] = True

    def trials(self, space: Space) -> int | None:
        return None

    def candidates(self, space: Space, count: int, uniforms: Iterator[float]) -> list[dict[str, Any]]:
        """`count` candidates."""
        return [space.draw(uniforms) for _ in range(count)]

    def values(self, domain: Domain) -> str:
        return str(domain)


@dataclass(frozen=True, kw_only=True)
class GridSearch:
    """Every point of a public grid once, in order: `points` evenly spaced values of a range, its ends included; all of a list."""

    points: int = 3
    kind: ClassVar[str] = "grid"
    example: ClassVar[str] = "{kind: grid, points: 3}"
    iid: ClassVar[bool] = False

    def __post_init__(self) -> None:
        checks.whole(2, 1_000, points=self.points)

    def trials(self, space: Space) -> int | None:
        """How many points the grid has; MOST_POINTS + 1 where there are more than that."""
        count = 1
        for _, domain in space.searched():
            count = min(count * len(self._axis(domain)), MOST_POINTS + 1)
        return count

    def candidates(self, space: Space, count: int, uniforms: Iterator[float]) -> list[dict[str, Any]]:
        """All points, the last setting moving fastest; `count` must be their number."""
        axes = [(name, self._axis(domain)) for name, domain in space.searched()]
        if count != self.trials(space):
            raise ValueError(f"a grid of {self.trials(space)} points cannot give {count}")
        names = [name for name, _ in axes]
        return [dict(zip(names, point, strict=True)) for point in itertools.product(*(values for _, values in axes))]

    def values(self, domain: Domain) -> str:
        return str(domain) if isinstance(domain, Choices) else f"{domain}, {self.points} points"

    def _axis(self, domain: Domain) -> tuple[Any, ...]:
        if isinstance(domain, Choices):
            return domain.values
        inner = [domain.at(i / (self.points - 1)) for i in range(1, self.points - 1)]
        return (float(domain.low), *inner, float(domain.high))


@dataclass(frozen=True, kw_only=True)
class AdaptiveSearch:
    """A search known by its name only, so that it can be refused with its price: see planning.refuse_search."""

    kind: str
    iid: ClassVar[bool] = False

    def trials(self, space: Space) -> int | None:
        return None

    def candidates(self, space: Space, count: int, uniforms: Iterator[float]) -> list[dict[str, Any]]:
        raise ValueError(f"search {self.kind} is not in this version")

    def values(self, domain: Domain) -> str:
        return str(domain)
