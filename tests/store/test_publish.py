"""Publishing, read back with a bare MLflow client: against a SQLite file and against a server over HTTP."""

import json
import math
import os
import re
import sqlite3
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest
import torch
from mlflow import MlflowClient
from mlflow.entities import ViewType
from releases import FEATURES, RELEASED_AT, WEIGHTS, linear, release, trial

from sweeper.checks import FieldError
from sweeper.store import schema
from sweeper.store.mlflow import Store
from sweeper.store.release import StoreError, synthetic_rows

ROOT = str(Path(__file__).parents[2])  # for subprocesses, which run elsewhere
MILLISECONDS = int(RELEASED_AT) * 1000


def fresh_name() -> str:
    return f"sweep-{uuid.uuid4().hex[:8]}"


def read(home, sweep):
    """(client, experiment, parent runs, child runs) by the client's own calls."""
    client = MlflowClient(tracking_uri=home.mlflow_uri)
    experiment = client.get_experiment_by_name(sweep)
    runs = client.search_runs([experiment.experiment_id], run_view_type=ViewType.ALL)
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    return client, experiment, [run for run in runs if run not in children], children


def documents(client, run):
    return {
        file.path: Path(client.download_artifacts(run.info.run_id, file.path)).read_text()
        for file in client.list_artifacts(run.info.run_id)
    }


def state(home, sweep):
    """All that a reader can see of a sweep, without the random ids."""
    client, experiment, parents, children = read(home, sweep)
    names = {run.info.run_id: run.info.run_name for run in parents + children}
    models = client.search_logged_models([experiment.experiment_id])
    names |= {model.model_id: "the model" for model in models}
    seen = {}
    for run in parents + children:
        tags = {
            key: re.sub(r"m-[0-9a-f]{32}|[0-9a-f]{32}", lambda found: names[found[0]], text) for key, text in run.data.tags.items()
        }
        histories = {key: len(client.get_metric_history(run.info.run_id, key)) for key in run.data.metrics}
        outputs = [names[output.model_id] for output in run.outputs.model_outputs] if run.outputs else []
        times = (run.info.status, run.info.start_time, run.info.end_time)
        files = sorted(file.path for file in client.list_artifacts(run.info.run_id))
        seen[run.info.run_name] = (tags, run.data.params, run.data.metrics, histories, outputs, times, files)
    assert len(seen) == len(parents) + len(children)  # no run twice
    for model in models:
        files = sorted(file.path for file in client.list_logged_model_artifacts(model.model_id))
        where = f"model {names[model.source_run_id]}"
        assert where not in seen
        seen[where] = (str(model.status), model.tags, model.params, sorted(m.key for m in model.metrics or []), files)
    return seen


class Failing:
    """MLflow's client, except that its n-th call fails, before or after it did its work."""

    class Killed(BaseException):
        pass

    def __init__(self, client, n, after):
        self.client, self.left, self.after = client, n, after

    def __getattr__(self, name):
        method = getattr(self.client, name)

        def call(*args, **kwargs):
            self.left -= 1
            if self.left == 0 and not self.after:
                raise self.Killed(name)
            result = method(*args, **kwargs)
            if self.left == 0:
                raise self.Killed(name)
            return result

        return call


