"""The ledger's SQLite file: made when it is not there, brought to the present layout when an earlier version wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine

from sweeper.checks import RequestError
from sweeper.privacy import ledger_rows
from sweeper.privacy.account import UNKNOWN_RUN
from sweeper.privacy.chain import New, now
from sweeper.privacy.durable import create_private
from sweeper.privacy.ledger_layout import cells
from sweeper.privacy.ledger_tables import create

LAYOUT = 2  # SQLite's user_version. 1 had one table, `entries`, with whole bodies in it


def prepare(file: Path, engine: Engine) -> None:
    """Create or migrate the tables, if need be, in one transaction.

    Raises:
      RequestError: it is of a later version, it cannot be made, or its rows are not what was appended.
    """
    try:
        create_private(file)
    except OSError as error:
        raise RequestError(f"the ledger {file} cannot be made: {error.strerror}") from error
    with engine.connect() as db:
        if _version(db) == LAYOUT:
            return
    with engine.begin() as db:
        db.exec_driver_sql("BEGIN IMMEDIATE")
        version = _version(db)
        if version > LAYOUT:
            raise RequestError(f"the ledger {file} was written by a later version of sweeper, which must be used with it")
        if version == LAYOUT:
            return
        old = _old_rows(db)
        if old is not None:
            db.exec_driver_sql("DROP TABLE entries")
        create(db)
        if old:
            _migrate(db, old, file)
        db.exec_driver_sql(f"PRAGMA user_version = {LAYOUT}")


def _version(db: Connection) -> int:
    return int(db.exec_driver_sql("PRAGMA user_version").scalar_one())


def _old_rows(db: Connection) -> list[dict[str, Any]] | None:
    """The rows of the first layout; None where there is no such table."""
    if db.exec_driver_sql("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'entries'").scalar() is None:
        return None
    columns = "seq, kind, data_set, body, at, previous, hash"
    return [dict(row) for row in db.exec_driver_sql(f"SELECT {columns} FROM entries ORDER BY seq").mappings()]


def _migrate(db: Connection, old: list[dict[str, Any]], file: Path) -> None:
    """The same rows with the same hashes, spread over the tables, and a start for every reservation that is still open."""
    refusal = f"the ledger {file} is of an earlier layout and cannot be brought to this one: row {{}} is not what was appended"
    open_ones: dict[str, str] = {}
    for row in old:
        entry = {name: row[name] for name in ("seq", "kind", "at", "previous", "hash")}
        try:
            body = json.loads(row["body"])
            own = cells(row["kind"], body) | {"data_set": row["data_set"]}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise RequestError(refusal.format(row["seq"])) from None
        ledger_rows.store(db, entry, own)
        if row["kind"] == "reservation":
            open_ones[body["id"]] = row["data_set"]
        elif row["kind"] == "commit":
            open_ones.pop(body["reservation"], None)
    broken = ledger_rows.read(db).verify()
    if broken is not None:
        raise RequestError(refusal.format(broken.seq) + f" ({broken.rule})")
    starts = [New(kind="start", data_set=d, body={"reservation": i, "run": UNKNOWN_RUN}) for i, d in open_ones.items()]
    ledger_rows.append(db, starts, now())
