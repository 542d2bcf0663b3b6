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

import numpy as np

from sweeper.privacy.convolution import TAIL, self_convolved
from sweeper.privacy.convolution import Floats as Floats
from sweeper.privacy.convolution import convolved as convolved

REACH = 10.0  # standard deviations of a Gaussian that are kept: 1e-23 lies beyond
NUDGE = 2.0**-50  # times 4 + z^2: more than the relative error of scipy's normal tail at z, of the rounding of z included
Cells = tuple[float, Floats, float]
FARTHEST = 600.0  # nats, e^FARTHEST is the largest number used
WIDEST = 1 << 24  # cells: laws farther apart are not laid over each other as they are


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
        values = divergences(self.interval, self.mass, self.infinity)  # falling; the last is `infinity`
        above = self.losses >= self.losses[np.searchsorted(-values, -delta)]  # in the cell below them lies the root
        first = float(self.losses[above][0])
        scaled = float(np.sum(self.mass[above] * np.exp(first - self.losses[above])))
        excess = self.infinity + float(np.sum(self.mass[above])) - delta
        return max(0.0, first + math.log(excess / scaled)) if excess > 0 else max(0.0, first)

    def compose(self, other: LossPmf) -> LossPmf:
        """Both mechanisms on the same records."""
        assert self.interval == other.interval
        mass, error = convolved(self.mass, other.mass)
        infinity = self.infinity + other.infinity - self.infinity * other.infinity + error
        return normalised(self.interval, self.lowest + other.lowest, mass, infinity)

    def self_compose(self, count: int) -> LossPmf:
        """The mechanism `count` times on the same records."""
        first, mass, lost = self_convolved(self.mass, count)
        infinity = lost - math.expm1(count * math.log1p(-self.infinity)) if self.infinity < 1.0 else 1.0
        return normalised(self.interval, self.lowest * count + first, mass, infinity)

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
    if high == 0:  # all of it: no place in particular
        return LossPmf(interval=interval, lowest=0, mass=np.zeros(1), infinity=min(infinity, 1.0))
    kept = np.array(mass[low:high])
    kept[0] += float(np.sum(mass[:low]))
    return LossPmf(interval=interval, lowest=lowest + low, mass=kept, infinity=min(infinity, 1.0))


def trimmed(mass: Floats, surplus: float) -> Floats:
    """`mass` without its lowest `surplus`.

    A measure of mass above 1 whose profile bounds a mechanism's still bounds it after this: above the cut the profile is the
    same, below it a profile is convex in e^epsilon and 1 at zero, so the chord that remains lies above it.
    """
    before = np.cumsum(mass) - mass
    return np.asarray(np.clip(mass - np.maximum(surplus - before, 0.0), 0.0, None))


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
        if len(self.parts) == 1:
            return self
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
    if highest - lowest > WIDEST:  # not looked into: to keep both is safe
        return False
    return bool(np.all(_profile(big, lowest, highest) >= _profile(small, lowest, highest) * (1 - 1e-12)))


def _profile(pmf: LossPmf, lowest: int, highest: int) -> Floats:
    """delta at the grid losses lowest ... highest."""
    mass = np.zeros(highest - lowest + 1)
    start = pmf.lowest - lowest
    mass[start : start + len(pmf.mass)] = pmf.mass
    return divergences(pmf.interval, mass, pmf.infinity)


def divergences(interval: float, mass: Floats, infinity: float) -> Floats:
    """delta at the loss of every cell, as sums of positive terms only.

    delta(l_j) = infinity + sum over i > j of p_i (1 - e^(l_j - l_i)). With T_i the mass at l_i and above, the sum is
    (1 - e^-interval) times the sum over i > j of T_i e^(l_j - l_(i-1)); in blocks, so that no exponential leaves float64.
    """
    tail = np.append(np.cumsum(mass[::-1])[::-1][1:], 0.0)[::-1]  # from above: T_(j+1)
    block = max(1, int(FARTHEST / 2 / interval))
    sums, carried = np.empty(len(tail)), 0.0
    for start in range(0, len(tail), block):
        growth = np.exp(np.arange(1, len(tail[start : start + block]) + 1) * interval)
        part = (carried + np.cumsum(tail[start : start + block] * growth)) / growth
        sums[start : start + block] = part
        carried = float(part[-1])
    return np.asarray(infinity - math.expm1(-interval) * sums[::-1])


def point(interval: float) -> PrivacyLoss:
    """The loss of releasing nothing."""
    nothing = LossPmf(interval=interval, lowest=0, mass=np.ones(1), infinity=0.0)
    return PrivacyLoss(((nothing, nothing),))


