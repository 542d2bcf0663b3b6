"""Event -> Renyi cost at one order. One function per kind; (rho, delta0): outside mass delta0 it is at most rho."""

from __future__ import annotations

import math
from functools import singledispatch

from sweeper.privacy import exponential, sparse_vector, subsampled
from sweeper.privacy.amplification import amplified_renyi
from sweeper.privacy.bounds import RenyiBound, ZeroConcentrated
from sweeper.privacy.combined import Composed, Disjoint, Repeated, ReplaceOne, SelectBest
from sweeper.privacy.convention import renyi_accountant
from sweeper.privacy.event import Event
from sweeper.privacy.mechanisms import (
    AboveThresholdGaussian,
    AboveThresholdLaplace,
    AdaptiveQuantileStep,
    ApproximateDp,
    DiscreteLaplace,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    NoisyMin,
    PrivateQuantile,
)
from sweeper.privacy.sampled import FixedSizeSampled, PoissonSubsampled, RandomPart
from sweeper.privacy.simplify import simplified

CUT = 1e-10  # mass of a selection's highest losses that its Renyi cost counts as delta
STEP_CUT = 1e-12  # the same of one step, of which a run has thousands
FINEST = 1_000_000  # cells of a step's loss beyond which its grid is not made finer
Cost = tuple[float, float]


def renyi_cost(event: Event, order: float) -> Cost:
    """(rho, delta0) of an event, both directions, in its own relation; rho infinite where nothing is protected.

    Additive under composition at one order, whatever later events are chosen after seeing (Feldman and Zrnic 2021).
    Sources: per kind, in exponential.py, sparse_vector.py, amplification.py, subsampled.py; Gaussian sums on Poisson batches by
    dp_accounting's exact curve.
    """
    return (math.inf, 0.0) if event.unprotected else _cost(simplified(event), order)


@singledispatch
def _cost(event: Event, order: float) -> Cost:
    raise NotImplementedError(event.kind)


@_cost.register
def _(event: Gaussian, order: float) -> Cost:
    return order / (2 * event.noise_multiplier**2), 0.0


@_cost.register
def _(event: AdaptiveQuantileStep, order: float) -> Cost:
    return order / (2 * event.noise_multiplier**2), 0.0


@_cost.register
def _(event: Laplace, order: float) -> Cost:
    return exponential.laplace_renyi(event.noise_multiplier, order), 0.0


@_cost.register
def _(event: DiscreteLaplace, order: float) -> Cost:
    e, shrink = event.epsilon, math.exp(-event.epsilon)  # loss +e with mass 1/(1 + shrink), -e with the rest
    moment = (order - 1) * e + math.log((1 + math.exp(-2 * (order - 1) * e) * shrink) / (1 + shrink))
    return max(0.0, moment / (order - 1)), 0.0


@_cost.register
def _(event: ApproximateDp, order: float) -> Cost:
    return exponential.pure_renyi(event.epsilon, order), event.delta


@_cost.register
def _(event: RenyiBound, order: float) -> Cost:
    """Divergences do not fall with the order. Above the known one they may be infinite, but for the rarest losses."""
    if event.rho == 0:
        return 0.0, 0.0
    return (event.rho, 0.0) if order <= event.order else _from_loss(event, order)


@_cost.register
def _(event: ZeroConcentrated, order: float) -> Cost:
    return order * event.rho, 0.0


@_cost.register
def _(event: ExponentialMechanism, order: float) -> Cost:
    return _bounded_range(event.epsilon, order), 0.0


@_cost.register
def _(event: PrivateQuantile, order: float) -> Cost:
    return _bounded_range(event.epsilon, order), 0.0


@_cost.register
def _(event: NoisyMin, order: float) -> Cost:
    if event.noise == "laplace":
        return exponential.pure_renyi(event.epsilon, order), 0.0
    return _bounded_range(event.epsilon, order), 0.0


def _bounded_range(epsilon: float, order: float) -> float:
    return min(order * exponential.bounded_range_rho(epsilon), exponential.pure_renyi(epsilon, order))


@_cost.register
def _(event: AboveThresholdLaplace, order: float) -> Cost:
    apart = sparse_vector.above_threshold_laplace_renyi(event.threshold_noise, event.query_noise, order)
    return min(apart, exponential.pure_renyi(event.epsilon, order)), 0.0  # it is epsilon-DP as a whole


