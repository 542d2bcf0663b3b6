"""Laws of K, the number of runs that select-best makes in secret. Each both draws K and gives the functions that price it.

With f the probability generating function of K, the price needs h(s) = f'(1 - s), which does not increase in s; the chance
that at least one of the K candidates lies in the best fraction p of the space is 1 - f(1 - p).
Pure Python; numpy only inside `slope`, so that a warm `plan` loads neither numpy nor scipy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sweeper import checks
from sweeper.checks import FieldError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class TruncatedNegativeBinomial:
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
        self._check_first()

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

    def _check_first(self) -> None:
        if -self.eta * math.log(self.gamma) > 700:
            raise FieldError(
                "eta", self.eta, f"with mean_trials {self.mean:g} gives a law too concentrated to compute", "Lower eta."
            )

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
    def table(self) -> tuple[float, ...]:
        """P[K = 1], ..., P[K = max_trials] after conditioning; only for a law with max_trials."""
        assert self.max_trials is not None
        masses = [mass for mass, _ in zip(self.masses(), range(self.max_trials), strict=False)]
        total = math.fsum(masses)
        return tuple(mass / total for mass in masses)

    def slope(self, s: NDArray[np.float64]) -> NDArray[np.float64]:
        """h(s) = f'(1 - s) for s in [0, 1], array to array of the same shape."""
        import numpy as np

        if self.max_trials is None:
            return np.asarray(self.first * (self.gamma + (1 - self.gamma) * s) ** -(self.eta + 1))
        x = 1.0 - s
        value = np.zeros_like(x)
        for k in range(self.max_trials, 0, -1):
            value = value * x + k * self.table[k - 1]
        return value

    def bend(self, s: NDArray[np.float64]) -> NDArray[np.float64]:
        """h'(s) = -f''(1 - s), never positive: h is convex and falls."""
        import numpy as np

        if self.max_trials is None:
            factor = -(self.eta + 1) * (1 - self.gamma) * self.first
            return np.asarray(factor * (self.gamma + (1 - self.gamma) * s) ** -(self.eta + 2))
        x = 1.0 - s
        value = np.zeros_like(x)
        for k in range(self.max_trials, 1, -1):
            value = value * x - k * (k - 1) * self.table[k - 1]
        return value

    def mean_trials(self) -> float:
        """E[K] after conditioning."""
        if self.max_trials is None:
            return self.mean
        return math.fsum(k * mass for k, mass in enumerate(self.table, 1))

    def chance(self, fraction: float) -> float:
        """The chance that at least one candidate lies in the best `fraction` of the space: 1 - f(1 - fraction)."""
        x = 1.0 - fraction
        if self.max_trials is not None:
            return 1.0 - math.fsum(mass * x**k for k, mass in enumerate(self.table, 1))
        odds = 1 - (1 - self.gamma) * x
        log_gamma = math.log(self.gamma)
        if self.eta * -log_gamma < 1e-12:
            return 1.0 - math.log(odds) / log_gamma
        return 1.0 - math.expm1(-self.eta * math.log(odds)) / math.expm1(-self.eta * log_gamma)

    def draw(self, uniforms: Iterator[float]) -> int:
        """K by inversion of one uniform in [0, 1). Its 53 bits and the rounding of the sum lose about 1e-15 of the tail.

        The walk ends where the masses, past their peak, leave less than that (a law of large eta also begins with tiny ones).
        """
        uniform, total = next(uniforms), 0.0
        masses = iter(self.table) if self.max_trials is not None else self.masses()
        k = 0
        for k, mass in enumerate(masses, 1):
            total += mass
            if uniform < total or (total > 0.5 and mass < 1e-18 * self.gamma):
                return k
        return k


RunCountLaw = TruncatedNegativeBinomial
LAWS = ("tnb", "logarithmic", "geometric")


def run_count_law(law: str, *, eta: float | None = None, mean: float, max_trials: int | None = None) -> RunCountLaw:
    """The law by its name: tnb (with eta), logarithmic (eta 0), geometric (eta 1).

    Raises:
      FieldError: unknown name, or an eta that contradicts the name.
    """
    checks.one_of(LAWS, law=law)
    implied = {"logarithmic": 0.0, "geometric": 1.0}.get(law)
    if implied is None and eta is None:
        raise FieldError("eta", checks.MISSING, "is missing: law tnb needs it", "Try eta: 1, the geometric law.")
    if implied is not None and eta is not None and eta != implied:
        raise FieldError("eta", eta, f"contradicts law {law}, whose eta is {implied:g}", "Use law: tnb, or leave eta out.")
    return TruncatedNegativeBinomial(eta=implied if implied is not None else float(eta or 0.0), mean=mean, max_trials=max_trials)


def law_from_dict(data: Mapping[str, Any]) -> RunCountLaw:
    """The law written by `to_dict`.

    Raises:
      FieldError: another law, an unknown or missing field, or a value that breaks a rule.
    """
    known = ("law", "eta", "mean", "max_trials")
    for key in (*known, *data):
        if key not in known or key not in data:
            raise FieldError(str(key), checks.MISSING, "is missing in a law" if key in known else "is not a field of a law")
    checks.one_of(("tnb",), law=data["law"])
    return TruncatedNegativeBinomial(eta=data["eta"], mean=data["mean"], max_trials=data["max_trials"])
