"""An append-only table in which every row carries the hash of the row before it. All SQL of the ledger is in this file."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sweeper.privacy.durable import connect, create_private, transaction

GENESIS = "0" * 64  # `previous` of the first row
OPTIMISTIC_TRIES = 5  # after which a decision is taken while holding the lock, so that a slow one is not overtaken for ever
CURATOR_ONLY = ("digest", "salt")  # fields of a body that say something about private data

_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS entries (
        seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, data_set TEXT NOT NULL, body TEXT NOT NULL,
        at TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL)""",
    "CREATE TRIGGER IF NOT EXISTS entries_keep BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END",
    "CREATE TRIGGER IF NOT EXISTS entries_stay BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END",
)
_READ = "SELECT seq, kind, data_set, body, at, previous, hash FROM entries ORDER BY seq"
_LAST = "SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1"
_INSERT = "INSERT INTO entries (seq, kind, data_set, body, at, previous, hash) VALUES (?, ?, ?, ?, ?, ?, ?)"


@dataclass(frozen=True, kw_only=True)
class New:
    """A row to append."""

    kind: str
    data_set: str
    body: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A row as it stands. `to_dict` leaves out what only the curator may read."""

    seq: int
    kind: str
    data_set: str
    body: Mapping[str, Any] = field(repr=False)
    at: str  # UTC
    previous: str
    hash: str

    def to_dict(self) -> dict[str, Any]:
        body = {key: value for key, value in self.body.items() if key not in CURATOR_ONLY}
        names = ("seq", "kind", "data_set", "at", "previous", "hash")
        return {name: getattr(self, name) for name in names} | {"body": body}


@dataclass(frozen=True, kw_only=True)
class Broken:
    """The first row that is not what was appended."""

    seq: int
    rule: str

    def to_dict(self) -> dict[str, Any]:
        return {"seq": self.seq, "rule": self.rule}


class Chain:
    """The table in its file. A connection lives for one call, so that threads and forked processes share nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        create_private(path)
        with closing(connect(path)) as db:
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'entries_stay'").fetchone() is None:
                with transaction(db):
                    for statement in _SCHEMA:
                        db.execute(statement)

    def read(self) -> list[Entry]:
        with closing(connect(self.path)) as db:
            return _entries(db)

    def append(self, decide: Callable[[list[Entry]], Sequence[New]]) -> None:
        """Append what `decide` makes of the rows so far, if those are still all the rows; else ask it again.

        The check and the insertion are one immediate transaction. `decide` may be slow (it prices events): only its last try
        holds the lock. What it raises leaves the table as it was.
        """
        with closing(connect(self.path)) as db:
            for _ in range(OPTIMISTIC_TRIES):
                entries = _entries(db)
                new = decide(entries)
                if not new:
                    return
                with transaction(db):
                    if _last(db) == ((entries[-1].seq, entries[-1].hash) if entries else (0, GENESIS)):
                        _insert(db, new)
                        return
            with transaction(db):
                _insert(db, decide(_entries(db)))

    def verify(self) -> Broken | None:
        """The first row that breaks the chain, or None. A tail cut off whole is not seen: keep the last hash elsewhere for that."""
        previous, expected = GENESIS, 1
        with closing(connect(self.path)) as db:
            rows = db.execute(_READ).fetchall()
        for seq, kind, data_set, body, at, stated, found in rows:
            if seq != expected:
                return Broken(seq=seq, rule=f"row {expected} is missing before it")
            if stated != previous:
                return Broken(seq=seq, rule="it does not carry the hash of the row before it")
            if found != _hash(previous, seq, kind, data_set, body, at):
                return Broken(seq=seq, rule="its content does not have its hash")
            previous, expected = found, expected + 1
        return None


def canonical(body: Mapping[str, Any]) -> str:
    """One line of JSON, the same for equal bodies."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _hash(previous: str, seq: int, kind: str, data_set: str, body: str, at: str) -> str:
    content = json.dumps([seq, kind, data_set, body, at], separators=(",", ":"))
    return hashlib.sha256((previous + content).encode()).hexdigest()


def _entries(db: sqlite3.Connection) -> list[Entry]:
    names = ("seq", "kind", "data_set", "body", "at", "previous", "hash")
    rows = (dict(zip(names, row, strict=True)) for row in db.execute(_READ).fetchall())
    return [Entry(**row | {"body": json.loads(row["body"])}) for row in rows]


def _last(db: sqlite3.Connection) -> tuple[int, str]:
    row = db.execute(_LAST).fetchone()
    return (row[0], row[1]) if row else (0, GENESIS)


def _insert(db: sqlite3.Connection, new: Sequence[New]) -> None:
    seq, previous = _last(db)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    for row in new:
        seq += 1
        body = canonical(row.body)
        own = _hash(previous, seq, row.kind, row.data_set, body, at)
        db.execute(_INSERT, (seq, row.kind, row.data_set, body, at, previous, own))
        previous = own