def test_a_winner_with_its_bill(any_home):
    sweep = fresh_name()
    parent_id = Store(any_home).publish(release(sweep=sweep))
    client, experiment, (parent,), (child,) = read(any_home, sweep)
    assert parent.info.run_id == parent_id == child.data.tags["mlflow.parentRunId"]
    assert experiment.tags["mlflow.note.content"] == "# adult-clip\nepsilon **2.00**"
    assert (parent.info.run_name, child.info.run_name) == ("sub-1", "w1")
    for run in (parent, child):
        assert (run.info.status, run.info.start_time, run.info.end_time) == ("FINISHED", MILLISECONDS, MILLISECONDS)
        for metric in run.data.metrics:
            assert {point.timestamp for point in client.get_metric_history(run.info.run_id, metric)} == {MILLISECONDS}
        assert {name for name in run.data.tags if not name.startswith("sweeper.")} <= {
            "mlflow.runName",
            "mlflow.parentRunId",
            "mlflow.note.content",
        }  # no user, host, path or commit of the machine that ran the trials
    assert parent.data.metrics == {
        "epsilon": 2.0,
        "delta": 1e-5,
        "epsilon_one_trial": 1.03,
        "unseal_epsilon": 9.27,
        "noise_multiplier": 1.64,
        "score_noise": 0.0015,
    }
    assert child.data.metrics == {
        "score/accuracy": 0.841,
        "hp/clip_norm": 0.21,
        "hp/learning_rate": 14.3,
        "epsilon": 2.0,
        "delta": 1e-5,
        "score_noise": 0.0015,
    }
    assert parent.data.params["spec/privacy.epsilon"] == "2.0"
    assert child.data.params["clip_norm"] == "0.21"
    assert child.data.params["candidate/clip.clip_norm"] == "0.21"
    assert parent.data.tags["sweeper.protocol"] == "select-best"
    assert child.data.tags["sweeper.clip_policy"] == "fixed"
    files = documents(client, parent)
    assert files["spec.yaml"] == release().spec_yaml
    assert json.loads(files["plan.json"]) == release().plan
    assert json.loads(files["guarantee.json"]) == release().guarantee
    assert json.loads(files["ledger.json"]) == release().ledger
    assert len(files) == 4


def test_the_model_loads_and_holds_nothing_of_the_data(any_home):
    sweep = fresh_name()
    store = Store(any_home)
    store.publish(release(sweep=sweep))
    client, experiment, _, (child,) = read(any_home, sweep)
    (model,) = client.search_logged_models([experiment.experiment_id])
    assert model.status == "READY"
    assert child.data.tags["sweeper.model_uri"] == f"models:/{model.model_id}"
    assert [output.model_id for output in child.outputs.model_outputs] == [model.model_id]
    loaded = store.load_model(child.data.tags["sweeper.model_uri"])
    assert type(loaded) is torch.nn.Linear
    row = torch.arange(FEATURES, dtype=torch.float32)
    assert loaded(row).item() == pytest.approx(float(np.arange(FEATURES) @ WEIGHTS[:FEATURES] + WEIGHTS[FEATURES]))
    files = {file.path for file in client.list_logged_model_artifacts(model.model_id)}
    assert files == {
        "MLmodel",
        "conda.yaml",
        "python_env.yaml",
        "requirements.txt",
        "data",
        "input_example.json",
        "serving_input_example.json",
    }
    place = Path(model.artifact_location.removeprefix("file://")) if any_home.mlflow_database else None
    if place is not None:
        assert np.array_equal(
            np.array(json.loads((place / "input_example.json").read_text()), dtype=np.float32), synthetic_rows(FEATURES)
        )
        described = (place / "MLmodel").read_text()
        assert '"shape": [-1, 5]' in described
        assert "utc_time_created: '2026-09-21 14:13:20'" in described  # the release time, written by hand
        assert {line.split("==")[0] for line in (place / "requirements.txt").read_text().splitlines()} == {
            "mlflow",
            "torch",
            "numpy",
        }


def test_the_model_loads_where_sweeper_is_not_installed(home):
    Store(home).publish(release())
    _, _, _, (child,) = read(home, "adult-clip")
    code = f"""
import sys; sys.modules["sweeper"] = None  # an import of sweeper would fail
import mlflow; mlflow.set_tracking_uri({home.mlflow_uri!r})
print(type(mlflow.pytorch.load_model({child.data.tags["sweeper.model_uri"]!r})).__name__)"""
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout == "Linear\n"
    )


