"""Many finished runs in one transaction, through MLflow's own table classes: its client commits seven times for each run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow.entities import LifecycleStage, RunStatus, SourceType
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlMetric, SqlParam, SqlRun, SqlTag
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NAME
from mlflow.utils.uri import append_to_uri_path
from sqlalchemy import insert, text
from sqlalchemy.orm import Session

if TYPE_CHECKING:
    from sweeper.store.connection import Connection

AT_ONCE, BYTES_AT_ONCE = 200, 2**26  # runs in a transaction, and of their files: what is in memory does not grow with the release


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """A run that is over. Names and texts are such as MLflow accepts (schema.key, schema.cut); numbers are finite."""

    run_id: str
    name: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Sequence[tuple[str, int, float]]  # name, step, value; no name and step twice
    files: Mapping[str, bytes]  # path below the run's artifacts -> content


def database_of(connection: Connection) -> SqlAlchemyStore | None:
    """The database behind a client; None where a server is, and all goes by its calls."""
    store = getattr(getattr(connection.client, "_tracking_client", None), "store", None)
    return store if isinstance(store, SqlAlchemyStore) else None


def write_runs(store: SqlAlchemyStore, experiment_id: str, runs: Iterator[FinishedRun], at_ms: int) -> None:
    """All runs as FINISHED, started and ended at one time. A run is there whole, or not at all: files first, then its rows."""
    place = store.get_experiment(experiment_id).artifact_location
    for group in _groups(runs):
        folders = {run.run_id: f"{run.run_id}/{SqlAlchemyStore.ARTIFACTS_FOLDER_NAME}" for run in group}
        save_files(place, {f"{folders[run.run_id]}/{name}": content for run in group for name, content in run.files.items()})
        rows: dict[Any, list[dict[str, Any]]] = {}
        for run in group:
            _add(rows, run, experiment_id, append_to_uri_path(place, folders[run.run_id]), at_ms)
        _insert(store, rows)


def _groups(runs: Iterator[FinishedRun]) -> Iterator[list[FinishedRun]]:
    """All runs, some at a time: they share a transaction and a copy of their files."""
    group: list[FinishedRun] = []
    size = 0
    for run in runs:
        group.append(run)
        size += sum(map(len, run.files.values()))
        if len(group) == AT_ONCE or size >= BYTES_AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group


def save_files(artifact_uri: str, files: Mapping[str, bytes], tracking_uri: str | None = None) -> None:
    """Write files below an address of artifacts. The client's own call would ask the store for the address first."""
    if not files:
        return
    with tempfile.TemporaryDirectory() as place:
        for name, content in files.items():
            (Path(place) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(place) / name).write_bytes(content)
        get_artifact_repository(artifact_uri, tracking_uri=tracking_uri).log_artifacts(place)


def _add(rows: dict[Any, list[dict[str, Any]]], run: FinishedRun, experiment_id: str, artifact_uri: str, at_ms: int) -> None:
    of, latest = {"run_uuid": run.run_id}, {name: (step, value) for name, step, value in sorted(run.metrics)}  # the last step's
    head = {
        "name": run.name,
        "source_type": SourceType.to_string(SourceType.UNKNOWN),
        "source_name": "",
        "entry_point_name": "",
        "source_version": "",
        "user_id": "unknown",
        "status": RunStatus.to_string(RunStatus.FINISHED),
        "start_time": at_ms,
        "end_time": at_ms,
        "lifecycle_stage": LifecycleStage.ACTIVE,
        "artifact_uri": artifact_uri,
        "experiment_id": int(experiment_id),
    }
    number = {"timestamp": at_ms, "is_nan": False}
    for table, some in (
        (SqlRun, [head]),
        (SqlTag, [{"key": key, "value": value} for key, value in {MLFLOW_RUN_NAME: run.name, **run.tags}.items()]),
        (SqlParam, [{"key": key, "value": value} for key, value in run.params.items()]),
        (SqlMetric, [{"key": key, "step": step, "value": value, **number} for key, step, value in run.metrics]),
        (SqlLatestMetric, [{"key": key, "step": step, "value": value, **number} for key, (step, value) in latest.items()]),
    ):
        rows.setdefault(table, []).extend(row | of for row in some)


def _insert(store: SqlAlchemyStore, rows: dict[Any, list[dict[str, Any]]]) -> None:
    """Table after table, runs first, in one transaction."""
    with Session(store.engine) as session, session.begin():
        if store.engine.dialect.name == "sqlite":
            session.execute(text("PRAGMA busy_timeout = 20000"))  # as MLflow's own sessions wait
        for table, some in rows.items():
            if some:
                session.execute(insert(table), some)
