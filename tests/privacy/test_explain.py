"""The derivation of a bill: every number in it has an oracle outside the package, and it leaves no event out."""

from __future__ import annotations

import json
import math

import pytest
from scipy import optimize
from scipy.special import ndtr
from test_vectors import GOLDEN, law_of, trial_of, vectors

from sweeper.privacy import accountant
from sweeper.privacy.events import (
    EVENTS,
    NOTHING,
    Composed,
    DiscreteLaplace,
    Disjoint,
    Event,
    ExponentialMechanism,
    FixedSizeSampled,
    Gaussian,
    PoissonSubsampled,
    RandomPart,
    Repeated,
    ReplaceOne,
    SelectBest,
)
from sweeper.privacy.explain import Step, explain
from sweeper.privacy.explain_rules import rule
from sweeper.privacy.laws import FixedCount, PoissonCount, TruncatedNegativeBinomial
from sweeper.privacy.renyi_check import renyi_check, to_epsilon

DELTA = 1e-5
BATCH = PoissonSubsampled(0.01, Gaussian(1.0))
RUN = Repeated(BATCH, 2000)
GEOMETRIC = TruncatedNegativeBinomial(eta=1.0, mean=10.0)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Balle and Wang 2018, Theorem 8, solved."""

    def gap(e: float) -> float:
        return float(ndtr(mu / 2 - e / mu) - math.exp(e) * ndtr(-mu / 2 - e / mu)) - delta

    return float(optimize.brentq(gap, 0, 100))


def step_of(steps: list[Step], words: str) -> Step:
    (found,) = [step for step in steps if words in step.title]
    return found


def test_from_one_sum_to_the_whole_bill():
    """Each step's epsilon against a closed form or the golden file; numbered, each made of earlier ones."""
    trial = Disjoint((RUN, DiscreteLaplace(0.1)))
    steps = explain(SelectBest(trial, GEOMETRIC), DELTA, trial)
    assert [step.number for step in steps] == list(range(1, len(steps) + 1))
    assert all(used < step.number for step in steps for used in step.uses)
    assert step_of(steps, "Gaussian sum").numbers["epsilon"] == pytest.approx(gaussian_epsilon(1.0, DELTA), rel=1e-3)
    assert step_of(steps, "2,000 times").numbers["epsilon"] == pytest.approx(2.5839, rel=2e-4)
    assert step_of(steps, "discrete Laplace").numbers["epsilon"] == pytest.approx(_two_points(0.1), rel=1e-4)
    assert step_of(steps, "disjoint rows").numbers["epsilon"] == pytest.approx(2.5839, rel=2e-4)
    chosen = step_of(steps, "the best of K runs").numbers
    assert 3.756 <= chosen["epsilon"] <= 3.78 * 1.003
    assert chosen["expected_runs_m"] == pytest.approx(10)
    assert chosen["chance_of_one_run_h1"] == pytest.approx(0.1)  # geometric: P[K = 1] = 1 / mean
    assert chosen["gamma"] == pytest.approx(0.1)
    assert chosen["chance_of_top_10_percent"] == pytest.approx(10 / 19)  # f(x) = x / (10 - 9 x) at 0.9
    assert step_of(steps, "the whole bill").numbers == {"epsilon": chosen["epsilon"], "delta": DELTA}
    assert step_of(steps, "final run alone").numbers["epsilon"] == pytest.approx(2.5839, rel=2e-4)
    assert "zero-out" in step_of(steps, "the whole bill").theorem
    assert json.loads(json.dumps([step.to_dict() for step in steps]))[0]["uses"] == []


def _two_points(epsilon: float) -> float:
    """(1 - e^(e - epsilon)) / (1 + e^-epsilon) = delta: the profile of a loss of +-epsilon near its end."""
    return epsilon + math.log1p(-DELTA * (1 + math.exp(-epsilon)))


@pytest.mark.parametrize("row", vectors("select_best_gaussian_trial", "select_best_dpsgd_trial"))
def test_price_attained_value_and_looser_bounds(row):
    """Golden: the price, what it must not pass below, the closed form and Renyi bounds above it."""
    steps = explain(SelectBest(trial_of(row), law_of(row)), row["delta"])
    numbers = step_of(steps, "the best of K runs").numbers
    assert row["never_below"] <= numbers["attained"] <= numbers["epsilon"] <= row["epsilon"] * 1.003
    assert 1 <= numbers["price_over_attained"] <= 1.003
    assert numbers["price_over_attained"] == pytest.approx(numbers["epsilon"] / numbers["attained"])
    if "epsilon_closed_form" in row:
        assert numbers["closed_form"] == pytest.approx(row["epsilon_closed_form"], rel=5e-3)
        assert numbers["renyi"] == pytest.approx(row["epsilon_renyi"], rel=5e-3)
        for wrong in (2 / 3, 3 / 2):
            assert numbers["epsilon"] != pytest.approx(wrong * row["epsilon"], rel=3e-3)
    else:
        assert "closed_form" not in numbers


def test_equal_events_are_one_step():
    steps = explain(RandomPart(0.1, SelectBest(RUN, GEOMETRIC), RUN), DELTA, RUN)
    assert len([step for step in steps if step.title.endswith("2,000 times")]) == 1
    part = step_of(steps, "random part")
    assert part.uses == (4, 3)
    assert part.numbers["epsilon"] == pytest.approx(GOLDEN["subsample_tune_disjoint"][0]["epsilon"], rel=3e-3)
    assert "no Renyi bound" in step_of(steps, "cross-check").title


