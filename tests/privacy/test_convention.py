"""dp_accounting's numbers under its own conventions, and what the adapter makes of them."""

from __future__ import annotations

import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import dp_event as dp_accounting_event
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from scipy import integrate

from sweeper.privacy import accountant
from sweeper.privacy.convention import dp_event, renyi_accountant
from sweeper.privacy.event_renyi import renyi_cost
from sweeper.privacy.events import (
    AboveThresholdGaussian,
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

RELATION = dp.NeighboringRelation
STEP = PoissonSubsampled(0.01, Gaussian(1.0))
BATCH = FixedSizeSampled(60_000, 600, Gaussian(2.0))


def theirs(kind: type, relation: RELATION, event: dp.DpEvent, delta: float) -> float:
    grid = {"value_discretization_interval": 1e-3} if kind is PLDAccountant else {}
    found = kind(neighboring_relation=relation, **grid)
    found.compose(event)
    return float(found.get_epsilon(delta))


def test_replace_one_means_two_things_there():
    """TRAPS.md: 9.997 against 4.729 for one Gaussian of sigma 1. Here a multiplier is noise over one record's bound, always."""
    event, relation = dp.GaussianDpEvent(1.0), RELATION.REPLACE_ONE
    doubled, plain = (theirs(kind, relation, event, 1e-5) for kind in (PLDAccountant, RdpAccountant))
    assert doubled == pytest.approx(9.997, abs=1e-3)
    assert plain == pytest.approx(4.729, abs=1e-3)
    everyone = FixedSizeSampled(100, 100, Gaussian(1.0))
    assert accountant.epsilon(everyone, 1e-5) == pytest.approx(doubled, rel=1e-3)
    assert accountant.epsilon(ReplaceOne(Gaussian(0.5)), 1e-5) == pytest.approx(doubled, rel=1e-3)
    assert accountant.renyi_epsilon(everyone, 1e-5) == pytest.approx(theirs(RdpAccountant, relation, dp.GaussianDpEvent(0.5), 1e-5))
    assert accountant.renyi_epsilon(ReplaceOne(Gaussian(1.0)), 1e-5) == pytest.approx(plain)
    assert accountant.epsilon(ReplaceOne(Gaussian(1.0)), 1e-5) == pytest.approx(accountant.epsilon(Gaussian(1.0), 1e-5))


@pytest.mark.parametrize("relation", [RELATION.ADD_OR_REMOVE_ONE, RELATION.REPLACE_SPECIAL])
@pytest.mark.parametrize(("sigma", "q", "steps"), [(1.0, 1.0, 1), (0.8, 0.02, 200)])
def test_zero_out_costs_what_add_or_remove_does(relation, sigma, q, steps):
    ours = Repeated(PoissonSubsampled(q, Gaussian(sigma)), steps)
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(sigma)), steps)
    assert accountant.epsilon(ours, 1e-5) == pytest.approx(theirs(PLDAccountant, relation, event, 1e-5), rel=1e-3)
    assert accountant.renyi_epsilon(ours, 1e-5) == pytest.approx(theirs(RdpAccountant, relation, event, 1e-5), rel=1e-9)


@pytest.mark.parametrize(
    ("rows", "size", "sigma", "steps"),
    [(60_000, 600, 2.0, 2_000), (1_000, 300, 3.0, 50), (500, 499, 4.0, 3)],
)
def test_batches_of_fixed_size_cost_less_than_their_renyi_bound_and_more_than_one_pair(rows, size, sigma, steps):
    """Between the composition of one pair that some tables have (a record at 1 among records at -1) and dp_accounting's bound."""
    event = Repeated(FixedSizeSampled(rows, size, Gaussian(sigma)), steps)
    halved = dp.SampledWithoutReplacementDpEvent(rows, size, dp.GaussianDpEvent(sigma / 2))
    pair = privacy_loss_distribution.from_gaussian_mechanism(
        sigma / 2, sampling_prob=size / rows, value_discretization_interval=1e-3, pessimistic_estimate=False
    ).self_compose(steps)
    bound = accountant.renyi_epsilon(event, 1e-5)
    assert bound == pytest.approx(theirs(RdpAccountant, RELATION.REPLACE_ONE, dp.SelfComposedDpEvent(halved, steps), 1e-5))
    assert pair.get_epsilon_for_delta(1e-5) <= accountant.epsilon(event, 1e-5) <= bound
    undoubled = accountant.epsilon(Repeated(FixedSizeSampled(rows, size, Gaussian(2 * sigma)), steps), 1e-5)
    assert undoubled < pair.get_epsilon_for_delta(1e-5)  # the multiplier taken for noise over a replaced record's is caught


