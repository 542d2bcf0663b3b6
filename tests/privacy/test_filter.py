"""Filters against adversaries: every run they allow is written out answer by answer, and its divergences are exact sums."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy import optimize, stats

from sweeper.checks import FieldError
from sweeper.privacy.amplification import amplified_renyi, zcdp
from sweeper.privacy.filter import FilterState, RenyiFilter, RhoFilter, RoundCost, best_order, resumed, saved
from tests.privacy.pairs import hockey_stick, randomised_response

Pair = tuple[list[float], list[float]]


def moment(p: list[float], q: list[float], order: float) -> float:
    return sum(
        math.exp(order * math.log(a) + (1 - order) * math.log(b)) if a and b else (math.inf if a else 0.0)
        for a, b in zip(p, q, strict=True)
    )


def divergence(pair: Pair, order: float) -> float:
    """Renyi divergence of two finite laws, the larger direction."""
    return max(math.log(moment(*pair, order)), math.log(moment(*pair[::-1], order))) / (order - 1)


def sampled(pair: Pair, probability: float) -> Pair:
    """Record present: with this probability in the batch. Absent: never."""
    p, q = pair
    return [probability * a + (1 - probability) * b for a, b in zip(p, q, strict=True)], list(q)


def response(epsilon: float) -> Pair:
    return tuple(list(law) for law in randomised_response(epsilon))  # type: ignore[return-value]


def twice(pair: Pair) -> Pair:
    return tuple([a * b for a in law for b in law] for law in pair)  # type: ignore[return-value]


@dataclass(frozen=True)
class Round:
    """A round's law, its cost at the filter's order, and what a filter that refunds would charge for each answer."""

    pair: Pair
    cost: float
    refunded: tuple[float, ...]


def plain(pair: Pair, order: float) -> Round:
    cost = divergence(pair, order)
    return Round(pair, cost, (cost,) * len(pair[0]))


def with_retry(epsilon: float, probability: float, order: float) -> Round:
    """Two attempts on one minibatch; the second is made only after the revealing answer of the first. Answers: 00, 01, 1."""
    one, two = response(epsilon), twice(response(epsilon))
    law = tuple([t[0], t[1], o[1]] for o, t in zip(one, two, strict=True))
    all_attempts = divergence(sampled(two, probability), order)
    first_only = divergence(sampled(one, probability), order)
    return Round(sampled(law, probability), all_attempts, (all_attempts, all_attempts, first_only))  # type: ignore[arg-type]


class Honest:
    """A filter as it is meant to be used."""

    def __init__(self, filter: RenyiFilter) -> None:
        self.filter = filter

    def admit(self, state: FilterState, cost: float) -> FilterState | None:
        return self.filter.admit(state, RoundCost(rho=cost))

    def settle(self, state: FilterState, round: Round, answer: int) -> FilterState:
        return state


class Late(Honest):
    """Looks at the sum after the round: one round too many."""

    def admit(self, state: FilterState, cost: float) -> FilterState | None:
        return state.plus(RoundCost(rho=cost)) if state.rho <= self.filter.capacity else None


class Refunding(Honest):
    """Charges a round in full and gives back what its answers did not use."""

    def settle(self, state: FilterState, round: Round, answer: int) -> FilterState:
        return replace(state, rho=max(0.0, state.rho - round.cost + round.refunded[answer]))


def run(rule: Honest, rounds: Callable[[int], Round], longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Law of all answers, record present and absent: rounds until one is refused, then the worst last one that fits."""
    p_all: list[float] = []
    q_all: list[float] = []
    filter = rule.filter

    def walk(state: FilterState, p: float, q: float, depth: int) -> None:
        asked = rounds(depth) if depth < longest else None
        after = rule.admit(state, asked.cost) if asked else None
        if asked is None or after is None:
            for a, b in zip(*last(filter, rule, state, p / q), strict=True):
                p_all.append(p * a)
                q_all.append(q * b)
            return
        for answer, (a, b) in enumerate(zip(*asked.pair, strict=True)):
            walk(rule.settle(after, asked, answer), p * a, q * b, depth + 1)

    walk(filter.start(), 1.0, 1.0, 0)
    return np.array(p_all), np.array(q_all)


