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
    FixedSizeSampled,
    Gaussian,
    PoissonSubsampled,
    RandomPart,
    Repeated,
    ReplaceOne,
    SelectBest,
    event_from_dict,
)
from sweeper.privacy.laws import run_count_law
from sweeper.report.bill import plan_text

ROOT = Path(__file__).parents[2]
SEARCHED = {
    "clip": {"policy": "fixed", "range": [0.05, 2.0], "scale": "log"},
    "step": {"policy": "coupled", "range": [0.3, 10.0], "scale": "log", "schedule": "cosine"},
}
FIXED = {"clip": {"policy": "fixed", "value": 0.5}, "step": {"policy": "coupled", "value": 2.0}}
PROTOCOLS: dict[str, dict[str, Any]] = {
    "select-best": {"kind": "select-best", "law": "tnb", "eta": 2, "mean_trials": 12, "max_trials": 64},
    "subsample-tune": {"kind": "subsample-tune", "law": "tnb", "eta": 2, "mean_trials": 12, "max_trials": 64},
    "release-all": {"kind": "release-all", "trials": 12},
    "public-proxy": {"kind": "public-proxy", "proxy": "fashion-mnist", "trials": 12},
    "no-tuning": {"kind": "no-tuning"},
}


def priced(kind: str = "select-best", /, **sections: Any) -> Plan:
    """The plan of a sweep of 300 steps at noise 1, with fields of sections replaced."""
    data: dict[str, Any] = {
        "name": "a-sweep",
        "data": {"source": "adult", "holdout": 0.2},
        "model": {"kind": "softmax"},
        "trainer": {"kind": "dp-sgd", "batch_size": 256, "steps": 300, "average": "tail"},
        "privacy": {"noise_multiplier": 1.0, "delta": 1e-5},
        "protocol": PROTOCOLS[kind],
        "score": {"epsilon": 0.1},
        "space": FIXED if kind == "no-tuning" else SEARCHED,
    }
    for name, fields in sections.items():
        data[name] = copy.deepcopy(fields) if "kind" in fields else {**copy.deepcopy(data.get(name, {})), **fields}
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
    if protocol == "subsample-tune":
        assert found.guarantee.epsilon < found.epsilon_unsealed < everything
    else:
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
    assert list(other) == ["release-all", "naive composition", "subsample-tune", "public-proxy", "no-tuning"]
    one, runs = found.epsilon_one_trial, 12
    assert other["release-all"].epsilon == accountant.epsilon(Repeated(found.trial_event, runs), 1e-5)
    assert other["naive composition"].epsilon == runs * one
    assert other["naive composition"].delta == pytest.approx(runs * 1e-5)
    assert one == other["no-tuning"].epsilon == other["public-proxy"].epsilon
    assert one < found.guarantee.epsilon < other["release-all"].epsilon < other["naive composition"].epsilon
    assert other["release-all"].epsilon < found.epsilon_unsealed
    tuned = priced("subsample-tune")
    assert other["subsample-tune"].epsilon == tuned.guarantee.epsilon  # on a tenth of the rows, by the same law
    assert one < tuned.guarantee.epsilon < found.guarantee.epsilon
    assert {row.name: row.epsilon for row in tuned.alternatives}["select-best"] == found.guarantee.epsilon


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_is_compared_with_the_others(protocol):
    names = [row.name for row in priced(protocol).alternatives]
    assert sorted([*names, protocol]) == sorted([*PROTOCOLS, "naive composition"])
    best = next((row.epsilon for row in priced(protocol).alternatives if row.name == "select-best"), None)
    if best is not None:
        assert priced(protocol).epsilon_one_trial < best < 12 * priced(protocol).epsilon_one_trial


def test_subsample_tune_is_priced_for_a_training_and_for_a_hold_out_record():
    found = priced("subsample-tune", score={"epsilon": 1.0})
    training, score = found.trial_event.parts
    law = found.spec.protocol.run_counts()
    scored = Composed((SelectBest(score, law), score))
    assert found.event == Disjoint((RandomPart(0.1, SelectBest(training, law), training), scored))
    assert found.guarantee.epsilon == pytest.approx(accountant.epsilon(scored, 1e-5), rel=1e-3)  # the larger of the two, here
    every = priced("subsample-tune", protocol=PROTOCOLS["subsample-tune"] | {"final": "all"}).event
    assert every.parts[0] == Composed((PoissonSubsampled(0.1, SelectBest(training, law)), training))


