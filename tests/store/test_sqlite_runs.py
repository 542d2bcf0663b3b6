"""Reading MLflow's SQLite file directly gives what its client gives, and says nothing about a file it does not know."""

import math
import sqlite3
from contextlib import closing

from mlflow import MlflowClient
from releases import release, trial

from sweeper.store.connection import Connection
from sweeper.store.mlflow import Store
from sweeper.store.queries import best, compare
from sweeper.store.sqlite_runs import read_runs


def published(home):
    """Three trials, one of them diverged, one with a metric that is no number, and a fourth that somebody deleted."""
    trials = [trial(f"t{i}", score=score, params=None, is_best=i == 0) for i, score in enumerate((0.9, None, 0.5, 0.99))]
    Store(home).publish(release(*trials, protocol="release-all"))
    client = MlflowClient(tracking_uri=home.mlflow_uri)
    [experiment] = [e for e in client.search_experiments() if e.name == "adult-clip"]
    runs = {r.data.tags.get("sweeper.trial_id"): r.info.run_id for r in client.search_runs([experiment.experiment_id])}
    client.log_metric(runs["t2"], "theirs", math.nan)
    client.log_metric(runs["t2"], "odd", math.inf)
    client.delete_run(runs["t3"])
    open_one = client.create_run(experiment.experiment_id)
    assert open_one.info.status == "RUNNING"
    return client, experiment.experiment_id


def comparable(runs):
    metrics = [{k: "nan" if math.isnan(v) else v for k, v in run.data.metrics.items()} for run in runs]
    return [(r.info.run_id, r.info.status, r.info.start_time, dict(r.data.tags), m) for r, m in zip(runs, metrics, strict=True)]


def test_it_reads_what_the_client_reads(home):
    client, experiment = published(home)
    found = read_runs(home.mlflow_database, experiment, "FINISHED")
    assert found is not None
    assert len(found) == 4  # three trials and the submission, without the deleted and the open one
    assert comparable(found) == comparable(list(client.search_runs([experiment], "attributes.status = 'FINISHED'")))


def test_another_layout_is_left_to_the_client(home):
    _, experiment = published(home)
    assert len(Connection(home).finished(experiment)) == 4
    with closing(sqlite3.connect(home.mlflow_database)) as db, db:
        db.execute("ALTER TABLE latest_metrics RENAME COLUMN is_nan TO is_no_number")
    assert read_runs(home.mlflow_database, experiment, "FINISHED") is None


def test_answers_do_not_depend_on_who_reads(home, monkeypatch):
    published(home)
    ours, table = best("adult-clip", home), compare("adult-clip", home=home)
    monkeypatch.setattr("sweeper.store.connection.read_runs", lambda *_, **__: None)
    assert best("adult-clip", home) == ours
    assert compare("adult-clip", home=home).equals(table)
    assert (ours.id, ours.score, list(table["n"])) == ("t0", 0.9, [3])
