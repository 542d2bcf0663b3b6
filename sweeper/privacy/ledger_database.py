"""Transactions on the ledger's database. SQLite: one file, one writer at a time. PostgreSQL: serialisable, and tried again.

A connection lives for one transaction (NullPool), so that threads and forked processes share nothing. SQLAlchemy is imported on
the first use, not with this module.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from sweeper.checks import RequestError
from sweeper.privacy import durable
from sweeper.privacy.durable import BUSY_SECONDS
from sweeper.privacy.ledger_address import VARIABLE, Address

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.exc import DBAPIError

T = TypeVar("T")

TRIES = 10  # of a PostgreSQL transaction: with the backoff below about eight seconds
BACKOFF_SECONDS = (0.02, 2.0)  # the first wait and the longest one, each drawn between half of it and all
CONNECT_SECONDS = 10  # unless the URI says otherwise
AGAIN = ("40001", "40P01", "23505")  # serialisation failure, deadlock, unique violation: another writer was first
BUSY = ("55P03", "database is locked")  # the lock was not to be had in time

# Writers queue for the lock instead of failing one another; readers are not held up. It comes first, because the snapshot that a
# serialisable transaction works on is taken by the first statement after it. A server may be set up to acknowledge what is not on
# disk yet: not here.
_LOCK = f"""SET LOCAL lock_timeout = '{BUSY_SECONDS:.0f}s'; SET LOCAL idle_in_transaction_session_timeout = '10min';
    LOCK TABLE entries IN SHARE ROW EXCLUSIVE MODE;
    SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"""
_CREATING = "SELECT pg_advisory_xact_lock(7311205419)"  # any number that nobody else uses
_READY = "SELECT to_regclass('entries') IS NOT NULL AND to_regclass('unseals') IS NOT NULL"


class Database:
    """The database behind an address. Making one creates the tables that are missing."""

    def __init__(self, address: Address) -> None:
        self.address = address
        if address.file is not None:
            from sweeper.privacy.ledger_file import prepare

            with self._plain_errors():
                prepare(address.file, self._engine)
        else:
            with self._plain_errors():
                self._prepare_server()

    def read(self, work: Callable[[Connection], T]) -> T:
        """What `work` makes of one consistent state of all tables."""
        with self._plain_errors():
            if self.address.file is not None:
                with self._engine.connect() as db:
                    db.exec_driver_sql("BEGIN")
                    return work(db)
            snapshot = self._engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with snapshot.connect() as db:
                return work(db)

    def write(self, work: Callable[[Connection], T]) -> T:
        """`work` as one transaction with no other writer beside it, on disk when this returns. It may be called several times."""
        if self.address.file is not None:
            with self._plain_errors(), self._engine.begin() as db:
                db.exec_driver_sql("BEGIN IMMEDIATE")
                return work(db)
        import sqlalchemy.exc

        wait, longest = BACKOFF_SECONDS
        with self._plain_errors():
            for _ in range(TRIES - 1):
                try:
                    return self._write_once(work)
                except sqlalchemy.exc.DBAPIError as error:
                    if _state(error) not in AGAIN:
                        raise
                time.sleep(random.uniform(wait / 2, wait))
                wait = min(2 * wait, longest)
            return self._write_once(work)

    def _write_once(self, work: Callable[[Connection], T]) -> T:
        with self._engine.execution_options(isolation_level="SERIALIZABLE").begin() as db:
            db.exec_driver_sql(_LOCK)
            return work(db)

    def _prepare_server(self) -> None:
        from sweeper.privacy.ledger_tables import create

        with self._engine.connect() as db:
            if db.exec_driver_sql(_READY).scalar():
                return
        with self._engine.begin() as db:
            db.exec_driver_sql(_CREATING)
            if not db.exec_driver_sql(_READY).scalar():
                create(db)

    @cached_property
    def _engine(self) -> Engine:
        from sqlalchemy import create_engine
        from sqlalchemy.pool import NullPool

        file = self.address.file
        if file is not None:
            return create_engine("sqlite://", creator=lambda: durable.connect(file), poolclass=NullPool, hide_parameters=True)
        url = self.address.url()
        arguments = {} if "connect_timeout" in url.query else {"connect_timeout": CONNECT_SECONDS}
        try:
            return create_engine(url, connect_args=arguments, poolclass=NullPool, hide_parameters=True, use_native_hstore=False)
        except ImportError:
            raise RequestError(
                f"{VARIABLE} names a PostgreSQL, and its driver is not here: pip install 'psycopg[binary]'"
            ) from None

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """What a database says, on one line and without passwords. The driver's own error is not shown: it may quote the URI."""
        import sqlalchemy.exc

        try:
            yield
        except sqlalchemy.exc.DBAPIError as error:
            raise RequestError(self._words(error)) from None

    def _words(self, error: DBAPIError) -> str:
        import sqlalchemy.exc

        shown, state = str(self.address), _state(error)
        said = self.address.hide(str(error.orig).strip().partition("\n")[0])
        if state in AGAIN:
            return f"the ledger {shown} was busy: other writers were first {TRIES} times over. Nothing was written. Try again"
        if state in BUSY or said in BUSY:
            return f"the ledger {shown} was busy for {BUSY_SECONDS:.0f} seconds: {said}. Nothing was written. Try again"
        if error.connection_invalidated:
            return f"the connection to the ledger {shown} was lost: {said}. See with sweeper ledger whether the charge was written"
        if self.address.file is None and not state and isinstance(error, sqlalchemy.exc.OperationalError):
            return f"{VARIABLE} = {shown} cannot be reached: {said}"
        return f"the ledger {shown} did not do it: {said}"


def _state(error: DBAPIError) -> str:
    """PostgreSQL's five letters for what went wrong."""
    return getattr(error.orig, "sqlstate", None) or ""
