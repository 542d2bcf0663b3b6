"""What was released, read back: the same questions of a SQLite file and of a server."""

import json
import math
import statistics
import subprocess
import sys
import uuid
from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient
from mlflow.entities import ViewType
from releases import RELEASED_AT, release, trial

from sweeper.checks import RequestError
from sweeper.store import schema
from sweeper.store.home import Home
from sweeper.store.mlflow import Store
from sweeper.store.queries import best, compare, compare_note, trials

ROOT = Path(__file__).parents[2]


def fresh_name() -> str:
    return f"sweep-{uuid.uuid4().hex[:8]}"


def light(identity, score, **changes):
    """A trial without a model."""
    return trial(identity, score=score, params=None, is_best=False, **changes)


def test_best_carries_the_whole_bill(any_home):
    sweep = fresh_name()
    Store(any_home).publish(release(sweep=sweep))
    found = best(sweep, any_home)
    assert (found.id, found.clip_norm, found.learning_rate, found.score, found.metric) == ("w1", 0.21, 14.3, 0.841, "accuracy")
    assert (found.epsilon, found.delta, found.protocol, found.score_noise) == (2.0, 1e-5, "select-best", 0.0015)
    assert found.guarantee == release().guarantee
    assert found.statement == "epsilon 2.00 at delta 1e-05, tuning included (zero-out, per record); timing not covered"
    assert found.load == f'sweeper.load("{sweep}")'
    assert Store(any_home).load_model(found.model_uri) is not None
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["settings"] == {"clip_norm": 0.21, "learning_rate": 14.3}


def test_a_diverged_trial_is_never_the_best_and_of_equals_the_earliest_is(any_home):
    sweep, store = fresh_name(), Store(any_home)
    store.publish(release(light("late", 0.9), sweep=sweep, submission="b", protocol="release-all", released_at=RELEASED_AT + 60))
    first = [light("nan", math.nan), light("inf", math.inf), light("low", 0.2), light("one", 0.9), light("two", 0.9)]
    store.publish(release(*first, sweep=sweep, submission="a", protocol="release-all"))
    assert best(sweep, any_home).id == "one"
    frame = trials(sweep, any_home)
    assert list(frame["id"]) == ["nan", "inf", "low", "one", "two", "late"]
    assert frame["score"].isna().tolist() == [True, True, False, False, False, False]
    assert frame["released_at"].iloc[0] == pd.Timestamp(RELEASED_AT, unit="s", tz="UTC")


def test_an_infinity_that_somebody_else_wrote_is_never_the_best(home):
    Store(home).publish(release(light("good", 0.5), light("bad", 0.4), protocol="release-all"))
    client = MlflowClient(tracking_uri=home.mlflow_uri)
    runs = client.search_runs([client.get_experiment_by_name("adult-clip").experiment_id])
    (bad,) = [run for run in runs if run.info.run_name == "bad"]
    client.log_metric(bad.info.run_id, "score/accuracy", math.inf, step=1)
    assert best("adult-clip", home).id == "good"


def test_all_of_1050_trials_are_read_and_the_best_is_right_wherever_it_stands(home):
    count = 1050
    scores = [0.5 + 0.4 * ((i * 389) % count) / count for i in range(count)]
    many = [light(f"t{i}", scores[i], settings={"clip_norm": 0.1 + i}, candidate={}) for i in range(count)]
    Store(home).publish(release(*many, protocol="release-all"))
    frame = trials("adult-clip", home)
    assert list(frame["id"]) == [f"t{i}" for i in range(count)]
    assert list(frame["clip_norm"]) == [0.1 + i for i in range(count)]  # exact, not through text that was cut
    assert best("adult-clip", home).id == f"t{scores.index(max(scores))}"
    by_clip = compare("adult-clip", "trainer", home)
    assert by_clip[["group", "n"]].values.tolist() == [["dp-sgd", count]]
    assert by_clip["mean"][0] == pytest.approx(statistics.fmean(scores))
    assert by_clip["std"][0] == pytest.approx(statistics.stdev(scores))


def test_pages_are_turned_over_http_too(any_home, monkeypatch):
    monkeypatch.setattr("sweeper.store.connection.PAGE", 3)
    sweep = fresh_name()
    Store(any_home).publish(release(*[light(f"t{i}", i / 10) for i in range(8)], sweep=sweep, protocol="release-all"))
    assert len(trials(sweep, any_home)) == 8
    assert best(sweep, any_home).id == "t7"


