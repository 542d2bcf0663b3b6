"""What `price` and `price --explain` print."""

from __future__ import annotations

from typing import Any

import pytest

from sweeper.privacy.events import Gaussian, ReplaceOne
from sweeper.privacy.explain import explain
from sweeper.privacy.price import Question, answer, answer_bill, answer_event, settle
from sweeper.report.price_text import explain_text, price_text

FLAGS = {"sampling_probability": 0.01, "steps": 300, "delta": 1e-5}


def asked(**changes: Any) -> dict[str, Any]:
    return answer(Question(**{**FLAGS, "noise_multiplier": 1.0, **changes}))


def explained(**changes: Any) -> dict[str, Any]:
    bill = settle(Question(**{**FLAGS, "noise_multiplier": 1.0, **changes}))
    return answer_bill(bill) | {"explanation": [step.to_dict() for step in explain(bill.total, 1e-5, bill.trial)]}


def test_every_answer_names_relation_delta_protocol_and_the_whole_bill():
    found = asked(protocol="select-best", law="logarithmic", mean=10, max_trials=40)
    text = price_text(found)
    for part in (
        f"{found['epsilon']:.2f}   at delta 1e-05, select-best, whole bill",
        "zero-out, unit record",
        f"{found['epsilon_one_trial']:.2f}   (what a report of that run alone would say: not the truth)",
        f"chance to see a top-10% setting  {found['chance_of_top_10_percent']:.0%}",
        "runs               K ~ logarithmic, mean 10, given K <= 40; not released",
    ):
        assert part in text
    assert "Renyi" not in text
    assert "Renyi" in price_text(asked(protocol="select-best", law="logarithmic", mean=10))


def test_one_run_is_the_truth_about_itself():
    text = price_text(asked())
    assert "not the truth" not in text
    assert "runs" not in text
    assert "calibrated" in price_text(answer(Question(**FLAGS, epsilon=1.0)))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"line_search": "exponential", "line_search_epsilon": 0.25}, "exponential mechanism, epsilon 0.25"),
        ({"line_search": "laplace", "threshold_noise": 5, "query_noise": 20}, "threshold noise 5, query noise 20"),
        ({"line_search": "gaussian", "threshold_noise": 9, "query_noise": 9, "line_search_steps": 3}, "at most 3 candidates"),
        ({"protocol": "select-best", "law": "poisson", "mean": 3.0, "may_return_nothing": True}, "no answer   0.05"),
        ({"protocol": "select-best", "law": "binomial", "trials": 20, "mean": 10}, "binomial(20, 0.5); not released"),
        ({"protocol": "select-best", "law": "fixed", "trials": 3}, "K = 3; not released"),
        ({"score_epsilon": 0.1, "score_split": "training"}, "note: the score reads training rows"),
        ({"sampling": "without-replacement", "rows": 1000}, "replace-one, unit record"),
    ],
)
def test_what_was_asked_is_said(flags, words):
    assert words in price_text(asked(**flags))


def test_small_and_infinite_bills():
    assert "epsilon            0.00" in price_text(asked(noise_multiplier=100))
    found = asked(noise_multiplier=100)
    assert f"{found['epsilon']:.3g}" in price_text(found)
    assert "infinite" in price_text(asked(noise_multiplier=0, protocol="select-best", mean=10))
    assert "epsilon            0.00   at" in price_text(asked(steps=0))


def test_an_event_from_a_file_has_no_run_of_its_own():
    text = price_text(answer_event(ReplaceOne(Gaussian(1.0)), 1e-5))
    assert "as the event says" in text
    assert "replace-one" in text
    assert "one trial" not in text


def test_the_derivation_is_numbered_and_names_its_theorems():
    price = explained(protocol="select-best", law="geometric", mean=10)
    text = explain_text(price)
    for step in price["explanation"]:
        assert f"\n{step['number']:>2}. " in text
    selection = next(step for step in price["explanation"] if "attained" in step["numbers"])
    whole = " ".join(text.split())
    for part in (
        "Balle and Wang 2018, Theorem 8",
        "Zhu, Dong, Wang 2022, Theorem 11",
        "no analysis that does not know the score can charge less than".capitalize(),
        f"attained by an explicit ordering of the outcomes: {selection['numbers']['attained']:.4f}",
        f"price / attained = {selection['numbers']['price_over_attained']:.5f}",
        "m = E[K] = h(0) = 10",
        f"closed form {selection['numbers']['closed_form']:.4f}",
        "relation zero-out",
        "what a report of the final run alone would say",
    ):
        assert part in whole
    assert max(map(len, text.splitlines())) <= 100
    assert max(map(len, explain_text(price, width=60).splitlines())) <= 60


def test_a_derivation_without_noise_says_infinite():
    text = explain_text(explained(noise_multiplier=0.0, protocol="select-best", mean=10))
    assert "the whole bill, at delta 1e-05: epsilon infinite" in text
    assert "attained" not in text
