"""The loss law of every kind of event, and of kinds put together: against integrals, closed forms and mechanisms written out."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from above_threshold import outcomes
from dp_accounting.pld import privacy_loss_distribution as pld
from pairs import EPSILONS, both, exponential_mechanism, hockey_stick, randomised_response, stretch
from scipy import integrate
from scipy.special import ndtr
from scipy.stats import norm

from sweeper.checks import FieldError
from sweeper.privacy import accountant
from sweeper.privacy.accountant import privacy_loss
from sweeper.privacy.event import Event as Base
from sweeper.privacy.event_loss import _loss
from sweeper.privacy.events import (
    AboveThresholdGaussian,
    AboveThresholdLaplace,
    AdaptiveQuantileStep,
    ApproximateDp,
    Composed,
    DiscreteLaplace,
    Disjoint,
    Event,
    ExponentialMechanism,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    NoisyMin,
    PoissonSubsampled,
    PrivateQuantile,
    RandomPart,
    Repeated,
    ReplaceOne,
    SelectBest,
)
from sweeper.privacy.laws import TruncatedNegativeBinomial
from sweeper.privacy.loss import PrivacyLoss, from_points

Profile = Callable[[float], float]
FINE = 5e-4
LAW = TruncatedNegativeBinomial(eta=1.0, mean=4.0)


def gaussian(noise: float) -> Profile:
    """Balle and Wang 2018, Theorem 8."""
    mu = 1 / noise
    return lambda e: float(ndtr(mu / 2 - e / mu) - math.exp(e) * ndtr(-mu / 2 - e / mu))


def laplace(scale: float) -> Profile:
    return lambda e: max(0.0, 1 - math.exp((e - 1 / scale) / 2)) if e > -1 / scale else 1 - math.exp(e)


def with_laplace(profile: Profile, scale: float) -> Profile:
    """Composed with Laplace noise: atoms at the ends of its losses, density e^((l - epsilon)/2)/4 between."""
    epsilon = 1 / scale

    def total(e: float) -> float:
        kinks = [x for x in (e - epsilon, e + epsilon) if -epsilon < x < epsilon] or None
        between = integrate.quad(lambda l: profile(e - l) * math.exp((l - epsilon) / 2) / 4, -epsilon, epsilon, points=kinks)[0]  # noqa: E741
        return between + 0.5 * profile(e - epsilon) + 0.5 * math.exp(-epsilon) * profile(e + epsilon)

    return total


def with_bounded_range(profile: Profile, epsilon: float) -> Profile:
    """Composed with the envelope of ALGORITHMS.md section 3."""

    def total(e: float) -> float:
        return integrate.quad(lambda l: profile(e - l) * math.exp(l / 2), -epsilon, epsilon)[0] / (4 * math.sinh(epsilon / 2))  # noqa: E741

    return total


def with_pure(profile: Profile, epsilon: float) -> Profile:
    high = 1 / (1 + math.exp(-epsilon))
    return lambda e: high * profile(e - epsilon) + (1 - high) * profile(e + epsilon)


def present(profile: Profile, q: float) -> Profile:
    """q P + (1 - q) Q against Q, from the profile of (P, Q)."""

    def total(e: float) -> float:
        odds = (math.exp(e) - 1 + q) / q
        return q * profile(math.log(odds)) if odds > 0 else 1 - math.exp(e)

    return total


def absent(profile: Profile, q: float) -> Profile:
    """P against (1 - q) P + q Q, from the profile of (P, Q)."""

    def total(e: float) -> float:
        rest = 1 - (1 - q) * math.exp(e)
        return rest * profile(math.log(q * math.exp(e) / rest)) if rest > 0 else 0.0

    return total


def assert_profile(loss: PrivacyLoss, side: int, exact: Profile, slack: float) -> None:
    for e in EPSILONS:
        true = exact(float(e))
        found = max(part[side].delta(float(e)) for part in loss.parts)
        assert true - 1e-12 <= found <= true + slack


@pytest.mark.parametrize(
    ("event", "exact"),
    [
        (Gaussian(1.3), gaussian(1.3)),
        (Repeated(Gaussian(2.6), 4), gaussian(1.3)),
        (AdaptiveQuantileStep(1.3, 7.0), gaussian(1.3)),
        (Composed((Gaussian(1.5), Laplace(2.0))), with_laplace(gaussian(1.5), 2.0)),
        (
            Composed((Laplace(2.0), Gaussian(1.5), ExponentialMechanism(0.6))),
            with_bounded_range(with_laplace(gaussian(1.5), 2.0), 0.6),
        ),
        (Composed((Gaussian(1.5), NoisyMin(0.6))), with_bounded_range(gaussian(1.5), 0.6)),
        (Composed((Gaussian(1.5), NoisyMin(0.6, "laplace"))), with_pure(gaussian(1.5), 0.6)),
        (Composed((Gaussian(1.5), DiscreteLaplace(0.6))), with_pure(gaussian(1.5), 0.6)),
        (Composed((Gaussian(1.5), AboveThresholdLaplace(4.0, 8.0))), with_pure(gaussian(1.5), 0.5)),
        (Composed((Gaussian(1.5), ApproximateDp(0.4, 0.01))), lambda e: 0.01 + 0.99 * with_pure(gaussian(1.5), 0.4)(e)),
        (ReplaceOne(Composed((Gaussian(1.5), ExponentialMechanism(0.6)))), with_bounded_range(gaussian(1.5), 0.6)),
        (Composed((Gaussian(4.0), AboveThresholdGaussian(3.0, 9.0, 0))), gaussian(4.0)),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_mechanisms_and_their_compositions(event, exact):
    loss = privacy_loss(event, FINE)
    for side in (0, 1):
        assert_profile(loss, side, exact, 3e-6)


@pytest.mark.parametrize("q", [0.01, 0.3])
@pytest.mark.parametrize(
    ("inner", "exact"),
    [
        (Composed((Gaussian(1.2), ExponentialMechanism(0.5))), with_bounded_range(gaussian(1.2), 0.5)),
        (Composed((Gaussian(1.2), NoisyMin(0.5, "laplace"))), with_pure(gaussian(1.2), 0.5)),
        (Composed((Laplace(2.5), Gaussian(1.2), Laplace(4.0))), with_laplace(with_laplace(gaussian(1.2), 2.5), 4.0)),
        (Repeated(Gaussian(2.4), 4), gaussian(1.2)),
    ],
    ids=["bounded-range", "pure", "two-laplace", "four-gaussians"],
)
def test_what_runs_on_one_poisson_batch(inner, exact, q):
    loss = privacy_loss(PoissonSubsampled(q, inner), 1e-4)
    assert_profile(loss, 0, present(exact, q), 2e-5)
    assert_profile(loss, 1, absent(exact, q), 2e-5)


def normal_cells(z: np.ndarray) -> np.ndarray:
    return np.where(z[1:] > 0, -np.diff(ndtr(-z)), np.diff(ndtr(z)))


def test_hundreds_of_batches_by_a_convolution_of_its_own():
    """Own values of the kind of the vector `same_minibatch`: the pair cut into a million cells, losses binned, numpy alone."""
    sigma, q, epsilon, steps, grid, total = 0.9, 0.03, 0.4, 300, 2e-4, 2**19
    event = Repeated(PoissonSubsampled(q, Composed((Gaussian(sigma), ExponentialMechanism(epsilon)))), steps)
    x, l = np.linspace(-8 * sigma, 1 + 8 * sigma, 4_001), np.linspace(-epsilon, epsilon, 201)  # noqa: E741
    held = np.outer(normal_cells((x - 1) / sigma), np.diff(np.exp(l / 2)) / (2 * np.sinh(epsilon / 2)))
    without = np.outer(normal_cells(x / sigma), np.diff(-np.exp(-l / 2)) / (2 * np.sinh(epsilon / 2)))
    mixed = q * held + (1 - q) * without
    cheap = privacy_loss(Repeated(PoissonSubsampled(q / 1.5, event.event.event), steps), grid)
    for side, (this, other) in enumerate(((mixed, without), (without, mixed))):
        places = np.log(this / other).ravel() / grid
        below = np.floor(places).astype(int)
        law = np.zeros(total)
        for place, share in ((below, 1 - places + below), (below + 1, places - below)):
            law += np.bincount(place % total, weights=this.ravel() * share, minlength=total)
        law = np.maximum(np.fft.irfft(np.fft.rfft(law) ** steps, total), 0.0)
        losses = np.fft.fftfreq(total, 1 / total) * grid
        loss = privacy_loss(event, grid).parts[0][side]
        for e in (1.0, 2.0, 3.0):
            found = float(np.sum(law * np.maximum(0.0, -np.expm1(np.minimum(e - losses, 0.0)))))
            assert found * (1 - 1e-3) <= loss.delta(e) <= found * 1.01
            assert cheap.parts[0][side].delta(e) < 0.7 * found


@pytest.mark.parametrize("fraction", [0.0, 0.2, 1.0])
def test_a_random_part_is_the_mean_of_two_profiles(fraction):
    first, second = Gaussian(0.8), Composed((Gaussian(2.0), Laplace(3.0)))
    parts = gaussian(0.8), with_laplace(gaussian(2.0), 3.0)
    loss = privacy_loss(RandomPart(fraction, first, second), FINE)
    for side in (0, 1):
        assert_profile(loss, side, lambda e: fraction * parts[0](e) + (1 - fraction) * parts[1](e), 3e-6)
    twice = privacy_loss(Repeated(RandomPart(fraction, Gaussian(1.0), Gaussian(3.0)), 2), FINE)
    ways = [(fraction**2, 1 / 2), (2 * fraction * (1 - fraction), 1 / (1 + 1 / 9)), ((1 - fraction) ** 2, 9 / 2)]
    exact = [(share, gaussian(math.sqrt(variance))) for share, variance in ways]
    assert_profile(twice, 0, lambda e: sum(share * profile(e) for share, profile in exact), 3e-6)


def test_parts_that_a_record_may_lie_in():
    """The dearest part counts at each epsilon; a composition with all rows adds to every part; both parts of a repeat are one."""
    parts = Disjoint((Gaussian(1.5), Laplace(1.2)))
    joined = gaussian(1 / math.sqrt(1 / 2.25 + 1 / 9)), with_laplace(gaussian(3.0), 1.2)
    twice = gaussian(1.5 / math.sqrt(2)), with_laplace(laplace(1.2), 1.2)
    cases = ((parts, (gaussian(1.5), laplace(1.2))), (Composed((parts, Gaussian(3.0))), joined), (Repeated(parts, 2), twice))
    for event, profiles in cases:
        for side in (0, 1):
            assert_profile(privacy_loss(event, FINE), side, lambda e, profiles=profiles: max(one(e) for one in profiles), 1e-4)


def test_a_selection_among_events_of_two_parts():
    """Each part selected by itself: `SelectBest` of disjoint parts is the dearest of two selections."""
    whole = privacy_loss(SelectBest(Disjoint((Gaussian(1.5), DiscreteLaplace(0.7))), LAW), 2e-3)
    alone = [privacy_loss(SelectBest(part, LAW), 2e-3) for part in (Gaussian(1.5), DiscreteLaplace(0.7))]
    for e in EPSILONS:
        assert whole.delta(float(e)) == pytest.approx(max(loss.delta(float(e)) for loss in alone), abs=1e-9)


def test_approximate_dp_composes_as_in_another_library():
    theirs = pld.from_privacy_parameters(pld.common.DifferentialPrivacyParameters(0.1, 1e-7), value_discretization_interval=1e-4)
    assert privacy_loss(Repeated(ApproximateDp(0.1, 1e-7), 30), 1e-4).epsilon(1e-5) == pytest.approx(
        theirs.self_compose(30).get_epsilon_for_delta(1e-5), rel=1e-3
    )


@pytest.mark.parametrize("noise", ["gumbel", "laplace"])
def test_the_smallest_noisy_sum_of_clipped_losses(noise):
    """DP-AGD's choice among eight candidates, winners' probabilities exact: a record raises every sum by 0 to B."""
    rng, epsilon, bound = np.random.default_rng(7), 0.9, 2.0
    event = NoisyMin(epsilon, noise)
    prices, cheap = (privacy_loss(one, FINE) for one in (event, NoisyMin(epsilon / 1.5, noise)))
    worst = np.zeros(len(EPSILONS))
    for number in range(60):
        sums = rng.uniform(0, 4, 8) if number % 2 else np.zeros(8)
        added = rng.uniform(0, bound, 8) if number % 3 else bound * (np.arange(8) < 1 + number % 7)
        p, q = (_winner(x, bound / epsilon, noise) for x in (sums + added, sums))
        assert p.sum() == pytest.approx(1, abs=1e-6)
        worst = np.maximum(worst, [max(hockey_stick(p, q, e), hockey_stick(q, p, e)) for e in EPSILONS])
    assert (worst <= [prices.delta(float(e)) + 1e-6 for e in EPSILONS]).all()
    assert (worst > [cheap.delta(float(e)) + 1e-4 for e in EPSILONS]).any()


def _winner(sums: np.ndarray, scale: float, noise: str) -> np.ndarray:
    if noise == "gumbel":
        return exponential_mechanism(-sums, 1 / scale, 1.0, monotone=True)
    x, step = np.linspace(-18 * scale, 18 * scale + 8, 20_001, retstep=True)
    away = (x[None, :] - sums[:, None]) / scale
    density = np.exp(-np.abs(away)) / (2 * scale)
    above = np.where(away > 0, 0.5 * np.exp(-np.abs(away)), 1 - 0.5 * np.exp(-np.abs(away)))
    return np.array([float(np.sum(density[j] * np.prod(np.delete(above, j, axis=0), axis=0))) * step for j in range(len(sums))])


def test_a_quantile_and_then_training_on_real_tables():
    """Ranks of twenty numbers, one of which is a null record on the other table; then a noisy sum that moves by 1.

    Every place of the range of losses is priced by itself, and no table costs more than the price; the envelope of all places,
    composed, costs more.
    """
    rng, epsilon, noise = np.random.default_rng(8), 0.8, 3.0
    event, envelope = (
        Composed((PrivateQuantile(epsilon), Gaussian(noise))),
        Composed((ExponentialMechanism(epsilon), Gaussian(noise))),
    )
    loss, whole = privacy_loss(event, FINE), privacy_loss(envelope, FINE)
    assert len(loss.parts) > 1
    cheap = privacy_loss(Composed((PrivateQuantile(epsilon / 1.5), Gaussian(1.5 * noise))), FINE)
    grid, worst = np.linspace(0, 1, 24), np.zeros(len(EPSILONS))
    sums = np.diff(norm.cdf(np.concatenate([[-np.inf], np.linspace(-20, 20, 801), [np.inf]])[None, :], [[0], [1]], noise))
    for _ in range(150):
        share = rng.choice([0.1, 0.5, 0.8])
        values = rng.choice(rng.uniform(0, 1, 3), 20) if rng.random() < 0.5 else rng.uniform(0, 1, 20)
        laws = [_quantile(kept, grid, share, epsilon) for kept in (values, values[1:])]
        p, q = (np.outer(chosen, noisy).ravel() for chosen, noisy in zip(laws, sums, strict=True))
        worst = np.maximum(worst, [max(hockey_stick(p, q, e), hockey_stick(q, p, e)) for e in EPSILONS])
    bounds = np.array([loss.delta(float(e)) for e in EPSILONS])
    assert (worst <= bounds + 1e-12).all()
    assert (worst > [cheap.delta(float(e)) for e in EPSILONS]).any()
    assert (bounds <= [whole.delta(float(e)) + 1e-6 for e in EPSILONS]).all()
    assert loss.epsilon(1e-6) < whole.epsilon(1e-6) * (1 - 1e-3)


def _quantile(values: np.ndarray, grid: np.ndarray, share: float, epsilon: float) -> np.ndarray:
    below = (values[None, :] <= grid[:, None]).sum(axis=1)
    scores = -np.abs((1 - share) * below - share * (len(values) - below))
    return exponential_mechanism(scores, epsilon, max(share, 1 - share))


def test_a_quantile_behind_other_answers_covers_every_place_that_they_may_lead_to():
    """A noisy count, then a run: a quantile, then another count. The run's settings, so the place of the quantile's range, follow
    from the first count, one place for each of its outcomes. Priced as if one place were settled beforehand, by its pieces, the
    chosen places cost more than the price."""
    epsilon, first, second = 2.0, 0.5, 0.3
    run = Composed((PrivateQuantile(epsilon), DiscreteLaplace(second)))
    behind = privacy_loss(Composed((DiscreteLaplace(first), run)), FINE)
    ahead = privacy_loss(Composed((run, DiscreteLaplace(first))), FINE)
    assert (len(behind.parts), len(ahead.parts) > 1) == (1, True)
    (p1, q1), after = randomised_response(first), randomised_response(second)
    places = [[both(x, y) for x, y in zip(stretch(epsilon, top), after, strict=True)] for top in np.linspace(0, epsilon, 201)[1:-1]]
    beyond = 0.0
    for e in np.linspace(-2.5, 2.5, 51):
        chosen = sum(max(hockey_stick(p1[i] * p, q1[i] * q, float(e)) for p, q in places) for i in (0, 1))
        settled = max(hockey_stick(both(p1, p), both(q1, q), float(e)) for p, q in places)
        assert settled <= ahead.delta(float(e)) + 1e-12
        assert chosen <= behind.delta(float(e)) + 1e-12
        assert behind.delta(float(e)) <= chosen + 0.015
        beyond = max(beyond, chosen - ahead.delta(float(e)))
    assert beyond > 0.003


@pytest.mark.parametrize("protocol", ["final run on all rows", "every run released"])
def test_runs_behind_others_are_priced_for_every_place(protocol):
    """As `Composed` says, later events may depend on earlier answers. A fused run is dearer than pieces, and less than a choice."""
    run, choice = (Composed((asked(1.0), Gaussian(3.0))) for asked in (PrivateQuantile, ExponentialMechanism))
    made = {
        "final run on all rows": lambda one: Composed((PoissonSubsampled(0.1, SelectBest(one, LAW)), one)),
        "every run released": lambda one: Repeated(one, 3),
    }[protocol]
    found = privacy_loss(made(run), 2e-3)
    assert len(found.parts) == 1
    assert found.epsilon(1e-5) < privacy_loss(made(choice), 2e-3).epsilon(1e-5) * (1 - 1e-3)
    before = privacy_loss(made(Gaussian(3.0)), 2e-3) if protocol == "every run released" else None
    assert before is None or before.epsilon(1e-5) < found.epsilon(1e-5)
    for top in (0.3, 0.6):  # a place that was settled is one of those that are covered
        asked = two_points(1.0, top).compose(privacy_loss(Gaussian(3.0), 2e-3))
        if protocol == "every run released":
            assert asked.self_compose(3).epsilon(1e-5) <= found.epsilon(1e-5)
        else:
            tuned = privacy_loss(made(run).events[0], 2e-3)
            assert tuned.compose(asked).epsilon(1e-5) <= found.epsilon(1e-5)


def two_points(epsilon: float, top: float) -> PrivacyLoss:
    p, q = stretch(epsilon, top)
    pmf = from_points(2e-3, np.log(p / q), p, 0.0)
    back = from_points(2e-3, np.log(q / p), q, 0.0)
    return PrivacyLoss(((pmf, back),))


def test_a_quantile_inside_a_selection_has_one_part():
    """Candidates' places may differ, so the dearest profile of all places is taken before selecting."""
    trial = Composed((PrivateQuantile(0.5), Gaussian(2.0)))
    assert len(privacy_loss(trial, 2e-3).parts) > 1
    for event in (SelectBest(trial, LAW), Repeated(trial, 2), PoissonSubsampled(0.3, trial), RandomPart(0.5, trial, trial)):
        loss = privacy_loss(event, 2e-3)
        assert len(loss.parts) == 1
    fused = privacy_loss(SelectBest(trial, LAW), 2e-3)
    one_place = privacy_loss(SelectBest(Composed((ExponentialMechanism(0.5), Gaussian(2.0))), LAW), 2e-3)
    assert fused.epsilon(1e-5) <= one_place.epsilon(1e-5) * (1 + 1e-9)


