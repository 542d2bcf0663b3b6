"""The price of releasing only the best of K runs. Theorem, proof and comparison: README.md of this folder, section "Selection"."""

from __future__ import annotations

import math

import numpy as np

from sweeper.privacy.convolution import Floats, convolved
from sweeper.privacy.laws import RunCountLaw, TruncatedNegativeBinomial
from sweeper.privacy.loss import LossPmf, PrivacyLoss, from_points, normalised

PIECES = 200  # into which one stretch is cut evenly before it is halved where it is steep
HALVINGS = 40
PASSES = 8
RESOLUTION = 1e-2  # log ratio of h between two nodes; its square over 4 bounds what rounding adds to epsilon, in nats
DUST = 1e-18  # where h(a) has fallen to it, all further lines are counted at infinity: they add at most this to any delta
FARTHEST = 1e300  # largest ratio e^loss of the law that is told from an infinite one
ROUNDING = 1e-10  # relative, outwards: what floating point does to h of any law (at most 1e5 terms) stays below it


def select_best(trial: PrivacyLoss, law: RunCountLaw) -> PrivacyLoss:
    """Privacy loss of releasing only the best of K independent runs of one trial.

    Guarantee: for every randomised score, however chosen, the returned loss dominates the release of (setting, model, score)
    of the best run, when K is drawn from `law` independently of the data and nothing about the other runs is released. A law
    with P[K = 0] > 0 then releases "nothing", and that is covered.
    Relation: that of `trial`. Units: nats.
    Exactness: attained up to the mass of the winners themselves: within 0.05% in epsilon on DP-SGD trials for laws that can run
    once (attained.py). A fixed K is priced 4% (K = 2) to 9% (K = 10) above what its worst score costs.
    Source: ALGORITHMS.md section 8; theorem and proof in README.md of this folder, section "Selection".

    >>> from sweeper.privacy.laws import run_count_law
    >>> from sweeper.privacy.loss import subsampled_gaussian
    >>> trial = subsampled_gaussian(noise_multiplier=1.0, sampling_probability=1.0, interval=1e-3)
    >>> round(select_best(trial, run_count_law("geometric", mean=10)).epsilon(delta=1e-6), 2)
    6.9
    """
    return trial.map(lambda pmf: _selected(pmf, law))


def _selected(pmf: LossPmf, law: RunCountLaw) -> LossPmf:
    """One direction.

    delta(eps) <= sum_i p_i c(e^(eps - l_i)) with c(t) = max over a of [h(a) - t h(B(a))]_+, a convex, falling, piecewise
    linear function: c(t) = sum_k w_k [tau_k - t]_+. So the bound is itself the profile of the measure with mass
    p_i w_k tau_k at loss l_i + log tau_k, a convolution of the trial's losses with those of the law. Its total mass is
    h(0) = E[K]; what passes 1 is cut from the lowest losses (`trimmed` says why that stays a bound).

    "Nothing" is an outcome of its own with mass P[K = 0] under both tables: it adds P[K = 0] [1 - e^eps]_+ to the divergence at
    every real eps, which is the profile of that mass at loss 0. With it the measure weighs E[K] + P[K = 0] >= 1 and the release
    is a law of mass 1 again, so that cutting stays a bound.
    """
    if len(pmf.mass) == 1 and pmf.lowest == 0 and pmf.infinity == 0.0:
        return pmf  # a trial that tells nothing
    intercepts, slopes = _hull(*_lines(pmf, law))
    weights = slopes[:-1] - slopes[1:]  # slopes fall along the hull, from the line that is highest at t = 0 to the flattest
    gains = intercepts[:-1] - intercepts[1:]  # w_k tau_k
    near = gains < FARTHEST * weights
    floor = float(intercepts[-1] + np.sum(gains[~near]))  # lines that never reach zero: a law that never runs once, or dust
    gains, weights = gains[near], weights[near]
    infinity = float(law.derivative(np.ones(1))[0]) * pmf.infinity + floor * float(np.sum(pmf.mass))
    lowest, mass, weight = 0, np.zeros(1), float(np.sum(gains)) * float(np.sum(pmf.mass))
    if weight > 0.0:
        boost = from_points(pmf.interval, np.log(gains / weights), gains, 0.0)
        mass, error = convolved(pmf.mass / np.sum(pmf.mass), boost.mass / np.sum(gains))  # laws of mass 1, whatever E[K] is
        lowest, mass, infinity = pmf.lowest + boost.lowest, mass * weight, infinity + error * weight
    if law.nothing > 0.0:
        lowest, mass = _with_mass_at_zero(lowest, mass, law.nothing)
    return normalised(pmf.interval, lowest, mass, min(infinity, 1.0))


