"""Event -> discretised privacy loss. One function per kind of event; everything returned dominates what the event releases."""

from __future__ import annotations

from functools import cache, lru_cache, singledispatch
from itertools import product

from sweeper.checks import FieldError
from sweeper.privacy import bounds, exponential, loss, schedule, sparse_vector, subsampled
from sweeper.privacy.bounds import RenyiBound, ZeroConcentrated
from sweeper.privacy.combined import Composed, Disjoint, Repeated, ReplaceOne, SelectBest
from sweeper.privacy.event import LEAST_NOISE, Event
from sweeper.privacy.loss import LossPmf, PrivacyLoss
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
from sweeper.privacy.profile import fused, mixed, smallest
from sweeper.privacy.sampled import FixedSizeSampled, PoissonSubsampled, RandomPart
from sweeper.privacy.selection import select_best
from sweeper.privacy.simplify import simplified

FEW = 8  # runs up to which a selection is also priced as showing all of them: for a fixed number of 2 or 3 that is less
PIECES = 8  # places of a quantile's bounded range that are priced apart


def privacy_loss(event: Event, interval: float) -> PrivacyLoss:
    """The discretised loss of an event on a grid of `interval` nats, in the event's own relation.

    Raises:
      FieldError: an event kind that has no loss law here.
    """
    return _loss(_simplified(event), interval)


_simplified = lru_cache(maxsize=16)(simplified)  # an event is asked for on one grid after another


@singledispatch
def _loss(event: Event, interval: float, one_place: bool = False) -> PrivacyLoss:
    """The loss of a simplified event.

    one_place: what comes out is one of several runs, or stands behind other answers about the table, on which the place of its
    quantile's range may depend. Then its parts may speak of a record's part of the table only: they dominate it for every place.
    """
    raise FieldError("event", event.kind, "has no loss law")


@_loss.register
def _(event: Gaussian, interval: float, one_place: bool = False) -> PrivacyLoss:
    return _gaussian(event.noise_multiplier, 1.0, interval)


@_loss.register
def _(event: AdaptiveQuantileStep, interval: float, one_place: bool = False) -> PrivacyLoss:
    return _gaussian(event.noise_multiplier, 1.0, interval)


def _gaussian(noise_multiplier: float, sampling_probability: float, interval: float) -> PrivacyLoss:
    """Nothing is promised of next to no noise, also where many Gaussians became one: all of the loss is infinite."""
    if noise_multiplier < LEAST_NOISE:
        return exponential.approximate(1.0, 1.0, interval)
    return loss.subsampled_gaussian(noise_multiplier, sampling_probability, interval)


@_loss.register
def _(event: Laplace, interval: float, one_place: bool = False) -> PrivacyLoss:
    return exponential.laplace(event.noise_multiplier, interval)


@_loss.register
def _(event: DiscreteLaplace, interval: float, one_place: bool = False) -> PrivacyLoss:
    return loss.discrete_laplace(event.epsilon, interval)


@_loss.register
def _(event: ApproximateDp, interval: float, one_place: bool = False) -> PrivacyLoss:
    return exponential.approximate(event.epsilon, event.delta, interval)


@_loss.register
def _(event: RenyiBound, interval: float, one_place: bool = False) -> PrivacyLoss:
    return bounds.renyi_bound(event.order, event.rho, interval)


@_loss.register
def _(event: ZeroConcentrated, interval: float, one_place: bool = False) -> PrivacyLoss:
    return bounds.zero_concentrated(event.rho, interval)


@_loss.register
def _(event: ExponentialMechanism, interval: float, one_place: bool = False) -> PrivacyLoss:
    return exponential.bounded_range(event.epsilon, interval)


@_loss.register
def _(event: PrivateQuantile, interval: float, one_place: bool = False) -> PrivacyLoss:
    return exponential.bounded_range(event.epsilon, interval, pieces=1 if one_place else PIECES)


@_loss.register
def _(event: NoisyMin, interval: float, one_place: bool = False) -> PrivacyLoss:
    if event.noise == "laplace":
        return exponential.pure(event.epsilon, interval)
    return exponential.bounded_range(event.epsilon, interval)


@_loss.register
def _(event: AboveThresholdLaplace, interval: float, one_place: bool = False) -> PrivacyLoss:
    return sparse_vector.above_threshold_laplace(event.threshold_noise, event.query_noise, interval)


@_loss.register
def _(event: AboveThresholdGaussian, interval: float, one_place: bool = False) -> PrivacyLoss:
    if event.searches == 0:
        return loss.point(interval)
    return sparse_vector.above_threshold_gaussian(event.threshold_noise, event.query_noise, event.searches, interval)