def test_a_search_on_the_gradients_batch_never_costs_more():
    """One record in or out of the batch: a noisy sum, then eight noisy queries against a noisy threshold, probabilities exact."""
    q, noise, scales = 0.2, 1.5, (3.0, 4.0)
    rng = np.random.default_rng(9)
    event = PoissonSubsampled(q, Composed((Gaussian(noise), AboveThresholdGaussian(*scales, 8))))
    cheap = PoissonSubsampled(2 * q / 3, event.event)
    ((removing, adding),), ((less, _),) = (privacy_loss(one, FINE).parts for one in (event, cheap))
    sums = np.diff(norm.cdf(np.concatenate([[-np.inf], np.linspace(-10, 10, 201), [np.inf]])[None, :], [[0], [1]], noise))
    caught = False
    for number in range(60):
        below = rng.uniform(-1, 3) * scales[1] + rng.choice([0.0, 3.0]) * rng.standard_normal(8)
        moved = below - rng.choice([-1, 1]) * np.where(np.arange(8) < 7 + number % 2, 1.0, -1.0)
        without, held = (np.outer(sums[i], outcomes(x, *scales)).ravel() for i, x in enumerate((below, moved)))
        mixed = q * held + (1 - q) * without
        for e in EPSILONS:
            assert hockey_stick(mixed, without, e) <= removing.delta(float(e)) + 1e-12
            assert hockey_stick(without, mixed, e) <= adding.delta(float(e)) + 1e-12
            caught |= hockey_stick(mixed, without, e) > less.delta(float(e))
    assert caught


