"""Every setting says how it is paid for; the epsilons beside it are those of events written out here by hand."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest

from sweeper.catalog import sweep_from_dict
from sweeper.checks import FieldError
from sweeper.planning import Plan, plan
from sweeper.planning.dimensions import DimensionRow
from sweeper.planning.good_part import dimensions_in, fewer_trials, good_guesses, good_shares, product, with_fewer_runs
from sweeper.privacy import accountant
from sweeper.privacy.events import (
    Composed,
    DiscreteLaplace,
    Disjoint,
    Event,
    ExponentialMechanism,
    Gaussian,
    PoissonSubsampled,
    PrivateQuantile,
    Repeated,
    SelectBest,
)
from sweeper.privacy.laws import run_count_law
from sweeper.privacy.release import SelectBestProtocol
from sweeper.report.bill import plan_text
from tests.tiny_sweeps import tiny

CLIP = {"policy": "fixed", "range": [0.05, 2.0], "scale": "log"}
COUPLED = {"policy": "coupled", "range": [0.3, 10.0], "scale": "log"}
QUANTILE = {"policy": "private-quantile", "value": "g-min", "epsilon": 0.3}
SEARCH = {"policy": "exponential-search"}
ONCE = {"kind": "no-tuning"}
DELTA = 1e-5
STEPS = 100


def planned(clip: dict[str, Any], step: dict[str, Any], **sections: Any) -> Plan:
    """A plan of 100 steps at noise 1."""
    base = {"trainer": {"kind": "dp-sgd", "batch_size": 256, "steps": STEPS}, "privacy": {"noise_multiplier": 1.0, "delta": DELTA}}
    return plan(sweep_from_dict(tiny(**base | {"space": {"clip": clip, "step": step}} | sections)))


def row(found: Plan, name: str) -> DimensionRow:
    (one,) = (row for row in found.dimensions if row.name == name)
    return one


def trial(found: Plan, step: Event, before: Event | None = None) -> float:
    """Epsilon of one trial whose steps each ask this of their minibatch."""
    training: Event = Repeated(PoissonSubsampled(256 / found.train_rows, step), STEPS)
    if before is not None:
        training = Composed((before, training))
    return accountant.epsilon(Disjoint((training, DiscreteLaplace(0.1))), DELTA)


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-9)


def test_a_line_search_costs_what_it_adds_at_the_gradients_own_noise():
    """share 0.2 of 1/(2 z^2): the gradient has z / sqrt(0.8), the search the epsilon with epsilon^2 / 8 = 0.2 / 2."""
    found = planned(CLIP, SEARCH)
    gradient, epsilon = Gaussian(1 / math.sqrt(0.8)), math.sqrt(0.8)
    question = row(found, "step (exponential-search)")
    assert question.epsilon_high == near(trial(found, Composed((gradient, ExponentialMechanism(epsilon)))))
    assert question.epsilon_high == found.epsilon_one_trial
    assert question.epsilon_low == near(trial(found, gradient))
    assert question.epsilon_low < 0.99 * trial(found, Gaussian(1.0))  # not the trial of the whole step's noise
    assert (question.paid, question.values) == ("changes-event", "20 candidates, share 0.2")
    more = question.epsilon_high - question.epsilon_low
    assert question.note == (
        f"the step size is found at every step, at a price inside it; +{more:.2g} of one trial's {question.epsilon_high:.2f}"
    )


def test_a_quantile_asked_once_costs_what_it_adds():
    found = planned(QUANTILE, COUPLED)
    question = row(found, "clip (private-quantile)")
    assert question.epsilon_low == near(trial(found, Gaussian(1.0)))
    assert question.epsilon_high == near(trial(found, Gaussian(1.0), PrivateQuantile(0.3)))
    assert question.note.startswith("asked once, before the first step; +0.")
    assert (row(found, "clip.quantile").paid, row(found, "clip.quantile").values) == ("free", "g-min")


def test_a_count_beside_every_sum_costs_what_it_adds_at_the_sums_own_noise():
    """Count noise of 5 z: the sum has (z^-2 - (10 z)^-2)^(-1/2), and the step z altogether."""
    found = planned({"policy": "adaptive-quantile", "value": 1.0}, COUPLED)
    question = row(found, "clip (adaptive-quantile)")
    assert question.epsilon_low == near(trial(found, Gaussian((1 - 0.01) ** -0.5)))
    assert question.epsilon_high == pytest.approx(trial(found, Gaussian(1.0)), rel=1e-3)
    assert question.epsilon_low < question.epsilon_high
    assert "a noisy count beside every sum" in question.note


def test_two_questions_are_told_apart():
    found = planned(QUANTILE, SEARCH, protocol=ONCE)
    gradient = Gaussian(1 / math.sqrt(0.8))
    both = Composed((gradient, ExponentialMechanism(math.sqrt(0.8))))
    assert row(found, "clip (private-quantile)").epsilon_low == near(trial(found, both))
    assert row(found, "step (exponential-search)").epsilon_low == near(trial(found, gradient, PrivateQuantile(0.3)))


def test_a_searched_setting_that_changes_the_event_is_priced_at_both_ends():
    found = planned(CLIP, {**SEARCH, "epsilon": {"range": [0.1, 0.5]}})
    at = {e: trial(found, Composed((Gaussian(1.0), ExponentialMechanism(e)))) for e in (0.1, 0.5)}
    changing = row(found, "step.epsilon")
    assert (changing.paid, changing.epsilon_low, changing.epsilon_high) == ("changes-event", near(at[0.1]), near(at[0.5]))
    assert found.epsilon_one_trial == changing.epsilon_high
    bill = found.guarantee.epsilon - found.epsilon_one_trial
    other = f"shares the tuning bill of {bill:.2f} with clip.clip_norm"
    assert changing.note == f"one trial {at[0.5]:.2f} at 0.5, {at[0.1]:.2f} at 0.1; priced at the dearest; {other}"


def test_a_field_that_changes_no_event_here_is_selected_as_any_other():
    """The number of candidates costs nothing with Laplace noise, and something with Gaussian noise."""
    step = {"policy": "backtracking", "value": 0.1, "candidates": {"values": [5, 20]}}
    paid = {noise: row(planned(CLIP, step | {"noise": noise}), "step.candidates").paid for noise in ("laplace", "gaussian")}
    assert paid == {"laplace": "selected", "gaussian": "changes-event"}


def test_a_question_without_weight_says_so():
    """A held-out record pays more for the score than a training record for all it is asked."""
    found = planned(QUANTILE, COUPLED, score={"epsilon": 20.0}, privacy={"noise_multiplier": 30.0, "delta": DELTA})
    assert "no part of one trial's" in row(found, "clip (private-quantile)").note


def test_what_no_noise_protects_has_no_numbers():
    found = planned(CLIP, SEARCH, privacy={"noise_multiplier": 1e-4, "delta": DELTA})
    assert {(r.epsilon_low, r.epsilon_high) for r in found.dimensions} == {(None, None)}
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_budget_of_the_trainers_own_is_not_divided():
    found = planned(CLIP, {"policy": "backtracking"}, trainer={"kind": "dp-blsgd", "batch_size": 256, "steps": 20})
    question = row(found, "step (backtracking)")
    assert question.epsilon_low is None
    assert question.note.endswith("the trainer pays for it together with the gradient")


def test_noise_that_a_count_leaves_nothing_of_is_refused():
    with pytest.raises(FieldError, match=r"space\.clip\.count_noise = 0\.4 must be above half"):
        planned({"policy": "adaptive-quantile", "value": 1.0, "count_noise": 0.4}, COUPLED)


# Searched settings


def geometric(mean: float, most: int) -> Any:
    return run_count_law("geometric", mean=mean, max_trials=most)


def test_a_selected_setting_shows_the_bill_of_the_sweep_without_it():
    """Mean 10, at most 40. Good: 1/3 of c, 3/4 of the clip norm. Without the clip norm, the first mean of three digits that has the
    same chance for 1/3, found by trying them all."""
    found = planned(CLIP, COUPLED)
    wanted = geometric(10, 40).chance(1 / 3 * 3 / 4)

    def first(share: float) -> float:
        means = (n / 100 for n in itertools.count(101))
        return next(m for m in means if geometric(m, max(1, round(4 * m))).chance(share) >= wanted)

    for name, other, share in (("clip.clip_norm", "step.c", 1 / 3), ("step.c", "clip.clip_norm", 3 / 4)):
        mean = first(share)
        bill = accountant.epsilon(SelectBest(found.trial_event, geometric(mean, max(1, round(4 * mean)))), DELTA)
        shown = row(found, name)
        assert (shown.paid, shown.epsilon_low, shown.epsilon_high) == ("selected", near(bill), found.guarantee.epsilon)
        tuning = found.guarantee.epsilon - found.epsilon_one_trial
        assert shown.note.startswith(
            f"shares the tuning bill of {tuning:.2f} with {other}; if fixed, mean {mean:g} runs would do: bill"
        )
    assert row(found, "step.c").note.endswith("clip norm and step size are nearly one dimension")
    assert row(found, "step.c").epsilon_low < row(found, "clip.clip_norm").epsilon_low  # nearly all of it is c's


def test_the_only_selected_setting_is_all_of_the_tuning_bill():
    found = planned({"policy": "fixed", "value": 0.5}, COUPLED)
    shown = row(found, "step.c")
    assert (shown.epsilon_low, shown.epsilon_high) == (found.epsilon_one_trial, found.guarantee.epsilon)
    assert shown.note.startswith("is all of the tuning bill of")
    assert "one dimension" not in shown.note  # nothing else is searched


def test_released_settings_show_what_fewer_trials_would_cost():
    """12 draws have a chance of 1 - (8/9)^12 = 0.757 to hit a ninth, and 4 draws of 0.802 to hit a third (3 have 0.704)."""
    step = {"policy": "fixed", "range": [0.1, 10.0], "scale": "log"}
    found = planned(CLIP, step, protocol={"kind": "release-all", "trials": 12})
    bill = accountant.epsilon(Repeated(found.trial_event, 4), DELTA)
    for shown in found.dimensions:
        assert (shown.paid, shown.epsilon_low, shown.epsilon_high) == ("released", near(bill), found.guarantee.epsilon)
    grid = planned(CLIP, step, protocol={"kind": "release-all", "trials": 9}, search={"kind": "grid", "points": 3})
    assert row(grid, "clip.clip_norm").epsilon_low == near(accountant.epsilon(Repeated(grid.trial_event, 3), DELTA))
    assert "if fixed: the bill of the grid without that dimension" in plan_text(grid.to_dict(), None, "x")


def test_what_is_chosen_on_public_data_or_fixed_is_free():
    found = planned(
        CLIP, COUPLED, protocol={"kind": "public-proxy", "proxy": "fashion-mnist", "trials": 12}, model={"kind": "softmax"}
    )
    assert {(r.paid, r.epsilon_low) for r in found.dimensions} == {("free", None)}
    assert row(found, "step.c").note.startswith("chosen on public data")
    fixed = planned(
        {"policy": "fixed", "value": 0.5}, {"policy": "fixed", "value": 2.0, "schedule": "cosine", "warmup": 0.1}, protocol=ONCE
    )
    assert [(r.name, r.values, r.paid) for r in fixed.dimensions] == [
        ("clip.clip_norm", "0.5", "free"),
        ("step.learning_rate", "2", "post-processing"),
        ("step.schedule", "cosine", "post-processing"),
        ("step.warmup", "0.1", "post-processing"),
    ]


def test_what_a_policy_spares_is_said():
    found = planned({"policy": "normalise"}, {"policy": "theory", "theorem": "5.4", "value": 1.0}, protocol=ONCE)
    assert row(found, "clip (normalise)") == DimensionRow(
        name="clip (normalise)", values="r 0.01, rule dp-nsgd", paid="free", note="no clip norm is left to search"
    )
    assert [r.name for r in found.dimensions if "the step size follows from the clip norm" in r.note] == ["step.distance"]


def test_machines_read_the_same():
    found = planned(CLIP, COUPLED).to_dict()["dimensions"]
    assert [set(r) for r in found] == [{"name", "values", "paid", "epsilon_low", "epsilon_high", "note"}] * 2
    text = plan_text(planned(CLIP, COUPLED).to_dict(), None, "x")
    for r in found:
        assert f"{r['paid']}: {r['note']}" in text


# The good part


def space(clip: dict[str, Any], step: dict[str, Any], **sections: Any) -> Any:
    return sweep_from_dict(tiny(space={"clip": clip, "step": step}, **sections)).space


def test_the_rule_of_the_good_part():
    assert good_shares(space(CLIP, COUPLED)) == {"clip.clip_norm": 3 / 4, "step.c": 1 / 3}
    listed = space({"policy": "fixed", "values": [0.5, 1.0]}, {"policy": "fixed", "values": [0.1, 1.0, 2.0, 4.0]})
    assert good_shares(listed) == {"clip.clip_norm": 1 / 2, "step.learning_rate": 1 / 3}
    assert dimensions_in(1 / 9) == pytest.approx(2.0)
    assert dimensions_in(1 / 4) == pytest.approx(1.262, abs=1e-3)  # one and log(4/3) / log 3
    assert dimensions_in(product({})) == 0.0


@pytest.mark.parametrize(
    ("clip", "step", "guesses"),
    [
        ({"policy": "fixed", "value": 0.5}, {"policy": "coupled", "value": 2.0}, {"clip.clip_norm": 3 / 4, "step.c": 1 / 3}),
        ({"policy": "fixed", "value": 0.5}, SEARCH, {"clip.clip_norm": 1 / 3}),
        ({"policy": "normalise"}, SEARCH, {}),
        ({"policy": "adaptive-quantile", "value": 1.0}, SEARCH, {}),
        (QUANTILE, {"policy": "theory", "value": 1.0}, {"step.distance": 1 / 3}),
    ],
)
def test_what_nobody_finds_is_a_guess(clip, step, guesses):
    assert good_guesses(space(clip, step, protocol=ONCE)) == guesses


LAWS: list[dict[str, Any]] = [
    {"law": "tnb", "eta": 2, "mean_trials": 12, "max_trials": 64},
    {"law": "logarithmic", "mean_trials": 10, "max_trials": 50},
    {"law": "geometric", "mean_trials": 10},
    {"law": "binomial", "trials": 20, "probability": 0.5},
    {"law": "binomial", "trials": 20, "probability": 0.5, "max_trials": 12},
    {"law": "fixed", "trials": 10},
    {"law": "poisson", "mean_trials": 5, "max_trials": 20, "may_return_nothing": True},
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law["law"])
def test_fewer_runs_have_the_same_chance_and_no_fewer_would(law):
    protocol = SelectBestProtocol(**law)
    wanted = protocol.run_counts().chance(1 / 9)
    fewer = with_fewer_runs(protocol, 1 / 9, 1 / 3)
    counts = fewer.run_counts()
    assert counts.chance(1 / 3) >= wanted - 1e-9
    assert counts.mean_trials() < 0.6 * protocol.run_counts().mean_trials()
    kept = {"tnb": ("law", "eta"), "binomial": ("law", "probability")}.get(counts.to_dict()["law"], ("law",))
    assert all(counts.to_dict()[key] == protocol.run_counts().to_dict()[key] for key in kept)
    told = counts.to_dict()
    if "trials" in told:
        smaller = run_count_law(**{k: v for k, v in told.items() if k != "max_trials"} | {"trials": told["trials"] - 1})
        assert smaller.chance(1 / 3) < wanted
    else:
        assert counts.chance(1 / 3) < wanted + 0.02
    assert with_fewer_runs(protocol, 1 / 3, 1 / 3).run_counts().mean_trials() <= protocol.run_counts().mean_trials()


def test_fewer_trials_have_the_same_chance_and_no_fewer_would():
    for trials, share, larger in itertools.product((1, 2, 5, 12, 100), (1 / 27, 1 / 9, 1 / 4), (1 / 3, 3 / 4)):
        missed = (1 - share) ** trials * (1 + 1e-9)
        able = [n for n in range(1, trials + 1) if (1 - larger) ** n <= missed]
        assert fewer_trials(trials, share, larger) == able[0]
