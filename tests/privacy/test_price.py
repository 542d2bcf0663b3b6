"""The calculator behind `sweeper price`: its figures, its notes, its refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sweeper.checks import FieldError
from sweeper.privacy import accountant
from sweeper.privacy.events import Gaussian, PoissonSubsampled, Repeated, SelectBest, event_from_dict
from sweeper.privacy.laws import TruncatedNegativeBinomial
from sweeper.privacy.price import Question, answer
from sweeper.report.bill import price_text


def question(**changes: Any) -> Question:
    base: dict[str, Any] = {"sampling_probability": 0.01, "steps": 2000, "delta": 1e-5}
    return Question(**base | changes)


def test_the_numbers_of_the_issue():
    """DP-SGD of epsilon 2.584; the best of a geometric 10 at 3.780, of ten released 9.268 (tests/golden/accounting.json)."""
    best = answer(question(noise_multiplier=1, protocol="select-best", eta=1, mean=10))
    assert best["epsilon"] == pytest.approx(3.78, abs=0.011)
    assert 3.756 <= best["epsilon"] <= 3.78 * 1.003
    assert best["epsilon_one_trial"] == pytest.approx(2.5839, rel=2e-4)
    assert best["epsilon_renyi"] == pytest.approx(5.457, rel=5e-3)
    assert best["chance_of_top_10_percent"] == pytest.approx(0.53, abs=0.005)
    every = answer(question(noise_multiplier=1, protocol="release-all", trials=10))
    assert every["epsilon"] == pytest.approx(9.268, rel=6e-4)
    assert every["epsilon_renyi"] > every["epsilon"]
    one = answer(question(noise_multiplier=1))
    assert one["epsilon"] == one["epsilon_one_trial"] == best["epsilon_one_trial"]
    assert answer(question(noise_multiplier=1, protocol="public-proxy"))["epsilon"] == one["epsilon"]


def test_one_full_step_is_the_plain_gaussian():
    found = answer(question(noise_multiplier=1, sampling_probability=1, steps=1, delta=1e-6))
    assert found["epsilon"] == pytest.approx(accountant.epsilon(Gaussian(1.0), 1e-6), rel=1e-8)
    assert event_from_dict(found["event"]) == Repeated(Gaussian(1.0), 1)


def test_the_answer_is_json_and_names_its_guarantee():
    found = json.loads(
        json.dumps(answer(question(noise_multiplier=1, protocol="select-best", law="logarithmic", mean=10, max_trials=40)))
    )
    assert found["guarantee"] == {
        "epsilon": found["epsilon"],
        "delta": 1e-5,
        "relation": "zero-out",
        "unit": "record",
        "seeded": False,
    }
    assert found["epsilon_renyi"] is None  # no Renyi bound is known for a conditioned law
    trial = Repeated(PoissonSubsampled(0.01, Gaussian(1.0)), 2000)
    assert event_from_dict(found["event"]) == SelectBest(trial, TruncatedNegativeBinomial(eta=0.0, mean=10.0, max_trials=40))
    assert found["mean_trials"] < 10
    text = price_text(found)
    for part in (f"{found['epsilon']:.2f}", f"{found['epsilon_one_trial']:.2f}", "select-best", "1e-05", "whole bill"):
        assert part in text
    assert "Renyi" not in text


def test_epsilon_instead_of_noise_gives_the_noise():
    given = answer(question(epsilon=2.0, steps=300, protocol="select-best", eta=1, mean=10, max_trials=40))
    assert 0.995 * 2.0 <= given["epsilon"] <= 2.0
    back = answer(
        question(noise_multiplier=given["noise_multiplier"], steps=300, protocol="select-best", eta=1, mean=10, max_trials=40)
    )
    assert back["epsilon"] == given["epsilon"]
    less = answer(
        question(
            noise_multiplier=given["noise_multiplier"] * 0.99, steps=300, protocol="select-best", eta=1, mean=10, max_trials=40
        )
    )
    assert less["epsilon"] > 2.0


def test_tnb_without_a_shape_is_geometric():
    named = question(noise_multiplier=1, protocol="select-best", law="geometric", mean=10)
    assert question(noise_multiplier=1, protocol="select-best", mean=10).run_counts() == named.run_counts()


@pytest.mark.parametrize("nothing", [{"steps": 0}, {"sampling_probability": 0}])
@pytest.mark.parametrize("protocol", [{}, {"protocol": "select-best", "mean": 10}, {"protocol": "release-all", "trials": 3}])
def test_what_is_never_run_is_free(nothing, protocol):
    assert answer(question(noise_multiplier=1, **nothing, **protocol))["epsilon"] == 0.0


def test_no_noise_is_infinite_and_says_so():
    found = answer(question(noise_multiplier=0, protocol="select-best", mean=10))
    assert found["epsilon"] is found["epsilon_one_trial"] is found["guarantee"]["epsilon"] is None
    assert "infinite" in price_text(found)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "noise_multiplier or epsilon must be given, and not both"),
        ({"noise_multiplier": 1, "epsilon": 1}, "and not both"),
        ({"noise_multiplier": -1}, "noise_multiplier = -1 must be at least 0"),
        ({"noise_multiplier": float("nan")}, "finite"),
        ({"noise_multiplier": 1e12}, "at most 1e+09"),
        ({"noise_multiplier": True}, "must be a number"),
        ({"noise_multiplier": 1, "sampling_probability": 1.5}, "sampling_probability = 1.5"),
        ({"noise_multiplier": 1, "steps": 1.5}, "steps = 1.5 must be a whole number"),
        ({"noise_multiplier": 1, "steps": -1}, "steps = -1"),
        ({"noise_multiplier": 1, "steps": 10**400}, "at most 1000000000"),
        ({"noise_multiplier": 1, "delta": 0}, "delta = 0 must be above 0"),
        ({"noise_multiplier": 1, "delta": 1}, "below 1"),
        ({"epsilon": 0}, "epsilon = 0 must be above 0"),
        ({"epsilon": 1, "steps": 0}, "releases nothing"),
        ({"epsilon": 1e9, "steps": 1, "sampling_probability": 1}, "no noise would be needed"),
        ({"noise_multiplier": 1, "protocol": "select-bst", "mean": 10}, "did you mean select-best?"),
        ({"noise_multiplier": 1, "protocol": "select-best"}, "mean is missing"),
        ({"noise_multiplier": 1, "protocol": "select-best", "mean": 1}, "mean = 1 must be above 1"),
        ({"noise_multiplier": 1, "protocol": "select-best", "mean": "10"}, "mean = '10' must be a number"),
        ({"noise_multiplier": 1, "protocol": "select-best", "mean": 10, "law": "zipf"}, "law = 'zipf'"),
        ({"noise_multiplier": 1, "protocol": "select-best", "mean": 10, "law": "geometric", "eta": 2}, "contradicts"),
        ({"noise_multiplier": 1, "protocol": "select-best", "mean": 10, "max_trials": 0}, "max_trials = 0"),
        ({"noise_multiplier": 1, "protocol": "select-best", "mean": 10, "trials": 3}, "trials = 3 belongs to protocol release-all"),
        ({"noise_multiplier": 1, "protocol": "release-all"}, "trials is missing"),
        ({"noise_multiplier": 1, "protocol": "release-all", "trials": 0}, "trials = 0"),
        ({"noise_multiplier": 1, "mean": 10}, "mean = 10 belongs to protocol select-best"),
        ({"noise_multiplier": 1, "law": "geometric"}, "law = 'geometric' belongs to protocol select-best"),
    ],
)
def test_questions_that_make_no_sense_are_refused(changes, words):
    with pytest.raises(FieldError) as caught:
        answer(question(**changes))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