def test_a_fixed_size_is_priced_for_replace_one_and_says_so():
    trainer = {"kind": "dp-sgd", "batch_size": 256, "steps": 300, "sampling": "without-replacement"}
    found, poisson = priced(trainer=trainer), priced()
    training = Repeated(FixedSizeSampled(found.train_rows, 256, Gaussian(1.0)), 300)
    assert found.trial_event == Disjoint((training, ReplaceOne(DiscreteLaplace(0.1))))
    assert found.guarantee.relation == found.event.relation == "replace-one"
    assert found.epsilon_one_trial > 1.5 * poisson.epsilon_one_trial  # the noise is the same, and a replaced record moves twice
    assert found.epsilon_one_trial == pytest.approx(accountant.epsilon(training, 1e-5), rel=1e-3)
    assert "relation replace-one, unit record" in plan_text(found.to_dict(), None, "x")
    assert [row.name for row in found.alternatives] == ["release-all", "naive composition", "public-proxy", "no-tuning"]
    stated = priced(trainer=trainer, privacy={"relation": "replace-one"})
    assert stated.guarantee == found.guarantee
    scored = priced(trainer=trainer, score={"split": "training"})
    assert scored.trial_event == Composed((training, ReplaceOne(DiscreteLaplace(0.1))))


LAWS: list[tuple[dict[str, Any], str, str]] = [
    ({"law": "tnb", "eta": 2, "mean_trials": 12, "max_trials": 64}, "K ~ tnb(2), mean 12", "secret, at most 64; 62% chance"),
    ({"law": "logarithmic", "mean_trials": 10, "max_trials": 50}, "K ~ logarithmic, mean 10", "secret, at most 50; 40% chance"),
    ({"law": "geometric", "mean_trials": 10, "max_trials": 100}, "K ~ geometric, mean 10", "secret, at most 100; 53% chance"),
    ({"law": "binomial", "trials": 20, "probability": 0.5}, "K ~ binomial(20, 0.5)", "secret, at most 20; 64% chance"),
    ({"law": "fixed", "trials": 10}, "K = 10", "fixed: no secret; 65% chance"),
    (
        {"law": "poisson", "mean_trials": 5, "max_trials": 20, "may_return_nothing": True},
        "K ~ poisson, mean 5",
        "secret, at most 20; 39% chance to see a top-10% setting; no run and no answer in 0.7% of all cases",
    ),
]


@pytest.mark.parametrize(("law", "runs", "note"), LAWS, ids=[law["law"] for law, _, _ in LAWS])
def test_the_table_says_of_every_law_what_it_is_and_what_it_may_find(law, runs, note):
    """1 - f(0.9): 0.53 and 0.64 stand in ALGORITHMS, 1 - 0.9^10 = 0.651; 0.403 is the sum over 50 logarithmic terms."""
    found = priced(protocol={"kind": "select-best", **law})
    text = plan_text(found.to_dict(), None, "x")
    line = next(line for line in text.splitlines() if line.startswith("  runs "))
    assert runs in line
    assert note in line
    assert found.event == SelectBest(found.trial_event, found.spec.protocol.run_counts())


LAW_WORDS = ("tnb", "binomial", "fixed")


def auto(**fields: Any) -> Plan:
    privacy = fields.pop("privacy", {})
    return priced(protocol={"kind": "select-best", "law": "auto", **fields}, privacy=privacy)


def test_law_auto_is_the_cheapest_of_the_laws_with_the_chance_asked_for():
    found = auto(chance=0.6)
    law = found.spec.protocol.run_counts()
    assert law.chance(0.1) >= 0.6
    assert found.chance_of_top == law.chance(0.1)
    rivals = [run_count_law("tnb", eta=eta, mean=mean, max_trials=5 * mean) for eta in (0, 1, 2, 4) for mean in (11, 14, 18, 30)]
    rivals += [run_count_law("binomial", trials=20, probability=0.5), run_count_law("fixed", trials=9)]
    able = [rival for rival in rivals if rival.chance(0.1) >= 0.6]
    assert len(able) > 8
    bills = [accountant.epsilon(SelectBest(found.trial_event, rival), 1e-5) for rival in able]
    assert found.guarantee.epsilon <= min(bills) * (1 + 2e-3)
    assert max(bills) > 1.3 * found.guarantee.epsilon  # the choice matters


def test_law_auto_has_the_largest_chance_that_a_bill_allows():
    found = auto(max_epsilon=1.6)
    assert found.guarantee.epsilon <= 1.6
    for eta in (0, 0.5, 1, 2):
        for mean in (4, 6, 8, 10, 12, 14):
            rival = run_count_law("tnb", eta=eta, mean=mean, max_trials=5 * mean)
            if accountant.epsilon(SelectBest(found.trial_event, rival), 1e-5) <= 1.6:
                assert rival.chance(0.1) <= found.chance_of_top + 5e-3
    assert found.chance_of_top > 0.5


