"""The plan: its figures belong together, its table says what a user must know, and it loads nothing heavy."""

from __future__ import annotations

import copy
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sweeper.catalog import load_spec, sweep_from_dict
from sweeper.checks import FieldError
from sweeper.planning import Plan, plan
from sweeper.privacy import accountant
from sweeper.privacy.events import (
    Composed,
    DiscreteLaplace,
    Disjoint,
    Gaussian,
    PoissonSubsampled,
    Repeated,
    SelectBest,
    event_from_dict,
)
from sweeper.report.bill import plan_text

ROOT = Path(__file__).parents[1]
SEARCHED = {
    "clip": {"policy": "fixed", "range": [0.05, 2.0], "scale": "log"},
    "step": {"policy": "coupled", "range": [0.3, 10.0], "scale": "log", "schedule": "cosine"},
}
FIXED = {"clip": {"policy": "fixed", "value": 0.5}, "step": {"policy": "coupled", "value": 2.0}}
PROTOCOLS: dict[str, dict[str, Any]] = {
    "select-best": {"kind": "select-best", "law": "tnb", "eta": 2, "mean_trials": 12, "max_trials": 64},
    "release-all": {"kind": "release-all", "trials": 12},
    "public-proxy": {"kind": "public-proxy", "proxy": "fashion-mnist", "trials": 12},
    "no-tuning": {"kind": "no-tuning"},
}


def priced(protocol: str = "select-best", **sections: Any) -> Plan:
    """The plan of a sweep of 300 steps at noise 1, with fields of sections replaced."""
    data: dict[str, Any] = {
        "name": "a-sweep",
        "data": {"source": "adult", "holdout": 0.2},
        "model": {"kind": "softmax"},
        "trainer": {"kind": "dp-sgd", "batch_size": 256, "steps": 300, "average": "tail"},
        "privacy": {"noise_multiplier": 1.0, "delta": 1e-5},
        "protocol": PROTOCOLS[protocol],
        "score": {"epsilon": 0.1},
        "space": FIXED if protocol == "no-tuning" else SEARCHED,
    }
    for name, fields in sections.items():
        data[name] = {**copy.deepcopy(data.get(name, {})), **fields}
    if "epsilon" in data["privacy"]:
        del data["privacy"]["noise_multiplier"]
    return plan(sweep_from_dict(data))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_bill_is_the_accountants_price_of_the_events_it_names(protocol):
    found = priced(protocol)
    assert found.event == found.spec.protocol.total(found.trial_event)
    assert found.guarantee.epsilon == accountant.epsilon(found.event, 1e-5)
    assert found.epsilon_one_trial == accountant.epsilon(found.trial_event, 1e-5)
    training = Repeated(PoissonSubsampled(256 / found.train_rows, Gaussian(1.0)), 300)
    assert found.trial_event == Disjoint((training, DiscreteLaplace(0.1)))
    assert found.sampling_probability == 256 / found.train_rows
    assert found.train_rows + found.holdout_rows == 32_561
    assert 0.19 < found.holdout_rows / 32_561 < 0.21
    assert (found.guarantee.delta, found.guarantee.relation, found.guarantee.unit) == (1e-5, "zero-out", "record")
    assert not found.guarantee.seeded
    everything = accountant.epsilon(Repeated(found.trial_event, found.spec.protocol.max_trials), 1e-5)
    assert found.epsilon_unsealed == (everything if protocol == "select-best" else found.guarantee.epsilon)


def test_the_larger_of_the_training_and_the_holdout_record_counts():
    def bill(**score: Any) -> float:
        return priced(score=score).guarantee.epsilon

    law = priced().spec.protocol.run_counts()
    training = accountant.epsilon(SelectBest(priced().trial_event.parts[0], law), 1e-5)
    assert bill(epsilon=0.01) == bill(epsilon=0.1) == pytest.approx(training, rel=1e-9)
    for loud in (1.0, 3.0):
        assert bill(epsilon=loud) == pytest.approx(accountant.epsilon(SelectBest(DiscreteLaplace(loud), law), 1e-5), rel=1e-3)
        assert bill(epsilon=loud) > 1.5 * training
    together = priced(score={"epsilon": 0.5, "split": "training"})
    assert isinstance(together.trial_event, Composed)
    assert together.guarantee.epsilon > 1.05 * bill(epsilon=0.5)