def last(filter: RenyiFilter, rule: Honest, state: FilterState, ratio: float) -> Pair:
    """The two-answer round that does most harm with what is left: it takes p/q to where the conversion to delta is tight."""
    a = filter.order
    gain = math.exp(filter.epsilon) * a / (a - 1) / ratio
    if gain <= 1.001:
        return [1.0], [1.0]
    low, high = 0.0, 1.0
    for _ in range(40):
        x = (low + high) / 2
        fits = rule.admit(state, divergence(([x, 1 - x], [x / gain, 1 - x / gain]), a)) is not None
        low, high = (x, high) if fits else (low, x)
    return ([low, 1 - low], [low / gain, 1 - low / gain]) if low > 0 else ([1.0], [1.0])


def true_delta(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))


def filter_of_capacity(order: float, epsilon: float, capacity: float) -> RenyiFilter:
    """Proposition 12 read the other way: the delta at which (order, capacity)-Renyi DP is (epsilon, delta)-DP."""
    delta = math.exp((order - 1) * (capacity - epsilon) + (order - 1) * math.log1p(-1 / order)) / order
    found = RenyiFilter(order=order, epsilon=epsilon, delta=delta)
    assert found.capacity == pytest.approx(capacity, rel=1e-9)
    return replace(found, delta=delta * (1 + 1e-9))  # capacity is rounded down: what is meant to fit exactly must fit


def random_tree(seed: int) -> tuple[RenyiFilter, Callable[[int], Round]]:
    """A filter with room for one or two retried rounds, and rounds of three kinds in random order."""
    draw = random.Random(seed)
    while True:
        order, probability = draw.choice([3.0, 6.0, 9.5]), draw.uniform(0.002, 0.05)
        retried = with_retry(draw.uniform(2.0, 4.5), probability, order)
        room = draw.choice([1, 1, 2]) * retried.cost * draw.uniform(1.0, 1.4)
        top = retried.pair[0][0] / retried.pair[1][0]
        epsilon = math.log(top * (order - 1) / order) + draw.uniform(-0.1, 0.5)
        if epsilon > room:
            break
    masses = [[draw.uniform(0.2, 1.0) for _ in range(3)] for _ in range(2)]
    some = tuple([m / sum(law) for m in law] for law in masses)
    kinds = [retried, retried, plain(sampled(response(draw.uniform(0.5, 3)), probability), order), plain(sampled(some, 0.1), order)]  # type: ignore[arg-type]
    sequence = [draw.choice(kinds) for _ in range(4)]
    return filter_of_capacity(order, epsilon, room), lambda depth: sequence[depth]


TREES = range(60)


def found(rule: type[Honest], seed: int) -> tuple[float, float]:
    """(true delta over the promised one, Renyi divergence over the capacity) of one tree."""
    filter, rounds = random_tree(seed)
    p, q = run(rule(filter), rounds, 4)
    assert p.sum() == pytest.approx(1, abs=1e-9) == q.sum()
    return true_delta(p, q, filter.epsilon) / filter.delta, divergence((list(p), list(q)), filter.order) / filter.capacity


def test_no_adaptive_run_passes_what_the_filter_promises():
    results = [found(Honest, seed) for seed in TREES]
    assert max(delta for delta, _ in results) <= 1 + 1e-9
    assert max(rho for _, rho in results) <= 1 + 1e-9
    assert sorted(delta for delta, _ in results)[-10] > 2 / 3  # a filter that promised two thirds of this would be caught