def test_one_run_is_not_compared_with_itself_and_no_noise_is_infinite():
    assert not [step for step in explain(RUN, DELTA, RUN) if "alone" in step.title]
    steps = explain(SelectBest(Gaussian(0.0), GEOMETRIC), DELTA)
    assert step_of(steps, "the whole bill").numbers["epsilon"] is None
    assert "attained" not in step_of(steps, "the best of K runs").numbers
    free = explain(NOTHING, DELTA)
    assert free[0].title == "nothing"
    assert step_of(free, "the whole bill").numbers["epsilon"] == 0.0
    assert "any relation" in step_of(free, "the whole bill").theorem
    replaced = explain(FixedSizeSampled(1000, 10, Gaussian(1.0)), DELTA)
    assert "replace-one" in step_of(replaced, "the whole bill").theorem


@pytest.mark.parametrize("law", [FixedCount(trials=4), PoissonCount(mean=3.0)])
def test_laws_without_a_shape(law):
    """P[K = 1] of a fixed 4 is 0, of Poisson(3) is 3 / e^3."""
    numbers = step_of(explain(SelectBest(Gaussian(1.0), law), DELTA), "the best of K runs").numbers
    assert numbers["chance_of_one_run_h1"] == pytest.approx(0.0 if isinstance(law, FixedCount) else 3 * math.exp(-3))
    assert numbers["attained"] <= numbers["epsilon"]
    assert "gamma" not in numbers


def test_every_kind_of_event_has_its_own_rule():
    """A new kind must say which theorem prices it."""
    own = set(rule.registry) - {object}
    assert {cls for kind, cls in EVENTS.items() if kind and cls.__module__.startswith("sweeper.")} == own
    refer = "that".__str__
    for event in (Composed((RUN, ExponentialMechanism(0.3))), ReplaceOne(Gaussian(1.0))):
        said = rule(event, lambda _: refer())
        assert said.title.startswith("that")
        assert said.source


def test_a_kind_without_a_rule_says_what_its_class_says():
    class Odd(Event):
        """An event of a test. Guarantee: none whatever."""

        kind = "odd-thing"

    del EVENTS["odd-thing"]
    said = rule(Odd(), lambda _: "")
    assert said.title == "odd thing"
    assert said.theorem == "Guarantee: none whatever."


# The cross-check


def test_renyi_of_a_gaussian_and_of_its_composition():
    """rho = order/2 at each order; converted by hand; dp_accounting's published value of the golden run."""
    assert renyi_check(RUN, DELTA) == pytest.approx(2.8665, rel=1e-3)
    by_hand = min(a / 2 + math.log1p(-1 / a) - (math.log(DELTA) + math.log(a)) / (a - 1) for a in (2.0, 3.0, 4.0, 5.0, 6.0, 8.0))
    assert min(to_epsilon(a, a / 2, 0.0, DELTA) for a in (2.0, 3.0, 4.0, 5.0, 6.0, 8.0)) == pytest.approx(by_hand)
    assert to_epsilon(2.0, 0.5, DELTA, DELTA) == math.inf
    assert to_epsilon(2.0, 0.5, 0.5 * DELTA, DELTA) > to_epsilon(2.0, 0.5, 0.0, DELTA)


def test_renyi_where_dp_accounting_has_no_event():
    """Papernot and Steinke's formula from our own curves, against dp_accounting's on a trial that it knows."""
    known = SelectBest(RUN, GEOMETRIC)
    theirs = accountant.renyi_epsilon(known, DELTA)
    assert theirs == pytest.approx(5.457, rel=5e-3)
    scored = SelectBest(Disjoint((RUN, DiscreteLaplace(0.001))), GEOMETRIC)
    assert accountant.renyi_epsilon(scored, DELTA) is None
    ours = renyi_check(scored, DELTA)
    assert theirs * 0.999 <= ours <= theirs * 1.03  # fewer orders than theirs
    assert renyi_check(Disjoint((known, DiscreteLaplace(0.001))), DELTA) == pytest.approx(theirs)


@pytest.mark.parametrize(
    "event",
    [
        SelectBest(RUN, TruncatedNegativeBinomial(eta=1.0, mean=10.0, max_trials=40)),
        RandomPart(0.1, SelectBest(RUN, GEOMETRIC), RUN),
        Disjoint((RUN, RandomPart(0.1, SelectBest(RUN, GEOMETRIC), RUN))),
        SelectBest(Disjoint((SelectBest(Gaussian(2.0), GEOMETRIC), DiscreteLaplace(0.1))), GEOMETRIC),
        Gaussian(0.0),
    ],
)
def test_no_renyi_bound_is_made_up(event):
    assert renyi_check(event, DELTA) is None


@pytest.mark.parametrize("event", [ExponentialMechanism(0.25), DiscreteLaplace(0.5), Composed((RUN, DiscreteLaplace(0.1)))])
def test_the_second_bound_is_never_below_the_first(event):
    found = renyi_check(event, DELTA)
    assert found is not None
    assert found >= accountant.epsilon(event, DELTA) * (1 - 1e-9)
