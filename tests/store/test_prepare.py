"""Eight processes at once on a fresh home: MLflow alone loses most of them to "duplicate column name"."""

import multiprocessing
import sqlite3

from mlflow import MlflowClient
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore  # noqa: F401  (imported once, before the processes part)

from sweeper.store.home import Home
from sweeper.store.mlflow import Store


def prepare(path, barrier, answers):
    store = Store(Home(path))
    barrier.wait(timeout=60)
    try:
        store.prepare()
        answers.put(len(store.connection.client.search_experiments()))
    except BaseException as error:
        answers.put(repr(error))


def test_eight_processes_make_one_schema(tmp_path, monkeypatch):
    monkeypatch.delenv("SWEEPER_MLFLOW_URI", raising=False)
    processes = multiprocessing.get_context("fork")
    barrier, answers = processes.Barrier(8), processes.Queue()
    workers = [processes.Process(target=prepare, args=(tmp_path / "home", barrier, answers)) for _ in range(8)]
    for worker in workers:
        worker.start()
    assert [answers.get(timeout=120) for _ in workers] == [1] * 8  # each sees MLflow's own default experiment
    for worker in workers:
        worker.join(timeout=20)
        assert worker.exitcode == 0


def test_what_a_killed_prepare_left_behind_is_replaced(tmp_path, monkeypatch):
    monkeypatch.delenv("SWEEPER_MLFLOW_URI", raising=False)
    home = Home(tmp_path / "home").ensure()
    half = sqlite3.connect(home.path / "mlflow.db.new")
    half.execute("create table experiments (name text)")
    half.commit()
    half.close()
    (home.path / "mlflow.db").write_bytes(b"")  # MLflow's own first step, killed
    Store(home).prepare()
    assert len(MlflowClient(tracking_uri=home.mlflow_uri).search_experiments()) == 1
    assert sorted(place.name for place in home.path.iterdir()) == [
        ".gitignore",
        "artifacts",
        "cache",
        "mlflow.db",
        "mlflow.lock",
        "vault",
    ]


def test_preparing_again_touches_nothing(home):
    before = home.mlflow_database.stat()
    Store(home).prepare()
    after = home.mlflow_database.stat()
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)
