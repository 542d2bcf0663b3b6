"""Privacy losses as numbers: discretised dominating pairs, always rounded to the unsafe side's disadvantage.

A LossPmf is one direction of one pair (P, Q): the law under P of the loss log dP/dQ on a grid, with the mass at infinity. It
dominates the mechanism: its profile delta(epsilon) is never below the true one, at every real epsilon. A PrivacyLoss holds, for
each part of the table that a record may lie in, both directions (record present against absent, and the reverse).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from numpy.typing import NDArray

Floats = NDArray[np.float64]
TAIL = 1e-15  # mass that one composition may move to infinity to keep arrays short
DIRECT = 200_000_000  # products up to which a convolution is summed directly
DUST = 1e-150  # masses below it are dropped before a direct sum: products below 1e-308 take a hundred times as long


@dataclass(frozen=True, kw_only=True)
class LossPmf:
    """Loss law of one direction: mass[i] at (lowest + i) * interval nats, `infinity` at +infinity."""

    interval: float
    lowest: int
    mass: Floats
    infinity: float

    @cached_property
    def losses(self) -> Floats:
        return np.asarray((self.lowest + np.arange(len(self.mass))) * self.interval, dtype=np.float64)

    def delta(self, epsilon: float) -> float:
        """Hockey-stick divergence at epsilon, any real number."""
        above = self.losses > epsilon
        return float(self.infinity + np.sum(self.mass[above] * -np.expm1(epsilon - self.losses[above])))

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon >= 0 whose divergence is at most delta; inf when there is none."""
        if self.infinity > delta:
            return math.inf
        if self.delta(0.0) <= delta:
            return 0.0
        if self.losses[0] > 0 and self.delta(float(self.losses[0])) <= delta:  # the root lies below all losses
            first = float(self.losses[0])
            scaled = float(np.sum(self.mass * np.exp(first - self.losses)))
            return max(0.0, first + math.log((self.infinity + float(np.sum(self.mass)) - delta) / scaled))
        low, high = 0, len(self.mass) - 1  # bisection over grid losses, then the exact root inside one cell
        while high - low > 1:
            middle = (low + high) // 2
            if self.losses[middle] <= 0 or self.delta(float(self.losses[middle])) > delta:
                low = middle
            else:
                high = middle
        above = slice(low + 1, None)
        mass = float(self.infinity + np.sum(self.mass[above]))
        scaled = float(np.sum(self.mass[above] * np.exp(self.losses[low] - self.losses[above])))
        root = (
            float(self.losses[low]) + math.log((mass - delta) / scaled) if mass > delta and scaled > 0 else float(self.losses[low])
        )
        return max(0.0, root)

    def compose(self, other: LossPmf) -> LossPmf:
        """Both mechanisms on the same records."""
        assert self.interval == other.interval
        mass, error = convolved(self.mass, other.mass)
        infinity = self.infinity + other.infinity - self.infinity * other.infinity + error
        return normalised(self.interval, self.lowest + other.lowest, mass, infinity)

    def self_compose(self, count: int) -> LossPmf:
        if len(self.mass) == 1 and self.infinity == 0.0:
            return LossPmf(interval=self.interval, lowest=self.lowest * count, mass=self.mass, infinity=0.0)  # one loss, for sure
        dense = pld_pmf.DensePLDPmf(self.interval, self.lowest, self.mass, self.infinity, True)
        return from_dense(dense.self_compose(count, TAIL), slack=True)

    def renyi(self, order: float, cut: float) -> tuple[float, float]:
        """(rho, delta0): the pair is delta0-approximately (order, rho)-Renyi, delta0 at most `cut` above the infinite mass.

        The highest losses, of mass at most `cut`, are counted in delta0: the tail of a discretised law is numerical noise.
        """
        tail = np.cumsum(self.mass[::-1])[::-1]
        keep = tail > cut
        dropped = float(np.sum(self.mass[~keep]))
        powers = np.log(np.maximum(self.mass[keep], 1e-320)) + (order - 1) * self.losses[keep]
        top = float(powers.max())
        rho = (top + math.log(float(np.sum(np.exp(powers - top))))) / (order - 1)
        return max(rho, 0.0), self.infinity + dropped