def two_gaussians(shifts: tuple[float, float]) -> Profile:
    """N(shifts, I) against N(0, I) in the plane, by summing densities on a fine mesh."""
    x = np.linspace(-9, 10, 950)
    weight = (x[1] - x[0]) ** 2
    p, q = (np.multiply.outer(*(norm.pdf(x, m) for m in means)) * weight for means in (shifts, (0.0, 0.0)))
    return lambda e: float(np.maximum(p - math.exp(e) * q, 0.0).sum())


@pytest.mark.parametrize(("noise", "count_noise"), [(1.0, 1.0), (1.0, 5.0), (2.0, 1.1)])
def test_an_adaptive_clip_norm_is_one_gaussian(noise, count_noise):
    """The record's gradient moves the sum by its clip norm, its bit moves the count of b - 1/2 by 1/2: a Gaussian in two
    dimensions, worst when both move fully. With whole bits instead (Opacus 1.6.0) the same noise protects less."""
    event = AdaptiveQuantileStep(noise, count_noise)
    exact = two_gaussians((1 / event.gradient_noise_multiplier, 0.5 / count_noise))
    loss = privacy_loss(event, FINE)
    for e in EPSILONS:
        assert exact(float(e)) == pytest.approx(loss.delta(float(e)), abs=2e-5)
    cheaper = two_gaussians((1 / event.gradient_noise_multiplier / 1.5, 0.5 / count_noise / 1.5))
    assert cheaper(0.5) < 0.9 * loss.delta(0.5)


