"""The Renyi cost of every kind of event at one order: against integrals, enumerations and the discretised pair."""

from __future__ import annotations

import math

import numpy as np
import pytest
from above_threshold import outcomes
from pairs import exponential_mechanism, randomised_response, renyi
from scipy import integrate
from scipy.special import logsumexp
from scipy.stats import norm

from sweeper.privacy import event_renyi, subsampled
from sweeper.privacy.accountant import privacy_loss
from sweeper.privacy.convention import renyi_accountant
from sweeper.privacy.event_renyi import renyi_cost
from sweeper.privacy.events import (
    NOTHING,
    AboveThresholdGaussian,
    AboveThresholdLaplace,
    AdaptiveQuantileStep,
    ApproximateDp,
    Composed,
    DiscreteLaplace,
    Disjoint,
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

ORDERS = [1.5, 2.0, 3.7, 8.0, 24.0]
LAW = TruncatedNegativeBinomial(eta=1.0, mean=4.0)
CELLS = np.concatenate([[-np.inf], np.linspace(-12, 36, 3_001), [np.inf]])


def gaussian_pair(noise: float) -> tuple[np.ndarray, np.ndarray]:
    """N(1, s^2) and N(0, s^2) in fine cells: divergences from below, right to a part in a thousand."""
    found = []
    for mean in (1.0, 0.0):
        z = (CELLS * noise - mean) / noise
        found.append(np.where(z[1:] > 0, norm.sf(z[:-1]) - norm.sf(z[1:]), norm.cdf(z[1:]) - norm.cdf(z[:-1])))
    return found[0], found[1]


def both(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.outer(x, y).ravel() for x, y in zip(a, b, strict=True))


def dearest(p: np.ndarray, q: np.ndarray, order: float) -> float:
    with np.errstate(divide="ignore"):
        kept = (p > 0) & (q > 0)
        log_p, log_q = np.log(p[kept]), np.log(q[kept])
    return float(max(logsumexp(order * a - (order - 1) * b) for a, b in ((log_p, log_q), (log_q, log_p))) / (order - 1))


@pytest.mark.parametrize("order", ORDERS)
def test_mechanisms_with_a_curve_in_closed_form(order):
    def laplace(x: float) -> float:
        return math.exp((-order * abs(x) + (order - 1) * abs(x - 1)) / 1.5) / 3.0

    moment = sum(integrate.quad(laplace, *ends)[0] for ends in ((-90, 0), (0, 1), (1, 91)))
    flipped = randomised_response(0.4)
    expected = {
        Gaussian(1.7): order / (2 * 1.7**2),
        AdaptiveQuantileStep(1.7, 3.0): order / (2 * 1.7**2),
        Laplace(1.5): math.log(moment) / (order - 1),
        DiscreteLaplace(0.4): renyi(*flipped, order),
        ApproximateDp(0.4): renyi(*flipped, order),
        NoisyMin(0.4, "laplace"): renyi(*flipped, order),
        AboveThresholdLaplace(1.5, 4.0): math.log(moment) / (order - 1) + 0.5,
        ExponentialMechanism(0.4): min(order * 0.02, renyi(*flipped, order)),
        PrivateQuantile(0.4): min(order * 0.02, renyi(*flipped, order)),
        NoisyMin(0.4): min(order * 0.02, renyi(*flipped, order)),
    }
    for event, rho in expected.items():
        assert renyi_cost(event, order) == (pytest.approx(rho, rel=1e-8), 0.0)
    composed = renyi_cost(Composed((*expected, Repeated(Laplace(1.5), 3))), order)
    assert composed == (pytest.approx(sum(expected.values()) + 3 * expected[Laplace(1.5)], rel=1e-8), 0.0)
    assert renyi_cost(Repeated(ReplaceOne(Composed((Laplace(1.5), DiscreteLaplace(0.4)))), 2), order)[0] == pytest.approx(
        2 * (expected[Laplace(1.5)] + expected[DiscreteLaplace(0.4)])
    )


@pytest.mark.parametrize("order", ORDERS)
def test_exponential_mechanisms_cost_no_more(order):
    rng, worst = np.random.default_rng(3), 0.0
    for _ in range(300):
        scores, moved = 2 * rng.standard_normal(10), rng.choice([-1.0, 1.0], 10)
        worst = max(worst, dearest(exponential_mechanism(scores, 0.8, 1.0), exponential_mechanism(scores + moved, 0.8, 1.0), order))
    assert worst <= renyi_cost(ExponentialMechanism(0.8), order)[0]
    assert worst > renyi_cost(ExponentialMechanism(0.8 / 1.5), order)[0] or order > 10


@pytest.mark.parametrize("order", ORDERS)
def test_what_runs_on_one_batch_is_amplified_once(order):
    """A Gaussian and randomised response on one batch, divergences of the mixture summed over all outcomes, both directions.

    Where a curve is attained the cost is exact at whole orders; amplified one by one the two would show too little.
    """
    q, noise, epsilon = 0.1, 1.2, 0.8
    p, without = both(gaussian_pair(noise), randomised_response(epsilon))
    exact = dearest(q * p + (1 - q) * without, without, order)
    event = PoissonSubsampled(q, Composed((Gaussian(noise), ApproximateDp(epsilon))))
    rho, lost = renyi_cost(event, order)
    assert lost == 0
    assert exact <= rho * (1 + 1e-9)
    assert rho <= exact * (1.01 if order.is_integer() else 1.5)
    apart = Composed((PoissonSubsampled(q, Gaussian(noise)), PoissonSubsampled(q, ApproximateDp(epsilon))))
    assert renyi_cost(apart, order)[0] < exact
    assert renyi_cost(PoissonSubsampled(q / 1.5, event.event), order)[0] < exact or order < 2
    assert rho <= renyi_cost(event.event, order)[0]


@pytest.mark.parametrize("order", [2.0, 8.0])
def test_it_is_below_what_the_discretised_pair_says(order):
    """The pair of a bounded-range mechanism is an envelope of many, and costs more in Renyi terms than any of them."""
    event = PoissonSubsampled(0.05, Composed((Gaussian(1.5), ExponentialMechanism(0.6))))
    rho, _ = renyi_cost(event, order)
    pair = event_renyi._from_loss(event, order)[0]
    assert renyi_cost(PoissonSubsampled(0.05, Gaussian(1.5)), order)[0] < rho < pair < 1.5 * rho


def test_a_gaussian_search_on_the_batch():
    """Instances with exact probabilities, present and absent: never above the cost."""
    q, noise, scales, rng = 0.2, 1.5, (3.0, 4.0), np.random.default_rng(4)
    event = PoissonSubsampled(q, Composed((Gaussian(noise), AboveThresholdGaussian(*scales, 6))))
    costs = {order: renyi_cost(event, order)[0] for order in (2.0, 3.7, 8.0)}
    alone = {order: renyi_cost(PoissonSubsampled(q, Gaussian(noise)), order)[0] for order in costs}
    nearest, caught = 0.0, False
    for _ in range(15):
        below = rng.uniform(-1, 3) * scales[1] + rng.choice([0.0, 3.0]) * rng.standard_normal(6)
        answers = outcomes(below - rng.choice([-1, 1]) * np.append(np.ones(5), -1.0), *scales), outcomes(below, *scales)
        p, without = both(gaussian_pair(noise), answers)
        for order, cost in costs.items():
            found = dearest(q * p + (1 - q) * without, without, order)
            assert found <= cost * (1 + 1e-9)
            nearest = max(nearest, found / cost)
            caught |= found > 1.02 * alone[order]
    assert nearest > 0.4  # no instance has the dearest answer to every question, and the threshold stays secret
    assert caught  # the gradient's own cost is not enough


@pytest.mark.parametrize("order", [2.0, 5.0, 16.0])
def test_an_approximate_mechanism_on_the_batch(order):
    """Where the inner cost holds outside a mass delta only, the pair's own divergence is taken; what is left out is counted."""
    q, noise, delta = 0.05, 1.5, 1e-9
    event = PoissonSubsampled(q, Composed((Gaussian(noise), ApproximateDp(0.5, delta))))
    rho, lost = renyi_cost(event, order)
    pure = renyi_cost(PoissonSubsampled(q, Composed((Gaussian(noise), ApproximateDp(0.5)))), order)[0]
    assert q * delta <= lost <= delta + 2 * event_renyi.STEP_CUT
    p, without = both(gaussian_pair(noise), randomised_response(0.5))
    mixed = q * p + (1 - q) * without
    by_loss = np.argsort(mixed / without)
    kept = by_loss[np.cumsum(mixed[by_loss]) < 1 - lost]
    assert (0.9 if order < 10 else 0.6) * rho < dearest(mixed[kept], without[kept], order) <= rho <= pure * 1.05
    assert rho < 0.5 * renyi_cost(event.event, order)[0]
    unamplified = PoissonSubsampled(1.0, event.event)
    assert renyi_cost(unamplified, order) == renyi_cost(event.event, order)


def test_a_selection_on_a_part_of_the_table():
    """subsample-tune that trains on all rows: the amplified selection costs less than the selection, at a stated delta0."""
    tune = SelectBest(Gaussian(2.0), LAW)
    alone, amplified = renyi_cost(tune, 6.0), renyi_cost(PoissonSubsampled(0.1, tune), 6.0)
    assert amplified[0] < 0.5 * alone[0]
    assert amplified[1] < 2e-10
    pmf = privacy_loss(PoissonSubsampled(0.1, tune), 1e-3).parts[0][0]
    assert amplified[0] == pytest.approx(pmf.renyi(6.0, event_renyi.STEP_CUT)[0], rel=2e-2)


@pytest.mark.parametrize("order", ORDERS)
def test_random_parts_average_moments(order):
    """Of the pair that tells which part a record went to; the pair of two Gaussians is a mixture with a public coin."""
    fraction, first, second = 0.2, 0.9, 2.0
    rho, lost = renyi_cost(RandomPart(fraction, Gaussian(first), Gaussian(second)), order)
    moments = [math.exp((order - 1) * order / (2 * s * s)) for s in (first, second)]
    assert rho == pytest.approx(math.log(fraction * moments[0] + (1 - fraction) * moments[1]) / (order - 1), rel=1e-9)
    assert lost == 0
    (p, r), (s, t) = gaussian_pair(first), gaussian_pair(second)
    told = np.concatenate([fraction * p, (1 - fraction) * s]), np.concatenate([fraction * r, (1 - fraction) * t])
    assert dearest(*told, order) == pytest.approx(rho, rel=2e-2)
    ends = [renyi_cost(RandomPart(f, Gaussian(first), Gaussian(second)), order)[0] for f in (0.0, 1.0)]
    assert ends == pytest.approx([order / (2 * second**2), order / (2 * first**2)])
    approximate = RandomPart(0.25, ApproximateDp(0.5, 1e-6), ApproximateDp(0.5, 1e-7))
    assert renyi_cost(approximate, order)[1] == pytest.approx(0.25e-6 + 0.75e-7)


def test_disjoint_parts_cost_what_the_dearest_does():
    parts = Disjoint((Gaussian(2.0), ApproximateDp(0.1, 1e-7), Laplace(1.5)))
    assert renyi_cost(parts, 4.0) == (max(renyi_cost(part, 4.0)[0] for part in parts.parts), 1e-7)


def test_orders_at_which_the_series_of_another_library_does_not_converge():
    """dp_accounting gives up on some orders below 2; the chord from order 1 to order 2 is a bound there."""
    event = PoissonSubsampled(0.1, Gaussian(1.0))
    second = math.log(0.81 + 2 * 0.09 + 0.01 * math.e)
    for order in (1.1, 1.3, 1.9):
        p, without = gaussian_pair(1.0)
        rho = renyi_cost(event, order)[0]
        assert dearest(0.1 * p + 0.9 * without, without, order) <= rho <= second * (1 + 1e-9)
    assert renyi_cost(event, 2.0)[0] == pytest.approx(second)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("rows", "size", "noise"), [(1_000, 10, 2.0), (100, 60, 3.0), (100_000, 1, 0.7), (100, 99, 40.0)])