class Halved(torch.nn.Module):
    """A class of somebody's own, which a reader of the store may not have."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, rows):
        return self.inner(rows) / 2


def test_a_module_of_a_class_of_its_own_is_stored_without_the_class(home):
    store = Store(home)
    store.publish(release(build_model=lambda params: Halved(linear(params))))
    _, _, _, (child,) = read(home, "adult-clip")
    loaded = store.load_model(child.data.tags["sweeper.model_uri"])
    assert not isinstance(loaded, Halved)
    rows = torch.rand(7, FEATURES, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(loaded(rows), linear(WEIGHTS.tobytes())(rows) / 2)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_failure_at_any_call_leaves_nothing_wrong_once_published_again(any_home, after):
    two = (trial("w1"), trial("l1", score=math.nan, is_best=False))

    def wanted(sweep):
        return release(*two, sweep=sweep, protocol="release-all")

    clean = fresh_name()
    Store(any_home).publish(wanted(clean))
    expected = state(any_home, clean)
    assert set(expected) == {"sub-1", "w1", "l1", "model w1"}
    assert {run[5] for name, run in expected.items() if name != "model w1"} == {("FINISHED", MILLISECONDS, MILLISECONDS)}
    failed = set()
    every = 1 if any_home.mlflow_database else 5  # the logic is the same; over HTTP some of the calls will do
    for n in range(1, 200, every):
        sweep, store = fresh_name(), Store(any_home)
        store.connection.client = Failing(store.connection.client, n, after)
        try:
            store.publish(wanted(sweep))
            break
        except Failing.Killed as killed:
            failed.add(str(killed))
        again = Store(any_home)
        if n % 2:
            again.reconcile()  # publishing again works with and without
        again.publish(wanted(sweep))
        assert state(any_home, sweep) == expected, f"after a failure at call {n}, {failed}"
    assert n > 20
    if every == 1:
        again.publish(wanted(sweep))
        assert state(any_home, sweep) == expected
        assert {"create_run", "log_batch", "log_artifacts", "create_logged_model", "log_outputs", "set_terminated"} <= failed


def test_kill_9_in_the_middle_frees_the_lock_and_reconcile_ends_what_was_open(home):
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from releases import release, trial
from sweeper.store.home import Home
from sweeper.store.mlflow import Store
store = Store(Home({str(home.path)!r}))
store.connection.client.log_batch = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
store.publish(release(trial(params=None)))"""
    assert subprocess.run([sys.executable, "-c", code], timeout=120, env=os.environ | {"PYTHONPATH": ROOT}).returncode == -9
    store = Store(home)
    statuses = [run.info.status for runs in read(home, "adult-clip")[2:] for run in runs]
    assert statuses == ["RUNNING", "RUNNING"]
    assert store.reconcile() == 2
    assert store.reconcile() == 0
    runs = [run for runs in read(home, "adult-clip")[2:] for run in runs]
    assert {(run.info.status, run.info.end_time) for run in runs} == {("KILLED", MILLISECONDS)}
    store.publish(release(trial(params=None)))
    assert [run.info.status for runs in read(home, "adult-clip")[2:] for run in runs] == ["FINISHED", "FINISHED"]


def test_runs_of_others_are_not_ours_to_end(home):
    client = MlflowClient(tracking_uri=home.mlflow_uri)
    Store(home).publish(release())
    theirs = client.create_run(client.get_experiment_by_name("adult-clip").experiment_id)
    assert Store(home).reconcile() == 0
    assert client.get_run(theirs.info.run_id).info.status == "RUNNING"


def test_a_published_submission_cannot_become_another(home):
    Store(home).publish(release(trial("a"), trial("b"), protocol="release-all"))
    with pytest.raises(ValueError, match="sub-1 is already published with other trials"):
        Store(home).publish(release(trial("c")))


def test_a_failed_submission_shows_its_bill_and_one_fixed_phrase(any_home):
    sweep, store = fresh_name(), Store(any_home)
    bill = {"guarantee": release().guarantee, "protocol": "select-best", "public": False, "at": RELEASED_AT}
    with pytest.raises(FieldError, match="message"):
        store.fail(sweep, "sub-1", "row 17 is NaN", **bill)
    store.fail(sweep, "sub-1", schema.FAILED, **bill)
    store.fail(sweep, "sub-1", schema.FAILED, **bill)
    _, _, (parent,), children = read(any_home, sweep)
    assert children == []
    assert (parent.info.status, parent.info.start_time, parent.info.end_time) == ("FAILED", MILLISECONDS, MILLISECONDS)
    assert parent.data.metrics == {"epsilon": 2.0, "delta": 1e-5}
    assert parent.data.tags["sweeper.failure"] == schema.FAILED
    store.publish(release(sweep=sweep))  # resumed
    store.fail(sweep, "sub-1", schema.FAILED, **bill)  # too late: it is published
    _, _, (parent,), _ = read(any_home, sweep)
    assert parent.info.status == "FINISHED"
    assert "sweeper.failure" not in parent.data.tags


