"""Logging a trial of 50 reports to MLflow, SQLite and HTTP, beside MLflow's callback of Ray; best and compare over 10,000 runs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

from measured import Row

from sweeper.store import queries
from sweeper.store.home import Home
from sweeper.store.mlflow import Store

TESTS = Path(__file__).resolve().parents[1] / "store"
REPORTS = 50
RESULT = {  # what Ray adds to every report of a function; the user's own is the accuracy
    "accuracy": 0.8,
    "training_iteration": 1,
    "timestamp": 1_790_000_000,
    "time_this_iter_s": 0.1,
    "time_total_s": 1.0,
    "pid": 1,
    "time_since_restore": 1.0,
    "iterations_since_restore": 1,
}
TABLES = ("runs", "tags", "params", "metrics", "latest_metrics")


def rows(trials: int = 20, peer_trials: int = 2, runs: int = 10_000) -> Iterator[Row]:
    yield from logging_rows("SQLite", trials, peer_trials, target=15, stretch=5)
    yield from logging_rows("HTTP", trials, peer_trials, target=50, stretch=15)
    yield from query_rows(runs)


def logging_rows(where: str, trials: int, peer_trials: int, *, target: float, stretch: float) -> Iterator[Row]:
    """CPU milliseconds per trial, those of the server included: of one release with `trials` more trials than another."""
    with _store(served=where == "HTTP") as (home, server):
        Store(home).publish(_release("warm", 1))  # imports, schema, connections
        few, many = (_cost(lambda n=n: Store(home).publish(_release(f"sub-{n}", n)), server) for n in (1, 1 + trials))
        peer = _cost(lambda: _callback(home, peer_trials), server)
    ours, wall = ((many[i] - few[i]) / trials * 1e3 for i in (0, 1))
    theirs, their_wall = (1e3 * seconds / peer_trials for seconds in peer)
    detail = f"ours {ours:.1f} ms of CPU ({wall:.1f} on the wall), Ray's callback {theirs:.0f} ({their_wall:.0f})"
    name = f"{REPORTS}-report trial, {where}"
    yield Row(what=f"logging a {name}", value=ours, unit="CPU ms", target=target, stretch=stretch, detail=detail)
    yield Row(what=f"MLflow's callback of Ray / ours, {name}", value=theirs / ours, unit="x", detail=detail)


def query_rows(runs: int = 10_000) -> Iterator[Row]:
    """CPU seconds of a call in a process that has imported everything, the store opened anew."""
    with _store(served=False) as (home, server):
        _multiplied(home, runs)
        for name, target, stretch in (("best", 1.0, 0.3), ("compare", 2.0, 0.6)):
            ask: Callable[..., Any] = getattr(queries, name)
            seconds, wall = min(_cost(lambda ask=ask: ask("adult-clip", home=home), server) for _ in range(3))
            yield Row(
                what=f"{name} over {runs:,} runs on SQLite",
                value=seconds,
                unit="CPU s",
                target=target,
                stretch=stretch,
                detail=f"{wall:.2f} s on the wall",
            )


def _cost(run: Callable[[], object], server: int | None) -> tuple[float, float]:
    """(CPU seconds of this process and of a server, seconds on the wall)."""
    wall, used = time.perf_counter(), time.process_time() + _used(server)
    run()
    return time.process_time() + _used(server) - used, time.perf_counter() - wall


def _used(server: int | None) -> float:
    import psutil

    if server is None:
        return 0.0
    parent = psutil.Process(server)
    times = [process.cpu_times() for process in (parent, *parent.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def _release(submission: str, trials: int) -> Any:
    made = _tests("releases")
    trace = {"step": list(range(REPORTS)), "step_size": [0.5 / (1 + i) for i in range(REPORTS)]}
    each = [
        made.trial(f"{submission}-{i}", score=0.5 + i / (2 * trials), params=None, is_best=i == trials - 1, trace=trace)
        for i in range(trials)
    ]
    return made.release(*each, submission=submission, protocol="release-all")


def _callback(home: Home, trials: int) -> None:
    """What Ray's own callback does for trials of 50 reports. It logs each number of each report by a call."""
    from ray.air.integrations.mlflow import MLflowLoggerCallback

    class Trial:
        config = {"clip_norm": 0.21, "learning_rate": 14.3}  # noqa: RUF012  (what the callback reads)

    callback: Any = MLflowLoggerCallback(tracking_uri=home.mlflow_uri, experiment_name="peer")
    callback.setup()
    for _ in range(trials):
        trial = Trial()
        callback.log_trial_start(trial)
        for report in range(1, REPORTS + 1):
            callback.log_trial_result(report, trial, RESULT | {"training_iteration": report})
        callback.log_trial_end(trial)


@contextlib.contextmanager
def _store(*, served: bool) -> Iterator[tuple[Home, int | None]]:
    """A fresh SQLite store in memory, alone or behind `mlflow server` as `sweeper ui` starts it; the server's process."""
    import psutil

    helpers = _tests("conftest")
    before = os.environ.pop("SWEEPER_MLFLOW_URI", None)
    with helpers.in_memory() as place, tempfile.TemporaryDirectory() as logs, contextlib.ExitStack() as stack:
        try:
            home, process = Home(place / "home").ensure(), None
            Store(home).prepare()
            if served:
                known = {child.pid for child in psutil.Process().children()}
                server = helpers.serve(home, Path(logs))
                stack.callback(server.close)
                os.environ["SWEEPER_MLFLOW_URI"] = next(server)
                process = next(child.pid for child in psutil.Process().children() if child.pid not in known)
            yield home, process
        finally:
            os.environ.pop("SWEEPER_MLFLOW_URI", None)
            if before is not None:
                os.environ["SWEEPER_MLFLOW_URI"] = before


def _multiplied(home: Home, runs: int) -> None:
    """A sweep of that many trials: a hundred that were published, and copies of their rows. To publish all takes minutes."""
    first = min(100, runs)
    Store(home).publish(_release("first", first))
    assert home.mlflow_database is not None
    with closing(sqlite3.connect(home.mlflow_database)) as db, db:
        children = "(SELECT run_uuid FROM tags WHERE key = 'sweeper.role' AND value = 'trial')"
        db.execute(f"CREATE TEMP TABLE first AS SELECT * FROM {children} LIMIT {first}")
        for copy in range(1, runs // first):
            for name in TABLES:
                columns = [column[1] for column in db.execute(f"PRAGMA table_info({name})")]
                values = [f"substr(run_uuid, 1, 26) || '{copy:06x}'" if c == "run_uuid" else f'"{c}"' for c in columns]
                named = ", ".join(f'"{column}"' for column in columns)
                db.execute(
                    f"INSERT INTO {name} ({named}) SELECT {', '.join(values)} FROM {name} "
                    "WHERE run_uuid IN (SELECT run_uuid FROM first)"
                )
        db.execute("UPDATE tags SET value = run_uuid WHERE key = 'sweeper.trial_id'")
        db.execute("ANALYZE")


def _tests(name: str) -> ModuleType:
    """A helper of the store's tests."""
    if f"store_{name}" not in sys.modules:
        found = importlib.util.spec_from_file_location(f"store_{name}", TESTS / f"{name}.py")
        assert found is not None
        assert found.loader is not None
        module = sys.modules[f"store_{name}"] = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
    return sys.modules[f"store_{name}"]