@pytest.mark.parametrize("broken", [Late, Refunding])
def test_the_same_runs_catch_a_filter_that_looks_late_or_refunds(broken):
    results = [found(broken, seed) for seed in TREES]
    assert sum(delta > 1.5 for delta, _ in results) >= 10
    assert sum(rho > 1 + 1e-6 for _, rho in results) >= 20


def test_refunding_retries_that_did_not_happen_breaks_a_filter():
    """Five tries on five minibatches, a second look at a batch only after the revealing answer: order 8, q = 0.001, 4 nats.

    The filter has room for one retried round and a little more. Refunding, all five rounds may be tried until the revealing
    answer comes: the promised delta is passed fivefold.
    """
    order, q, tries = 8.0, 0.001, 5
    round = with_retry(4.0, q, order)
    top = round.pair[0][0] / round.pair[1][0]
    room = round.cost + (tries - 1) * round.refunded[2]
    filter = filter_of_capacity(order, math.log(top * (order - 1) / order), room)
    honest, refunding = (run(rule(filter), lambda depth: round, tries) for rule in (Honest, Refunding))
    assert divergence(tuple(map(list, honest)), order) <= room * (1 + 1e-9)  # type: ignore[arg-type]
    assert divergence(tuple(map(list, refunding)), order) > 1.4 * room  # type: ignore[arg-type]
    assert 0.5 * filter.delta < true_delta(*honest, filter.epsilon) <= filter.delta
    assert true_delta(*refunding, filter.epsilon) > 5 * filter.delta


class AnyOrder:
    """Admits while at least one of its filters, each of another order, still has room."""

    def __init__(self, filters: list[RenyiFilter]) -> None:
        self.filters = filters

    def admits(self, pairs: list[Pair]) -> bool:
        return any(sum(divergence(pair, f.order) for pair in pairs) <= f.capacity for f in self.filters)


def test_choosing_the_order_afterwards_breaks_a_filter():
    """Answer h fills the filter of order 40, answer l that of order 6. Each gets nearly all of delta, and answers are disjoint."""
    epsilon, delta, low, high = 4.0, 1e-5, 6.0, 40.0
    ratio = 1.3
    q_h = 20 / ratio**high  # at order 40 h is nearly all of the first round's moment, at order 6 next to nothing
    first: Pair = ([ratio * q_h, 1 - ratio * q_h], [q_h, 1 - q_h])

    def delta_of(rule: AnyOrder) -> float:
        p_all, q_all = [], []
        for p, q, order in ((first[0][0], first[1][0], high), (first[0][1], first[1][1], low)):
            gain = math.exp(epsilon) * order / (order - 1) / (p / q)
            lowest, highest = 0.0, 1.0
            for _ in range(60):
                x = (lowest + highest) / 2
                fits = rule.admits([first, ([x, 1 - x], [x / gain, 1 - x / gain])])
                lowest, highest = (x, highest) if fits else (lowest, x)
            p_all += [p * lowest, p * (1 - lowest)]
            q_all += [q * lowest / gain, q * (1 - lowest / gain)]
        return true_delta(np.array(p_all), np.array(q_all), epsilon)

    fixed = [RenyiFilter(order=order, epsilon=epsilon, delta=delta) for order in (low, high)]
    assert delta_of(AnyOrder(fixed)) > 1.9 * delta
    for filter in fixed:
        assert delta * 2 / 3 < delta_of(AnyOrder([filter])) <= delta