def test_odd_names_long_texts_and_many_parameters(any_home):
    sweep = fresh_name()
    settings = {f"s{i}": i for i in range(230)} | {"weird(=name)": 0.5, "flag": True, "text": "ü" * 7000}
    odd = trial(settings=settings, metric="acc(top=5)", tags={"arm(1)": "x" * 9000})
    long = release(
        odd, sweep=sweep, spec={"note": "y" * 7000} | {f"k{i}": "ü" * 5000 for i in range(110)}, description_markdown="d" * 21_000
    )
    Store(any_home).publish(long)
    client, experiment, (parent,), (child,) = read(any_home, sweep)
    score = [name for name in child.data.metrics if name.startswith("score/")]
    assert [child.data.metrics[name] for name in score] == [0.841]
    assert child.data.metrics["hp/s229"] == 229.0
    assert "hp/flag" not in child.data.metrics
    assert child.data.params["flag"] == "true"
    assert len(child.data.params) == 233 + 1 + 3  # settings, candidate, policies
    assert child.data.params["text"] == "ü" * 5990 + " [cut ...]"
    assert child.data.tags["sweeper.settings"] == "[in artifact settings.json]"
    assert json.loads(documents(client, child)["settings.json"]) == settings
    assert len(parent.data.params) == 111 + 5  # spec, guarantee
    assert len(experiment.tags["mlflow.note.content"]) == 20_000
    assert sum(value.endswith("[cut ...]") for value in child.data.tags.values()) == 1


@pytest.mark.parametrize("score", [math.nan, math.inf, None])
def test_a_diverged_trial_has_a_tag_and_no_score(any_home, score):
    sweep = fresh_name()
    broken = np.full(FEATURES + 1, np.nan, dtype=np.float32).tobytes()
    Store(any_home).publish(release(trial(score=score, params=broken, settings={"clip_norm": math.inf}), sweep=sweep))
    _, _, _, (child,) = read(any_home, sweep)
    assert set(child.data.metrics) == {"epsilon", "delta"}
    assert child.data.tags["sweeper.diverged"] == "true"


def test_an_infinite_epsilon_is_words_and_never_a_number(any_home):
    sweep = fresh_name()
    unprotected = {"epsilon": None, "delta": 1e-5, "relation": "zero-out", "unit": "record"}
    Store(any_home).publish(release(sweep=sweep, guarantee=unprotected, plan={"epsilon_one_trial": math.inf}))
    client, _, (parent,), (child,) = read(any_home, sweep)
    assert parent.data.tags["sweeper.epsilon"] == child.data.tags["sweeper.epsilon"] == "infinite"
    assert "epsilon" not in parent.data.metrics | child.data.metrics
    assert json.loads(documents(client, parent)["plan.json"]) == {"epsilon_one_trial": None}


def test_a_loser_of_a_public_sweep_keeps_its_parameters_as_a_state_dict(any_home):
    sweep = fresh_name()
    Store(any_home).publish(release(trial("w1"), trial("l1", is_best=False, score=0.5), sweep=sweep, public=True))
    client, _, _, children = read(any_home, sweep)
    (loser,) = [child for child in children if child.info.run_name == "l1"]
    assert loser.data.tags["sweeper.model_uri"] == f"runs:/{loser.info.run_id}/model/state.pt"
    state_dict = torch.load(client.download_artifacts(loser.info.run_id, "model/state.pt"), weights_only=True)
    assert torch.equal(state_dict["bias"], torch.from_numpy(WEIGHTS[FEATURES:]))
    with pytest.raises(Exception, match="is not a model: only winners have one"):
        Store(any_home).load_model(loser.data.tags["sweeper.model_uri"])


def test_a_deleted_sweep_comes_back_with_the_next_submission(home):
    Store(home).publish(release())
    client, experiment, _, _ = read(home, "adult-clip")
    client.delete_experiment(experiment.experiment_id)
    Store(home).publish(release(trial("w2"), submission="sub-2"))
    _, _, parents, _ = read(home, "adult-clip")
    assert {parent.info.run_name for parent in parents} == {"sub-1", "sub-2"}


