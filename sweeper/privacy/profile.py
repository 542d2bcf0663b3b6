"""LossPmf from masses between grid points, or from values of a profile; and one pair that stands for several parts."""

from __future__ import annotations

import math

import numpy as np

from sweeper.privacy.convolution import Floats
from sweeper.privacy.loss import FARTHEST, WIDEST, LossPmf, PrivacyLoss, divergences, normalised


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
    enough, build from masses (`from_cells`). Negative ones are cut, which raises the profile. Losses whose e^loss leaves float64
    are left out at both ends: then the last value kept goes to infinity, and the first lies on the chord from (0, 1). Where no
    value is kept, all lie so far out that nothing is promised.
    """
    first, after = _in_reach(interval, lowest, len(deltas))
    if first >= after:
        return LossPmf(interval=interval, lowest=0, mass=np.zeros(1), infinity=1.0)
    lowest, deltas = lowest + first, deltas[first:after]
    x = np.exp((lowest + np.arange(len(deltas))) * interval)
    slopes = np.concatenate([[(1.0 - deltas[0]) / x[0]], -np.diff(deltas) / np.diff(x), [0.0]])  # Q-mass of the losses above
    mass = np.maximum(x * -np.diff(slopes), 0.0)
    return normalised(interval, lowest, mass, float(deltas[-1]))


def _in_reach(interval: float, lowest: int, count: int) -> tuple[int, int]:
    """[first, after) of `count` losses from lowest * interval on whose exponentials are numbers."""
    return max(0, math.ceil(-FARTHEST / interval) - lowest), min(count, math.floor(FARTHEST / interval) - lowest + 1)


def folded(pmf: LossPmf) -> LossPmf:
    """`pmf` with no loss beyond FARTHEST nats either way; what dominates it otherwise.

    Mass above the highest such loss g goes to g and to infinity with its Q-mass kept: the profile is the same up to g, and beyond
    it what it is at g. Mass below the lowest one moves up to it: there the profile is the chord from (0, 1).
    """
    reach = math.floor(FARTHEST / pmf.interval)
    last = pmf.lowest + len(pmf.mass) - 1
    if -reach <= pmf.lowest and last <= reach:
        return pmf
    low, high = min(max(pmf.lowest, -reach), reach), min(max(last, -reach), reach)
    below, above = max(low - pmf.lowest, 0), max(last - high, 0)  # cells, of a law beyond one end all of them but one
    kept = np.zeros(high - low + 1)
    start, stop = min(below, len(pmf.mass)), max(len(pmf.mass) - above, 0)
    if start < stop:
        first = pmf.lowest + start - low
        kept[first : first + stop - start] = pmf.mass[start:stop]
    kept[0] += float(np.sum(pmf.mass[:start]))
    beyond = pmf.mass[stop:]
    stays = beyond * np.exp(-pmf.interval * (pmf.lowest + stop - high + np.arange(len(beyond))))
    kept[-1] += float(np.sum(stays))
    return normalised(pmf.interval, low, kept, pmf.infinity + float(np.sum(beyond - stays)))


def mixed(share: float, first: LossPmf, second: LossPmf) -> LossPmf:
    """The first with probability `share`, else the second, by a coin that everybody sees: profiles average.

    Of two that lie very far apart the average is kept up to FARTHEST nats.
    """
    if _span(first, second)[1] > WIDEST:
        first, second = folded(first), folded(second)
    parts = ((first, share), (second, 1.0 - share))
    a, b = (LossPmf(interval=x.interval, lowest=x.lowest, mass=x.mass * by, infinity=x.infinity * by) for x, by in parts)
    return added(a, b)


def added(a: LossPmf, b: LossPmf) -> LossPmf:
    """The two measures, of total mass 1, as one law."""
    assert a.interval == b.interval
    lowest, count = _span(a, b)
    mass = np.zeros(count)
    for pmf in (a, b):
        mass[pmf.lowest - lowest : pmf.lowest - lowest + len(pmf.mass)] += pmf.mass
    return normalised(a.interval, lowest, mass, a.infinity + b.infinity)


def _span(*laws: LossPmf) -> tuple[int, int]:
    """(lowest, count) of the grid losses of all of them."""
    lowest = min(pmf.lowest for pmf in laws)
    return lowest, max(pmf.lowest + len(pmf.mass) for pmf in laws) - lowest


def fused(loss: PrivacyLoss) -> PrivacyLoss:
    """One part that dominates every part of `loss`: its profile is the largest of theirs, at every grid loss, in each direction.

    For what must not be priced part by part: a mechanism whose part depends on more than the record's place (a candidate's
    setting), inside select-best. Never smaller than `loss`, and equal to it in epsilon at every delta.
    """
    directions = [largest([part[side] for part in loss.parts]) for side in (0, 1)]
    return PrivacyLoss(((directions[0], directions[1]),))


def largest(laws: list[LossPmf]) -> LossPmf:
    """One law whose profile is the largest of theirs: it is convex in e^epsilon again, so chords between grid losses lie above.

    Of several laws the profiles are followed up to FARTHEST nats.
    """
    if len(laws) == 1:
        return laws[0]
    near = [folded(pmf) for pmf in laws]
    lowest, count = _span(*near)
    values = [profile_values(pmf, lowest - 1, count + 2) for pmf in near]
    return from_profile(near[0].interval, lowest - 1, np.max(values, axis=0))


def smallest(laws: list[LossPmf]) -> LossPmf:
    """One law that dominates what each of `laws` dominates: the largest convex profile below all of theirs at the grid losses.

    The mechanism's own profile is convex in e^epsilon, 1 at 0 and below each of theirs, so it is below this one at the grid
    losses, and between them below its chords. Profiles are followed up to FARTHEST nats.
    """
    near = [folded(pmf) for pmf in laws]
    interval, (lowest, count) = near[0].interval, _span(*near)
    values = np.min([profile_values(pmf, lowest - 1, count + 2) for pmf in near], axis=0)
    first, after = _in_reach(interval, lowest - 1, count + 2)
    x = np.exp((lowest - 1 + np.arange(first, after)) * interval)
    return from_profile(interval, lowest - 1 + first, _convex_below(x, values[first:after]))


def _convex_below(x: Floats, y: Floats) -> Floats:
    """The largest convex function below the points (0, 1), (x, y), at x."""
    xs, ys = [0.0, *x.tolist()], [1.0, *y.tolist()]
    kept: list[int] = []
    for i in range(len(xs)):
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            if (ys[b] - ys[a]) * (xs[i] - xs[a]) < (ys[i] - ys[a]) * (xs[b] - xs[a]):
                break
            kept.pop()
        kept.append(i)
    hull = np.interp(x, [xs[i] for i in kept], [ys[i] for i in kept])
    return np.asarray(np.minimum(hull * (1 + 1e-13), y), dtype=np.float64)  # where no line was drawn, the value itself


def profile_values(pmf: LossPmf, lowest: int, count: int) -> Floats:
    """delta at the grid losses lowest, lowest + 1, ..."""
    mass = np.zeros(count)
    start = pmf.lowest - lowest
    mass[start : start + len(pmf.mass)] = pmf.mass
    return divergences(pmf.interval, mass, pmf.infinity)
