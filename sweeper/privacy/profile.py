"""LossPmf from masses between grid points, or from values of a profile; and one pair that stands for several parts."""

from __future__ import annotations

import math

import numpy as np

from sweeper.privacy.loss import Floats, LossPmf, PrivacyLoss, normalised


def from_cells(interval: float, edges: Floats, p: Floats, q: Floats) -> LossPmf:
    """A LossPmf from masses between consecutive `edges`, p under P and q under Q; no two edges may straddle a grid point.

    The mass between two grid points goes to these two with its P- and Q-mass kept, which is the chord of the profile between
    them (connect-the-dots; Doroshenko et al. 2022, Theorem 3.1). No second difference of the profile is taken: what rounding
    does is 1e-16 / interval of a cell's own mass.
    """
    below = np.floor(0.5 * (edges[1:] + edges[:-1]) / interval).astype(np.int64)
    # u + v = p and u e^-g + v e^-(g + interval) = q at the grid losses g, g + interval
    up = np.clip((p - q * np.exp(below * interval)) / -math.expm1(-interval), 0.0, p)
    lowest = int(below[0])
    mass = np.zeros(int(below[-1]) - lowest + 2)
    np.add.at(mass, below - lowest, p - up)
    np.add.at(mass, below - lowest + 1, up)
    return LossPmf(interval=interval, lowest=lowest, mass=mass, infinity=0.0)


def from_profile(interval: float, lowest: int, deltas: Floats) -> LossPmf:
    """A LossPmf whose profile is the chords (in e^epsilon) of `deltas`, values at the losses (lowest + i) * interval.

    `deltas` falls and is convex in e^epsilon, and is 1 at e^epsilon = 0. Its last value goes to infinity. Masses are second
    differences: if values are right to 1e-16 of themselves, masses are to 1e-16 / interval of the tail. Where that is not
    enough, build from masses (`from_cells`). Negative ones are cut, which raises the profile.
    """
    x = np.exp((lowest + np.arange(len(deltas))) * interval)
    slopes = np.concatenate([[(1.0 - deltas[0]) / x[0]], -np.diff(deltas) / np.diff(x), [0.0]])  # Q-mass of the losses above
    mass = np.maximum(x * -np.diff(slopes), 0.0)
    return normalised(interval, lowest, mass, float(deltas[-1]))


def added(a: LossPmf, b: LossPmf) -> LossPmf:
    """The two measures, of total mass 1, as one law."""
    assert a.interval == b.interval
    lowest = min(a.lowest, b.lowest)
    mass = np.zeros(max(a.lowest + len(a.mass), b.lowest + len(b.mass)) - lowest)
    for pmf in (a, b):
        mass[pmf.lowest - lowest : pmf.lowest - lowest + len(pmf.mass)] += pmf.mass
    return normalised(a.interval, lowest, mass, a.infinity + b.infinity)


def fused(loss: PrivacyLoss) -> PrivacyLoss:
    """One part that dominates every part of `loss`: its profile is the largest of theirs, at every grid loss, in each direction.

    For what must not be priced part by part: a mechanism whose part depends on more than the record's place (a candidate's
    setting), inside select-best. Never smaller than `loss`, and equal to it in epsilon at every delta.
    """
    directions = [_largest([part[side] for part in loss.parts]) for side in (0, 1)]
    return PrivacyLoss(((directions[0], directions[1]),))


def _largest(laws: list[LossPmf]) -> LossPmf:
    """The largest of several profiles is convex in e^epsilon again, so chords between grid losses lie above it."""
    if len(laws) == 1:
        return laws[0]
    lowest = min(pmf.lowest for pmf in laws) - 1
    count = max(pmf.lowest + len(pmf.mass) for pmf in laws) - lowest + 1
    return from_profile(laws[0].interval, lowest, np.max([profile_values(pmf, lowest, count) for pmf in laws], axis=0))


def profile_values(pmf: LossPmf, lowest: int, count: int) -> Floats:
    """delta at the grid losses lowest, lowest + 1, ... as sums of positive terms only.

    delta(l_j) = infinity + sum over i > j of p_i (1 - e^(l_j - l_i)). With T_i the mass at l_i and above, the sum is
    (1 - e^-interval) times the sum over i > j of T_i e^(l_j - l_(i-1)): a first-order recursion from above.
    """
    from scipy.signal import lfilter

    mass = np.zeros(count)
    start = pmf.lowest - lowest
    mass[start : start + len(pmf.mass)] = pmf.mass
    tail = np.append(np.cumsum(mass[::-1])[::-1][1:], 0.0)
    shrink = math.exp(-pmf.interval)
    return np.asarray(pmf.infinity - math.expm1(-pmf.interval) * lfilter([1.0], [1.0, -shrink], tail[::-1])[::-1])