@pytest.mark.parametrize(("traded", "least", "most"), [(False, 0.85, 1.0), (True, 1.8, 2.0)])
def test_the_share_of_delta_for_delta0_is_fixed(traded, least, most):
    """A first answer decides whether the second round harms by rho or by a delta0 with which it tells all."""
    epsilon, delta, order, share = 4.0, 1e-5, 20.0, 0.5
    q_h, ratio = 1e-3, 2.0
    first: Pair = ([ratio * q_h, 1 - ratio * q_h], [q_h, 1 - q_h])
    spent = RoundCost(rho=divergence(first, order))

    def admitted(cost: RoundCost) -> bool:
        left = (1 - share) * delta if not traded else delta - cost.delta0
        if left <= 0:
            return False
        filter = RenyiFilter(order=order, epsilon=epsilon, delta=left / (1 - share), approximate_share=share)
        if traded:  # all that delta0 leaves is converted
            return filter.admit(filter.start().plus(spent), replace(cost, delta0=0.0)) is not None
        return filter.admit(filter.start().plus(spent), cost) is not None

    gain = math.exp(epsilon) * order / (order - 1) / ratio
    x = largest(lambda x: admitted(RoundCost(rho=divergence(([x, 1 - x], [x / gain, 1 - x / gain]), order))), 1.0)
    lost = largest(lambda d: admitted(RoundCost(rho=0.0, delta0=d)), 0.5)
    on_h = first[0][0] * (x - math.exp(epsilon) * x / gain / ratio)
    on_l = first[0][1] * lost
    assert least * delta < on_h + on_l <= most * delta


def largest(allowed: Callable[[float], bool], high: float) -> float:
    low = 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return low


def zcdp_cost(pair: Pair) -> float:
    """sup over orders of D_a / a, on a fine grid of orders."""
    return max(divergence(pair, 1 + math.exp(x)) / (1 + math.exp(x)) for x in np.linspace(-7, 5, 400))


def test_a_round_of_randomised_response_has_the_zcdp_cost_that_is_known():
    """Oracle of the helper: epsilon tanh(epsilon/2), the limit at order 1 (Steinke 2024, zCDP bounds from pure DP)."""
    for epsilon in (0.1, 1.0):
        assert zcdp_cost(response(epsilon)) == pytest.approx(epsilon * math.tanh(epsilon / 2), rel=2e-3)


def rho_governed(seed: int, late: bool) -> float:
    """True delta over the promised one of a random binary tree of randomised responses under a rho-filter."""
    draw = random.Random(seed)
    filter = RhoFilter(epsilon=draw.uniform(0.1, 1.0), delta=10 ** draw.uniform(-2, -0.7))
    kinds = [response(math.sqrt(2 * filter.rho_max * draw.uniform(0.15, 1.3))) for _ in range(3)]
    costs = [zcdp_cost(kind) for kind in kinds]
    p_all: list[float] = []
    q_all: list[float] = []

    def walk(state: FilterState, p: float, q: float, depth: int) -> None:
        at = draw.randrange(3)
        if late:
            after = state.plus(RoundCost(rho=costs[at])) if state.rho <= filter.rho_max else None
        else:
            after = filter.admit(state, costs[at])
        if after is None or depth == 9:
            p_all.append(p)
            q_all.append(q)
            return
        for a, b in zip(*kinds[at], strict=True):
            walk(after, p * a, q * b, depth + 1)

    walk(filter.start(), 1.0, 1.0, 0)
    return true_delta(np.array(p_all), np.array(q_all), filter.epsilon) / filter.delta


def test_no_adaptive_run_passes_what_a_rho_filter_promises():
    worst = max(rho_governed(seed, late=False) for seed in range(40))
    assert 0.5 < worst <= 1
    assert max(rho_governed(seed, late=True) for seed in range(40)) > 1.5  # looking after the round is caught by the same runs


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_rho_max_is_where_the_best_order_just_gives_delta(epsilon, delta):
    """Oracle: Proposition 12 as a delta, minimised over orders by scipy; and the exact Gaussian, which it must never undercut."""
    rho = RhoFilter(epsilon=epsilon, delta=delta).rho_max

    def log_delta(x: float, rho: float) -> float:
        a = 1 + math.exp(x)
        return (a - 1) * (a * rho - epsilon) + (a - 1) * math.log1p(-1 / a) - math.log(a)

    def best(rho: float) -> float:
        starts = np.linspace(-6, 12, 200)
        x = min(starts, key=lambda x: log_delta(x, rho))
        return float(optimize.minimize_scalar(lambda x: log_delta(x, rho), bounds=(x - 0.2, x + 0.2), method="bounded").fun)

    assert best(rho) == pytest.approx(math.log(delta), abs=1e-6)
    assert best(rho * 1.5) > math.log(delta * 1.5) > math.log(delta / 1.5) > best(rho / 1.5)
    mu = math.sqrt(2 * rho)
    exact = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu))
    assert delta / 15 < exact <= delta