def subsampled_gaussian(noise_multiplier: float, sampling_probability: float, interval: float) -> PrivacyLoss:
    """One Gaussian sum on a Poisson batch; sampling_probability 1 is the plain Gaussian.

    Guarantee: dominates q N(1, s^2) + (1 - q) N(0, s^2) against N(0, s^2), and the reverse (Zhu, Dong, Wang 2022, Theorem 11). The
    loss grows with the noisy sum x, so the x between two grid losses are one cell. Its exact P- and Q-mass go to these two losses,
    which is the chord of the profile between them (connect-the-dots; Doroshenko et al. 2022, Theorem 3.1).
    Rounding: P-tails are taken too large and Q-tails too small by more than the error of scipy's, so that the profile at every
    grid loss is too large; negative masses that are left are cut, which raises it again.
    Relation: zero-out. Units: nats.
    """
    if sampling_probability == 0:
        return point(interval)
    from scipy.special import ndtr

    s, q = noise_multiplier, sampling_probability
    ends = (math.floor(sampled_loss(x, s, q) / interval) for x in (-REACH * s, 1 + REACH * s))
    lowest, highest = next(ends), next(ends) + 1
    x = _noisy_sums(np.asarray(np.arange(lowest, highest + 1) * interval, dtype=np.float64), s, q)
    scores = np.stack([x / s, (x - 1) / s])
    near = ndtr(-np.abs(scores))
    below, above = np.where(scores < 0, near, 1 - near), np.where(scores < 0, 1 - near, near)
    nudge = NUDGE * (4.0 + np.minimum(scores * scores, 1e12))
    absent, present = np.array([1.0, 0.0]), np.array([1 - q, q])
    removing = _chords(interval, lowest, _tails(below, above, present, nudge), _tails(below, above, absent, -nudge))
    if q == 1:
        return PrivacyLoss(((removing, removing),))  # the pair is its own mirror image
    below, above, nudge = above[:, ::-1], below[:, ::-1], nudge[:, ::-1]
    adding = _chords(interval, -highest, _tails(below, above, absent, nudge), _tails(below, above, present, -nudge))
    return PrivacyLoss(((removing, adding),))


def sampled_loss(x: float, noise_multiplier: float, sampling_probability: float) -> float:
    """log(1 - q + q e^z), z the Gaussian's own loss at the noisy sum x."""
    z, q = (x - 0.5) / noise_multiplier**2, sampling_probability
    if q == 1:
        return z
    return math.log1p(q * math.expm1(z)) if z < FARTHEST else z + math.log(q)


def _noisy_sums(losses: Floats, s: float, q: float) -> Floats:
    """The noisy sum at which the loss is each of these; -inf below the least of them."""
    if q == 1:
        return np.asarray(0.5 + s * s * losses)
    small = np.minimum(losses, 30.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.log1p(np.expm1(small) / q)
    z = np.where(losses > 30.0, losses - math.log(q) + np.log1p(-(1 - q) * np.exp(-losses.clip(0.0))), z)
    return np.asarray(0.5 + s * s * np.where(np.isnan(z), -np.inf, z))


def _chords(interval: float, lowest: int, p: Cells, q: Cells) -> LossPmf:
    """The law of a pair from its P- and Q-masses between the losses lowest * interval, (lowest + 1) * interval, ...

    u + v = P-mass and u e^-g + v e^-(g + interval) = Q-mass of the cell between the losses g and g + interval. Where e^g would
    leave float64 all P-mass goes to the upper end: losses there only grow. So does what lies below the first loss.
    """
    (least, p_cells, most), (_, q_cells, _) = p, q
    losses = (lowest + np.arange(len(p_cells) + 1)) * interval
    up = (p_cells - q_cells * np.exp(np.minimum(losses[:-1], FARTHEST))) / -math.expm1(-interval)
    up = np.where(losses[1:] > FARTHEST, p_cells, up)
    mass = np.append(p_cells - up, 0.0)
    mass[1:] += up
    mass[0] += least
    mass = np.maximum(mass, 0.0)
    excess = float(np.sum(mass)) + most - 1.0
    if excess < 0:  # rounding of the sum; tails above the median are not too small, so what is missing lies below
        mass[min(int(np.searchsorted(np.cumsum(mass), 0.5)) + 1, len(mass) - 1)] -= excess
    return LossPmf(interval=interval, lowest=lowest, mass=trimmed(mass, max(excess, 0.0)), infinity=most)


def _tails(below: Floats, above: Floats, weights: Floats, nudge: Floats) -> Cells:
    """(below, cells, above): masses of a mixture of normals below its first score, between two, above the last.

    With a positive nudge every tail above a score is at least the true one, with a negative one at most. Differences are taken
    of the smaller tails.
    """
    below, above = (np.sum(weights[:, None] * tail, axis=0) for tail in (below * (1 - nudge), above * (1 + nudge)))
    high = above < 0.5
    cells = np.where(high[1:], 1 - below[:-1] - above[1:], np.diff(below))
    return float(below[0]), np.where(high[:-1], -np.diff(above), cells), float(above[-1])


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