def test_law_auto_is_gone_from_the_plan_and_its_reason_stays():
    found = auto(chance=0.6, top=0.1, privacy={"epsilon": 2.0})
    protocol = found.spec.protocol
    assert protocol.law in LAW_WORDS
    assert (protocol.chance, protocol.top, protocol.max_epsilon) == (None, None, None)
    assert 0.95 * 2 <= found.guarantee.epsilon <= 2.0
    again = plan(found.spec, noise_multiplier=found.noise_multiplier)  # what resume does with what the vault holds
    assert (again.fingerprint, again.event, again.guarantee) == (found.fingerprint, found.event, found.guarantee)
    assert again.choice is None
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert sweep_from_dict(data["spec"]) == found.spec
    assert data["run_count_law"] == data["law_choice"]["table"][0]["law"]
    text = plan_text(data, None, "x")
    assert "law: auto asked for a chance of 60% to see a top-10% setting, at the smallest bill:" in text
    chosen = next(line for line in text.splitlines() if line.endswith("chosen"))
    assert f"{found.spec.protocol.run_counts().chance(0.1):.1%}" in chosen
    assert "largest chance to see a top-20% setting, at a bill of at most 1.5" in plan_text(
        auto(max_epsilon=1.5, top=0.2).to_dict(), None, "x"
    )


@pytest.mark.parametrize(
    ("protocol", "privacy", "words"),
    [
        (
            {"chance": 0.99, "max_trials": 10},
            {},
            "protocol.chance = 0.99 to see one of the best 0.1 of the space needs more than 10",
        ),
        ({"max_epsilon": 0.5}, {}, "protocol.max_epsilon = 0.5 is below the bill of a single run, 1.0"),
        (
            {"max_epsilon": 3},
            {"noise_multiplier": 1e-4},
            "protocol.law = 'auto' has no finite bill to weigh at noise multiplier 0.0001",
        ),
        ({"chance": 0.6}, {"epsilon": 0.01}, "privacy.epsilon = 0.01 cannot be reached"),
    ],
)
def test_what_law_auto_cannot_find_is_refused(protocol, privacy, words):
    with pytest.raises(FieldError) as caught:
        auto(**protocol, privacy=privacy)
    assert words in str(caught.value)


def test_a_grid_is_released_whole_and_has_no_chance_to_quote():
    protocol = {"kind": "release-all", "trials": 9}
    data = priced("release-all", protocol=protocol, search={"kind": "grid", "points": 3}).to_dict()
    assert (data["chance_of_top"], data["expected_trials"]) == (None, 9.0)
    text = plan_text(data, None, "x")
    for part in ("log 0.05 .. 2, 3 points", "log 0.3 .. 10, 3 points", "public; every point of the grid, once"):
        assert part in text
    assert "chance" not in text
    again = sweep_from_dict(data["spec"])
    assert again.search.kind == "grid"


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
    assert (data["run_count_law"] is None) == (protocol not in ("select-best", "subsample-tune"))
    assert data["search"] == "random"


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
        *("300 steps of 256", "tail average", "clip.clip_norm", "log 0.05 .. 2", "selected: shares the tuning bill of"),
        *("step.c", "log 0.3 .. 10", "nearly one dimension", "step.schedule", "cosine", "post-processing"),
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
    assert "ledger head" not in plan_text(data, budget, "x")
    assert "  ledger head 3:abc\n  next: sweeper run x" in plan_text(data, {**budget, "head": "3:abc"}, "x")
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


@pytest.mark.parametrize("job", ["adult_logistic_clip", "adult_logistic_auto_law", "adult_logistic_subsample_tune"])
def test_planning_loads_nothing_heavy_and_with_a_warm_cache_no_numpy(job, tmp_path):
    heavy = ["torch", "ray", "mlflow", "opacus", "pandas"]
    numeric = ["numpy", "scipy", "dp_accounting"]

    def run(*names: str) -> list[str]:
        command = [sys.executable, "-c", PLAN_AND_TELL, str(ROOT / "jobs" / f"{job}.yaml"), *names]
        environment = {**os.environ, "SWEEPER_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()

    cold = run(*heavy, *numeric)
    assert "numpy" in cold[1:]  # so that the names are those that would be seen
    assert not set(cold[1:]) & set(heavy)
    warm = run(*heavy, *numeric)
    assert warm == cold[:1]