@pytest.mark.parametrize(("order", "delta"), [(1.5, 1e-5), (8.0, 1e-5), (40.0, 1e-9)])
def test_the_conversion_is_that_of_dp_accounting(order, delta):
    from dp_accounting.rdp import rdp_privacy_accountant

    filter = RenyiFilter(order=order, epsilon=50.0, delta=delta)
    stated, _ = rdp_privacy_accountant.compute_epsilon([order], [filter.capacity], delta)
    assert stated == pytest.approx(50.0, rel=1e-9)
    state = filter.start().plus(RoundCost(rho=filter.capacity))
    assert filter.reading(state) == pytest.approx(50.0, rel=1e-9)
    assert filter.reading(filter.start()) == 0.0


def test_sums_are_never_below_the_exact_ones():
    state, exact, draw = FilterState(), Fraction(0), random.Random(3)
    for _ in range(2000):
        rho = draw.random() * 10 ** draw.uniform(-12, 0)
        state, exact = state.plus(RoundCost(rho=rho, delta0=rho * 1e-9)), exact + Fraction(rho)
        assert Fraction(state.rho) >= exact
    assert state.rho == pytest.approx(float(exact), rel=1e-12)
    assert state.admitted == 2000


def test_a_refused_round_changes_nothing_and_a_cheaper_one_may_follow():
    filter = RenyiFilter(order=10.0, epsilon=2.0, delta=1e-5)
    state = filter.admit(filter.start(), RoundCost(rho=filter.capacity * 0.7))
    assert state is not None
    assert filter.admit(state, RoundCost(rho=filter.capacity * 0.31)) is None
    after = filter.admit(state, RoundCost(rho=filter.capacity * 0.29))
    assert after is not None
    assert (state.admitted, after.admitted) == (1, 2)


@pytest.mark.parametrize("cost", [RoundCost(rho=math.inf), RoundCost(rho=0.0, delta0=1e-12), RoundCost(rho=1e300)])
def test_what_can_never_fit_is_refused(cost):
    filter = RenyiFilter(order=10.0, epsilon=2.0, delta=1e-5)
    assert filter.admit(filter.start(), cost) is None
    assert filter.admit(filter.start(), RoundCost(rho=0.0)) is not None


def test_delta0_fits_within_its_share_only():
    filter = RenyiFilter(order=10.0, epsilon=2.0, delta=1e-5, approximate_share=0.1)
    half = filter.admit(filter.start(), RoundCost(rho=0.1, delta0=0.5e-6))
    assert half is not None
    assert filter.admit(half, RoundCost(rho=0.1, delta0=0.51e-6)) is None
    assert filter.admit(half, RoundCost(rho=0.1, delta0=0.49e-6)) is not None
    assert filter.capacity == pytest.approx(RenyiFilter(order=10.0, epsilon=2.0, delta=0.9e-5).capacity, rel=1e-12)


def adaptive_costs(answers: random.Random) -> Callable[[], float]:
    return lambda: 0.01 * (1 + answers.random())


