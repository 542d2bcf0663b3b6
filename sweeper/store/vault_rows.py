"""A vault's table: its SQL, and one row of it as a record."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

SEARCH, FINAL = "search", "final"
SEALED, CLAIMED, SETTLED, FAILED = "sealed", "claimed", "settled", "failed"  # states of a trial
RUNNING, RELEASED = "running", "released"  # phases of the sweep, after SEALED

SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE secret (value BLOB NOT NULL)",
    """CREATE TABLE trials (
        trial INTEGER PRIMARY KEY, stage TEXT NOT NULL, candidate TEXT NOT NULL, state TEXT NOT NULL, attempts INTEGER NOT NULL,
        claimed_at TEXT, settled_at TEXT, score REAL, settings TEXT, params BLOB, sealed TEXT, error TEXT, output TEXT,
        arm TEXT NOT NULL DEFAULT '', trace TEXT)""",
)
LATER = {"arm": "TEXT NOT NULL DEFAULT ''", "trace": "TEXT"}  # columns that vaults of earlier versions lack
COLUMNS = (
    "trial, stage, arm, candidate, state, attempts, claimed_at, settled_at, score, settings, trace, {params}, sealed, error, output"
)
ADD = f"INSERT INTO trials (trial, stage, arm, candidate, state, attempts) VALUES (?, ?, ?, ?, '{SEALED}', 0)"
CLAIM = f"UPDATE trials SET state = '{CLAIMED}', attempts = attempts + 1, claimed_at = ? WHERE trial = ?"
SETTLE = f"""UPDATE trials SET state = ?, settled_at = ?, score = ?, settings = ?, trace = ?, params = ?, sealed = ?, error = ?,
    output = ? WHERE trial = ? AND state = '{CLAIMED}'"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One trial. Only what says nothing about data or candidates is shown by repr."""

    index: int
    stage: str  # search or final
    arm: str  # "" in a sweep without arms
    candidate: Mapping[str, Any] = field(repr=False)
    state: str  # sealed, claimed, settled or failed
    attempts: int
    claimed_at: str | None = field(repr=False)
    settled_at: str | None = field(repr=False)
    score: float | None = field(repr=False)  # None: not settled, failed, or not finite
    settings: Mapping[str, Any] | None = field(repr=False)
    trace: Mapping[str, Any] | None = field(repr=False)  # name -> numbers, inside the trial's price as the score is
    params: bytes | None = field(repr=False)  # float32
    sealed: Mapping[str, Any] | None = field(repr=False)
    error: str | None = field(repr=False)
    output: str | None = field(repr=False)


def read_row(row: tuple[Any, ...]) -> Row:
    values = dict(zip(COLUMNS.format(params="params").split(", "), row, strict=True))
    for name in ("candidate", "settings", "trace", "sealed"):
        values[name] = None if values[name] is None else json.loads(values[name])
    return Row(index=values.pop("trial"), **values)


def finite(score: Any) -> float | None:
    return None if score is None or not math.isfinite(score) else float(score)


def text(value: object) -> str | None:
    """What a trial said, as text that SQLite takes whatever was in it."""
    return None if value is None else str(value).encode("utf-8", "backslashreplace").decode()


def diagnostics(sealed: Mapping[str, Any]) -> str:
    """Sealed diagnostics as JSON. A settlement is never lost for the sake of one that JSON does not take."""
    try:
        return json.dumps(sealed, default=repr)
    except (TypeError, ValueError):  # a key that is no text, or a cycle
        return json.dumps({"unreadable": repr(sealed)})


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