def test_an_unknown_sweep_names_its_neighbour_and_the_way_out(any_home):
    sweep = fresh_name()
    Store(any_home).publish(release(sweep=sweep))
    for ask in (trials, best, compare_note):
        with pytest.raises(RequestError, match=f"is not a sweep in this store; did you mean {sweep}") as caught:
            ask(sweep + "x", any_home)
        assert "sweeper run" in str(caught.value)
    with pytest.raises(RequestError, match=r"Default.*is not a sweep"):
        best("Default", any_home)  # MLflow's own experiment is none of ours


def test_loading_the_questions_loads_nothing_heavy():
    modules = "sweeper.store.home, sweeper.store.schema, sweeper.store.release, sweeper.store.queries, sweeper.report.tables"
    code = f"import sys, {modules}; print([m for m in ('mlflow', 'pandas', 'numpy', 'torch', 'ray') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_asking_an_empty_home_makes_no_store(tmp_path, monkeypatch):
    monkeypatch.delenv("SWEEPER_MLFLOW_URI", raising=False)
    with pytest.raises(RequestError, match="is not a sweep in this store"):
        best("adult-clip", Home(tmp_path / "home"))
    assert Store(Home(tmp_path / "home")).connection.empty
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_that_released_nothing_or_only_failures(any_home):
    sweep, store = fresh_name(), Store(any_home)
    store.fail(sweep, "sub-1", schema.FAILED, guarantee=release().guarantee, protocol="select-best", public=False, at=RELEASED_AT)
    with pytest.raises(RequestError, match="has released nothing yet"):
        best(sweep, any_home)
    assert len(trials(sweep, any_home)) == 0
    assert len(compare(sweep, "clip", any_home)) == 0
    store.publish(release(light("a", math.nan), sweep=sweep, submission="sub-2", protocol="release-all"))
    with pytest.raises(RequestError, match=r"no released trial .* has a finite score"):
        best(sweep, any_home)


def test_a_submission_counts_as_a_whole_or_not_at_all(home):
    store = Store(home)
    store.publish(release(light("a", 0.4), light("b", 0.6), protocol="release-all"))
    client = MlflowClient(tracking_uri=home.mlflow_uri)
    runs = client.search_runs([client.get_experiment_by_name("adult-clip").experiment_id], run_view_type=ViewType.ACTIVE_ONLY)
    (parent,) = [run for run in runs if run.info.run_name == "sub-1"]
    client.update_run(parent.info.run_id, status="RUNNING")  # as a publication killed before its last step leaves it
    assert len(trials("adult-clip", home)) == 0
    store.publish(release(light("a", 0.4), light("b", 0.6), protocol="release-all"))
    assert len(trials("adult-clip", home)) == 2


def test_compare_groups_policies_with_the_bill_of_what_was_looked_at(any_home):
    sweep, store = fresh_name(), Store(any_home)
    normal = {"clip_policy": "normalise", "settings": {"r": 0.01, "learning_rate": 1.0}}
    first = [light("a", 0.80), light("b", 0.84), light("c", 0.70, **normal), light("d", math.nan, **normal)]
    store.publish(release(*first, sweep=sweep, protocol="release-all"))
    three = release().guarantee | {"epsilon": 3.0}
    store.publish(release(light("e", 0.76), sweep=sweep, submission="sub-2", protocol="release-all", guarantee=three))
    table = compare(sweep, "clip", any_home)
    assert list(table.columns) == ["group", "n", "diverged", "mean", "std", "best", "epsilon"]
    assert list(table["group"]) == ["fixed", "normalise"]
    assert list(table["n"]) == [3, 2]
    assert list(table["diverged"]) == [0, 1]
    assert list(table["mean"]) == pytest.approx([0.80, 0.70])
    assert table["std"][0] == pytest.approx(0.04)
    assert math.isnan(table["std"][1])
    assert list(table["best"]) == [0.84, 0.70]
    assert list(table["epsilon"]) == [5.0, 2.0]  # 2 + 3: private submissions add up
    assert list(compare(sweep, "trainer", any_home)["group"]) == ["dp-sgd"]
    assert list(compare(sweep, "step", any_home)["group"]) == ["coupled"]
    assert list(compare(sweep, "protocol", any_home)["group"]) == ["release-all"]


def test_public_submissions_are_billed_alone(home):
    for submission, epsilon in (("s1", 2.0), ("s2", 3.0)):
        bill = release().guarantee | {"epsilon": epsilon}
        Store(home).publish(release(light(submission, 0.5), submission=submission, public=True, guarantee=bill))
    assert list(compare("adult-clip", "protocol", home)["epsilon"]) == [3.0]
    assert "as if private" in best("adult-clip", home).statement