@pytest.mark.parametrize(
    "filter", [RenyiFilter(order=10.0, epsilon=2.0, delta=1e-5, approximate_share=0.05), RhoFilter(epsilon=2.0, delta=1e-5)]
)
def test_a_run_resumed_from_json_equals_one_that_was_not_interrupted(filter):
    def admit(state: FilterState, rho: float) -> FilterState | None:
        return filter.admit(state, RoundCost(rho=rho, delta0=1e-9)) if isinstance(filter, RenyiFilter) else filter.admit(state, rho)

    def states(interrupted: bool) -> list[FilterState]:
        cost, state, seen = adaptive_costs(random.Random(7)), filter.start(), []
        while (after := admit(state, cost())) is not None:
            state = resumed(filter, json.loads(json.dumps(saved(filter, after)))) if interrupted else after
            seen.append(state)
        return seen

    assert states(True) == states(False)
    assert len(states(False)) > 5
    assert all(a.rho < b.rho for a, b in pairwise(states(False)))


@pytest.mark.parametrize(
    ("change", "field"), [({"order": 11.0}, "order"), ({"epsilon": 2.5}, "epsilon"), ({"delta": 1e-6}, "delta")]
)
def test_a_run_is_not_resumed_under_another_filter(change, field):
    filter = RenyiFilter(order=10.0, epsilon=2.0, delta=1e-5)
    data = saved(filter, filter.start())
    with pytest.raises(FieldError, match=rf"renyi-filter\.{field} = .* may not change within a run"):
        resumed(replace(filter, **change), data)


def test_a_state_that_lacks_a_sum_is_not_read_as_zero():
    filter = RenyiFilter(order=10.0, epsilon=2.0, delta=1e-5)
    data = saved(filter, filter.start().plus(RoundCost(rho=0.5)))
    for damaged in ({"filter": data["filter"]}, data | {"state": {"delta0": 0.0, "admitted": 1}}, data | {"more": 1}):
        with pytest.raises(FieldError, match="is not what a filter saved"):
            resumed(filter, damaged)
    with pytest.raises(FieldError, match="kind"):
        resumed(RhoFilter(epsilon=2.0, delta=1e-5), data)


@pytest.mark.parametrize("bad", [{"rho": -0.1}, {"rho": math.nan}, {"rho": 0.1, "delta0": -1e-9}, {"rho": 0.1, "delta0": math.nan}])
def test_a_cost_that_is_no_cost_is_an_error(bad):
    with pytest.raises(FieldError, match="must be"):
        RoundCost(**bad)


def test_an_order_whose_conversion_costs_more_than_epsilon_is_an_error_that_names_one_that_works():
    with pytest.raises(FieldError, match=r"order = 1\.1 leaves nothing of epsilon = 1 .* Try order: (\S+)\.") as caught:
        RenyiFilter(order=1.1, epsilon=1.0, delta=1e-5)
    order = float(caught.value.hint.removeprefix("Try order: ").rstrip("."))
    assert RenyiFilter(order=order, epsilon=1.0, delta=1e-5).capacity > 0


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 50.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-4])
def test_the_order_admits_most_rounds_whose_cost_grows_with_the_order(epsilon, delta):
    order = best_order(epsilon, delta)

    def rounds(order: float) -> float:
        return RenyiFilter(order=order, epsilon=epsilon, delta=delta).capacity / (order * 0.01)

    assert rounds(order) > max(rounds(1 + (order - 1) * factor) for factor in (0.8, 0.95, 1.05, 1.25))
    assert rounds(order) > 1.02 * rounds(1 + (order - 1) * 1.5)


def test_the_order_for_a_typical_round_is_the_best_whole_one():
    """Oracle: every whole order tried."""

    def cost(order: int) -> float:
        return amplified_renyi(zcdp(0.135), 0.1, order, tight=True)

    order = best_order(1.0, 1e-5, round_cost=cost)

    def rounds(order: float) -> float:
        return RenyiFilter(order=order, epsilon=1.0, delta=1e-5).capacity / cost(int(order))

    usable = [o for o in range(2, 80) if 1.0 + math.log(1e-5 * o) / (o - 1) - math.log1p(-1 / o) > 1e-6]
    assert order == max(usable, key=rounds)
    assert rounds(order) > 1.1 * rounds(math.ceil(best_order(1.0, 1e-5)))