def test_a_large_release_refreshes_the_statistics_of_sqlite(home):
    Store(home).publish(release())
    ask = "select count(*) from sqlite_master where name = 'sqlite_stat1'"
    assert sqlite3.connect(home.mlflow_database).execute(ask).fetchone() == (0,)
    many = [trial(f"t{i}", params=None) for i in range(50)]
    Store(home).publish(release(*many, submission="sub-2", protocol="release-all"))
    assert sqlite3.connect(home.mlflow_database).execute(ask).fetchone() == (1,)


def test_an_absent_server_and_a_broken_file_are_one_plain_line(home, monkeypatch):
    assert home.mlflow_database is not None
    home.mlflow_database.write_bytes(b"this is no database" * 100)
    with pytest.raises(StoreError, match=r"the MLflow store at sqlite:///.* failed: .*not a database"):
        Store(home).publish(release())
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("SWEEPER_MLFLOW_URI", "http://user:secret@127.0.0.1:9")
    with pytest.raises(StoreError, match=r"the MLflow store at http://127.0.0.1 failed: [^\n]*") as caught:
        Store(home).publish(release())
    assert "secret" not in str(caught.value)


def test_publishing_prints_nothing_and_leaves_nothing_in_the_working_directory(tmp_path):
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from releases import release, trial
from sweeper.store.home import Home
from sweeper.store.mlflow import Store
from sweeper.store.queries import best
home = Home({str(tmp_path / "home")!r})
store = Store(home)
store.prepare()
store.publish(release(trial("w1"), trial("l1", is_best=False), protocol="release-all"))
store.load_model(best("adult-clip", home).model_uri)"""
    here = tmp_path / "here"
    here.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "SWEEPER_", "GIT_PYTHON"))}
    environment["PYTHONPATH"] = ROOT
    done = subprocess.run([sys.executable, "-c", code], cwd=here, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(here.iterdir()) == []


def test_an_arms_winner_says_whose_it_is_and_how_its_run_went(any_home):
    """Its arm, that arm's bill and noise; the trace as a file and as metrics at their steps, in one batch, at the release time."""
    sweep, store = fresh_name(), Store(any_home)
    trace = {"step": [0.0, 20.0, 40.0], "step_size": [0.5, 0.25, math.nan], "clip_norm": [1.0, 1.0, 1.0]}
    first = trial("a", arm="fixed", arm_epsilon=1.25, noise_multiplier=0.75, trace=trace)
    second = trial("b", arm="normalise", arm_epsilon=math.inf, noise_multiplier=0.0, score=0.5)
    for _ in range(2):  # again changes nothing
        store.publish(release(first, second, sweep=sweep))
    client, _, (parent,), children = read(any_home, sweep)
    runs = {run.info.run_name: run for run in children}
    tags = {name: run.data.tags for name, run in runs.items()}
    assert (tags["a"][schema.ARM], tags["a"][schema.ARM_EPSILON_TEXT]) == ("fixed", "1.25")
    assert (tags["b"][schema.ARM], tags["b"][schema.ARM_EPSILON_TEXT]) == ("normalise", "infinite")
    assert {run.data.tags[schema.EPSILON_TEXT] for run in (*children, parent)} == {"2.0"}  # the whole bill
    metrics = runs["a"].data.metrics
    assert (metrics["arm_epsilon"], metrics["noise_multiplier"], metrics["epsilon"]) == (1.25, 0.75, 2.0)
    assert "arm_epsilon" not in runs["b"].data.metrics
    identity = runs["a"].info.run_id
    history = {name: client.get_metric_history(identity, f"trace/{name}") for name in ("step_size", "clip_norm")}
    assert sorted((point.step, point.value) for point in history["step_size"]) == [
        (0, 0.5),
        (20, 0.25),
    ]  # no point without a number
    assert sorted((point.step, point.value) for point in history["clip_norm"]) == [(0, 1.0), (20, 1.0), (40, 1.0)]
    assert {point.timestamp for points in history.values() for point in points} == {MILLISECONDS}
    assert json.loads(documents(client, runs["a"])["trace.json"]) == trace | {"step_size": [0.5, 0.25, None]}
    assert not [name for name in runs["b"].data.metrics if name.startswith("trace/")]
    assert "trace.json" not in documents(client, runs["b"])
