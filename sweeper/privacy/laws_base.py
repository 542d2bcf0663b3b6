"""What every law of the number of runs K can do: draw K, and give the functions that price it.

With f(x) = E[x^K], the price of the best of K runs needs h(s) = f'(1 - s), which falls in s and is convex, and E[K] = f'(1); the
chance that at least one of the K candidates lies in the best fraction p of the space is 1 - f(1 - p).
Pure Python; numpy only inside what takes arrays, so that a warm `plan` loads neither numpy nor scipy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class RunCountLaw(ABC):
    """A law of K that depends on no data. Implementations are frozen and equal when they are the same law."""

    @property
    @abstractmethod
    def max_trials(self) -> int | None:
        """No draw is larger; None where there is no such number."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain JSON with a `law` tag; `laws.law_from_dict` reads it. Prices in caches and ledgers are keyed by it."""

    @abstractmethod
    def derivative(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """f'(x) for x in [0, 1], array to array of the same shape."""

    @abstractmethod
    def curvature(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """f''(x) for x in [0, 1]."""

    @abstractmethod
    def mean_trials(self) -> float:
        """E[K], after all conditioning."""

    @abstractmethod
    def chance(self, fraction: float) -> float:
        """The chance that at least one candidate lies in the best `fraction` of the space: 1 - f(1 - fraction)."""

    @abstractmethod
    def draw(self, uniforms: Iterator[float]) -> int:
        """K by inversion of one uniform in [0, 1), which loses about 1e-15 of the tail (53 bits, and the rounding of sums)."""

    @property
    def nothing(self) -> float:
        """P[K = 0]: no run is made and no winner is released."""
        return 0.0

    def slope(self, s: NDArray[np.float64]) -> NDArray[np.float64]:
        """h(s) = f'(1 - s). Near s = 1 the digits of h are those of 1 - s: use `derivative` where that is known."""
        return self.derivative(1.0 - s)

    def bend(self, s: NDArray[np.float64]) -> NDArray[np.float64]:
        """h'(s) = -f''(1 - s), never positive."""
        return -self.curvature(1.0 - s)


@dataclass(frozen=True, kw_only=True)
class MassTable:
    """A law of finite support by its masses, after conditioning: masses[j] = P[K = j + 1], and P[K = 0]."""

    masses: tuple[float, ...]
    nothing: float = 0.0

    def derivative(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return power_series([k * mass for k, mass in enumerate(self.masses, 1)], x)

    def curvature(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return power_series([k * (k - 1) * mass for k, mass in enumerate(self.masses, 1)][1:] or [0.0], x)

    def mean_trials(self) -> float:
        return math.fsum(k * mass for k, mass in enumerate(self.masses, 1))

    def chance(self, fraction: float) -> float:
        return 1.0 - self.nothing - math.fsum(mass * (1.0 - fraction) ** k for k, mass in enumerate(self.masses, 1))

    @cached_property
    def _cumulated(self) -> list[float]:
        return list(accumulate((self.nothing, *self.masses)))

    def quantile(self, uniform: float) -> int:
        """The smallest k with P[K <= k] > uniform; the largest k where rounding leaves none."""
        return min(bisect_right(self._cumulated, uniform), len(self.masses))


def table_from_ratios(ratio: Callable[[int], float], peak: int, last: int, *, empty: bool = False) -> MassTable:
    """The law on 1 ... last (0 ... last if `empty`) with P[K = k + 1] = ratio(k) P[K = k], summed up from its peak.

    Starting at the peak, tails run out to 0 where they are below what a float holds; no mass starts at 0.
    """
    peak = min(max(peak, 1), last)
    up, down = [1.0], []
    for k in range(peak, last):
        up.append(up[-1] * ratio(k))
    mass = 1.0
    for k in range(peak - 1, -1 if empty else 0, -1):
        mass /= ratio(k)
        down.append(mass)
    masses = down[::-1] + up
    total = math.fsum(masses)
    masses = [mass / total for mass in masses]
    return MassTable(masses=tuple(masses[1:]), nothing=masses[0]) if empty else MassTable(masses=tuple(masses))


def power_series(coefficients: list[float], x: NDArray[np.float64]) -> NDArray[np.float64]:
    """sum_j coefficients[j] x^j by Horner's rule, in place.

    Coefficients and x are never negative, so the relative error is at most 2 n times 1.1e-16 for n coefficients.
    """
    import numpy as np

    value = np.zeros(x.shape, dtype=np.float64)
    for coefficient in reversed(coefficients):
        value *= x
        value += coefficient
    return value
