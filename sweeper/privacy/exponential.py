"""Losses of mechanisms on scores and counts: bounded range (exponential mechanism), pure and approximate DP, Laplace.

Relation: zero-out. Units: nats. Each function maps public numbers to a dominating pair in both directions; the mirror image of
each of these mechanisms is of the same kind, so both directions are one law.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from sweeper import checks
from sweeper.privacy.convolution import Floats
from sweeper.privacy.loss import LossPmf, PrivacyLoss, from_points
from sweeper.privacy.profile import added, from_cells

LARGEST = 600.0  # nats; beyond it nothing is protected and e^epsilon leaves float64


def bounded_range(epsilon: float, interval: float, pieces: int = 1) -> PrivacyLoss:
    """Loss of a mechanism whose log likelihood ratios, for two neighbours, all lie in one stretch of length epsilon.

    The exponential mechanism, Pr[j] proportional to exp(-epsilon u_j / (2 B)) on scores that one record moves by at most B either
    way, is one; so is exp(-epsilon u_j / B) on scores that a record can only raise.
    Guarantee: the profile (e^(epsilon/2) - e^(e/2))^2 / (e^epsilon - 1), |e| <= epsilon, the largest over all places of the
    stretch: the loss l in [-epsilon, epsilon] has density e^(l/2) / (4 sinh(epsilon/2)). It holds wherever the stretch lies, also
    when that depends on earlier answers (a line search that has seen the noisy gradient).
    pieces > 1: one part for each piece of the places where the top of the stretch may lie, each part the largest profile over its
    piece. Tighter in compositions, but only for a call whose scores depend on the table and on what was known before it alone (a
    quantile asked before training). Parts are places here: `profile.fused` must be taken of what is composed with it before that is
    repeated, selected from, or set behind other answers on which the place may depend.
    Relation: zero-out (replace-one doubles what one record moves a score by).
    Exactness: attained at each e by some exponential mechanism; on the grid, chords of the profile.
    Source: Dong, Durfee, Rogers 2020, "Optimal differential privacy composition for exponential mechanisms"; ALGORITHMS.md
    section 3. With top t, the losses are t and t - epsilon, t with mass (e^epsilon - e^t) / (e^epsilon - 1).
    """
    checks.real(0.0, LARGEST, open_low=True, epsilon=epsilon)
    checks.positive(interval=interval)
    checks.whole(1, 1000, pieces=pieces)
    tops = np.linspace(0.0, epsilon, pieces + 1).tolist()
    laws = [_stretches(epsilon, low, high, interval) for low, high in pairwise(tops)]
    return PrivacyLoss(tuple((law, law) for law in laws)).pruned()


def _stretches(epsilon: float, low: float, high: float, interval: float) -> LossPmf:
    """The largest profile over stretches whose top lies in [low, high].

    At e the worst top is (epsilon + e)/2, held to [low, high]. So the profile is that of top `high` for large e (an atom there),
    of top `low` for small e (an atom at low - epsilon), and the envelope of all tops between 2 low - epsilon and 2 high - epsilon.
    """
    whole = -math.expm1(-epsilon)
    edges, p, q = _half_tilted(2 * low - epsilon, 2 * high - epsilon, epsilon, interval)
    between = from_cells(interval, edges, p / (2 * whole), q / (2 * whole))
    mass = np.array([math.exp(low - epsilon) * -math.expm1(-low), -math.expm1(high - epsilon)]) / whole
    return added(between, from_points(interval, np.array([low - epsilon, high]), mass, 0.0))


def bounded_range_rho(epsilon: float) -> float:
    """zCDP of a bounded-range mechanism: rho = epsilon^2 / 8, so (order, order * rho)-Renyi at every order, adaptive use included.

    Relation: zero-out. Source: Cesar and Rogers 2021. (The pair of `bounded_range` costs more in Renyi terms: it is the
    envelope of many pairs.)
    """
    checks.positive(epsilon=epsilon)
    return epsilon * epsilon / 8


def approximate(epsilon: float, delta: float, interval: float) -> PrivacyLoss:
    """Loss of any (epsilon, delta)-DP mechanism: randomised response with mass 1 - delta, and delta at infinity.

    Guarantee: profile delta + (1 - delta) (e^epsilon - e^e)_+ / (1 + e^epsilon) for e >= -epsilon. delta 0: pure DP.
    Relation: that in which the mechanism is (epsilon, delta)-DP. Source: Kairouz, Oh, Viswanath 2015.
    """
    checks.real(0.0, LARGEST, open_low=True, epsilon=epsilon)
    checks.positive(interval=interval)
    checks.real(0.0, 1.0, delta=delta)
    high = 1.0 / (1.0 + math.exp(-epsilon))
    mass = (1.0 - delta) * np.array([1.0 - high, high])
    pmf = from_points(interval, np.array([-epsilon, epsilon]), mass, delta)
    return PrivacyLoss(((pmf, pmf),))


def pure(epsilon: float, interval: float) -> PrivacyLoss:
    """Loss of any epsilon-DP mechanism, that of randomised response. Relation and source: as `approximate`."""
    return approximate(epsilon, 0.0, interval)


def pure_renyi(epsilon: float, order: float) -> float:
    """Renyi divergence of randomised response, the largest that epsilon-DP allows.

    Relation: that in which the mechanism is epsilon-DP. Source: Mironov 2017, Proposition 5.
    """
    checks.positive(epsilon=epsilon)
    checks.real(1.0, open_low=True, order=order)
    return max(0.0, epsilon + math.log((1 + math.exp(-(2 * order - 1) * epsilon)) / (1 + math.exp(-epsilon))) / (order - 1))


def laplace(scale: float, interval: float) -> PrivacyLoss:
    """Loss of one number plus Laplace noise; `scale` in units of the number's sensitivity.

    Guarantee: exact. With epsilon = 1/scale: mass 1/2 at epsilon, e^-epsilon / 2 at -epsilon, density e^((l - epsilon)/2) / 4
    between. On the grid the inner part lies on chords of the profile.
    Relation: zero-out, sensitivity of one record appearing or vanishing. Source: Dwork et al. 2006; the law by integration.
    """
    checks.real(1.0 / LARGEST, scale=scale)
    checks.positive(interval=interval)
    epsilon = 1.0 / scale
    edges, p, q = _half_tilted(-epsilon, epsilon, epsilon, interval)
    atoms = from_points(interval, np.array([-epsilon, epsilon]), np.array([0.5 * math.exp(-epsilon), 0.5]), 0.0)
    pmf = added(from_cells(interval, edges, p / 4, q / 4), atoms)
    return PrivacyLoss(((pmf, pmf),))


def laplace_renyi(scale: float, order: float) -> float:
    """Renyi divergence of the Laplace mechanism; `scale` in units of sensitivity. Source: Mironov 2017, Proposition 6."""
    checks.positive(scale=scale)
    checks.real(1.0, open_low=True, order=order)
    e, a = 1.0 / scale, order
    return max(0.0, e + math.log((a + (a - 1) * math.exp(-(2 * a - 1) * e)) / (2 * a - 1)) / (a - 1))


def _half_tilted(low: float, high: float, epsilon: float, interval: float) -> tuple[Floats, Floats, Floats]:
    """Edges low, the grid points between, high; between them the integrals of e^((l - epsilon)/2) and of e^-l times that."""
    inside = np.arange(math.ceil(low / interval), math.floor(high / interval) + 1) * interval
    edges = np.concatenate([[low], inside, [high]])
    swing = 2 * np.expm1(np.maximum(np.diff(edges), 0.0) / 2)
    return edges, np.exp((edges[:-1] - epsilon) / 2) * swing, np.exp(-(edges[1:] + epsilon) / 2) * swing