def test_batches_of_fixed_size_by_the_average_of_their_profile(rows, size, noise, order):
    """Above every pair of tables (q N(2) + (1 - q) N(0) against N(0), and q N(1) + .. against q N(-1) + .., both directions), below
    dp_accounting's bound, and equal to the discretised pair where that has no far tail."""
    q, event = size / rows, FixedSizeSampled(rows, size, Gaussian(noise))
    rho, lost = renyi_cost(event, order)
    assert lost == 0
    edges = np.concatenate([[-np.inf], np.linspace(-14 * noise - 1, 14 * noise + 2 * order + 1, 6_001), [np.inf]])
    laws = {}
    for mean in (-1.0, 0.0, 1.0, 2.0):
        z = (edges - mean) / noise
        laws[mean] = np.where(z[1:] > 0, norm.sf(z[:-1]) - norm.sf(z[1:]), norm.cdf(z[1:]) - norm.cdf(z[:-1]))
    one_sided = q * laws[2.0] + (1 - q) * laws[0.0], laws[0.0]
    two_sided = q * laws[1.0] + (1 - q) * laws[0.0], q * laws[-1.0] + (1 - q) * laws[0.0]
    for p, r in (one_sided, two_sided):
        assert dearest(p, r, order) <= rho * (1 + 1e-9)
    assert dearest(*one_sided, order) > renyi_cost(FixedSizeSampled(rows, size, Gaussian(1.5 * noise)), order)[0]
    assert rho <= float(renyi_accountant(event, [order]).rdp[0]) * (1 + 1e-6)
    if order <= 3:
        pair = privacy_loss(event, 2e-4).parts[0][0].renyi(order, 0.0)[0]
        assert rho * (1 - 1e-6) <= pair <= rho * 1.01