def convolved(a: Floats, b: Floats) -> tuple[Floats, float]:
    """(mass, error): the convolution of two measures, and a mass to move to infinity for what rounding may have taken away.

    Directly while that is quick: sums of products are off by parts in 1e13 of every cell. By FFT otherwise: its noise is spread
    over all cells, and once the negative half of it is cut the total shows how much there is.
    """
    if len(a) * len(b) <= DIRECT:
        dropped = float(np.sum(a[a < DUST]) * np.sum(b) + np.sum(b[b < DUST]) * np.sum(a))  # exactly 0 where there is none
        return np.convolve(np.where(a < DUST, 0.0, a), np.where(b < DUST, 0.0, b)), dropped
    from scipy.signal import fftconvolve

    mass = np.maximum(fftconvolve(a, b), 0.0)
    return mass, abs(float(np.sum(mass)) - float(np.sum(a)) * float(np.sum(b)))


def normalised(interval: float, lowest: int, mass: Floats, infinity: float) -> LossPmf:
    """A LossPmf of total mass 1: numerical short-fall goes to infinity, surplus stays off the lowest losses."""
    total = float(np.sum(mass)) + infinity
    if total < 1.0:
        infinity += 1.0 - total
    elif total > 1.0:
        mass = trimmed(mass, total - 1.0)
    tail = np.cumsum(mass[::-1])[::-1]
    high = int(np.count_nonzero(tail > TAIL / 2))  # the tail beyond moves to infinity
    low = int(np.count_nonzero(np.cumsum(mass) <= TAIL / 2))  # the tail below moves up to the first loss kept
    low = min(low, max(high - 1, 0))
    infinity += float(np.sum(mass[high:]))
    kept = np.array(mass[low:high] if high > low else [0.0])
    kept[0] += float(np.sum(mass[:low]))
    return LossPmf(interval=interval, lowest=lowest + low, mass=kept, infinity=min(infinity, 1.0))


def trimmed(mass: Floats, surplus: float) -> Floats:
    """`mass` without its lowest `surplus`.

    A measure of mass above 1 whose profile bounds a mechanism's still bounds it after this: above the cut the profile is the
    same, below it a profile is convex in e^epsilon and 1 at zero, so the chord that remains lies above it.
    """
    before = np.cumsum(mass) - mass
    return np.asarray(np.clip(mass - np.maximum(surplus - before, 0.0), 0.0, None))


def from_dense(pmf: Any, slack: bool = False) -> LossPmf:
    """Our record of dp_accounting's pmf. With `slack` a convolution's own error, its total's distance from 1, goes to infinity."""
    dense = pmf.to_dense_pmf()
    mass = np.maximum(np.asarray(dense._probs, dtype=np.float64), 0.0)
    infinity = float(dense._infinity_mass)
    if slack:
        infinity += abs(float(np.sum(mass)) + infinity - 1.0)
    return normalised(float(dense._discretization), int(dense._lower_loss), mass, infinity)


