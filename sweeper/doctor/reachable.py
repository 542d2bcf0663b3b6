"""What a sweep talks to: the MLflow store, the ledger's database, Ray. Each is asked one question, and given seconds to answer.

No password is shown: not that of an address in the environment, not one that a driver's own words repeat.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sweeper.checks import FieldError
from sweeper.doctor.finding import FAIL, OK, WARN, Verdict, hidden, raised, refused
from sweeper.privacy.ledger import Ledger
from sweeper.privacy.ledger_address import POSTGRESQL, VARIABLE, Address, address
from sweeper.spec.sweep import Resources
from sweeper.store.home import Home

if TYPE_CHECKING:
    from sweeper.launch.probe import Answer

SECONDS = 3  # for a server to answer
RAY_SECONDS = 60.0  # for Ray to start or join: 4 s here, far more where a home is on a network's disk
MLFLOW = "SWEEPER_MLFLOW_URI"
PORTS = {"http": 80, "https": 443}
HASTE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": str(SECONDS)}


def mlflow(home: Home) -> Iterator[Verdict]:
    """The store answers a search, as it will when a sweep is published. A file that is not there yet is not made."""
    given = os.environ.get(MLFLOW)
    try:
        parts = urlsplit(home.mlflow_uri)
        served, port = parts.scheme in PORTS, parts.port or PORTS.get(parts.scheme, 0)
    except ValueError:  # its words may quote a part of a password
        yield Verdict(FAIL, f"{MLFLOW} is no address", "In a password, write @ as %40, / as %2F, : as %3A and % as %25.")
        return
    shown = hidden(f"{MLFLOW} = {given}") if given else str(home.mlflow_database)
    fix = f"Start the server, or set {MLFLOW} to one that runs; without it the store is a file in SWEEPER_HOME."
    if served and (error := knock(parts.hostname or "", port)):
        yield Verdict(FAIL, f"{shown} does not answer ({error})", fix)
        return
    if home.mlflow_database is None and not served:
        yield from _another_store(home.mlflow_uri, shown, fix)
        return
    from sweeper.store.connection import Connection
    from sweeper.store.release import StoreError

    connection = Connection(home)
    if connection.empty:
        yield Verdict(OK, f"{shown}, made by the first sweep")
        return
    try:
        with _set(HASTE), connection.reported():
            connection.client.search_experiments(max_results=1)
    except StoreError as error:
        way = "See what the server's log says; a user's name and password go into the address." if served else _stale(str(error))
        yield Verdict(FAIL, hidden(str(error)), way)
        return
    yield Verdict(OK, f"{shown} answers")


def _stale(text: str) -> str:
    if "schema" in text:
        return "Make a copy of the file, then: mlflow db upgrade sqlite:///PATH"
    return "Move the file away, and resume your sweeps: what they released is published again."


def _another_store(uri: str, shown: str, fix: str) -> Iterator[Verdict]:
    """A database without a server before it: MLflow would make its tables, so only the database is asked."""
    if urlsplit(uri).scheme.partition("+")[0] not in ("postgresql", "postgres", "mysql", "mssql"):
        yield Verdict(WARN, f"{shown} is of a kind that is not checked here")
        return
    error = database(uri)
    yield Verdict(FAIL, f"{shown} does not answer ({error})", fix) if error else Verdict(OK, f"{shown} answers")


def ledger(home: Home) -> Iterator[Verdict]:
    """The database answers, and every row is what was appended. What is not there is not made."""
    try:
        where = address(home.ledger_uri)
    except FieldError as error:
        yield refused(error)
        return
    if where.file is None:
        yield from _served_ledger(home, where)
    elif not where.file.exists():
        yield Verdict(OK, f"{where}, made by the first budget")
    else:
        yield _verified(home, where)


def _served_ledger(home: Home, where: Address) -> Iterator[Verdict]:
    error = database(where.url().render_as_string(hide_password=False), table="entries")
    if error:
        fix = f"Start the database, or set {VARIABLE} to one that runs. Never to an empty one: charges would be forgotten."
        yield Verdict(FAIL, f"{VARIABLE} = {where} does not answer ({where.hide(error)})", fix)
    elif error is None:
        yield _verified(home, where)
    else:
        yield Verdict(OK, f"{where} answers; it has no ledger yet")


def _verified(home: Home, where: Address) -> Verdict:
    broken = Ledger(home.ledger_uri).verify()
    if broken is not None:
        fix = "Restore the ledger from a copy; until then nothing may be charged to it."
        return Verdict(FAIL, f"{where} was changed: row {broken.seq}: {broken.rule}", fix)
    return Verdict(OK, f"{where} answers, and its rows are what was appended")


def database(uri: str, table: str | None = None) -> str | None:
    """Why a database does not answer; None where it does, and "" where it does and has no such table."""
    from sqlalchemy import create_engine, inspect, make_url
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    try:
        url = make_url(uri)
        ours = url.drivername in (*POSTGRESQL, "postgresql+psycopg2")
        engine = create_engine(url, connect_args={"connect_timeout": SECONDS} if ours else {}, poolclass=NullPool)
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1")
            return None if table is None or inspect(connection).has_table(table) else ""
    except (SQLAlchemyError, ImportError, ValueError) as error:
        return raised(getattr(error, "orig", None) or error)


class Ray:
    """The Ray of the next sweep, started or joined at most once, for a trial of some size."""

    def __init__(self, resources: Resources) -> None:
        self.resources, self.given = resources, os.environ.get("RAY_ADDRESS")

    @property
    def there(self) -> bool:
        """It runs elsewhere, on other machines perhaps."""
        return bool(self.given)

    @cached_property
    def answer(self) -> Answer:
        from sweeper.launch.probe import Answer, ask

        host, _, port = (self.given or "").removeprefix("ray://").rpartition(":")
        if self.given and port.isdigit() and (error := knock(host.strip("[]"), int(port))):
            return Answer(failed=f"nobody listens there ({error})")
        return ask(self.resources, RAY_SECONDS)

    def look(self) -> Iterator[Verdict]:
        found, shown = self.answer, hidden(f"RAY_ADDRESS = {self.given}") if self.given else "a Ray of its own"
        if found.failed:
            here = "See that /dev/shm and TMPDIR can be written, and that no other Ray's settings (RAY_...) are in the environment."
            fix = "Start it: ray start --head, or unset RAY_ADDRESS to have each sweep start its own." if self.given else here
            yield Verdict(FAIL, f"{shown}: {hidden(found.failed)}", fix)
        else:
            size = f"{found.cpu:g} CPU and {found.gpu:g} GPU" + (f" on {found.nodes} nodes" if found.nodes > 1 else "")
            yield Verdict(OK, f"{shown} {'answers' if self.given else 'starts'} in {found.seconds:.1f} s: {size}")

    def fits(self) -> Iterator[Verdict]:
        """Whether a trial of the sweep's size finds room."""
        found, asked = self.answer, f"{self.resources.cpu:g} CPU and {self.resources.gpu:g} GPU"
        if found.failed:
            yield Verdict(WARN, f"a trial asks for {asked}; without Ray nobody knows whether there is room")
        elif found.refused:
            text, _, fix = found.refused.partition(". ")
            yield Verdict(FAIL, text, fix)
        else:
            yield Verdict(OK, f"{self.room} trial{'s' if self.room > 1 else ''} of {asked} at once")

    @property
    def room(self) -> int:
        """Trials at once: as many as fit, or as the sweep allows."""
        return min(self.answer.room, self.resources.max_concurrent or self.answer.room)


def knock(host: str, port: int) -> str:
    """Why nobody opens; nothing where somebody does."""
    try:
        socket.create_connection((host, port), timeout=SECONDS).close()
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    return ""


@contextlib.contextmanager
def _set(values: dict[str, str]) -> Iterator[None]:
    """These in the environment for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
