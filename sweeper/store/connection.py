"""One MLflow store: its schema, its client, paging through it, and its server. Importing this module imports mlflow."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sweeper.checks import RequestError
from sweeper.store import schema
from sweeper.store.home import Home, sqlite_uri
from sweeper.store.release import StoreError
from sweeper.store.sqlite_runs import ReadRun, read_runs

QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",  # no schema migrations on the terminal
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",  # about 14 s; the default waits for minutes
    "GIT_PYTHON_REFRESH": "quiet",
}
for _name, _value in QUIET.items():
    os.environ.setdefault(_name, _value)  # MLflow reads these while it is imported

from mlflow import MlflowClient  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402
from requests.exceptions import RequestException  # noqa: E402
from sqlalchemy.exc import SQLAlchemyError  # noqa: E402

if TYPE_CHECKING:
    from mlflow.entities import Run

PAGE = 1000


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """MLflow's own advice off the terminal; its errors are still raised."""
    logger = logging.getLogger("mlflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class Connection:
    """The store that a home points at. Nothing is opened before it is used."""

    def __init__(self, home: Home) -> None:
        self.home = home

    def prepare(self) -> None:
        """Make the SQLite file with its schema, once, whoever else does the same.

        MLflow makes it on first use, where several processes at a time fail with "duplicate column name". Here it is made
        beside its place, under a lock, and moved into it: no process and no kill ever leaves half a schema.
        """
        database = self.home.mlflow_database
        if database is None or _filled(database):
            return
        with self.home.lock("mlflow"), self.reported(), hushed():
            if not _filled(database):
                database.parent.mkdir(parents=True, exist_ok=True)
                fresh = database.with_name(database.name + ".new")
                for left_by_a_kill in (fresh, fresh.with_name(fresh.name + "-journal")):
                    left_by_a_kill.unlink(missing_ok=True)
                _create(fresh, self.home.artifacts.as_uri())
                os.replace(fresh, database)

    @property
    def empty(self) -> bool:
        """Nothing was ever written here. False when only the store itself can know."""
        database = self.home.mlflow_database
        return database is not None and not _filled(database)

    @property
    def served(self) -> bool:
        """Behind a server, which then knows its own place for artifacts."""
        return urlsplit(self.home.mlflow_uri).scheme in ("http", "https")

    @cached_property
    def client(self) -> MlflowClient:
        self.prepare()
        with hushed():
            return MlflowClient(tracking_uri=self.home.mlflow_uri)

    @contextlib.contextmanager
    def reported(self) -> Iterator[None]:
        """Turn MLflow's errors into a StoreError of one line; no caller needs mlflow to catch one."""
        try:
            yield
        except (MlflowException, SQLAlchemyError, RequestException) as error:
            password = urlsplit(self.home.mlflow_uri).password
            text = str(error) if password is None else str(error).replace(password, "***")
            lines = text.strip().splitlines() or ["no reason given"]
            raise StoreError(f"the MLflow store at {self.address} failed: {lines[0][:300]}") from error

    @property
    def address(self) -> str:
        """Where the store is, without a password."""
        parts = urlsplit(self.home.mlflow_uri)
        return self.home.mlflow_uri if parts.password is None else f"{parts.scheme}://{parts.hostname}{parts.path}"

    def sweeps(self) -> dict[str, str]:
        """Sweep name -> experiment id."""
        wanted = f"tags.`{schema.ROLE}` = '{schema.SWEEP}'"
        found = _pages(lambda token: self.client.search_experiments(filter_string=wanted, max_results=PAGE, page_token=token))
        return {experiment.name: experiment.experiment_id for experiment in found}

    def runs(self, experiment_ids: list[str], wanted: str = "") -> Iterator[Run]:
        """All runs that match, however many pages they fill; the client alone stops at 1,000 in silence."""
        return _pages(lambda token: self.client.search_runs(experiment_ids, wanted, max_results=PAGE, page_token=token))

    def finished(self, experiment_id: str, tags: Sequence[str] | None = None, prefix: str = "") -> list[Run | ReadRun]:
        """The finished runs of an experiment with tags and metrics; parameters are read one run at a time.

        tags, prefix: what of them is enough, see `read_runs`; a store that is not ours to read gives all.
        """
        database = self.home.mlflow_database
        found = None if database is None else read_runs(database, experiment_id, "FINISHED", tags=tags, prefix=prefix)
        return list(self.runs([experiment_id], "attributes.status = 'FINISHED'") if found is None else found)

    def text(self, run: Run | ReadRun, tag: str, artifact: str) -> str:
        """A tag's text, from the artifact where it was too long for a tag."""
        value = run.data.tags[tag]
        if value != f"[in artifact {artifact}]":
            return value
        return Path(self.client.download_artifacts(run.info.run_id, artifact)).read_text(encoding="utf-8")

    def ui(self, port: int) -> tuple[list[str], dict[str, str]]:
        """The command that serves MLflow's pages for this store on loopback, and what to add to its environment.

        Defaults would start 15 processes of 1.8 GB; one worker without a job queue answers faster (5 ms against 48 ms).
        """
        if self.served:
            raise RequestError(f"the store is already served: open {self.address}")
        self.prepare()
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        settings = {  # not in the command, which other users can list: an address may hold a password
            "MLFLOW_BACKEND_STORE_URI": self.home.mlflow_uri,
            "MLFLOW_ARTIFACTS_DESTINATION": self.home.artifacts.as_uri(),
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }
        return command, QUIET | settings


def fits(text: str) -> bool:
    return len(text) <= schema.TAG_LIMIT


def tag_text(text: str, artifact: str) -> str:
    """The text for a tag, or the name of the artifact that holds it when it is too long."""
    return text if fits(text) else f"[in artifact {artifact}]"


def _filled(database: Path) -> bool:
    return database.exists() and database.stat().st_size > 0


def _create(database: Path, artifacts: str) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    SqlAlchemyStore(sqlite_uri(database), artifacts).engine.dispose()  # type: ignore[no-untyped-call]


def _pages(fetch: Any) -> Iterator[Any]:
    token: str | None = None
    while True:
        page = fetch(token)
        yield from page
        token = page.token
        if not token:
            return