def test_opacus_counts_whole_bits_and_reports_too_little():
    """ALGORITHMS.md section 2: with sigma_b = 1 and 1 meant, the true multiplier of Opacus' AdaClip is 0.756."""
    event = AdaptiveQuantileStep(1.0, 1.0)
    whole_bits = two_gaussians((1 / event.gradient_noise_multiplier, 1.0 / event.count_noise))
    true = (event.gradient_noise_multiplier**-2 + 1.0**-2) ** -0.5
    assert true == pytest.approx(0.756, abs=1e-3)
    assert whole_bits(1.0) == pytest.approx(gaussian(true)(1.0), abs=1e-5)
    assert whole_bits(1.0) > 1.3 * privacy_loss(event, FINE).delta(1.0)


def test_no_noise_left_after_merging_is_infinite_and_not_an_array_of_gigabytes():
    faint = Repeated(Gaussian(0.02), 10**9)
    for event in (
        faint,
        PoissonSubsampled(0.1, faint),
        Repeated(PoissonSubsampled(0.1, faint), 3),
        Composed((faint, Laplace(1.0))),
    ):
        assert privacy_loss(event, 1e-2).epsilon(1e-6) == math.inf
    assert privacy_loss(FixedSizeSampled(10, 2, Gaussian(0.015)), 1e-2).epsilon(1e-6) == math.inf
    assert accountant.epsilon(Gaussian(0.02), 1e-6) == pytest.approx(1250 + 50 * 4.75, rel=0.02)  # 1/(2 s^2) + z/s


