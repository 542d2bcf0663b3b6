"""Laws of the number of runs with a largest value of their own: binomial without its zero, and a number fixed beforehand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy.laws_base import MassTable, RunCountLaw, table_from_ratios

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST = 100_000


@dataclass(frozen=True, kw_only=True)
class BinomialAtLeastOne(RunCountLaw):
    """Each of `trials` runs is made with this probability, given that one is made at least and max_trials at most.

    f(x) = ((1 - p + p x)^N - (1 - p)^N) / (1 - (1 - p)^N) without max_trials, which is then N itself: equal laws are equal.
    Source: ALGORITHMS.md section 7; f is that of the binomial law without its constant term, over 1 - f(0).
    """

    trials: int
    probability: float
    max_trials: int | None = None

    def __post_init__(self) -> None:
        checks.whole(1, MOST, trials=self.trials)
        checks.real(0.0, 1.0, probability=self.probability)
        if not 1e-12 <= self.probability <= 1 - 1e-12:
            raise FieldError("probability", self.probability, "must be between 0 and 1", "Every run for sure is law fixed.")
        if self.max_trials is not None:
            checks.whole(1, MOST, max_trials=self.max_trials)
        object.__setattr__(self, "max_trials", min(self.trials, self.max_trials or MOST))

    def to_dict(self) -> dict[str, Any]:
        return {
            "law": "binomial",
            "trials": self.trials,
            "probability": float(self.probability),
            "max_trials": self.max_trials,
        }

    @property
    def whole(self) -> bool:
        """Not cut short by max_trials: the closed forms hold."""
        return self.max_trials == self.trials

    @property
    def any_run(self) -> float:
        """P[K >= 1] before conditioning."""
        return -math.expm1(self.trials * math.log1p(-self.probability))

    @cached_property
    def table(self) -> MassTable:
        """The law after conditioning."""
        assert self.max_trials is not None
        odds = self.probability / (1 - self.probability)
        peak = int((self.trials + 1) * self.probability)
        return table_from_ratios(lambda k: (self.trials - k) / (k + 1) * odds, peak, self.max_trials)

    def derivative(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        import numpy as np

        if not self.whole:
            return self.table.derivative(x)
        factor = self.trials * self.probability / self.any_run
        return np.asarray(factor * (1.0 - self.probability + self.probability * x) ** (self.trials - 1))

    def curvature(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        import numpy as np

        if not self.whole:
            return self.table.curvature(x)
        if self.trials == 1:
            return np.zeros_like(x)
        factor = self.trials * (self.trials - 1) * self.probability**2 / self.any_run
        return np.asarray(factor * (1.0 - self.probability + self.probability * x) ** (self.trials - 2))

    def mean_trials(self) -> float:
        return self.trials * self.probability / self.any_run if self.whole else self.table.mean_trials()

    def chance(self, fraction: float) -> float:
        if not self.whole:
            return self.table.chance(fraction)
        return -math.expm1(self.trials * math.log1p(-self.probability * fraction)) / self.any_run

    def draw(self, uniforms: Iterator[float]) -> int:
        return self.table.quantile(next(uniforms))


def binomial_of_mean(trials: int, mean: float, max_trials: int | None = None) -> BinomialAtLeastOne:
    """The binomial law, given K >= 1, with this mean before conditioning on K <= max_trials; p by bisection.

    Raises:
      FieldError: no p gives the mean: it must lie above 1 (which is reached as p falls to 0) and below `trials` (p = 1).
    """
    checks.whole(2, MOST, trials=trials)
    checks.real(1.0, open_low=True, mean_trials=mean)
    if mean >= trials:
        hint = "All of them for sure is law fixed."
        raise FieldError("mean_trials", mean, f"must be below trials = {trials} of law binomial", hint)
    low, high = math.log(1e-12), math.log(1 - 1e-12)
    for _ in range(100):
        middle = 0.5 * (low + high)
        p = math.exp(middle)
        if trials * p / -math.expm1(trials * math.log1p(-p)) > mean:
            high = middle
        else:
            low = middle
    return BinomialAtLeastOne(trials=trials, probability=math.exp(high), max_trials=max_trials)


@dataclass(frozen=True, kw_only=True)
class FixedCount(RunCountLaw):
    """K = trials, for sure: f(x) = x^trials. Dearer than a random K of the same mean, for h falls to 0 at s = 1."""

    trials: int

    def __post_init__(self) -> None:
        checks.whole(1, MOST, trials=self.trials)

    @property
    def max_trials(self) -> int:
        return self.trials

    def to_dict(self) -> dict[str, Any]:
        return {"law": "fixed", "trials": self.trials}

    def derivative(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        import numpy as np

        return np.asarray(self.trials * x ** (self.trials - 1))

    def curvature(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        import numpy as np

        return np.asarray(self.trials * (self.trials - 1) * x ** max(self.trials - 2, 0))

    def mean_trials(self) -> float:
        return float(self.trials)

    def chance(self, fraction: float) -> float:
        return 1.0 if fraction >= 1 else -math.expm1(self.trials * math.log1p(-fraction))

    def draw(self, uniforms: Iterator[float]) -> int:
        next(uniforms)  # one uniform, as every law takes
        return self.trials