@_loss.register
def _(event: PoissonSubsampled, interval: float, one_place: bool = False) -> PrivacyLoss:
    q = event.sampling_probability
    if q == 0:
        return loss.point(interval)
    if q == 1:
        return _loss(event.event, interval, one_place)
    if isinstance(event.event, Gaussian):
        return _gaussian(event.event.noise_multiplier, q, interval)
    inner = _loss(event.event, subsampled.inner_interval(q, interval), True)
    return subsampled.poisson_subsampled(inner, q, interval)


@_loss.register
def _(event: FixedSizeSampled, interval: float, one_place: bool = False) -> PrivacyLoss:
    """One record's term bounded by 1 moves a sum by up to 2 when the record is replaced: half the noise multiplier."""
    fraction = event.sample_size / event.rows
    grid = subsampled.inner_interval(fraction, interval)
    inner = _gaussian(event.event.noise_multiplier / 2, 1.0, grid)
    return subsampled.fixed_size_sampled(inner, fraction, interval)


@_loss.register
def _(event: RandomPart, interval: float, one_place: bool = False) -> PrivacyLoss:
    return _mixture(event.fraction, _loss(event.first, interval, True), _loss(event.second, interval, True))


def _mixture(share: float, first: PrivacyLoss, second: PrivacyLoss) -> PrivacyLoss:
    """The first with probability `share`, else the second; a record may lie in any part of the one and any of the other."""
    pairs = product(first.parts, second.parts)
    return PrivacyLoss(tuple((mixed(share, a, c), mixed(share, b, d)) for (a, b), (c, d) in pairs)).pruned()


@_loss.register
def _(event: Repeated, interval: float, one_place: bool = False) -> PrivacyLoss:
    if event.count == 0:
        return loss.point(interval)
    once = _loss(event.event, interval, True)
    nothing_promised = all(pmf.infinity == 1.0 for part in once.parts for pmf in part)
    return once if nothing_promised else once.self_compose(event.count)


@_loss.register
def _(event: Composed, interval: float, one_place: bool = False) -> PrivacyLoss:
    """A quantile of its own is asked before all else: what it is composed with is composed with each piece of its places.

    Whatever stands behind another answer is priced for every place that this may lead to.
    """
    schedules, others = schedule.families(event.events)
    quantile = any(isinstance(part, PrivateQuantile) for part in others)
    losses = [_loss(part, interval, not isinstance(part, PrivateQuantile)) for part in others]
    losses += [one for family in schedules for one in _scheduled(family, interval)]
    total = composed(losses, interval)
    return fused(total) if one_place and quantile else total


def _scheduled(family: schedule.Family, interval: float) -> list[PrivacyLoss]:
    """Losses that together dominate a long schedule; see schedule.py."""

    @cache
    def law(noise_multiplier: float) -> PrivacyLoss:
        return fused(_loss(family.member(noise_multiplier), interval, True))

    steps = schedule.bracketed(family)
    return [_mixture(1 - some.share, law(some.quiet), law(some.loud)).self_compose(some.count) for some in steps]


def composed(losses: list[PrivacyLoss], interval: float) -> PrivacyLoss:
    """All of them, the smallest first and in pairs, so that arrays grow late."""
    if not losses:
        return loss.point(interval)
    while len(losses) > 1:
        losses = sorted(losses, key=lambda one: sum(len(pmf.mass) for part in one.parts for pmf in part))
        losses = [a.compose(b) for a, b in zip(losses[::2], losses[1::2], strict=False)] + losses[len(losses) // 2 * 2 :]
    return losses[0]


@_loss.register
def _(event: Disjoint, interval: float, one_place: bool = False) -> PrivacyLoss:
    total = _loss(event.parts[0], interval, one_place)
    for part in event.parts[1:]:
        total = total.union(_loss(part, interval, one_place))
    return total


@_loss.register
def _(event: SelectBest, interval: float, one_place: bool = False) -> PrivacyLoss:
    trial, most = _loss(event.trial, interval, True), event.law.max_trials
    if most is None or most > FEW:
        return select_best(trial, event.law)
    return trial.map(lambda law: _best_or_all(law, event, most))


def _best_or_all(law: LossPmf, event: SelectBest, most: int) -> LossPmf:
    """The best of at most `most` runs is read off all of them, and that many composed may cost less than the theorem says."""
    ((best, _),) = select_best(PrivacyLoss(((law, law),)), event.law).parts
    return smallest([best, law.self_compose(most)])


@_loss.register
def _(event: ReplaceOne, interval: float, one_place: bool = False) -> PrivacyLoss:
    return _loss(event.event, interval, one_place)