def test_the_alternatives_are_what_their_names_say_and_stand_in_order():
    found = priced("select-best")
    other = {row.name: row for row in found.alternatives}
    assert list(other) == ["release-all", "naive composition", "public-proxy", "no-tuning"]
    one, runs = found.epsilon_one_trial, 12
    assert other["release-all"].epsilon == accountant.epsilon(Repeated(found.trial_event, runs), 1e-5)
    assert other["naive composition"].epsilon == runs * one
    assert other["naive composition"].delta == pytest.approx(runs * 1e-5)
    assert one == other["no-tuning"].epsilon == other["public-proxy"].epsilon
    assert one < found.guarantee.epsilon < other["release-all"].epsilon < other["naive composition"].epsilon
    assert other["release-all"].epsilon < found.epsilon_unsealed


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_is_compared_with_the_others(protocol):
    names = [row.name for row in priced(protocol).alternatives]
    assert sorted([*names, protocol]) == sorted([*PROTOCOLS, "naive composition"])
    best = next((row.epsilon for row in priced(protocol).alternatives if row.name == "select-best"), None)
    if best is not None:
        assert priced(protocol).epsilon_one_trial < best < 12 * priced(protocol).epsilon_one_trial


def test_noise_is_calibrated_to_the_whole_bill_or_taken_as_given():
    given, calibrated = priced(), priced(privacy={"epsilon": 2.0})
    assert (given.calibrated, given.noise_multiplier) == (False, 1.0)
    assert calibrated.calibrated
    assert 0.95 * 2.0 <= calibrated.guarantee.epsilon <= 2.0
    assert calibrated.epsilon_one_trial < calibrated.guarantee.epsilon
    again = plan(calibrated.spec, noise_multiplier=calibrated.noise_multiplier)
    assert again == calibrated
    single = priced("no-tuning", privacy={"epsilon": 2.0})
    assert single.noise_multiplier < calibrated.noise_multiplier  # tuning is what the more noise pays for
    assert single.guarantee.epsilon == single.epsilon_one_trial