def _with_mass_at_zero(lowest: int, mass: Floats, extra: float) -> tuple[int, Floats]:
    """(lowest, mass) with `extra` added at loss 0, which is a point of every grid."""
    first, last = min(lowest, 0), max(lowest + len(mass) - 1, 0)
    wider = np.zeros(last - first + 1)
    wider[lowest - first : lowest - first + len(mass)] = mass
    wider[-first] += extra
    return first, wider


def _lines(pmf: LossPmf, law: RunCountLaw) -> tuple[Floats, Floats]:
    """Lines (intercept, slope) whose upper envelope bounds h(a) - t h(B(a)) over all a.

    The curve a -> B(a) is followed as x = 1 - a, y = 1 - B(a), on which h(a) = f'(x). It is cut at nodes until h changes by less
    than RESOLUTION in log between two. At the nodes the lines are exact. Between two nodes x and y move together and h is
    convex, so h(a) lies below its chord and h(b) above its two end tangents: one more line, at the point where the tangents
    meet, covers the whole stretch (wherever that point is taken to be, the lower tangent there is safe).
    """
    x_ends, y_ends = _tails(pmf)
    f_x = law.derivative(x_ends)
    last = min(int(np.count_nonzero(f_x > DUST)), len(f_x) - 1)
    pieces = np.clip(np.ceil(_falls(f_x, law.derivative(y_ends))[:last] / RESOLUTION), 1, PIECES).astype(np.int64)
    owner = np.repeat(np.arange(last), pieces)
    left = (np.cumsum(pieces)[owner] - np.arange(len(owner))) / pieces[owner]  # share of the stretch that is still to come
    x, y = (np.append(z[owner + 1] + left * (z[owner] - z[owner + 1]), z[last]) for z in (x_ends, y_ends))
    h_a, h_b = law.derivative(x), law.derivative(y)
    for _ in range(HALVINGS):  # even pieces are too wide at the steep end of a stretch that holds much mass, if E[K] is large
        steep = np.flatnonzero((_falls(h_a, h_b) > 4 * RESOLUTION) & (h_a[:-1] > DUST))
        if not len(steep):
            break
        x_new, y_new = (0.5 * (z[steep] + z[steep + 1]) for z in (x, y))
        x, y = np.insert(x, steep + 1, x_new), np.insert(y, steep + 1, y_new)
        h_a, h_b = np.insert(h_a, steep + 1, law.derivative(x_new)), np.insert(h_b, steep + 1, law.derivative(y_new))
    bend, width = law.curvature(y), y[:-1] - y[1:]
    drop = bend[:-1] - bend[1:]
    meet = np.where(drop > 0, (h_b[:-1] - h_b[1:] - bend[1:] * width) / np.where(drop > 0, drop, 1.0), 0.0)
    meet = np.clip(meet, 0.0, width)  # how far y has come down from its left node
    lower = np.minimum(h_b[:-1] - bend[:-1] * meet, h_b[1:] + bend[1:] * (width - meet))
    upper = h_a[:-1] + meet / np.where(width > 0, width, 1.0) * (h_a[1:] - h_a[:-1])
    end = float(law.derivative(np.zeros(1))[0])  # beyond the last node h(a) is no larger than there, h(b) no smaller than h(1)
    intercepts, slopes = np.concatenate([h_a, upper, h_a[-1:]]), np.concatenate([h_b, lower, [end]])
    return intercepts * (1 + ROUNDING), np.maximum(slopes, 0.0) * (1 - ROUNDING)


