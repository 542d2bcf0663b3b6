"""How charges add up: against exact compositions, and against an adversary who chooses the second charge after the first answer."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import optimize, stats

from sweeper.privacy.budget import APPROXIMATE_SHARE, Budget, Price, filter_order, fixed_beforehand, price, total
from sweeper.privacy.events import NOTHING, Gaussian
from sweeper.privacy.guarantee import Guarantee

EPSILON, DELTA = 8.0, 1e-4
BUDGET = Budget(data_set="adult", epsilon=EPSILON, delta=DELTA, order=filter_order(EPSILON, DELTA))


def charge(rho: float, delta0: float = 0.0, epsilon: float = 0.0) -> Price:
    return Price(epsilon=epsilon, rho=rho, delta0=delta0)


def divergence(p: np.ndarray, q: np.ndarray, order: float) -> float:
    """Renyi divergence of two finite laws, the larger direction."""
    return max(math.log(float((a**order * b ** (1 - order)).sum())) / (order - 1) for a, b in ((p, q), (q, p)))


def exact_gaussian(noise: float, delta: float) -> float:
    """Epsilon of one Gaussian mechanism: its privacy profile (Balle and Wang 2018, Theorem 8) solved for epsilon."""
    mu = 1 / noise

    def excess(epsilon: float) -> float:
        tail = math.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu))
        return float(stats.norm.cdf(mu / 2 - epsilon / mu)) - tail - delta

    return 0.0 if excess(0.0) <= 0 else float(optimize.brentq(excess, 0.0, mu**2 / 2 + 40 * mu, xtol=1e-10))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 50.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-4])
def test_the_order_is_the_best_one_for_a_gaussian_that_spends_the_budget(epsilon, delta):
    order = filter_order(epsilon, delta)
    rho = optimize.brentq(lambda r: r + 2 * math.sqrt(r * math.log(1 / delta)) - epsilon, 1e-12, epsilon)
    bills = {
        factor: rho * order_ + math.log(1 / delta) / (order_ - 1)
        for factor in (2 / 3, 1.0, 3 / 2)
        for order_ in [1 + (order - 1) * factor]
    }
    assert bills[1.0] == pytest.approx(epsilon, rel=1e-6)
    assert bills[1.0] < min(bills[2 / 3], bills[3 / 2])


def test_the_conversion_spends_nine_tenths_of_delta():
    """Proposition 12 read the other way: delta(epsilon) = e^{(a-1)(R-epsilon)} (1 - 1/a)^{a-1} / a."""
    a = BUDGET.order
    epsilon = total([charge(0.7), charge(0.4)], BUDGET)
    assert math.exp((a - 1) * (1.1 - epsilon)) * (1 - 1 / a) ** (a - 1) / a == pytest.approx(0.9 * DELTA, rel=1e-9)


@pytest.mark.parametrize("noises", [(2.0, 2.0), (1.0, 3.0), (1.2,) * 2, (5.0,) * 20, (0.8, 4.0, 4.0)])
def test_it_covers_the_exact_composition_of_gaussians_without_wasting_much(noises):
    together = total([charge(BUDGET.order / (2 * s**2), epsilon=exact_gaussian(s, DELTA)) for s in noises], BUDGET)
    exact = exact_gaussian(sum(s**-2 for s in noises) ** -0.5, DELTA)
    assert exact <= together
    if together > EPSILON / 2:  # the order was chosen for bills near the budget
        assert together <= 1.25 * exact


def test_no_charge_costs_nothing_and_one_its_exact_value():
    assert total([], BUDGET) == 0.0
    assert total([charge(math.inf, 1.0, epsilon=2.5)], BUDGET) == 2.5


def test_it_is_never_below_the_largest_single_charge():
    assert total([charge(0.01, epsilon=7.0), charge(0.01, epsilon=1.0)], BUDGET) == 7.0


@pytest.mark.parametrize(("delta0", "finite"), [(0.49, True), (0.51, False)])
def test_approximate_charges_fit_in_their_share_of_delta_only(delta0, finite):
    share = APPROXIMATE_SHARE * DELTA
    assert math.isfinite(total([charge(0.1, delta0 * share), charge(0.1, delta0 * share)], BUDGET)) is finite


class Adversary:
    """Two answers. The first (h or l) tells which second charge does more harm: on h one with rho, on l one with delta0.

    `admits` is a ledger's rule: may this list of (rho, delta0) be charged? `delta` is the exact hockey-stick divergence at the
    budget's epsilon of both answers together, by enumeration.
    """

    def __init__(self, admits: Callable[[list[tuple[float, float]]], bool]) -> None:
        a = BUDGET.order
        p_h, ratio = 0.05, 20.0
        first_p, first_q = np.array([p_h, 1 - p_h]), np.array([p_h / ratio, 1 - p_h / ratio])
        first = (divergence(first_p, first_q, a), 0.0)
        gain = math.exp(EPSILON) * a / (a - 1) / ratio  # the second ratio at which the conversion is tight

        def second(x: float) -> tuple[np.ndarray, np.ndarray]:
            return np.array([x, 1 - x]), np.array([x / gain, 1 - x / gain])

        x = self._largest(lambda x: admits([first, (divergence(*second(x), a), 0.0)]), 0.5)
        lost = self._largest(lambda d: admits([first, (0.0, d)]), 0.5)
        p, q = second(x)
        on_h = np.maximum(p_h * p - math.exp(EPSILON) * p_h / ratio * q, 0).sum()
        on_l = (1 - p_h) * lost  # where it fails, P has mass and Q none; elsewhere the ratio is below 1
        self.delta = float(on_h + on_l)

    @staticmethod
    def _largest(allowed: Callable[[float], bool], high: float) -> float:
        low = 0.0
        assert allowed(1e-12)
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if allowed(middle) else (low, middle)
        return low


def test_an_adaptive_adversary_gets_what_was_promised_and_no_more():
    """It really gets most of it, so a ledger that promised two thirds of this delta would be caught."""
    ours = Adversary(lambda costs: total([charge(rho, delta0) for rho, delta0 in costs], BUDGET) <= EPSILON)
    assert DELTA * 2 / 3 < ours.delta <= DELTA


def test_trading_rho_against_delta0_along_the_way_would_break_the_promise():
    """Converting R at delta - D, with whatever D was spent, admits choices that cost 1.9 times the stated delta."""

    def traded(costs: list[tuple[float, float]]) -> bool:
        a, rho, delta0 = BUDGET.order, sum(r for r, _ in costs), sum(d for _, d in costs)
        if delta0 >= DELTA:
            return False
        return rho + math.log1p(-1 / a) - (math.log(DELTA - delta0) + math.log(a)) / (a - 1) <= EPSILON

    assert Adversary(traded).delta > 1.9 * DELTA


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.0, 10.0])
@pytest.mark.parametrize("order", [1.5, 3.7, 20.0])
def test_an_epsilon_delta_guarantee_stands_in_where_the_accountant_has_no_price(epsilon, order):
    """Oracle: randomised response, the worst epsilon-DP pair, enumerated."""
    budget = Budget(data_set="adult", epsilon=EPSILON, delta=DELTA, order=order)
    stated = Guarantee(epsilon=epsilon, delta=1e-6)
    cost = price(Gaussian(1.0), stated, budget, Speechless())
    worst = 1 / (1 + math.exp(-epsilon))
    truth = divergence(np.array([worst, 1 - worst]), np.array([1 - worst, worst]), order)
    assert truth <= cost.rho <= 2.1 * truth
    assert (cost.epsilon, cost.delta0) == (epsilon, 1e-6)
    assert "no price for gaussian" in cost.unpriced
    if epsilon == 0.05 and order < 10:  # there the bound is tight: two thirds of it would be a lie
        assert truth > cost.rho * 2 / 3


def test_an_infinite_renyi_cost_is_replaced_by_the_guarantee_and_the_exact_epsilon_kept():
    cost = price(Gaussian(1.0), Guarantee(epsilon=3.0, delta=1e-6), BUDGET, Unbounded())
    assert (cost.epsilon, cost.rho, cost.delta0) == (2.5, 3.0, 1e-6)


def test_a_guarantee_at_a_larger_delta_than_the_budget_says_nothing_at_the_budgets_delta():
    assert price(Gaussian(1.0), Guarantee(epsilon=1.0, delta=1e-3), BUDGET, Speechless()).epsilon == math.inf


def test_without_price_and_guarantee_everything_is_infinite():
    cost = price(Gaussian(1.0), None, BUDGET, Speechless())
    assert (cost.epsilon, cost.rho, total([charge(0.1), cost], BUDGET)) == (math.inf, math.inf, math.inf)


def test_the_figure_for_information_never_stands_in_the_way():
    assert fixed_beforehand([], DELTA, Speechless()) == 0.0
    assert fixed_beforehand([Gaussian(1.0).to_dict(), NOTHING.to_dict()], DELTA, Speechless()) is None
    assert fixed_beforehand([{"kind": "of a later version"}], DELTA, Unbounded()) is None


class Speechless:
    def epsilon(self, event, delta):
        raise NotImplementedError(f"no price for {event.kind}")

    renyi = epsilon


class Unbounded:
    def epsilon(self, event, delta):
        return 2.5

    def renyi(self, event, order):
        return math.inf, 0.0
