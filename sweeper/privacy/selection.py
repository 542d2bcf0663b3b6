"""The price of releasing only the best of K runs. Theorem, proof and comparison: README.md of this folder, section "Selection"."""

from __future__ import annotations

import math

import numpy as np

from sweeper.privacy.laws import RunCountLaw
from sweeper.privacy.loss import Floats, LossPmf, PrivacyLoss, convolved, from_points, normalised

HALVINGS = 40
RESOLUTION = 1e-2  # log ratio of h between two nodes; its square over 4 bounds what rounding adds to epsilon, in nats


def select_best(trial: PrivacyLoss, law: RunCountLaw) -> PrivacyLoss:
    """Privacy loss of releasing only the best of K independent runs of one trial.

    Guarantee: for every randomised score, however chosen, the returned loss dominates the release of (setting, model, score)
    of the best run, when K is drawn from `law` independently of the data and nothing about the other runs is released.
    Relation: that of `trial`. Units: nats.
    Exactness: attained up to the mass of the winners themselves (0.05 to 0.3% in epsilon on DP-SGD trials).
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
    """
    if len(pmf.mass) == 1 and pmf.lowest == 0 and pmf.infinity == 0.0:
        return pmf  # a trial that tells nothing
    intercepts, slopes = _hull(*_lines(pmf, law))
    weights = slopes[:-1] - slopes[1:]  # slopes fall along the hull, from the line that is highest at t = 0 to the flattest
    gains = intercepts[:-1] - intercepts[1:]  # w_k tau_k
    floor = float(intercepts[-1])  # above 0 only for a law that can never run once: its last line never reaches zero
    boost = from_points(pmf.interval, np.log(gains / weights), gains, 0.0)
    mass, error = convolved(pmf.mass, boost.mass)
    mean = float(law.slope(np.zeros(1))[0])
    infinity = mean * pmf.infinity + floor + error
    return normalised(pmf.interval, pmf.lowest + boost.lowest, mass, min(infinity, 1.0))


def _lines(pmf: LossPmf, law: RunCountLaw) -> tuple[Floats, Floats]:
    """Lines (intercept, slope) whose upper envelope bounds h(a) - t h(B(a)) over all a.

    The curve a -> B(a) fills the lowest losses first; Q-mass that has no P-mass comes before all (a = 0, b > 0). It is cut at
    nodes until h changes by less than RESOLUTION in log between two. At the nodes the lines are exact. Between two nodes a
    and b move together and h is convex, so h(a) lies below its chord and h(b) above its two end tangents: one more line, at
    the point where the tangents meet, covers the whole stretch.
    """
    p = pmf.mass
    q = np.minimum(p * np.exp(-np.maximum(pmf.losses, -700.0)), 1.0)
    q_sum = np.cumsum(q)
    bare = max(0.0, 1.0 - float(q_sum[-1]))
    a_ends = np.concatenate([[0.0], np.minimum(np.cumsum(p), 1.0), [1.0]])  # the last stretch is the mass at infinity
    b_ends = np.concatenate([[bare], np.minimum(bare + q_sum, 1.0), [1.0]])
    fall = _falls(law.slope(a_ends), law.slope(b_ends))
    pieces = np.clip(np.ceil(fall / RESOLUTION), 1, 5_000).astype(np.int64)
    owner = np.repeat(np.arange(len(pieces)), pieces)
    share = (np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) / pieces[owner]
    a = np.append(a_ends[owner] + share * np.diff(a_ends)[owner], 1.0)
    b = np.append(b_ends[owner] + share * np.diff(b_ends)[owner], 1.0)
    h_a, h_b = law.slope(a), law.slope(b)
    for _ in range(HALVINGS):  # even pieces are too wide at the steep end of a stretch that holds much mass, if E[K] is large
        steep = np.flatnonzero(_falls(h_a, h_b) > 4 * RESOLUTION)
        if not len(steep):
            break
        a_new, b_new = (0.5 * (ends[steep] + ends[steep + 1]) for ends in (a, b))
        a, b = np.insert(a, steep + 1, a_new), np.insert(b, steep + 1, b_new)
        h_a, h_b = np.insert(h_a, steep + 1, law.slope(a_new)), np.insert(h_b, steep + 1, law.slope(b_new))
    bend = law.bend(b)
    drop = bend[1:] - bend[:-1]
    safe = np.where(drop > 0, drop, 1.0)
    meet = np.where(drop > 0, (h_b[:-1] - h_b[1:] + bend[1:] * b[1:] - bend[:-1] * b[:-1]) / safe, b[:-1])
    meet = np.clip(meet, b[:-1], b[1:])
    lower = np.minimum(h_b[:-1] + bend[:-1] * (meet - b[:-1]), h_b[1:] + bend[1:] * (meet - b[1:]))
    width = b[1:] - b[:-1]
    part = np.where(width > 0, (meet - b[:-1]) / np.where(width > 0, width, 1.0), 0.0)
    upper = h_a[:-1] + part * (h_a[1:] - h_a[:-1])
    return np.concatenate([h_a, upper]), np.maximum(np.concatenate([h_b, lower]), 0.0)


def _falls(h_a: Floats, h_b: Floats) -> Floats:
    """How far h(a) and h(b) together fall in log from each node to the next."""
    logs = np.log(np.maximum(h_a, 1e-300)) + np.log(np.maximum(h_b, 1e-300))
    return np.asarray(logs[:-1] - logs[1:], dtype=np.float64)


def _hull(intercepts: Floats, slopes: Floats) -> tuple[Floats, Floats]:
    """The lines of the upper envelope of 0 and intercept - t * slope over t >= 0, steepest first (the largest at t = 0)."""
    intercepts, slopes = np.append(intercepts, 0.0), np.append(slopes, 0.0)
    order = np.lexsort((-intercepts, slopes))  # flattest first; among equal slopes the highest
    flat, high = slopes[order], intercepts[order]
    better = np.concatenate([[True], high[1:] > np.maximum.accumulate(high)[:-1]])  # steeper lines must start higher
    xs, ys = flat[better].tolist(), high[better].tolist()
    keep_x: list[float] = []
    keep_y: list[float] = []
    for x, y in zip(xs, ys, strict=True):
        while len(keep_x) >= 2:
            x1, y1, x2, y2 = keep_x[-2], keep_y[-2], keep_x[-1], keep_y[-1]
            if (y2 - y1) * (x - x1) > (y - y1) * (x2 - x1):
                break
            keep_x.pop()
            keep_y.pop()
        keep_x.append(x)
        keep_y.append(y)
    return np.array(keep_y[::-1]), np.array(keep_x[::-1])


def closed_form_epsilon(trial: PrivacyLoss, law: RunCountLaw, delta: float) -> float:
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