def test_one_policy_is_compared_by_its_clip_norm_to_three_digits(any_home):
    sweep = fresh_name()
    norms = [0.21049, 0.21, 0.2104, 1.5]
    many = [light(f"t{i}", 0.5 + i / 10, settings={"clip_norm": norm}) for i, norm in enumerate(norms)]
    Store(any_home).publish(release(*many, sweep=sweep, protocol="release-all"))
    table = compare(sweep, "clip", any_home)
    assert table[["group", "n"]].values.tolist() == [[0.21, 3], [1.5, 1]]
    assert table["mean"][0] == pytest.approx(0.6)


def test_an_unknown_question_is_refused(home):
    with pytest.raises(RequestError, match="by = 'clop' must be one of clip, step, trainer, protocol, arm; did you mean clip"):
        compare("adult-clip", "clop", home)


def test_the_note_says_what_more_would_cost_only_where_something_is_sealed(any_home):
    sweep, store = fresh_name(), Store(any_home)
    store.publish(release(light("p", 0.5), sweep=sweep, submission="open", public=True))
    store.publish(release(light("q", 0.5), sweep=sweep, submission="all", protocol="release-all"))
    assert compare_note(sweep, any_home) == ""
    store.publish(release(sweep=sweep))
    note = compare_note(sweep, any_home)
    assert "one winner is public" in note
    assert f"`sweeper unseal {sweep}` would publish every trial: for epsilon 9.27 instead of 2.00" in note
    assert "To compare policies at one bill, give them as arms: each has a winner of its own" in note


def test_settings_that_do_not_fit_a_tag_or_clash_with_a_column(any_home):
    sweep = fresh_name()
    settings = {"score": "a setting", "norms": [0.5] * 3000, "clip_norm": 0.3}
    Store(any_home).publish(release(light("a", 0.5, settings=settings), sweep=sweep, protocol="release-all"))
    frame = trials(sweep, any_home)
    assert frame["setting/score"][0] == "a setting"
    assert frame["score"][0] == 0.5
    assert frame["norms"][0] == [0.5] * 3000
    found = best(sweep, any_home)
    assert found.settings == settings
    assert found.learning_rate is None


def test_an_infinite_bill_and_a_chosen_secret_are_said(home):
    bare = {"epsilon": None, "delta": 1e-5, "relation": "zero-out", "unit": "record", "seeded": True}
    Store(home).publish(release(guarantee=bare, timing=""))
    found = best("adult-clip", home)
    assert found.epsilon == math.inf
    assert found.to_dict()["epsilon"] is None
    assert found.statement == (
        "epsilon infinite (no protection) at delta 1e-05, tuning included (zero-out, per record); "
        "seeded: not private to whoever knows the seed"
    )


def test_a_submission_that_supersedes_another_holds_its_trials_and_its_bill_alone(any_home):
    sweep, store = fresh_name(), Store(any_home)
    store.publish(release(sweep=sweep, submission="sealed"))
    before = best(sweep, any_home)
    guarantee = release().guarantee | {"epsilon": 5.0}
    every = [trial("w1again", score=0.841), light("x1", 0.7), light("x2", 0.6)]
    unsealed = {"sweep": sweep, "submission": "all", "protocol": "release-all", "guarantee": guarantee, "supersedes": "sealed"}
    for _ in range(2):  # publishing again changes nothing
        store.publish(release(*every, released_at=RELEASED_AT + 60, **unsealed))
        assert sorted(trials(sweep, any_home)["id"]) == ["w1again", "x1", "x2"]
        found = best(sweep, any_home)
        assert (before.epsilon, found.epsilon, found.id, found.protocol) == (2.0, 5.0, "w1again", "release-all")
        assert set(compare(sweep, "protocol", any_home)["epsilon"]) == {5.0}
        assert compare_note(sweep, any_home) == ""
    client = MlflowClient(any_home.mlflow_uri)
    runs = client.search_runs([client.get_experiment_by_name(sweep).experiment_id])
    marks = {
        run.data.tags[schema.SUBMISSION]: run.data.tags.get(schema.SUPERSEDED_BY)
        for run in runs
        if run.data.tags[schema.ROLE] == schema.PARENT
    }
    assert marks == {"sealed": "all", "all": None}