def test_an_event_without_a_law_is_an_error_in_words():
    class Unheard(Base):
        kind = "unheard"

    try:
        with pytest.raises(FieldError, match="event = 'unheard' has no loss law"):
            _loss(Unheard(), 1e-2)
    finally:
        from sweeper.privacy.event import EVENTS

        del EVENTS["unheard"]


def test_costs_fall_with_noise_and_rise_with_everything_else():
    """Along a line of each parameter, at a small and a large delta."""
    lines: list[list[Event]] = [
        [PoissonSubsampled(0.1, Composed((Gaussian(s), ExponentialMechanism(0.3)))) for s in (4.0, 2.0, 1.0, 0.7)],
        [PoissonSubsampled(q, Composed((Gaussian(1.0), ExponentialMechanism(0.3)))) for q in (0.01, 0.1, 0.5, 1.0)],
        [PoissonSubsampled(0.1, Composed((Gaussian(1.0), ExponentialMechanism(e)))) for e in (0.01, 0.3, 1.0, 3.0)],
        [FixedSizeSampled(1_000, b, Gaussian(2.0)) for b in (1, 10, 500, 1_000)],
        [AboveThresholdGaussian(4.0, 4.0, k) for k in (1, 2, 10, 30)],
        [Repeated(AboveThresholdGaussian(8.0, 8.0, 5), n) for n in (1, 2, 10)],
        [RandomPart(f, Laplace(0.5), Laplace(2.0)) for f in (0.0, 0.3, 0.9, 1.0)],
    ]
    for line in lines:
        for delta in (1e-6, 1e-3):
            costs = [privacy_loss(event, 2e-3).epsilon(delta) for event in line]
            assert costs == sorted(costs)
            assert costs[-1] > costs[0]
