"""AboveThreshold: noisy queries against one noisy threshold, released is which query is the first above it (or that none is).

Relation: zero-out. Sensitivity: one record moves each query by at most 1 unit either way; noise scales are in that unit. Queries
may be chosen after seeing earlier answers. At most `searches` queries are asked. Directions: one law bounds record present
against absent and the reverse, because the argument does not say which table has the larger answers.

The argument: let the threshold noise of the one table be one unit above the other's. Then every margin (query minus threshold)
differs by 0 to 2 units, always the same way, so each answer is a test of "above" with odds PhiBar(t) against PhiBar(t + shift),
shift = 2 / query_noise, for a margin t that an adversary picks, and the game ends at the first "above". The threshold itself
costs one Gaussian of sensitivity 1.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr

from sweeper import checks
from sweeper.privacy.convolution import Floats
from sweeper.privacy.exponential import laplace_renyi, pure
from sweeper.privacy.loss import LossPmf, PrivacyLoss, from_points, subsampled_gaussian
from sweeper.privacy.profile import from_profile

FAR = 8.5  # margins beyond which a test has no mass in float64
LEAST_QUERY_NOISE = 0.2  # below it one answer costs hundreds of nats


def above_threshold_laplace_epsilon(threshold_noise: float, query_noise: float) -> float:
    """Pure epsilon with Laplace noise of these scales: 1 / threshold_noise + 2 / query_noise, however many queries are asked.

    Source: Lyu, Su, Li 2017, Theorem 2 (one answer "above", queries that move both ways).
    """
    checks.positive(threshold_noise=threshold_noise, query_noise=query_noise)
    return 1.0 / threshold_noise + 2.0 / query_noise


def above_threshold_laplace(threshold_noise: float, query_noise: float, interval: float) -> PrivacyLoss:
    """Loss of AboveThreshold with Laplace noise, as pure DP. Relation, sensitivity: see the module; units: nats."""
    return pure(above_threshold_laplace_epsilon(threshold_noise, query_noise), interval)


def above_threshold_laplace_renyi(threshold_noise: float, query_noise: float, order: float) -> float:
    """Renyi cost with Laplace noise: that of the threshold, and pure DP for the answers (ALGORITHMS.md section 3)."""
    checks.positive(query_noise=query_noise)
    return laplace_renyi(threshold_noise, order) + 2.0 / query_noise


def above_threshold_gaussian(threshold_noise: float, query_noise: float, searches: int, interval: float) -> PrivacyLoss:
    """Loss of AboveThreshold with Gaussian noise of these standard deviations and at most `searches` queries.

    Guarantee: dominated by N(0, 1) against N(1 / threshold_noise, 1) times the pair whose profile W_k, k = searches, solves
    the game W_0(A) = (1 - A)_+, W_j(A) = max(W_(j-1)(A), max over t of [PhiBar(t) - A PhiBar(t + shift)]_+
    + Phi(t) W_(j-1)(A Phi(t + shift) / Phi(t))), A = e^epsilon.
    Relation, sensitivity, directions: see the module. Units: nats.
    Exactness: W within 2e-3 of itself (3e-4 near epsilon 0), and attained where the threshold's noise is known. One query is
    one Gaussian of sensitivity `shift`.
    Source: ALGORITHMS.md section 3. (The Gaussian cost in Chen and Lee 2020 is too small for long searches; a test shows it.)
    """
    checks.positive(threshold_noise=threshold_noise, interval=interval)
    checks.whole(0, 1000, searches=searches)
    checks.real(LEAST_QUERY_NOISE, query_noise=query_noise)
    answers = _answers(2.0 / query_noise, searches)
    moved = from_points(interval, answers.losses, answers.mass, answers.infinity)
    threshold = subsampled_gaussian(threshold_noise, 1.0, interval)
    return threshold.compose(PrivacyLoss(((moved, moved),)))


def above_threshold_gaussian_renyi(threshold_noise: float, query_noise: float, searches: int, order: float) -> float:
    """Renyi cost with Gaussian noise, order / (2 threshold_noise^2) + log V_k / (order - 1); see `log_v`."""
    checks.positive(threshold_noise=threshold_noise)
    checks.real(LEAST_QUERY_NOISE, query_noise=query_noise)
    return order / (2 * threshold_noise**2) + log_v(2.0 / query_noise, searches, order) / (order - 1)


def log_v(shift: float, searches: int, order: float) -> float:
    """log V_k: V_0 = 1, V_j = max(V_(j-1), max over t of PhiBar(t)^a PhiBar(t + shift)^(1-a)
    + Phi(t)^a Phi(t + shift)^(1-a) V_(j-1)), a = order.

    An upper bound within 1e-4 of itself. The maximum is over the corners of a polygon around the curve of all tests: a convex
    function of the test is largest there. Beyond the last margin the first term falls and the second is below V.
    """
    checks.real(0.0, 2.0 / LEAST_QUERY_NOISE, open_low=True, shift=shift)
    checks.whole(0, 1000, searches=searches)
    checks.real(1.0, open_low=True, order=order)
    ends = (-FAR - shift, (order - 1) * shift + FAR + 0.5)
    margins = np.linspace(*ends, 20_001 + int((ends[1] - ends[0]) / 0.005))
    above_p, above_q, below_p, below_q = _polygon(shift, margins)
    above, below = (order * p - (order - 1) * q for p, q in ((above_p, above_q), (below_p, below_q)))
    least, most = float(margins[0]), float(margins[-1])
    last = float(order * log_ndtr(-most) - (order - 1) * log_ndtr(-most - shift))
    above = np.append(above, [last, -(order - 1) * float(log_ndtr(-least - shift))])
    below = np.append(below, [0.0, float(log_ndtr(least))])
    plain = (order - 1) * searches * order * shift * shift / 2  # each answer is read off a Gaussian of sensitivity `shift`
    if np.isnan(above).any() or np.isnan(below).any():  # corners beyond float64, at large shifts and orders: no maximum then
        return plain
    value = 0.0
    for _ in range(searches):
        value = max(value, float(np.logaddexp(above, below + value).max()))
    return min(value, plain)


@lru_cache(maxsize=64)
def _answers(shift: float, searches: int) -> LossPmf:
    """The pair whose profile is W_k, from above, on its own grid of shift / 100.

    Pessimistic at each step: W_(j-1) between nodes by its chord (it is convex), above the last node by the last value, and the
    maximum over tests by the corners of a polygon around their curve, on which a convex function is largest. On a grid of even
    steps in log A the move from A to A Phi(t + shift) / Phi(t) is the same number of steps at every node.
    """
    spacing = min(0.05, 0.2 / shift)  # closer for rare answers, where neighbouring tests differ most
    right = np.linspace(0.0, FAR + FAR**2 / 6, math.ceil((FAR + FAR**2 / 6) / spacing))
    left = np.linspace(-FAR - shift, 0.0, math.ceil((FAR + shift) / spacing), endpoint=False)
    margins = np.concatenate([left, 3 * (np.sqrt(1 + right / 1.5) - 1)])
    above_p, above_q, below_p, below_q = (np.exp(part) for part in _polygon(shift, margins))
    step = shift / 100
    reach = math.ceil((FAR * shift + shift * shift / 2) / step)  # no mass beyond the loss of the rarest test
    lowest = -2 * reach  # a long row of "below" tells against the record little by little
    log_a = np.arange(lowest, reach + 1) * step
    odds = np.exp(log_a)
    now = np.maximum(above_p - odds[:, None] * above_q, 0.0)
    moves = np.maximum(np.log(below_q / below_p), 0.0) / step
    whole = np.minimum(np.floor(moves), len(odds)).astype(np.int64)
    share = np.where(whole < len(odds), np.expm1((moves - whole) * step) / math.expm1(step), 0.0)  # along the chord in A
    near = np.minimum(np.arange(len(odds))[:, None] + whole, len(odds) - 1)
    far = np.minimum(near + 1, len(odds) - 1)
    rare = [float(np.exp(log_ndtr(x))) for x in (margins[0], margins[0] + shift, -margins[-1])]
    w = np.maximum(1.0 - odds, 0.0)
    for _ in range(searches):
        played = (now + below_p * ((1 - share) * w[near] + share * w[far])).max(axis=1)
        never = rare[0] * w + np.maximum(1.0 - odds * (1.0 - rare[1]), 0.0)  # margins below the first
        w = np.maximum(np.maximum(played, w + rare[2]), never)  # and above the last
    return from_profile(step, lowest, np.minimum(w, 1.0))


def _polygon(shift: float, margins: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Corners of a polygon around the tests (PhiBar(t), PhiBar(t + shift)): where tangents at neighbouring margins meet.

    Logs of: P above, Q above, P below, Q below, each right in its own tail. The curve is concave (the odds
    phi(t) / phi(t + shift) grow with t), so each stretch lies in the triangle of its ends and that corner.
    """
    log_slope = shift * margins + shift * shift / 2
    above = _corners(log_ndtr(-margins), log_ndtr(-margins - shift), log_slope)
    return *above, *_corners(log_ndtr(margins), log_ndtr(margins + shift), log_slope)


def _corners(log_p: Floats, log_q: Floats, log_slope: Floats) -> tuple[Floats, Floats]:
    """Logs of the corners, in units of each stretch's first point: p and q are 1 there, and 1 + rise_p, 1 + rise_q at its end."""
    rise_p, rise_q = np.expm1(np.diff(log_p)), np.expm1(np.diff(log_q))
    steepness = np.exp((log_slope + log_q - log_p)[:-1])  # of the first tangent, in these units
    growth = np.diff(log_slope)  # log ratio of the two tangents' slopes
    p = rise_p + (steepness * rise_q - rise_p) / -np.expm1(-growth)
    q = rise_q + (rise_q - rise_p / steepness) / np.expm1(growth)
    p, q = np.clip(p, np.minimum(rise_p, 0), np.maximum(rise_p, 0)), np.clip(q, np.minimum(rise_q, 0), np.maximum(rise_q, 0))
    return log_p[:-1] + np.log1p(p), log_q[:-1] + np.log1p(q)