@dataclass(frozen=True)
class PrivacyLoss:
    """Losses of a whole mechanism: one (removing, adding) pair for each part of the table a record may lie in.

    Relation: zero-out. Units: nats. `removing` is record present against absent, `adding` the reverse.
    """

    parts: tuple[tuple[LossPmf, LossPmf], ...]

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon of the guarantee (epsilon, delta), over both directions and all parts."""
        return max((pmf.epsilon(delta) for part in self.parts for pmf in part), default=0.0)

    def delta(self, epsilon: float) -> float:
        return max((pmf.delta(epsilon) for part in self.parts for pmf in part), default=0.0)

    def map(self, change: Callable[[LossPmf], LossPmf]) -> PrivacyLoss:
        return PrivacyLoss(tuple((change(removing), change(adding)) for removing, adding in self.parts)).pruned()

    def self_compose(self, count: int) -> PrivacyLoss:
        """`count` runs with the same parts: a record stays in its part."""
        return self.map(lambda pmf: pmf.self_compose(count))

    def compose(self, other: PrivacyLoss) -> PrivacyLoss:
        """Both; a record may lie in any part of the one and any part of the other, so every pair of parts is kept."""
        return PrivacyLoss(tuple((a.compose(c), b.compose(d)) for a, b in self.parts for c, d in other.parts)).pruned()

    def union(self, other: PrivacyLoss) -> PrivacyLoss:
        """Disjoint parts: a record lies in a part of the one or a part of the other."""
        return PrivacyLoss(self.parts + other.parts).pruned()

    def pruned(self) -> PrivacyLoss:
        """Without parts that another part dominates in both directions at every epsilon of the grid and at every negative one."""
        kept: list[tuple[LossPmf, LossPmf]] = []
        for candidate in sorted(self.parts, key=lambda part: -part[0].delta(0.0)):
            if not any(all(dominates(big, small) for big, small in zip(other, candidate, strict=True)) for other in kept):
                kept.append(candidate)
        return PrivacyLoss(tuple(kept))


def dominates(big: LossPmf, small: LossPmf) -> bool:
    """Whether the profile of `big` is at least that of `small` at every real epsilon.

    Profiles of discrete laws are piecewise linear in e^epsilon with corners at their own losses, so that a convex one that is
    above at all corners of both is above everywhere.
    """
    lowest = min(big.lowest, small.lowest)
    highest = max(big.lowest + len(big.mass), small.lowest + len(small.mass))
    return bool(np.all(_profile(big, lowest, highest) >= _profile(small, lowest, highest) * (1 - 1e-12)))


def _profile(pmf: LossPmf, lowest: int, highest: int) -> Floats:
    """delta at the grid points lowest ... highest, by a recursion from the top that never leaves [0, 1]."""
    mass = np.zeros(highest - lowest + 1)
    start = pmf.lowest - lowest
    mass[start : start + len(pmf.mass)] = pmf.mass
    tail = np.cumsum(mass[::-1])[::-1]
    # delta(l_j) = infinity + sum_{i > j} p_i (1 - e^(l_j - l_i)); the discounted sum is a first-order recursion from above
    from scipy.signal import lfilter

    shrink = math.exp(-pmf.interval)
    discounted = lfilter([1.0], [1.0, -shrink], mass[::-1])[::-1]
    return np.asarray(pmf.infinity + np.maximum(tail - discounted, 0.0))


def point(interval: float) -> PrivacyLoss:
    """The loss of releasing nothing."""
    nothing = LossPmf(interval=interval, lowest=0, mass=np.ones(1), infinity=0.0)
    return PrivacyLoss(((nothing, nothing),))


def subsampled_gaussian(noise_multiplier: float, sampling_probability: float, interval: float) -> PrivacyLoss:
    """One Gaussian sum on a Poisson batch; sampling_probability 1 is the plain Gaussian."""
    pld = privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier, sampling_prob=sampling_probability, value_discretization_interval=interval, use_connect_dots=True
    )
    return _both(pld)


def discrete_laplace(epsilon: float, interval: float) -> PrivacyLoss:
    """Two-sided geometric noise on a count: a two-point loss, +-epsilon, split over the neighbouring grid points."""
    high = 1.0 / (1.0 + math.exp(-epsilon))  # mass of +epsilon under P: all outcomes on the record's side
    pmf = from_points(interval, np.array([-epsilon, epsilon]), np.array([1.0 - high, high]), 0.0)
    return PrivacyLoss(((pmf, pmf),))


def from_points(interval: float, losses: Floats, mass: Floats, infinity: float) -> LossPmf:
    """Masses at arbitrary losses moved to the grid: each splits over its two neighbours with its P- and Q-mass kept.

    The profile is convex in e^epsilon, so this lies above it (connect-the-dots; Doroshenko et al. 2022, Theorem 3.1).
    """
    below = np.floor(losses / interval).astype(np.int64)
    offset = losses - below * interval
    up = -np.expm1(-offset) / -math.expm1(-interval)
    lowest = int(below.min())
    grid = np.zeros(int(below.max()) - lowest + 2)
    np.add.at(grid, below - lowest, mass * (1.0 - up))
    np.add.at(grid, below - lowest + 1, mass * up)
    return LossPmf(interval=interval, lowest=lowest, mass=grid, infinity=infinity)


def _both(pld: Any) -> PrivacyLoss:
    removing = from_dense(pld._pmf_remove)
    adding = removing if pld._symmetric else from_dense(pld._pmf_add)
    return PrivacyLoss(((removing, adding),))
