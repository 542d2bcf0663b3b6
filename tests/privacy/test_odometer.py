"""Odometers against searches that read the answers: every transcript of small discrete trials is written out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from scipy import optimize, stats

from sweeper.checks import FieldError
from sweeper.privacy.events import Composed, Event, Gaussian, Repeated
from sweeper.privacy.filter import FilterState
from sweeper.privacy.odometer import Filtered, Reserved
from tests.privacy.pairs import EPSILONS, both, hockey_stick, randomised_response, renyi

Pair = tuple[np.ndarray, np.ndarray]


class Enumerated:
    """An accountant whose events are labels of discrete pairs: exact sums over all answers."""

    def __init__(self) -> None:
        self.pairs: list[Pair] = []

    def event(self, pair: Pair) -> Event:
        self.pairs.append(pair)
        return Gaussian(float(len(self.pairs)))

    def pair(self, event: Event) -> Pair:
        if isinstance(event, Repeated):
            return product([self.pair(event.event)] * event.count)
        if isinstance(event, Composed):
            return product([self.pair(part) for part in event.events])
        assert isinstance(event, Gaussian)
        return self.pairs[int(event.noise_multiplier) - 1]

    def epsilon(self, event: Event, delta: float) -> float:
        return exact_epsilon(self.pair(event), delta)

    def renyi(self, event: Event, order: float) -> tuple[float, float]:
        p, q = self.pair(event)
        return max(renyi(p, q, order), renyi(q, p, order)), 0.0


def product(pairs: list[Pair]) -> Pair:
    return tuple(reduce(both, laws) for laws in zip(*pairs, strict=True))  # type: ignore[return-value]


def delta_of(pair: Pair, epsilon: float) -> float:
    return max(hockey_stick(*pair, epsilon), hockey_stick(*pair[::-1], epsilon))


def exact_epsilon(pair: Pair, delta: float) -> float:
    if delta_of(pair, 0.0) <= delta:
        return 0.0
    return float(optimize.brentq(lambda epsilon: delta_of(pair, epsilon) - delta, 0.0, 60.0, xtol=1e-12))


def tell_all(pair: Pair, settings: list[np.ndarray], choose: Callable[[tuple[int, ...]], int | None], trials: int) -> Pair:
    """Law of a search's transcript. A setting is a random map of the pair's outcomes; `choose` reads all answers; None stops."""
    laws: list[list[float]] = [[], []]

    def walk(history: tuple[int, ...], p: float, q: float) -> None:
        setting = choose(history) if len(history) < trials else None
        if setting is None:
            laws[0].append(p)
            laws[1].append(q)
            return
        for answer, (a, b) in enumerate(zip(pair[0] @ settings[setting], pair[1] @ settings[setting], strict=True)):
            walk((*history, answer), p * a, q * b)

    walk((), 1.0, 1.0)
    return np.array(laws[0]), np.array(laws[1])


@pytest.mark.parametrize("seed", range(30))
def test_trials_of_one_event_chosen_and_stopped_at_will_are_within_the_reserved_composition(seed):
    draw = np.random.default_rng(seed)
    pair = (draw.dirichlet(np.ones(3)), draw.dirichlet(np.ones(3)))
    settings = [np.eye(3), *(draw.dirichlet(np.full(3, 0.5), size=3) for _ in range(3))]
    plan: dict[tuple[int, ...], int | None] = {}

    def choose(history: tuple[int, ...]) -> int | None:
        if history not in plan:
            plan[history] = None if history and draw.random() < 0.2 else int(draw.integers(4))
        return plan[history]

    searched = tell_all(pair, settings, choose, 3)
    assert searched[0].sum() == pytest.approx(1) == searched[1].sum()
    reserved = product([pair] * 3)
    greedy = tell_all(pair, settings, lambda history: 0, 3)  # tells all it sees: attains the bound
    for epsilon in EPSILONS:
        for way in (1, -1):
            bound = hockey_stick(*reserved[::way], epsilon)
            assert hockey_stick(*searched[::way], epsilon) <= bound + 1e-12
            assert hockey_stick(*greedy[::way], epsilon) == pytest.approx(bound, abs=1e-12)
    fewer = product([pair] * 2)
    assert any(hockey_stick(*greedy, epsilon) > hockey_stick(*fewer, epsilon) + 1e-6 for epsilon in EPSILONS)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-2), (2.5, 1e-3), (0.6, 0.1)])
def test_the_largest_reservation_is_the_last_that_fits(epsilon, delta):
    accountant = Enumerated()
    event = accountant.event(randomised_response(0.4))
    odometer = Reserved.largest(event, epsilon, delta, accountant)
    bills = [exact_epsilon(product([randomised_response(0.4)] * n), delta) for n in range(1, 13)]
    most = sum(bill <= epsilon for bill in bills)
    assert 1 < odometer.max_trials == most < 12
    assert odometer.bill == pytest.approx(bills[most - 1], abs=1e-9)
    assert bills[most] > epsilon


def test_it_stops_admitting_at_its_maximum_and_its_bill_never_moves():
    accountant = Enumerated()
    event = accountant.event(randomised_response(0.4))
    odometer = Reserved(event=event, max_trials=3, epsilon=2.0, delta=1e-3, accountant=accountant)
    state, readings = odometer.start(), [odometer.reading(odometer.start())]
    while (after := odometer.admit(state, event)) is not None:
        state = after
        readings.append(odometer.reading(state))
    assert state.admitted == 3
    assert readings == [odometer.bill] * 4
    assert odometer.bill == pytest.approx(exact_epsilon(product([randomised_response(0.4)] * 3), 1e-3), abs=1e-9)


def test_the_bill_of_the_trials_so_far_promises_nothing_to_a_search_that_stops_at_will():
    """Randomised responses of 0.5 nats, at most 30; every transcript held against the bill of the trials in it.

    The best stopping rule, found backwards, passes delta 2.6 times. What is charged instead is the bill of all 30.
    """
    delta, most, size = 0.01, 30, 0.5
    high, low = randomised_response(size)[0]

    def counted(n: int) -> Pair:
        return stats.binom.pmf(np.arange(n + 1), n, high), stats.binom.pmf(np.arange(n + 1), n, low)

    bills = [math.inf, *(exact_epsilon(counted(n), delta) for n in range(1, most + 1))]
    assert bills[2] == pytest.approx(exact_epsilon(product([randomised_response(size)] * 2), delta), abs=1e-9)
    ahead = np.zeros(most + 2)  # by the number of answers that tell for the record
    for n in range(most, 0, -1):
        told = np.arange(n + 1)
        p, q = high**told * low ** (n - told), low**told * high ** (n - told)
        ahead = np.maximum(np.maximum(p - math.exp(bills[n]) * q, 0.0), ahead[: n + 1] + ahead[1 : n + 2])
    assert ahead.sum() > 2.5 * delta
    assert bills == [math.inf, *sorted(bills[1:])]


@pytest.mark.parametrize(("max_trials", "rule"), [(4, "would cost"), (0, "whole number"), (2_000_000, "whole number")])
def test_a_reservation_over_the_target_is_refused(max_trials, rule):
    accountant = Enumerated()
    event = accountant.event(randomised_response(1.0))
    with pytest.raises(FieldError, match=f"max_trials = .*{rule}"):
        Reserved(event=event, max_trials=max_trials, epsilon=2.0, delta=1e-6, accountant=accountant)
    with pytest.raises(FieldError, match="max_trials = 1 would cost"):
        Reserved.largest(event, 0.5, 1e-6, accountant)


def test_another_event_than_the_reserved_one_is_refused():
    accountant = Enumerated()
    event, other = (accountant.event(randomised_response(e)) for e in (0.3, 0.1))
    odometer = Reserved(event=event, max_trials=3, epsilon=2.0, delta=1e-3, accountant=accountant)
    with pytest.raises(FieldError, match=r"is not the event that was reserved.*filtered odometer"):
        odometer.admit(odometer.start(), other)


class Listed:
    """A broken odometer: the exact composition of the list of trials that happened, whatever chose it."""

    def __init__(self, epsilon: float, delta: float, accountant: Enumerated) -> None:
        self.epsilon, self.delta, self.accountant = epsilon, delta, accountant

    def admits(self, first: Event, second: Event) -> bool:
        return self.accountant.epsilon(Composed((first, second)), self.delta) <= self.epsilon


class Governed(Listed):
    """The same questions to the filtered odometer."""

    def admits(self, first: Event, second: Event) -> bool:
        odometer = Filtered.of(self.epsilon, self.delta, self.accountant)
        after = odometer.admit(odometer.start(), first)
        return after is not None and odometer.admit(after, second) is not None


@pytest.mark.parametrize(("rule", "least", "most"), [(Listed, 1.8, 2.0), (Governed, 0.6, 1.0)])
def test_a_search_that_chooses_its_second_event_breaks_exact_lists_and_not_the_filter(rule, least, most):
    """The first answer is h or l. On h the second trial is one that does harm on h only, on l one that does harm on l."""
    epsilon, delta, p_h, ratio = 4.0, 1e-3, 0.05, 20.0
    accountant = Enumerated()
    first = np.array([p_h, 1 - p_h]), np.array([p_h / ratio, 1 - p_h / ratio])
    asked = accountant.event(first)
    judge = rule(epsilon, delta, accountant)

    def second(x: float, gain: float) -> Pair:
        return np.array([x, 1 - x]), np.array([x / gain, 1 - x / gain])

    total, order = 0.0, Filtered.of(epsilon, delta).order
    beyond = math.exp(epsilon) * (order / (order - 1) if rule is Governed else 4.0)  # how far the worst answers go, p over q
    for p, q, gain in ((p_h, p_h / ratio, beyond / ratio), (1 - p_h, 1 - p_h / ratio, beyond)):
        low, high = 0.0, 1.0
        for _ in range(60):
            x = (low + high) / 2
            low, high = (x, high) if judge.admits(asked, accountant.event(second(x, gain))) else (low, x)
        a, b = second(low, gain)
        total += hockey_stick(p * a, q * b, epsilon)
    assert least * delta < total <= most * delta


def searched(seed: int, charged_share: float) -> float:
    """True delta over the promised one of a random tree of trials of four sizes, at most 11 deep, all transcripts."""
    draw = np.random.default_rng(seed)
    epsilon, delta = float(draw.uniform(0.3, 1.5)), float(10 ** draw.uniform(-2.5, -1))
    accountant = Enumerated()
    odometer = Filtered.of(epsilon, delta, accountant)
    sizes = odometer.filter.capacity * draw.uniform(0.3, 1.0, size=4)
    events = [accountant.event(randomised_response(size)) for size in sizes]
    laws: list[list[float]] = [[], []]

    def walk(state: FilterState, p: float, q: float, depth: int) -> None:
        at = int(draw.integers(4))
        after = odometer.admit(state, events[at]) if depth < 11 else None
        if after is None:
            laws[0].append(p)
            laws[1].append(q)
            assert odometer.reading(state) <= epsilon
            return
        charged = replace(after, rho=state.rho + charged_share * (after.rho - state.rho))
        for a, b in zip(*randomised_response(sizes[at]), strict=True):
            walk(charged, p * a, q * b, depth + 1)

    walk(odometer.start(), 1.0, 1.0, 0)
    return delta_of((np.array(laws[0]), np.array(laws[1])), epsilon) / delta


def test_searches_over_events_of_all_sizes_keep_the_filters_promise():
    worst = sorted(searched(seed, 1.0) for seed in range(30))
    assert worst[-1] <= 1
    assert worst[-5] > 0.3
    assert max(searched(seed, 2 / 3) for seed in range(30)) > 1.2  # charging two thirds is caught


@pytest.mark.parametrize("mode", ["reserved", "filtered"])
def test_a_search_resumed_from_json_equals_one_that_was_not_interrupted(mode):
    accountant = Enumerated()
    event = accountant.event(randomised_response(0.3))
    odometer: Reserved | Filtered
    if mode == "reserved":
        odometer = Reserved.largest(event, 2.0, 1e-3, accountant)
    else:
        odometer = Filtered.of(2.0, 1e-3, accountant)

    def states(interrupted: bool) -> list[tuple[FilterState, float]]:
        state, seen = odometer.start(), []
        while (after := odometer.admit(state, event)) is not None:
            state = odometer.resume(json.loads(json.dumps(odometer.save(after)))) if interrupted else after
            seen.append((state, odometer.reading(state)))
        return seen

    assert states(True) == states(False)
    assert len(states(False)) >= 3
    readings = [reading for _, reading in states(False)]
    assert readings == sorted(readings)
    assert readings[-1] <= 2.0


def test_a_search_is_not_resumed_under_another_odometer():
    accountant = Enumerated()
    event = accountant.event(randomised_response(0.3))
    reserved = Reserved(event=event, max_trials=3, epsilon=2.0, delta=1e-3, accountant=accountant)
    filtered = Filtered.of(2.0, 1e-3, accountant)
    for odometer, other, field in (
        (reserved, replace(reserved, max_trials=4), "max_trials"),
        (reserved, replace(reserved, event=accountant.event(randomised_response(0.2))), "event"),
        (filtered, replace(filtered, order=filtered.order + 1), "order"),
        (filtered, replace(filtered, approximate_share=0.1), "approximate_share"),
        (filtered, reserved, "kind"),
    ):
        with pytest.raises(FieldError, match=rf"\.{field} = .* may not change within a run"):
            other.resume(odometer.save(odometer.start()))


def test_events_of_two_relations_do_not_share_an_odometer():
    odometer = Filtered(order=8.0, epsilon=2.0, delta=1e-5, relation="replace-one")
    with pytest.raises(FieldError, match="speaks of zero-out, and this bill of replace-one"):
        odometer.admit(odometer.start(), Gaussian(4.0))


def exact_gaussian(noise: float, delta: float) -> float:
    """Balle and Wang 2018, Theorem 8, solved for epsilon."""
    mu = 1 / noise

    def excess(epsilon: float) -> float:
        return float(stats.norm.cdf(mu / 2 - epsilon / mu)) - math.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu)) - delta

    return float(optimize.brentq(excess, 0.0, 50.0, xtol=1e-12))


def test_gaussian_trials_with_the_real_accountant():
    """n Gaussians of noise s are one of noise s / sqrt(n): as many are reserved as that law allows."""
    odometer = Reserved.largest(Gaussian(4.0), 3.0, 1e-5)
    bills = [exact_gaussian(4.0 / math.sqrt(n), 1e-5) for n in range(1, 12)]
    assert odometer.max_trials == sum(bill <= 3.0 for bill in bills)
    assert odometer.bill == pytest.approx(bills[odometer.max_trials - 1], rel=2e-3)
    assert odometer.bill >= bills[odometer.max_trials - 1]
    filtered = Filtered.of(3.0, 1e-5)
    state = filtered.start()
    while (after := filtered.admit(state, Gaussian(4.0))) is not None:
        state = after
    assert bills[state.admitted - 1] <= filtered.reading(state) <= 3.0
    assert odometer.max_trials / 1.5 < state.admitted <= odometer.max_trials
