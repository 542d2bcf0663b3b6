"""The truncated negative binomial law of the number of runs: logarithmic and geometric laws are its cases eta 0 and 1."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy.laws_base import MassTable, RunCountLaw

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class TruncatedNegativeBinomial(RunCountLaw):
    """K >= 1 with P[K = k] proportional to (1-gamma)^k (eta)_k / k!, optionally conditioned on K <= max_trials.

    eta = 0 is the logarithmic law, eta = 1 the geometric one. `mean` is the mean before conditioning; gamma follows from it.
    Source: Papernot and Steinke 2022, Definition 1; the conditioning is ours (ALGORITHMS.md section 8).
    """

    eta: float
    mean: float
    max_trials: int | None = None

    def __post_init__(self) -> None:
        checks.real(0.0, 1000.0, eta=self.eta)
        checks.real(1.0, 1e6, open_low=True, mean_trials=self.mean)
        if self.max_trials is not None:
            checks.whole(1, 100_000, max_trials=self.max_trials)
        if -self.eta * math.log(self.gamma) > 700:
            raise FieldError(
                "eta", self.eta, f"with mean_trials {self.mean:g} gives a law too concentrated to compute", "Lower eta."
            )

    def to_dict(self) -> dict[str, Any]:
        return {"law": "tnb", "eta": float(self.eta), "mean": float(self.mean), "max_trials": self.max_trials}

    @cached_property
    def gamma(self) -> float:
        """The parameter in (0, 1) that gives the stated mean; found by bisection on log gamma."""
        low, high = -800.0, -1e-15  # log gamma: the mean falls from huge to 1 as gamma grows to 1
        for _ in range(200):
            middle = 0.5 * (low + high)
            if self._mean_at(middle) > self.mean:
                low = middle
            else:
                high = middle
        return math.exp(0.5 * (low + high))

    def _mean_at(self, log_gamma: float) -> float:
        odds = math.expm1(-log_gamma)  # (1 - gamma) / gamma
        if self.eta * -log_gamma < 1e-12:
            return odds / -log_gamma
        return self.eta * odds / -math.expm1(self.eta * log_gamma)

    @cached_property
    def first(self) -> float:
        """P[K = 1] before conditioning."""
        log_gamma = math.log(self.gamma)
        if self.eta * -log_gamma < 1e-12:
            return (1 - self.gamma) / -log_gamma
        return self.eta * (1 - self.gamma) / math.expm1(-self.eta * log_gamma)

    def masses(self) -> Iterator[float]:
        """P[K = 1], P[K = 2], ... before conditioning, without end."""
        mass, k = self.first, 1
        while True:
            yield mass
            mass *= (1 - self.gamma) * (k + self.eta) / (k + 1)
            k += 1

    @cached_property
    def table(self) -> MassTable:
        """The law after conditioning on K <= max_trials; only for a law with max_trials."""
        assert self.max_trials is not None
        masses = [mass for mass, _ in zip(self.masses(), range(self.max_trials), strict=False)]
        total = math.fsum(masses)
        return MassTable(masses=tuple(mass / total for mass in masses))

    def derivative(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        import numpy as np

        if self.max_trials is not None:
            return self.table.derivative(x)
        return np.asarray(self.first * (self.gamma + (1 - self.gamma) * (1.0 - x)) ** -(self.eta + 1))

    def curvature(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        import numpy as np

        if self.max_trials is not None:
            return self.table.curvature(x)
        factor = (self.eta + 1) * (1 - self.gamma) * self.first
        return np.asarray(factor * (self.gamma + (1 - self.gamma) * (1.0 - x)) ** -(self.eta + 2))

    def mean_trials(self) -> float:
        return self.mean if self.max_trials is None else self.table.mean_trials()

    def chance(self, fraction: float) -> float:
        if self.max_trials is not None:
            return self.table.chance(fraction)
        odds = 1 - (1 - self.gamma) * (1.0 - fraction)
        log_gamma = math.log(self.gamma)
        if self.eta * -log_gamma < 1e-12:
            return 1.0 - math.log(odds) / log_gamma
        return 1.0 - math.expm1(-self.eta * math.log(odds)) / math.expm1(-self.eta * log_gamma)

    def draw(self, uniforms: Iterator[float]) -> int:
        """The walk ends where the masses, past their peak, leave less than 1e-15; laws of large eta also begin with tiny ones."""
        uniform = next(uniforms)
        if self.max_trials is not None:
            return self.table.quantile(uniform)
        total, least = 0.0, 1e-18 * self.gamma
        for k, mass in enumerate(self.masses(), 1):
            total += mass
            if uniform < total or (total > 0.5 and mass < least):
                return k
        raise AssertionError("masses() has no end")