def log_moment(order: int, sigma: float, q: float) -> float:
    """Wang, Balle, Kasiviswanathan 2019, Theorem 27, at orders 2 and 3: written out for a Gaussian of this multiplier."""

    def inner(x: float) -> float:  # (x - 1) times the Renyi divergence at order x
        return (x - 1) * x / (2 * sigma**2)

    second = math.comb(order, 2) * q**2 * min(4 * math.expm1(inner(2)), 2 * math.exp(inner(2)))
    if order == 2:
        return math.log1p(second)
    differences = [sum((-1) ** (n - k) * math.comb(n, k) * math.exp(inner(k)) for k in range(n + 1)) for n in (2, 4)]
    third = math.comb(3, 3) * q**3 * min(4 * math.sqrt(differences[0] * differences[1]), 2 * math.exp(inner(3)))
    return math.log1p(second + third)


@pytest.mark.parametrize("sigma", [1.5, 6.0])
def test_orders_between_whole_ones_are_chords_of_their_log_moment(sigma):
    """Their bound at 2.5, and at 1.5 from 0 at order 1, at half our multiplier. Ours lies between the exact divergence of a pair
    that some tables have and theirs."""
    rows, size = 1_000, 50
    event, q = FixedSizeSampled(rows, size, Gaussian(sigma)), size / rows
    second, third = (log_moment(order, sigma / 2, q) for order in (2, 3))
    bounds = renyi_accountant(event, [1.5, 2.0, 2.5]).rdp
    assert bounds == pytest.approx([second / 2 / 0.5, second, (second + third) / 2 / 1.5])
    for order, bound in zip((1.5, 2.0, 2.5), bounds, strict=True):
        rho, lost = renyi_cost(event, order)
        assert lost == 0
        assert exact_divergence(order, sigma / 2, q) <= rho <= bound
        assert renyi_cost(FixedSizeSampled(rows, size, Gaussian(2 * sigma)), order)[0] < exact_divergence(order, sigma / 2, q)


def exact_divergence(order: float, sigma: float, q: float) -> float:
    """Of q N(1, s^2) + (1 - q) N(0, s^2) against N(0, s^2), by integration."""

    def term(x: float) -> float:
        log_ratio = np.log1p(q * np.expm1((2 * x - 1) / (2 * sigma**2)))
        return math.exp(order * log_ratio - x * x / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))

    centres = (0.0, order)
    moment = sum(integrate.quad(term, *ends)[0] for ends in ((-12 * sigma, 0), centres, (order, order + 12 * sigma)))
    return math.log(moment) / (order - 1)


def test_each_event_is_theirs_or_has_none():
    law = TruncatedNegativeBinomial(eta=1.0, mean=10.0)
    assert dp_event(AdaptiveQuantileStep(2.0, 10.0)) == dp.GaussianDpEvent(2.0)
    assert dp_event(Laplace(3.0)) == dp.LaplaceDpEvent(3.0)
    assert dp_event(BATCH) == dp.SampledWithoutReplacementDpEvent(60_000, 600, dp.GaussianDpEvent(1.0))
    assert dp_event(Repeated(STEP, 0)) == dp.NoOpDpEvent()
    assert dp_event(SelectBest(Repeated(STEP, 3), law)) == dp_accounting_event.RepeatAndSelectDpEvent(
        dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0)), 3), 10.0, 1.0
    )
    ranged, half = ExponentialMechanism(1.0), TruncatedNegativeBinomial(eta=1.0, mean=10.0, max_trials=20)
    without = [ranged, ApproximateDp(1.0), DiscreteLaplace(1.0), NoisyMin(1.0), PrivateQuantile(1.0), RandomPart(0.1, STEP, STEP)]
    without += [AboveThresholdGaussian(4.0, 4.0, 3), Disjoint((STEP, STEP)), SelectBest(STEP, half), SelectBest(ranged, law)]
    without += [Composed((STEP, ranged)), Repeated(ranged, 2), PoissonSubsampled(0.1, Laplace(1.0)), ReplaceOne(ranged)]
    for event in without:
        assert dp_event(event) is None
        assert accountant.renyi_epsilon(event, 1e-5) is None
        with pytest.raises(ValueError, match="no Renyi bound"):
            renyi_accountant(event)


def test_a_selection_composes_with_what_follows_it():
    """Their accountant keeps the two apart: the selection's cost is of its own trial."""
    law = TruncatedNegativeBinomial(eta=1.0, mean=10.0)
    both = renyi_accountant(Composed((Gaussian(3.0), SelectBest(Gaussian(4.0), law), Laplace(5.0))), [4.0]).rdp
    alone = [renyi_accountant(event, [4.0]).rdp for event in (Gaussian(3.0), SelectBest(Gaussian(4.0), law), Laplace(5.0))]
    assert both == pytest.approx(np.sum(alone, axis=0))