def test_batches_of_fixed_size_at_every_order():
    """Rises with the order, stays below dp_accounting's bound, and is the Gaussian's own where every record is in the batch."""
    event, orders = FixedSizeSampled(1_000, 20, Gaussian(3.0)), [1.01, 1.5, 3.0, 10.5, 60.0, 250.0]
    costs = [renyi_cost(event, order)[0] for order in orders]
    assert costs == sorted(costs)
    assert (np.array(costs) <= renyi_accountant(event, orders).rdp * (1 + 1e-6)).all()
    for order in orders:
        everyone = subsampled.fixed_size_renyi(1.5, 1.0, order)
        assert everyone == pytest.approx(order / (2 * 1.5**2), rel=1e-7)
        assert everyone * (1 + 1e-12) >= order / (2 * 1.5**2)
    little = FixedSizeSampled(1_000, 20, Gaussian(0.05))  # 800 nats and more, and orders of millions: still numbers
    faint = [renyi_cost(little, order)[0] for order in (2.0, 100.0, 1e3, 1e6)]
    assert faint == sorted(faint)
    assert faint == pytest.approx([1600 + 2 * math.log(0.02), 8e4, 8e5, 8e8], rel=0.02)


def test_nothing_and_everything():
    assert renyi_cost(NOTHING, 3.0) == (0.0, 0.0)
    assert renyi_cost(Composed((NOTHING, PoissonSubsampled(0.0, Laplace(1.0)), Repeated(Laplace(1.0), 0))), 3.0) == (0.0, 0.0)
    assert renyi_cost(AboveThresholdGaussian(2.0, 2.0, 0), 3.0) == (0.0, 0.0)
    for event in (Gaussian(0.0), PoissonSubsampled(0.1, Gaussian(0.0)), FixedSizeSampled(10, 2, Gaussian(0.01))):
        assert renyi_cost(event, 3.0) == (math.inf, 0.0)


def test_costs_of_a_batch_grow_with_everything():
    inner = Composed((Gaussian(1.2), ExponentialMechanism(0.4)))
    for order in (1.5, 4.0, 20.0):
        by_q = [renyi_cost(PoissonSubsampled(q, inner), order)[0] for q in (0.001, 0.01, 0.1, 0.5, 1.0)]
        assert by_q == sorted(by_q)
        by_noise = [
            renyi_cost(PoissonSubsampled(0.1, Composed((Gaussian(s), ExponentialMechanism(0.4)))), order)[0]
            for s in (3.0, 1.2, 0.8)
        ]
        assert by_noise == sorted(by_noise)
    by_order = [renyi_cost(PoissonSubsampled(0.1, inner), order)[0] for order in (1.2, 2.0, 2.5, 3.0, 9.5, 32.0)]
    assert by_order == sorted(by_order)