def test_a_seeded_plan_says_so():
    spec = priced().spec
    assert plan(spec, seeded=True).guarantee.seeded
    assert plan(spec, seeded=True).fingerprint == plan(spec).fingerprint


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"trainer": {"batch_size": 30_000}}, "trainer.batch_size = 30000 must be at most the 26,"),
        ({"privacy": {"epsilon": 0.01}}, "privacy.epsilon = 0.01 cannot be reached"),
        ({"privacy": {"epsilon": 1.0, "delta": 1e-17}}, "privacy.delta = 1e-17 is too small"),
        ({"data": {"holdout": 1e-9}}, "data.holdout = 1e-09 leaves no held-out row"),
    ],
)
def test_what_cannot_be_planned_is_refused(sections, words):
    with pytest.raises(FieldError) as caught:
        priced(**sections)
    assert words in str(caught.value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_json_holds_the_whole_plan(protocol):
    found = priced(protocol)
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert event_from_dict(data["event"]) == found.event
    assert event_from_dict(data["trial_event"]) == found.trial_event
    assert sweep_from_dict(data["spec"]) == found.spec
    assert (data["n"], data["n_stated_by"]) == (32_561, 'source "adult"')
    assert data["epsilon"] == found.guarantee.epsilon
    assert data["fingerprint"] == found.fingerprint
    assert (data["run_count_law"] is None) == (protocol != "select-best")


def test_no_protection_is_null_in_json_and_infinite_in_words():
    data = priced(privacy={"noise_multiplier": 1e-4}).to_dict()
    assert data["epsilon"] is data["epsilon_one_trial"] is data["unseal_epsilon"] is None
    json.dumps(data, allow_nan=False)
    assert "infinite" in plan_text(data, None, "a.yaml")


def test_the_table_says_what_the_issue_asks():
    """Every dimension and how it is paid, the law of K, sigma, q, steps, one trial, the sweep, and what else it would cost."""
    data = priced("select-best", data={"n": 32_000}).to_dict()
    budget = {"data_set": "adult", "epsilon": 8.0, "delta": 1e-4, "spent": 1.0, "after": 1.0 + data["epsilon"], "over": False}
    text = plan_text(data, budget, "jobs/x.yaml")
    for part in (
        *(
            "a-sweep",
            "softmax on adult",
            f"n = {data['train_rows']:,} train",
            f"{data['holdout_rows']:,} hold-out",
            "stated by the user",
        ),
        *("300 steps of 256", "tail average", "clip.clip_norm", "log 0.05 .. 2", "selected: part of the tuning bill"),
        *("step.c", "log 0.3 .. 10", "coupled to clip", "schedule cosine", "fixed beforehand: free"),
        *("K ~ tnb(2), mean 12", "secret, at most 64", f"{data['chance_of_top']:.0%} chance to see a top-10% setting"),
        *(f"q = {data['sampling_probability']:.4g}", "sigma = 1 (given)", "relation zero-out, unit record", "bill at delta 1e-05"),
        *("one trial", "+ tuning by select-best", "= this sweep", "budget of adult at delta 1e-04: 8.00, spent 1.00, left"),
        *("the same sweep as release-all", "12 runs, every score visible", "naive composition", "public-proxy", "no-tuning"),
        *(
            "what a single-run report would say",
            "(not the truth)",
            "visible afterwards: the winner",
            "next: sweeper run jobs/x.yaml",
        ),
        *(f"{data[name]:.2f}" for name in ("epsilon", "epsilon_one_trial")),
        *(f"{row['epsilon']:.2f}" for row in data["alternatives"]),
    ):
        assert part in text, part
    over = plan_text(data, {**budget, "epsilon": 1.0, "spent": 0.5, "after": 0.5 + data["epsilon"]}, "x")
    assert f"OVER by {data['epsilon'] - 0.5:.2f}" in over
    assert "spent infinite, OVER any budget" in plan_text(data, {**budget, "spent": None, "after": None}, "x")
    assert "no budget of adult is set: sweeper ledger set-budget adult --epsilon 8 --delta 1e-04" in plan_text(data, None, "x")


def test_a_single_run_report_is_called_untrue_only_where_it_is():
    for protocol in PROTOCOLS:
        data = priced(protocol).to_dict()
        assert ("(not the truth)" in plan_text(data, None, "x")) == (data["epsilon"] > data["epsilon_one_trial"])


def test_public_data_is_planned_as_if_private_and_charged_nothing():
    private, public = priced(), priced(data={"public": True})
    assert public.guarantee == private.guarantee
    text = plan_text(public.to_dict(), None, "x")
    for part in (
        "data public",
        "as if private: the data is public, nothing is charged",
        "visible afterwards: every trial.  Sealed: nothing",
    ):
        assert part in text
    assert "set-budget" not in text


@pytest.mark.parametrize("path", sorted((ROOT / "jobs").glob("*.yaml")), ids=lambda path: path.name)
def test_every_job_can_be_planned_and_keeps_its_bill(path):
    found = plan(load_spec(path))
    target = found.spec.privacy.epsilon
    assert target is None or 0.95 * target <= found.guarantee.epsilon <= target
    assert math.isfinite(found.epsilon_unsealed)


PLAN_AND_TELL = """
import sys
from sweeper.catalog import load_spec
from sweeper.planning import plan
found = plan(load_spec(sys.argv[1]))
print(found.guarantee.epsilon, *(name for name in sys.argv[2:] if name in sys.modules))
"""


def test_planning_loads_nothing_heavy_and_with_a_warm_cache_no_numpy(tmp_path):
    heavy = ["torch", "ray", "mlflow", "opacus", "pandas"]
    numeric = ["numpy", "scipy", "dp_accounting"]

    def run(*names: str) -> list[str]:
        command = [sys.executable, "-c", PLAN_AND_TELL, str(ROOT / "jobs" / "adult_logistic_clip.yaml"), *names]
        environment = {**os.environ, "SWEEPER_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()

    cold = run(*heavy, *numeric)
    assert cold[1:] == numeric  # so that the names are those that would be seen
    warm = run(*heavy, *numeric)
    assert warm == cold[:1]
