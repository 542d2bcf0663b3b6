"""Costs of rounds against sums written out here, all paths of a round enumerated, and an allowance that is never overdrawn."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import pytest

from sweeper.privacy.event_renyi import renyi_cost as renyi_of_event
from sweeper.privacy.events import (
    AboveThresholdGaussian,
    AboveThresholdLaplace,
    AdaptiveQuantileStep,
    Composed,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    NoisyMin,
)
from sweeper.privacy.filter import conversion
from sweeper.trainers import round_price
from sweeper.trainers.budget_rule import AGAIN, REFINE
from sweeper.trainers.round_price import Allowance, Round

GAUSSIAN, SEARCH = Gaussian(2.0), ExponentialMechanism(0.6)


def amplified(curve, q: float, order: int) -> float:
    """log E[(q P + (1-q) Q)/Q)^a]/(a-1) for the pair that attains the curve, in exact arithmetic but for exp and log."""
    q = Fraction(q)
    moment = sum(
        math.comb(order, k) * q**k * (1 - q) ** (order - k) * Fraction(math.exp((k - 1) * curve(k)) if k > 1 else 1.0)
        for k in range(order + 1)
    )
    return math.log(moment) / (order - 1)


def curve(gradient: float, epsilon: float):
    """Gaussian and epsilon-bounded-range choice, by their formulas; the choice is epsilon-DP too."""

    def pure(a: int) -> float:
        p = 1 / (1 + math.exp(-epsilon))
        return math.log(p**a * (1 - p) ** (1 - a) + (1 - p) ** a * p ** (1 - a)) / (a - 1)

    return lambda a: a / (2 * gradient**2) + min(a * epsilon**2 / 8, pure(a))


@pytest.mark.parametrize("order", [2, 3, 7, 8])
@pytest.mark.parametrize("q", [0.001, 0.1, 0.7])
def test_a_round_of_one_attempt(q, order):
    cost = round_price.renyi_cost(Round((GAUSSIAN,), (SEARCH,)), q, order)
    exact = amplified(curve(2.0, 0.6), q, order)
    assert exact * (1 - 1e-9) <= cost <= exact * (1 + 1e-6)
    assert not exact * 2 / 3 <= 1.5 * cost <= exact * 1.4


@pytest.mark.parametrize("order", [9, 20, 57])
def test_between_the_orders_that_are_read_a_search_costs_a_little_more(order):
    cost = round_price.renyi_cost(Round((GAUSSIAN,), (SEARCH,)), 0.05, order)
    exact = amplified(curve(2.0, 0.6), 0.05, order)
    assert exact * (1 - 1e-9) <= cost <= exact * 1.01


def test_the_orders_that_are_read_are_close():
    nodes = round_price._nodes()
    assert nodes[:8] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert nodes[-1] >= round_price.MOST_ORDER
    assert all(a < b <= max(a + 1, 1.15 * a) for a, b in itertools.pairwise(nodes))


@pytest.mark.parametrize("moves", [(REFINE,), (REFINE, AGAIN), ()])
@pytest.mark.parametrize("attempts", [1, 2, 3, 5])
def test_the_dearest_path_is_the_largest_of_all_paths(moves, attempts):
    """Oracle: every sequence of moves written out. Prices are drawn, so that no order of raises is dearest by chance."""
    draw = random.Random(attempts)
    gradients = tuple(Gaussian(1 + draw.random()) for _ in range(attempts))
    searches = tuple(ExponentialMechanism(draw.random()) for _ in range(attempts))
    price = {event: draw.random() for event in (*gradients, *searches)}
    paths = []
    for length in range(attempts if moves else 1):
        for path in itertools.product(moves, repeat=length):
            looks, raises, total = 1, 0, price[gradients[0]] + price[searches[0]]
            for move in path:
                if move == REFINE:
                    total += price[gradients[looks]] + price[searches[raises]]
                    looks += 1
                else:
                    raises += 1
                    total += price[searches[raises]]
            paths.append(total)
    found = round_price.dearest(Round(gradients, searches, attempts, moves), price.__getitem__, max)
    assert found == pytest.approx(max(paths), rel=1e-12)


def test_a_search_alone_is_a_round():
    cost = round_price.renyi_cost(Round((), (SEARCH,)), 0.1, 8)
    assert cost == pytest.approx(amplified(lambda a: curve(2.0, 0.6)(a) - a / 8, 0.1, 8), rel=1e-6)


@pytest.mark.parametrize(
    ("event", "rho"),
    [
        (Gaussian(2.0), 0.125),
        (AdaptiveQuantileStep(2.0, 10.0), 0.125),
        (ExponentialMechanism(0.4), 0.02),
        (NoisyMin(0.4), 0.02),
        (NoisyMin(0.4, "laplace"), 0.08),
        (AboveThresholdLaplace(10.0, 20.0), 0.02),
        (AboveThresholdGaussian(10.0, 20.0, 5), None),
        (Laplace(3.0), None),
        (Composed((Gaussian(2.0),)), None),
    ],
    ids=repr,
)
def test_zcdp_of_the_parts_bounds_their_renyi_curves(event, rho):
    assert round_price.zcdp_of(event) == (None if rho is None else pytest.approx(rho))
    if rho is not None and not isinstance(event, AboveThresholdLaplace):  # whose stated curve is above the one of pure DP
        assert all(renyi_of_event(event, a)[0] <= a * rho * (1 + 1e-12) for a in (1.01, 1.5, 2, 5, 40, 300))
        assert renyi_of_event(event, 1.01)[0] > 0.85 * 1.01 * rho


def test_zcdp_of_a_round_and_where_there_is_none():
    assert round_price.zcdp_cost(Round((GAUSSIAN,), (SEARCH,))) == pytest.approx(0.125 + 0.045)
    assert round_price.zcdp_cost(Round((GAUSSIAN,), (AboveThresholdGaussian(10.0, 20.0, 5),))) is None
    assert math.isinf(round_price.zcdp_cost(Round((Gaussian(1e-3),), (SEARCH,))))


@pytest.mark.parametrize(("q", "noise", "rounds"), [(0.1, 2.0, 50), (0.01, 1.0, 2_000), (0.001, 0.7, 100), (1.0, 30.0, 50)])
def test_the_order_wastes_little(q, noise, rounds):
    """Oracle: every order up to 150 tried."""
    asked = Round((Gaussian(noise),), (ExponentialMechanism(1 / noise),))
    order = round_price.order_for(asked, q, rounds)

    def epsilon(a: int) -> float:
        return rounds * round_price.renyi_cost(asked, q, a) + conversion(a, 1e-6)

    best = min(epsilon(a) for a in range(2, 150))
    assert epsilon(order) <= 1.001 * best
    assert epsilon(max(2, order // 2)) > epsilon(order)


def test_an_allowance_is_never_overdrawn_and_refuses_only_what_does_not_fit():
    draw = random.Random(0)
    for _ in range(50):
        allowance, spent = Allowance(1.0, 0.01), Fraction(0)
        for _ in range(300):
            cost = draw.choice([0.0, draw.random() ** 4, draw.random(), math.inf])
            charged = max(Fraction(cost), Fraction(0.01)) if math.isfinite(cost) else None
            admitted = allowance.admits(cost)
            if charged is not None and spent + charged <= Fraction(1) - Fraction(1e-12):
                assert admitted
            if admitted:
                spent += charged
            assert spent <= 1
            assert allowance.left == pytest.approx(float(1 - spent), abs=1e-12)


def test_steps_rounds_fit_whatever_rounding_does():
    """The allowance of line_searched.py: that much more than steps times the cost."""
    draw = random.Random(1)
    for steps in (1, 7, 1_000, 20_000):
        cost = draw.random() / 3
        allowance = Allowance(steps * cost * (1 + steps * 2.0**-50), 0.0)
        assert sum(allowance.admits(cost) for _ in range(steps)) == steps
        assert not allowance.admits(cost * 1e-3)
