"""The Poisson law of the number of runs, which may make none: only for who accepts "no answer" as a result."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sweeper import checks
from sweeper.privacy.laws_base import MassTable, RunCountLaw, table_from_ratios

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class PoissonCount(RunCountLaw):
    """P[K = k] = e^-mean mean^k / k!, k = 0, 1, ..., optionally conditioned on K <= max_trials; `mean` before conditioning.

    f(x) = e^(mean (x - 1)). With K = 0 nothing is released, and that is seen: with probability e^-mean, whatever the data.
    `run_count_law` gives this law only to a caller that says may_be_empty.
    Source: Papernot and Steinke 2022, section 3.5; priced by `selection.select_best`.
    """

    mean: float
    max_trials: int | None = None

    def __post_init__(self) -> None:
        checks.real(0.0, 500.0, open_low=True, mean_trials=self.mean)
        if self.max_trials is not None:
            checks.whole(1, 100_000, max_trials=self.max_trials)

    def to_dict(self) -> dict[str, Any]:
        return {"law": "poisson", "mean": float(self.mean), "max_trials": self.max_trials}

    @cached_property
    def table(self) -> MassTable:
        """The law after conditioning on K <= max_trials; only for a law with max_trials."""
        assert self.max_trials is not None
        return table_from_ratios(lambda k: self.mean / (k + 1), int(self.mean), self.max_trials, empty=True)

    @property
    def nothing(self) -> float:
        return math.exp(-self.mean) if self.max_trials is None else self.table.nothing

    def derivative(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        import numpy as np

        return np.asarray(self.mean * np.exp(-self.mean * (1.0 - x))) if self.max_trials is None else self.table.derivative(x)

    def curvature(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        import numpy as np

        return np.asarray(self.mean**2 * np.exp(-self.mean * (1.0 - x))) if self.max_trials is None else self.table.curvature(x)

    def mean_trials(self) -> float:
        return self.mean if self.max_trials is None else self.table.mean_trials()

    def chance(self, fraction: float) -> float:
        return -math.expm1(-self.mean * fraction) if self.max_trials is None else self.table.chance(fraction)

    def draw(self, uniforms: Iterator[float]) -> int:
        """The walk ends where the masses, past their peak, leave less than 1e-15."""
        uniform = next(uniforms)
        if self.max_trials is not None:
            return self.table.quantile(uniform)
        k, mass = 0, math.exp(-self.mean)
        total = mass
        while uniform >= total and (total <= 0.5 or mass >= 1e-18):
            k += 1
            mass *= self.mean / k
            total += mass
        return k