def _tails(pmf: LossPmf) -> tuple[Floats, Floats]:
    """Ends (1 - a, 1 - B(a)) of the stretches of the curve that fills the lowest losses first; the last one is infinity's.

    Q-mass that has no P-mass comes before all: at a = 0 the second is below 1. Both are summed from the highest losses down, so
    that they keep their digits where the law's h may fall to 0, and rounded, the first up and the second down, by more than a
    sum of this many terms can be wrong.
    """
    q = np.minimum(pmf.mass * np.exp(-np.maximum(pmf.losses, -700.0)), 1.0)
    x, y = (np.append(np.cumsum(np.append(top, mass[::-1]))[::-1], 0.0) for mass, top in ((pmf.mass, pmf.infinity), (q, 0.0)))
    slack = (len(x) + 1_000) * 2.0**-53
    x = np.minimum(x * (1 + slack), 1.0)
    x[0] = 1.0
    return x, np.minimum(y, 1.0) * (1 - slack)


def _falls(h_a: Floats, h_b: Floats) -> Floats:
    """How far h(a) and h(b) together fall in log from each node to the next."""
    logs = np.log(np.maximum(h_a, 1e-300)) + np.log(np.maximum(h_b, 1e-300))
    return np.asarray(logs[:-1] - logs[1:], dtype=np.float64)


def _hull(intercepts: Floats, slopes: Floats) -> tuple[Floats, Floats]:
    """The lines of the upper envelope of 0 and intercept - t * slope over t >= 0, steepest first (the largest at t = 0).

    A product too small for a float removes no line: a line too many only raises the measure's profile.
    """
    intercepts, slopes = np.append(intercepts, 0.0), np.append(slopes, 0.0)
    order = np.lexsort((-intercepts, slopes))  # flattest first; among equal slopes the highest
    flat, high = slopes[order], intercepts[order]
    better = np.concatenate([[True], high[1:] > np.maximum.accumulate(high)[:-1]])  # steeper lines must start higher
    flat, high = flat[better], high[better]
    for _ in range(PASSES):  # most lines lie below the chord of their two neighbours, hence on no envelope: all of them at once
        dx, dy = np.diff(flat), np.diff(high)
        rise = dy[1:] * dx[:-1]
        below = (rise >= dy[:-1] * dx[1:]) & (rise > 0)
        if not below.any():
            break
        kept = np.concatenate([[True], ~below, [True]])
        flat, high = flat[kept], high[kept]
    xs, ys = flat.tolist(), high.tolist()
    keep_x: list[float] = []
    keep_y: list[float] = []
    for x, y in zip(xs, ys, strict=True):
        while len(keep_x) >= 2:
            x1, y1, x2, y2 = keep_x[-2], keep_y[-2], keep_x[-1], keep_y[-1]
            if (y2 - y1) * (x - x1) > (y - y1) * (x2 - x1) or (y - y1) * (x2 - x1) == 0.0:
                break
            keep_x.pop()
            keep_y.pop()
        keep_x.append(x)
        keep_y.append(y)
    return np.array(keep_y[::-1]), np.array(keep_x[::-1])


def closed_form_epsilon(trial: PrivacyLoss, law: TruncatedNegativeBinomial, delta: float) -> float:
    """A looser bound in closed form, a cross-check only: epsilon(delta / E[K]) + log C (ALGORITHMS.md section 8, a).

    log C = (1 + eta) log min over e1 >= 0 of max{1 + ((1-g)/g) delta(e1), 1/(g + (1-g)(1 - delta(e1)) e^-e1)}, g = gamma.
    For laws without max_trials.
    """
    assert law.max_trials is None
    gamma = law.gamma
    best = math.inf
    for e1 in np.linspace(0.0, trial.epsilon(delta / law.mean), 400):
        d1 = trial.delta(float(e1))
        best = min(best, max(1 + (1 - gamma) / gamma * d1, 1 / (gamma + (1 - gamma) * (1 - d1) * math.exp(-e1))))
    return trial.epsilon(delta / law.mean) + (1 + law.eta) * math.log(best)
