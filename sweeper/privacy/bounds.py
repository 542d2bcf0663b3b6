"""Mechanisms of which only Renyi divergences are known: what a privacy filter promises of a run. Events, and their loss laws.

Theorem. Let D_a(P|Q) <= rho for one a > 1, and 0 <= s < r. At g = (1 - 1/a) (r^a - s^a) / (r^(a-1) - s^(a-1)),

    delta_{P|Q}(log g)  <=  (e^((a-1) rho) - (1 + (a-1) (1-s)) s^(a-1)) / (a (r^(a-1) - s^(a-1))).

Proof. Let f(x) = A + B x + C x^a with C = 1 / (a (r^(a-1) - s^(a-1))), B = -a C s^(a-1), A = (a-1) C s^a. It is convex on
x >= 0, and f = f' = 0 at s, f(r) = r - g, f' = 1 at r. So it lies above both its tangents, 0 and x - g. Take the mean over
L = dP/dQ under Q (P has no mass where Q has none, as D_a is finite), where E L = 1 and E L^a <= e^((a-1) rho): delta = E (L - g)_+
<= A + B E L + C E L^a <= A + B + C e^((a-1) rho). QED

s = 0 is Proposition 12 of Canonne, Kamath, Steinke 2020, the `conversion` of filter.py. The best s is that for which losses log s
and log r alone attain rho: then the bound is attained by this pair (the two-point optimum of Asoodeh et al. 2021). Every s is
valid, so nothing rests on how well it was found. Between points (g, bound) a profile lies below the chords, as it is convex in g.
The other direction gives delta(log 1/g) of (Q, P), hence a point at 1/g for (P, Q). The largest convex function below all points
is a profile, its own mirror image, of which no single pair of tables need attain every part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from sweeper import checks
from sweeper.privacy.event import Event, as_float
from sweeper.privacy.mechanisms import LARGEST_EPSILON

if TYPE_CHECKING:
    from collections.abc import Callable

    from sweeper.privacy.convolution import Floats
    from sweeper.privacy.loss import PrivacyLoss

LARGEST_RHO = 1e12  # many bounds become one; beyond LARGEST_EPSILON nothing is protected
LEAST_RHO = 1e-12  # smaller ones are priced as this
FARTHEST_RATIO = 650.0  # largest log r
FALL = 42.0  # nats by which a profile falls to 1e-18, where it is cut
EXCESS = 1e-6  # nats that chords between two points may add to epsilon
MOST_POINTS = 20_000
STEPS = 80  # of Newton's method
MARGIN = 1e-12  # relative, outwards, of every point: rounding is below 1e-13


@dataclass(frozen=True)
class RenyiBound(Event):
    """A mechanism whose Renyi divergence of one `order` is at most rho nats in both directions; nothing else is known.

    Guarantee: the profile of the theorem above. It is what a run under filter.RenyiFilter releases, `order` the filter's and rho
    its capacity, where approximate_share is 0 (mass that rounds leave out is not covered). Bounds at one order add up under
    composition, also where later mechanisms depend on earlier answers.
    Relation: zero-out, that of the filter's costs. Source: Canonne, Kamath, Steinke 2020; Asoodeh et al. 2021; proof above.
    """

    order: float
    rho: float
    kind: ClassVar[str] = "renyi-bound"

    def __post_init__(self) -> None:
        checks.real(1.0 + 1e-6, 1e6, order=self.order)
        checks.real(0.0, LARGEST_RHO, rho=self.rho)
        as_float(self, "order", "rho")

    @property
    def unprotected(self) -> bool:
        return self.rho > LARGEST_EPSILON


@dataclass(frozen=True)
class ZeroConcentrated(Event):
    """A mechanism whose Renyi divergence is at most a rho nats at EVERY order a > 1, in both directions (rho-zCDP).

    Guarantee: the smallest of the profiles of `RenyiBound(a, a rho)` over many orders a. It is what a run under filter.RhoFilter
    releases, rho its rho_max. A Gaussian of multiplier s is one of rho = 1 / (2 s^2), and costs less when stated as such. Values
    of rho add up under composition.
    Relation: zero-out. Source: Bun and Steinke 2016 for the notion; proof above.
    """

    rho: float
    kind: ClassVar[str] = "zcdp"

    def __post_init__(self) -> None:
        checks.real(0.0, LARGEST_RHO, rho=self.rho)
        as_float(self, "rho")

    @property
    def unprotected(self) -> bool:
        return self.rho > LARGEST_EPSILON


def renyi_bound(order: float, rho: float, interval: float) -> PrivacyLoss:
    """Loss that dominates every pair with D_order at most rho, both ways; all infinite for rho above 600 nats.

    Relation: that in which the divergences are bounded. Exactness: attained at each epsilon up to 1e-6 nats and the grid.
    Source: theorem at the top of this file.
    """
    return _law(_renyi_profile, (order, rho), rho, interval)


def zero_concentrated(rho: float, interval: float) -> PrivacyLoss:
    """Loss that dominates every pair with D_a at most a rho for all a > 1, both ways; all infinite for rho above 600 nats.

    Relation: that in which the divergences are bounded. Exactness: each order's bound is attained by some pair, all at once by
    none that is known; any order is valid, so a search among some of them is. Source: theorem at the top of this file.
    """
    return _law(_zero_concentrated_profile, (rho,), rho, interval)


def _law(points: Callable[..., tuple[Floats, Floats]], known: tuple[float, ...], rho: float, interval: float) -> PrivacyLoss:
    """One law for both directions: chords of the profile at losses above 0, their mirror image below, and what is left at 0."""
    import numpy as np

    from sweeper.privacy.loss import FARTHEST, LossPmf, PrivacyLoss, normalised, point
    from sweeper.privacy.profile import from_profile

    if rho == 0:
        return point(interval)
    if rho > LARGEST_EPSILON:
        nothing = LossPmf(interval=interval, lowest=0, mass=np.zeros(1), infinity=1.0)
        return PrivacyLoss(((nothing, nothing),))
    x, deltas = points(*known)
    count = min(math.ceil(math.log(x[-1]) / interval) + 1, math.floor(FARTHEST / interval))
    above = from_profile(interval, 0, np.interp(np.exp(np.arange(count + 1) * interval), x, deltas))
    up = above.losses > 0
    mass = np.zeros(2 * (highest := above.lowest + len(above.mass) - 1) + 1)
    mass[len(mass) - int(np.sum(up)) :] = above.mass[up]
    mass[: int(np.sum(up))] = (above.mass[up] * np.exp(-above.losses[up]))[::-1]
    mass[highest] += max(0.0, 1.0 - above.infinity - float(np.sum(mass)))
    law = normalised(interval, -highest, mass, above.infinity)
    return PrivacyLoss(((law, law),))


@lru_cache(maxsize=16)
def _renyi_profile(order: float, rho: float) -> tuple[Floats, Floats]:
    """Points of the profile of one order: close enough for EXCESS in the tail, and evenly in log(excess of r) near the kink."""
    import numpy as np

    rho = max(rho, LEAST_RHO)
    reach = min(FALL / (order - 1), FARTHEST_RATIO - rho)
    step = max(math.sqrt(8 * EXCESS / order), reach / MOST_POINTS)
    bend = min(100 * step, reach)
    near = np.geomspace(1e-3 * min(rho, 1 / order, bend), bend, 2_000)
    far = np.arange(bend, reach + step, step)
    beyond = np.concatenate([[0.0], near, far])
    return _hull(*_certified(np.full(len(beyond), order), rho, beyond))


@lru_cache(maxsize=16)
def _zero_concentrated_profile(rho: float) -> tuple[Floats, Floats]:
    """Points of many orders. At order a the best r has log r = (2 a - 1) rho where (1 - p) does not count, more where it does."""
    import numpy as np

    rho = max(rho, LEAST_RHO)
    spread = math.sqrt(2 * rho)
    z, factors = np.geomspace(0.02, math.sqrt(2 * FALL) + 1, 1_200), np.geomspace(0.5, 40.0, 48)
    order = np.repeat(1 + z / spread, len(factors))
    beyond = (order - 1) * rho * np.tile(factors, len(z))
    near = (order * rho + beyond <= FARTHEST_RATIO) & ((order - 1) * beyond <= FALL)
    order, beyond = order[near], beyond[near]
    return _hull(*_certified(order, order * rho, beyond))


def _certified(order: Floats, rho: Floats | float, beyond: Floats) -> tuple[Floats, Floats]:
    """(g, bound) of the theorem for r = e^(rho + beyond) and the best s found, both rounded up. No number leaves float64.

    With M = e^((order-1) rho), d = 1 - s, the numerator is M (1 - e^(bend - (order-1) rho)), bend <= 0.
    """
    import numpy as np

    less, moment, log_r = order - 1, (order - 1) * rho, rho + beyond
    with np.errstate(divide="ignore"):  # s may be 0
        d = _best(order, moment, log_r, beyond)
        log_s = np.log1p(-d)
        bend = np.log1p(less * d) + less * log_s
        bend = np.minimum(bend - 1e-15 * (np.log1p(less * d) - less * log_s), 0.0)
        closeness = -np.expm1(less * (log_s - log_r))
        g = less / order * np.exp(log_r) * -np.expm1(order * (log_s - log_r)) / closeness
        bound = -np.expm1(bend - moment) * np.exp(-less * beyond) / (order * closeness)
    return g * (1 + MARGIN), np.minimum(bound * (1 + MARGIN), 1.0)


def _best(order: Floats, moment: Floats, log_r: Floats, beyond: Floats) -> Floats:
    """d = 1 - s for which two points, of ratios s and r, have mean 1 and the whole moment M.

    The root of the convex d (1 - M r^-a) - (1 - 1/r) (M - (1-d)^a) r^(1-a), by Newton's method from d = 1 down.
    """
    import numpy as np

    outer, inner = -np.expm1(-log_r - (order - 1) * beyond), -np.expm1(-log_r) * np.exp(-(order - 1) * beyond)
    d = np.ones(len(beyond))
    for _ in range(STEPS):
        log_s = np.log1p(-d)  # -inf at first
        value = outer * d + inner * np.expm1(order * log_s - moment)
        slope = outer - inner * order * np.exp((order - 1) * log_s - moment)
        better = np.clip(d - value / np.where(slope > 0, slope, 1.0), 1e-300, d)
        if np.all(better >= d * (1 - 1e-10)):
            break
        d = better
    return d


def _hull(g: Floats, bound: Floats) -> tuple[Floats, Floats]:
    """The points, their mirror images and (0, 1), without those above the chord of their neighbours, as often as there are any.

    Whatever is left out, the rest are points at or above the profile, and it is below their chords.
    """
    import numpy as np

    x = np.concatenate([[0.0], 1 / g, g])
    y = np.minimum(np.concatenate([[1.0], 1 - (1 - bound) / g + 1e-15 * (1 + 1 / g), bound]), 1.0)
    order = np.lexsort((y, x))
    x, y = x[order], np.minimum.accumulate(y[order])  # a profile falls
    first = np.append(True, np.diff(x) > 0)
    x, y = x[first], y[first]
    while True:
        left, right = np.diff(x)[:-1], np.diff(x)[1:]
        rises = np.diff(y)
        below = rises[1:] * left > rises[:-1] * right
        if below.all():
            return x, y
        kept = np.concatenate([[True], below, [True]])
        x, y = x[kept], y[kept]
