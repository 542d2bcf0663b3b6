"""Runs that are written all at once are those that MLflow's client writes one call at a time, and a group is there whole or not."""

import math
import re
from pathlib import Path

import pytest
from mlflow import MlflowClient
from releases import release, trial
from sqlalchemy.exc import OperationalError

from sweeper.store import bulk, schema
from sweeper.store.mlflow import Store
from sweeper.store.release import StoreError

TRACE = {"step": [0.0, 20.0, 40.0], "step_size": [0.5, 0.25, math.nan], "clip_norm": [3.0, 2.0, 1.0]}
LONG = {"clip_norm": 0.5, "words": "x" * 9000, "odd (name)": 2.0}
TRIALS = (
    trial("best", score=0.9),
    trial("plain", score=0.5, is_best=False),
    trial("diverged", score=math.nan, is_best=False, params=None),
    trial("traced", score=0.6, is_best=False, arm="fixed", arm_epsilon=1.25, noise_multiplier=0.75, trace=TRACE),
    trial("long", score=0.7, is_best=False, settings=LONG, tags={"a": "y" * 9000}),
)


def everything(home, sweep):
    """All that MLflow says of a sweep's runs: entities, histories, files; ids replaced by names."""
    client = MlflowClient(tracking_uri=home.mlflow_uri)
    experiment = client.get_experiment_by_name(sweep)
    runs = client.search_runs([experiment.experiment_id])
    names = {run.info.run_id: run.info.run_name for run in runs}
    models = client.search_logged_models([experiment.experiment_id])
    names |= {model.model_id: "the model" for model in models} | {experiment.experiment_id: "the experiment"}
    found = {}
    for run in runs:
        info = {key: value for key, value in dict(run.info).items() if key not in ("run_id", "run_uuid", "experiment_id")}
        info["artifact_uri"] = info["artifact_uri"].replace(sweep, "SWEEP").replace(run.info.run_id, "RUN")
        tags = {k: re.sub(r"m-[0-9a-f]{32}|[0-9a-f]{32}", lambda m: names[m[0]], v) for k, v in run.data.tags.items()}
        histories = {
            key: sorted((m.step, m.value, m.timestamp) for m in client.get_metric_history(run.info.run_id, key))
            for key in run.data.metrics
        }
        root = Path(run.info.artifact_uri.removeprefix("file://"))
        files = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        latest = {m.key: (m.value, m.step, m.timestamp) for m in run.data._metric_objs}
        found[run.info.run_name] = (info, tags, run.data.params, latest, histories, files)
    assert len(found) == len(runs)
    return found


def test_it_writes_what_the_client_writes(home, monkeypatch):
    Store(home).publish(release(*TRIALS, sweep="at-once", protocol="release-all"))
    monkeypatch.setattr("sweeper.store.mlflow.database_of", lambda _: None)
    Store(home).publish(release(*TRIALS, sweep="by-calls", protocol="release-all"))
    ours, theirs = everything(home, "at-once"), everything(home, "by-calls")
    assert set(ours) == {"sub-1", *(t.id for t in TRIALS)}
    for name in ours:
        assert ours[name] == theirs[name], name
    assert ours["traced"][3]["trace/step_size"][:2] == (0.25, 20)  # the last that is a number
    assert set(ours["long"][5]) == {schema.SETTINGS_FILE, schema.STATE_FILE}


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_failure_in_a_group_leaves_earlier_groups_whole_and_publishing_again_completes_them(home, monkeypatch, left):
    """Groups of two of five losers; the insertion fails at one of the three groups, in its last table."""
    losers = [trial(f"l{i}", score=i / 10, is_best=False) for i in range(5)]
    wanted = release(trial("best", score=0.9), *losers, protocol="release-all")
    monkeypatch.setattr(bulk, "AT_ONCE", 2)
    right, calls = bulk.insert, []

    def failing(table):
        calls.append(table)
        if len([one for one in calls if one is bulk.SqlLatestMetric]) == left + 1 and table is bulk.SqlLatestMetric:
            raise OperationalError("INSERT", {}, Exception("the disk is full"))
        return right(table)

    monkeypatch.setattr(bulk, "insert", failing)
    with pytest.raises(StoreError, match="the disk is full"):
        Store(home).publish(wanted)
    there = everything(home, "adult-clip")
    assert set(there) == {"sub-1", "best", *(f"l{i}" for i in range(2 * left))}
    monkeypatch.setattr(bulk, "insert", right)
    Store(home).publish(wanted)
    Store(home).publish(wanted)
    after = everything(home, "adult-clip")
    assert set(after) == {"sub-1", "best", *(f"l{i}" for i in range(5))}
    assert {run[0]["status"] for run in after.values()} == {"FINISHED"}
    assert all(after[name] == there[name] for name in there if name != "sub-1")


def test_a_group_ends_at_a_number_of_runs_or_of_bytes(monkeypatch):
    """Files of 3, 3, 3, 9 and 1 bytes, at most three runs or six bytes and what passes them."""
    monkeypatch.setattr(bulk, "AT_ONCE", 3)
    monkeypatch.setattr(bulk, "BYTES_AT_ONCE", 6)
    runs = [
        bulk.FinishedRun(run_id=str(i), name="", tags={}, params={}, metrics=(), files={"f": bytes(size)} if size else {})
        for i, size in enumerate((3, 3, 3, 9, 1, 0, 0, 0))
    ]
    assert [[run.run_id for run in group] for group in bulk._groups(iter(runs))] == [["0", "1"], ["2", "3"], ["4", "5", "6"], ["7"]]
