"""Bounded range, pure DP and Laplace: laws against closed forms, other libraries and mechanisms written out as tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from pairs import EPSILONS, both, exponential_mechanism, hockey_stick, randomised_response, renyi, stretch
from scipy import integrate
from test_vectors import vectors

from sweeper.checks import FieldError
from sweeper.privacy import exponential
from sweeper.privacy.loss import PrivacyLoss, subsampled_gaussian
from sweeper.privacy.profile import from_profile, fused, profile_values


def law(loss: PrivacyLoss) -> object:
    ((removing, adding),) = loss.parts
    assert removing is adding
    return removing


def envelope(epsilon: float, e: float) -> float:
    """ALGORITHMS.md section 3."""
    if abs(e) > epsilon:
        return max(0.0, 1 - math.exp(e))
    return (math.exp(epsilon / 2) - math.exp(e / 2)) ** 2 / math.expm1(epsilon)


@pytest.mark.parametrize("epsilon", [0.013, 0.25, 0.3, 1.0, 5.0, 60.0])
@pytest.mark.parametrize("interval", [1e-3, 2e-2])
def test_bounded_range_has_the_profile_of_the_formula(epsilon, interval):
    pmf = law(exponential.bounded_range(epsilon, interval))
    assert pmf.mass.sum() == pytest.approx(1.0, abs=1e-12)
    steps = math.floor(epsilon / interval)
    grid = np.arange(-steps, steps + 1, max(1, steps // 20)) * interval
    for e in np.concatenate([np.linspace(-1.2, 1.2, 47) * epsilon, grid]):
        true = envelope(epsilon, float(e))
        assert true - 1e-14 <= pmf.delta(float(e)) <= true + max(interval**2 / epsilon, interval**2)
    for e in grid:  # the chords touch the profile at the grid's own losses
        assert pmf.delta(float(e)) == pytest.approx(envelope(epsilon, float(e)), abs=1e-13)


def test_exponential_mechanisms_cost_no_more_and_the_worst_nearly_as_much():
    """Random scores on 2 to 12 candidates, moved by at most 1 each way; and groups of equal candidates pulled apart."""
    rng, epsilon = np.random.default_rng(1), 0.7
    pmf, smaller = law(exponential.bounded_range(epsilon, 1e-4)), law(exponential.bounded_range(epsilon / 1.5, 1e-4))
    worst = np.zeros(len(EPSILONS))
    for number in range(3_000):
        if number < 1_000:
            scores = 3 * rng.standard_normal(rng.integers(2, 13))
            moved = scores + rng.uniform(-1, 1, len(scores))
        else:
            scores = np.zeros(1_001)
            moved = np.where(np.arange(1_001) < number - 1_000, 1.0, -1.0) if number < 2_001 else scores + rng.uniform(-1, 1, 1_001)
        p, q = (exponential_mechanism(x, epsilon, 1.0) for x in (scores, moved))
        worst = np.maximum(worst, [max(hockey_stick(p, q, e), hockey_stick(q, p, e)) for e in EPSILONS])
    bounds = np.array([pmf.delta(float(e)) for e in EPSILONS])
    assert (worst <= bounds + 1e-12).all()
    inside = np.abs(EPSILONS) < 0.6
    assert (worst[inside] >= 0.98 * bounds[inside]).all()
    assert (worst[inside] > [smaller.delta(float(e)) for e in EPSILONS[inside]]).all()  # a price wrong by 1.5 is caught


def test_scores_that_a_record_only_raises_may_use_twice_the_weight():
    rng, epsilon = np.random.default_rng(2), 0.7
    pmf = law(exponential.bounded_range(epsilon, 1e-4))
    worst = {True: 0.0, False: 0.0}
    for _ in range(1_000):
        scores = 2 * rng.standard_normal(60)
        up, either = rng.uniform(0, 1, 60).round(), rng.uniform(-1, 1, 60).round()
        for monotone, change in ((True, up), (False, either)):
            p, q = (exponential_mechanism(x, epsilon, 1.0, monotone=True) for x in (scores, scores + change))
            excess = max(max(hockey_stick(p, q, e), hockey_stick(q, p, e)) - pmf.delta(float(e)) for e in EPSILONS)
            worst[monotone] = max(worst[monotone], excess)
    assert worst[True] <= 1e-12
    assert worst[False] > 1e-3  # scores that also fall would cost more


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0, 64.0])
def test_bounded_range_is_an_eighth_of_epsilon_squared_in_zcdp(order):
    for epsilon in (0.1, 1.0, 4.0):
        found = max(renyi(*stretch(epsilon, top), order) for top in np.linspace(0, epsilon, 401)[1:-1])
        assert found <= order * exponential.bounded_range_rho(epsilon) + 1e-12
        if epsilon * order < 1:
            assert found > 0.9 * order * exponential.bounded_range_rho(epsilon)


@pytest.mark.parametrize("epsilon", [0.05, 0.8, 3.0])
def test_pieces_cover_every_place_of_the_stretch(epsilon):
    loss = exponential.bounded_range(epsilon, 1e-3, pieces=5)
    assert 3 <= len(loss.parts) <= 5
    for part, _ in loss.parts:
        assert part.mass.sum() == pytest.approx(1.0, abs=1e-12)
        assert (part.mass * np.exp(-part.losses)).sum() == pytest.approx(1.0, abs=1e-9)
    pieces = [exponential._stretches(epsilon, i * epsilon / 5, (i + 1) * epsilon / 5, 1e-3) for i in range(5)]
    for top in np.linspace(0, epsilon, 60):
        piece = pieces[min(4, int(top / epsilon * 5))]
        assert all(hockey_stick(*stretch(epsilon, top), e) <= piece.delta(e) + 1e-12 for e in np.linspace(-1, 1, 41) * epsilon)
    whole = law(exponential.bounded_range(epsilon, 1e-3))
    assert all(loss.delta(e) == pytest.approx(envelope(epsilon, e), abs=2e-6) for e in np.linspace(-0.9, 0.9, 19) * epsilon)
    assert all(part.delta(e) <= whole.delta(e) + 2e-6 for part, _ in loss.parts for e in np.linspace(-1, 1, 41) * epsilon)


@pytest.mark.parametrize("row", vectors("private_quantile_then_dpsgd"))
def test_a_private_quantile_before_training(row):
    """`also_valid` is the envelope, to its printed digits; places of the stretch kept apart come down towards `epsilon`."""
    training = subsampled_gaussian(row["sigma"], row["q"], 2e-4).self_compose(row["steps"])
    found = [exponential.bounded_range(row["eps_quantile"], 2e-4, pieces).compose(training) for pieces in (1, 2, 8, 32)]
    epsilons = [loss.epsilon(row["delta"]) for loss in found]
    assert epsilons[0] == pytest.approx(row["also_valid"], rel=2e-4)
    assert epsilons == sorted(epsilons, reverse=True)
    assert row["epsilon"] < epsilons[-1] < epsilons[-2] < epsilons[-3] < row["also_valid"]
    assert epsilons[-1] < row["epsilon"] * 1.001
    assert fused(found[2]).epsilon(row["delta"]) == pytest.approx(epsilons[2], rel=1e-9)


def test_a_fused_loss_dominates_its_parts():
    loss = exponential.bounded_range(0.5, 1e-3, 6).compose(subsampled_gaussian(2.0, 1.0, 1e-3))
    ((removing, adding),) = fused(loss).parts
    for e in np.linspace(-2.5, 2.5, 101):
        assert loss.delta(float(e)) - 1e-12 <= removing.delta(float(e)) <= loss.delta(float(e)) + 2e-7
        assert adding.delta(float(e)) == removing.delta(float(e))


def test_values_of_a_profile_and_back():
    pmf = subsampled_gaussian(1.3, 1.0, 1e-2).parts[0][0]
    values = profile_values(pmf, pmf.lowest - 3, len(pmf.mass) + 5)
    losses = (pmf.lowest - 3 + np.arange(len(values))) * 1e-2
    assert values == pytest.approx([pmf.delta(float(x)) for x in losses], rel=1e-9)
    back = from_profile(1e-2, pmf.lowest - 3, values)
    assert back.epsilon(1e-6) == pytest.approx(pmf.epsilon(1e-6), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 6.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.3])
def test_approximate_is_the_largest_profile(epsilon, delta):
    pmf = law(exponential.approximate(epsilon, delta, 1e-3))
    theirs = pld.from_privacy_parameters(
        pld.common.DifferentialPrivacyParameters(epsilon, delta), value_discretization_interval=1e-3
    )
    for e in EPSILONS:
        true = delta + (1 - delta) * max((math.exp(epsilon) - math.exp(e)) / (1 + math.exp(epsilon)), 1 - math.exp(e), 0.0)
        assert true - 1e-14 <= pmf.delta(float(e)) <= true + 1e-3
        assert pmf.delta(float(e)) <= theirs.get_delta_for_epsilon(float(e)) + 1e-12


def test_pure_is_randomised_response():
    p, q = randomised_response(0.6)
    pmf = law(exponential.pure(0.6, 1e-3))
    twice, pp, qq = pmf.compose(pmf), both(p, p), both(q, q)
    for e in EPSILONS:
        assert hockey_stick(p, q, e) - 1e-14 <= pmf.delta(float(e)) <= hockey_stick(p, q, e) + 1e-6
        assert hockey_stick(pp, qq, e) - 1e-14 <= twice.delta(float(e)) <= hockey_stick(pp, qq, e) + 1e-6
    for order in (1.5, 4.0, 300.0):
        assert exponential.pure_renyi(0.6, order) == pytest.approx(renyi(p, q, order), rel=1e-10)


@pytest.mark.parametrize("scale", [0.2, 1.0, 7.0])
def test_laplace_is_exact(scale):
    pmf = law(exponential.laplace(scale, 1e-3))
    theirs = pld.from_laplace_mechanism(scale, value_discretization_interval=1e-3, use_connect_dots=True)
    assert pmf.mass.sum() == pytest.approx(1.0, abs=1e-12)
    for e in np.append(EPSILONS, [0.9 / scale, 0.99 / scale]):
        true = max(0.0, 1 - math.exp((e - 1 / scale) / 2)) if e > -1 / scale else 1 - math.exp(e)
        assert true - 1e-14 <= pmf.delta(float(e)) <= true + 3e-7
        assert pmf.delta(float(e)) <= theirs.get_delta_for_epsilon(float(e)) + 1e-9
    for order in (1.25, 2.0, 16.0):

        def weight(x: float, order: float = order) -> float:
            return math.exp((-order * abs(x) + (order - 1) * abs(x - 1)) / scale) / (2 * scale)

        moment = sum(integrate.quad(weight, *ends)[0] for ends in ((-60 * scale, 0), (0, 1), (1, 1 + 60 * scale)))
        assert exponential.laplace_renyi(scale, order) == pytest.approx(math.log(moment) / (order - 1), rel=1e-7)
        assert pmf.renyi(order, 0.0)[0] == pytest.approx(exponential.laplace_renyi(scale, order), rel=1e-3)


@pytest.mark.parametrize("call", [exponential.bounded_range, exponential.pure])
@pytest.mark.parametrize("epsilon", [0.0, -1.0, 601.0, math.nan])
def test_parameters_out_of_range_are_refused(call, epsilon):
    with pytest.raises(FieldError, match="epsilon"):
        call(epsilon, 1e-3)