def test_arms_are_compared_one_row_each_with_their_own_bills(any_home):
    sweep, store = fresh_name(), Store(any_home)
    of = {name: {"arm": name, "arm_epsilon": bill} for name, bill in (("fixed", 1.25), ("normal", 1.24), ("lost", 1.25))}
    winners = [
        trial("a", score=0.80, noise_multiplier=0.7, **of["fixed"]),
        trial("b", score=0.84, clip_policy="normalise", trainer="dp-adam", **of["normal"]),
        trial("c", score=math.nan, params=None, **of["lost"]),
    ]
    store.publish(release(*winners, sweep=sweep))
    table = compare(sweep, None, any_home)
    assert list(table.columns) == ["arm", "clip_policy", "step_policy", "trainer", "n", "diverged", "score", "epsilon"]
    assert table.head(2).values.tolist() == [
        ["normal", "normalise", "coupled", "dp-adam", 1, 0, 0.84, 1.24],
        ["fixed", "fixed", "coupled", "dp-sgd", 1, 0, 0.80, 1.25],
    ]
    assert (table["arm"][2], table["diverged"][2]) == ("lost", 1)
    assert math.isnan(table["score"][2])
    assert compare(sweep, "arm", any_home).equals(table)
    assert list(compare(sweep, "clip", any_home)["epsilon"]) == [2.0, 2.0]  # in groups that are no arms: the whole bill
    found = best(sweep, any_home)
    assert (found.arm, found.id, found.score, found.epsilon) == ("normal", "b", 0.84, 2.0)
    frame = trials(sweep, any_home)
    assert list(frame["arm"]) == ["fixed", "normal", "lost"]
    assert list(frame["arm_epsilon"]) == [1.25, 1.24, 1.25]
    assert frame["noise_multiplier"][0] == 0.7
    note = compare_note(sweep, any_home)
    assert "The bills of the arms compose: by arm, epsilon is each one's own; the sweep was charged 2.00 for all." in note
    assert "one winner of each arm is public" in note
    assert "give them as arms" not in note


def test_arms_on_public_data_show_their_best_of_all_trials_each_billed_alone(home):
    many = [light(f"{arm}{i}", 0.5 + i / 10, arm=arm, arm_epsilon=2.0) for arm in ("a", "b") for i in range(3)]
    Store(home).publish(release(*many, public=True))
    table = compare("adult-clip", None, home)
    assert table[["arm", "n", "score", "epsilon"]].values.tolist() == [["a", 3, 0.7, 2.0], ["b", 3, 0.7, 2.0]]
    note = compare_note("adult-clip", home)
    assert note == "Public data: each arm is billed alone, as if private. On private data the bills of the arms would compose."


def test_arms_that_an_unsealed_submission_shows_again_are_billed_once(home):
    store = Store(home)
    store.publish(release(trial("w", arm="a", arm_epsilon=1.0), trial("v", arm="b", arm_epsilon=1.0), submission="sealed"))
    again = [light("x", 0.7, arm="a", arm_epsilon=3.0), light("y", 0.6, arm="b", arm_epsilon=4.0)]
    store.publish(release(*again, submission="all", protocol="release-all", supersedes="sealed"))
    assert compare("adult-clip", None, home)[["arm", "epsilon"]].values.tolist() == [["a", 3.0], ["b", 4.0]]


def test_a_sweep_without_arms_has_none_to_compare(home):
    Store(home).publish(release())
    assert best("adult-clip", home).arm is None
    assert list(compare("adult-clip", None, home)["group"]) == [0.21]
    with pytest.raises(RequestError, match="by = 'arm' finds no arms: sweep adult-clip has none"):
        compare("adult-clip", "arm", home)


def test_public_arms_are_billed_alone_whatever_another_arm_costs(home):
    """Beside an arm without privacy, and one that speaks of another relation."""
    of = {"a": (2.0, "zero-out"), "b": (math.inf, "zero-out"), "c": (1.5, "replace-one")}
    arms = [
        light(name, score, arm=name, arm_epsilon=of[name][0], arm_relation=of[name][1])
        for name, score in (("a", 0.9), ("b", 0.8), ("c", 0.7))
    ]
    bill = release().guarantee | {"epsilon": None}
    Store(home).publish(release(*arms, public=True, guarantee=bill))
    table = compare("adult-clip", None, home)
    assert table[["arm", "epsilon", "arm_relation"]].values.tolist() == [[name, *of[name]] for name in "abc"]
    found = best("adult-clip", home)
    assert (found.arm, found.epsilon, found.guarantee["epsilon"], found.guarantee["relation"]) == ("a", 2.0, 2.0, "zero-out")
    assert found.statement.startswith("epsilon 2.00 at delta 1e-05")
    assert list(trials("adult-clip", home)["epsilon"]) == [2.0, math.inf, 1.5]
    assert list(compare("adult-clip", "clip", home)["epsilon"]) == [math.inf] * len(compare("adult-clip", "clip", home))
