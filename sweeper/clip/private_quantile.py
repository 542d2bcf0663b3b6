"""A clip norm read off private rows at a price: a quantile of the records' Lipschitz constants by the exponential mechanism."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar

from sweeper import checks, seeds
from sweeper.checks import FieldError
from sweeper.clip.base import check_norm
from sweeper.clip.fixed import FixedClip
from sweeper.clip.found import FoundClip, counts_at_most
from sweeper.privacy.events import REPLACE_ONE, ZERO_OUT, Event, ExponentialMechanism, PrivateQuantile, ReplaceOne
from sweeper.spec.protocols import Facts, Problem

if TYPE_CHECKING:
    from sweeper.seeds import BitSource, Streams

LEAST = "g-min"
LOW, HIGH = 1e-3, 1e3
_WHOLE = 2**1074  # every float64 is a whole number of its inverse


@dataclass(frozen=True, kw_only=True)
class PrivateQuantileClip(FoundClip):
    """Clip to a quantile of the records' Lipschitz constants, asked once by the exponential mechanism over a public grid.

    Guarantee: epsilon-bounded-range for the choice of the norm. Score of grid point g_j for quantile p of n records:
    u_j = -|(1 - p) #{G_i <= g_j} - p #{G_i > g_j}|, and Pr[j] is proportional to exp(epsilon u_j / (2 B)).
    Relation: one record moves each score by at most B = max(p, 1 - p) under zero-out and by 1 under replace-one.
    quantile g-min stands for the least constant, which cannot be found privately: it is the quantile that lies as many ranks up as
    the mechanism may err, p n = (2 / epsilon) ln(points / beta), n the public number of training rows. Das et al. 2023, Remark 5.6,
    recommend a norm of at most the least constant under interpolation. (Their report-noisy-max over the records' own constants is
    not private: what it names is a person's value.)
    Source: ALGORITHMS section 2; McSherry and Talwar 2007.
    """

    quantile: float | str
    epsilon: float = 0.3
    points: int = 64  # of the grid, even on the log scale
    low: float | None = None  # ends of the grid; None: the public bounds on the constants where there are any, else 1e-3 and 1e3
    high: float | None = None
    beta: float = 0.05  # chance to err by more than the stated rank error
    kind: ClassVar[str] = "private-quantile"
    searched: ClassVar[str] = "quantile"
    example: ClassVar[str] = "{policy: private-quantile, values: [g-min, 0.1, 0.5], epsilon: 0.3}"
    costs: ClassVar[Mapping[str, int]] = {"epsilon": 1}
    lipschitz: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.quantile, str):
            if self.quantile != LEAST:
                raise FieldError("quantile", self.quantile, f"must be a number above 0 and below 1, or {LEAST}", "Try 0.5.")
        else:
            checks.probability(quantile=self.quantile)
        checks.real(1e-6, 500.0, epsilon=self.epsilon)
        checks.whole(2, 10_000, points=self.points)
        low, high = self._ends
        check_norm(low=low, high=high)
        if low >= high:
            raise FieldError("low", low, f"must be below high = {high:g}")
        checks.probability(beta=self.beta)

    @property
    def grid(self) -> tuple[float, ...]:
        """The norms that may come out."""
        low, high = self._ends
        ratio = math.log(high / low) / (self.points - 1)
        return tuple(min(low * math.exp(ratio * j), high) for j in range(self.points))

    @property
    def _ends(self) -> tuple[float, float]:
        return (LOW if self.low is None else self.low), (HIGH if self.high is None else self.high)

    def within(self, least: float, largest: float | None) -> PrivateQuantileClip:
        """The policy with the ends that are not given at public bounds on the constants, so that no point is wasted.

        Where all records' constants lie between two points, all points err alike, and the choice says nothing.
        """
        low = least if self.low is None else self.low
        high = self.high if self.high is not None else HIGH if largest is None else largest * (1 + 1e-6)
        return self if low >= high else replace(self, low=low, high=high)

    def chance(self, rows: int) -> float:
        """p of `rows` records, the public number.

        Raises:
          FieldError: too few rows for g-min.
        """
        if not isinstance(self.quantile, str):
            return self.quantile
        ranks = 2 / self.epsilon * math.log(self.points / self.beta)
        if ranks >= rows:
            raise FieldError(
                "quantile",
                self.quantile,
                f"lies {ranks:.0f} ranks up at epsilon {self.epsilon:g}, and there are {rows:,} training rows",
                f"Raise epsilon above {2 * math.log(self.points / self.beta) / rows:.2g}, or use policy: fixed.",
            )
        return ranks / rows

    def bound(self, rows: int, relation: str) -> float:
        """B: the most that one record moves a score by."""
        p = self.chance(rows)
        return 1.0 if relation == REPLACE_ONE else max(p, 1.0 - p)

    def rank_error(self, rows: int, relation: str = ZERO_OUT) -> float:
        """How many ranks more than the best grid point the chosen one may miss the quantile by, but for a chance of `beta`."""
        return 2 * self.bound(rows, relation) / self.epsilon * math.log(self.points / self.beta)

    def asks(self, rows: int, relation: str) -> Event:
        """One choice with this epsilon. Under replace-one the price does not rest on the form of the ranks."""
        self.chance(rows)
        return ReplaceOne(ExponentialMechanism(self.epsilon)) if relation == REPLACE_ONE else PrivateQuantile(self.epsilon)

    def prepare(self, facts: Facts, problem: Problem, streams: Streams) -> FixedClip:
        """The grid point drawn. Scores and weights are float64; the draw from the weights is exact."""
        grid, p = self.within(*problem.lipschitz_range).grid, self.chance(facts.rows)
        *counts, total = counts_at_most(problem, (*grid, math.inf))
        scores = [-abs(below - p * total) for below in counts]  # (1 - p) below - p (total - below)
        rate, best = self.epsilon / (2 * self.bound(facts.rows, facts.relation)), max(scores)
        weights = [math.exp(rate * (score - best)) for score in scores]
        return FixedClip(clip_norm=grid[drawn(weights, streams.bits(seeds.PREPARE))])


def drawn(weights: Sequence[float], bits: BitSource) -> int:
    """A place with chance exactly proportional to its weight, weights at least 0 and finite: whole numbers, nothing rounded."""
    ends = list(accumulate(top * (_WHOLE // below) for top, below in map(float.as_integer_ratio, weights)))
    return bisect_right(ends, bits.randbelow(ends[-1]))