@_cost.register
def _(event: AboveThresholdGaussian, order: float) -> Cost:
    if event.searches == 0:
        return 0.0, 0.0
    s1, s2 = event.threshold_noise, event.query_noise
    return sparse_vector.above_threshold_gaussian_renyi(s1, s2, event.searches, order), 0.0


@_cost.register
def _(event: PoissonSubsampled, order: float) -> Cost:
    if event.sampling_probability == 0:
        return 0.0, 0.0
    if isinstance(event.event, Gaussian) and math.isfinite(theirs := _theirs(event, order)):
        return theirs, 0.0  # exact; their series for orders between whole ones may not converge
    _, lost = _cost(event.event, math.ceil(order))  # the highest order that the sum reads: none below leaves more out
    if lost == 0:  # curves of both directions: amplification.py shows that no factor is needed then
        return amplified_renyi(lambda a: _cost(event.event, a)[0], event.sampling_probability, order, tight=True), 0.0
    inner, lost = _cost(event.event, order)
    amplified = _from_loss(event, order)
    return amplified if amplified[0] < inner else (inner, lost)  # or the batch is taken as always holding the record


def _from_loss(event: Event, order: float) -> Cost:
    """The Renyi cost of the discretised pair that dominates a step, without its highest losses, whose mass is counted as delta.

    Divergences of the pair bound those of the step, which is an image of it (Blackwell). Finer grids come down towards the pair.
    """
    from sweeper.privacy.event_loss import privacy_loss

    best, interval = (math.inf, 0.0), 5e-3
    while True:
        laws = [pmf for part in privacy_loss(event, interval).parts for pmf in part]
        found = [pmf.renyi(order, STEP_CUT) for pmf in laws]
        cost = max(rho for rho, _ in found), max(lost for _, lost in found)
        settled = best[0] - cost[0] <= 1e-3 * cost[0]
        best = min(best, cost)
        if settled or 4 * max(len(pmf.mass) for pmf in laws) > FINEST:
            return best
        interval /= 4


@_cost.register
def _(event: FixedSizeSampled, order: float) -> Cost:
    """One record's term bounded by 1 moves a sum by up to 2 when the record is replaced: half the noise multiplier."""
    fraction = event.sample_size / event.rows
    return subsampled.fixed_size_renyi(event.event.noise_multiplier / 2, fraction, order), 0.0


def _theirs(event: Event, order: float) -> float:
    return max(0.0, float(renyi_accountant(event, [order]).rdp[0]))  # rounding may leave -1e-17


@_cost.register
def _(event: RandomPart, order: float) -> Cost:
    """The part is drawn by a coin that both tables share, so moments average."""
    (first, lost), (second, lost_too) = _cost(event.first, order), _cost(event.second, order)
    if event.fraction in (0.0, 1.0):
        return (first, lost) if event.fraction else (second, lost_too)
    logs = [(order - 1) * first + math.log(event.fraction), (order - 1) * second + math.log1p(-event.fraction)]
    top = max(logs)
    if math.isinf(top):
        return math.inf, 0.0
    rho = (top + math.log(math.fsum(math.exp(x - top) for x in logs))) / (order - 1)
    return max(0.0, rho), event.fraction * lost + (1 - event.fraction) * lost_too


@_cost.register
def _(event: Repeated, order: float) -> Cost:
    rho, lost = _cost(event.event, order)
    return (rho * event.count, lost * event.count) if event.count else (0.0, 0.0)


@_cost.register
def _(event: Composed, order: float) -> Cost:
    costs = [_cost(part, order) for part in event.events]
    return math.fsum(rho for rho, _ in costs), math.fsum(lost for _, lost in costs)


@_cost.register
def _(event: Disjoint, order: float) -> Cost:
    costs = [_cost(part, order) for part in event.parts]
    return max(rho for rho, _ in costs), max(lost for _, lost in costs)


@_cost.register
def _(event: SelectBest, order: float) -> Cost:
    """From the discretised loss, without its highest losses: their mass is counted as delta."""
    from sweeper.privacy.accountant import settled_interval
    from sweeper.privacy.event_loss import privacy_loss

    interval = settled_interval(event, 1e-6, 2e-3)
    found = [pmf.renyi(order, CUT) for part in privacy_loss(event, interval).parts for pmf in part]
    return max(rho for rho, _ in found), max(lost for _, lost in found)


@_cost.register
def _(event: ReplaceOne, order: float) -> Cost:
    return _cost(event.event, order)
