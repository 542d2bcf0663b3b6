"""The vault of one sweep: what only the curator may see. K, every candidate, the secret, scores, models, tracebacks, prints.

A directory of mode 0700 with one SQLite file of mode 0600, written by one process beside the driver; workers never open it.
Every claim and every settlement is one transaction, on disk before it returns. A settlement lost to a power failure would only be
run again; a lost claim could let a reservation be released although data was opened, so neither is left to the system's cache.
"""

from __future__ import annotations

import json
import math
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from sweeper import checks
from sweeper.checks import RequestError
from sweeper.privacy.durable import connect, create_private, transaction
from sweeper.seeds import BitSource
from sweeper.spec.result import TrialResult
from sweeper.store.vault_files import build_then_rename, close_down, directory_of, drop_kept, read_kept, sweeps, write_kept
from sweeper.store.vault_rows import (
    ADD,
    CLAIM,
    CLAIMED,
    COLUMNS,
    FAILED,
    FINAL,
    LATER,
    RELEASED,
    RUNNING,
    SCHEMA,
    SEALED,
    SEARCH,
    SETTLE,
    SETTLED,
    Row,
    diagnostics,
    finite,
    now,
    read_row,
    text,
)

_OWN = ("sweep", "fingerprint", "spec", "plan", "reservation", "phase", "release_id")  # meta fields that set_meta may not change


class Vault:
    """One sweep's vault. Made by `create` or `open`; several threads may use one, and several processes their own."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.sweep = directory, directory.name
        self._db = connect(directory / "vault.db")
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"Vault({self.sweep!r})"

    def __enter__(self) -> Vault:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def create(
        cls,
        root: Path,
        sweep: str,
        *,
        spec: Mapping[str, Any],
        plan: Mapping[str, Any],
        fingerprint: str,
        secret: bytes,
        reservation: str | None,
        candidates: Sequence[Mapping[str, Any]],
        arms: Sequence[str] | None = None,
    ) -> Vault:
        """Seal a sweep under root/vault: all of it in one transaction, under its name only when complete.

        No candidates: the law of their number may draw none, and did. `arms`: whose each candidate is, in a sweep with arms.

        Raises:
          RequestError: the name is taken.
        """
        meta = {"sweep": sweep, "fingerprint": fingerprint, "spec": spec, "plan": plan, "reservation": reservation}
        meta |= {"phase": SEALED, "release_id": None}

        def fill(directory: Path) -> None:
            create_private(directory / "vault.db")
            with closing(connect(directory / "vault.db")) as db, transaction(db):
                for statement in SCHEMA:
                    db.execute(statement)
                db.execute("INSERT INTO secret (value) VALUES (?)", (secret,))
                db.executemany("INSERT INTO meta (key, value) VALUES (?, ?)", [(k, json.dumps(v)) for k, v in meta.items()])
                rows = zip(arms or [""] * len(candidates), candidates, strict=True)
                db.executemany(ADD, [(i, SEARCH, arm, json.dumps(candidate)) for i, (arm, candidate) in enumerate(rows)])

        return cls(build_then_rename(root, sweep, fill))

    @classmethod
    def open(cls, root: Path, sweep: str) -> Vault:
        """The vault of a sweep that was created.

        Raises:
          RequestError: there is none.
        """
        directory = directory_of(root, sweep)
        if not (directory / "vault.db").is_file():
            raise RequestError(f'no sweep "{sweep}" was run here{checks.suggestion(sweep, sweeps(root))}')
        vault = cls(directory)
        vault._catch_up()
        return vault

    # What was sealed.

    def secret(self) -> bytes:
        """The sweep's secret. Never log it, never release it."""
        return bytes(self._one("SELECT value FROM secret"))

    def meta(self, key: str) -> Any:
        """sweep, fingerprint, spec, plan, reservation, or what `set_meta` stored; None where nothing was."""
        value = self._one("SELECT value FROM meta WHERE key = ?", key)
        return None if value is None else json.loads(value)

    def set_meta(self, key: str, value: Any) -> None:
        if key in _OWN:
            raise ValueError(f"{key} is not changed by hand")
        with self._lock, transaction(self._db):
            self._db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, json.dumps(value)))

    def rows(self, stage: str | None = None, *, arm: str | None = None, params: bool = True) -> list[Row]:
        """All trials, or those of a stage or an arm, by index; without their models where `params` is False."""
        columns, (where, values) = COLUMNS.format(params="params" if params else "NULL"), _where(stage, arm)
        return [read_row(r) for r in self._all(f"SELECT {columns} FROM trials{where} ORDER BY trial", *values)]

    def row(self, index: int) -> Row:
        found = self._all(f"SELECT {COLUMNS.format(params='params')} FROM trials WHERE trial = ?", index)
        if not found:
            raise ValueError(f"sweep {self.sweep} has no such trial")
        return read_row(found[0])

    def indices(self, stage: str | None = None) -> list[int]:
        """Of all trials, or of those of a stage."""
        where, values = _where(stage, None)
        return [r[0] for r in self._all(f"SELECT trial FROM trials{where} ORDER BY trial", *values)]

    def count(self, stage: str | None = None, arm: str | None = None) -> int:
        """How many trials there are; of stage "search" it is K, a secret, as it is of an arm."""
        where, values = _where(stage, arm)
        return int(self._one(f"SELECT count(*) FROM trials{where}", *values))

    def unsettled(self) -> list[int]:
        """What is left to run: never claimed, or claimed by somebody who did not come back."""
        return [r[0] for r in self._all("SELECT trial FROM trials WHERE state IN (?, ?) ORDER BY trial", SEALED, CLAIMED)]

    def unclaimed(self) -> list[int]:
        """What nobody has begun."""
        return [r[0] for r in self._all("SELECT trial FROM trials WHERE state = ? ORDER BY trial", SEALED)]

    # The life of a trial.

    def start(self) -> None:
        """Sealed -> running. Call before data is opened: a sweep that is still sealed provably opened none."""
        with self._lock, transaction(self._db):
            self._start()

    def add(self, candidate: Mapping[str, Any], stage: str, arm: str = "") -> int:
        """Seal one more trial and return its index."""
        checks.one_of((SEARCH, FINAL), stage=stage)
        with self._lock, transaction(self._db):
            self._refuse_released()
            index = int(self._one("SELECT coalesce(max(trial) + 1, 0) FROM trials"))
            self._db.execute(ADD, (index, stage, arm, json.dumps(candidate)))
        return index

    def claim(self, index: int) -> Row:
        """Record that a trial is about to run, again if it was claimed before (it replays the same streams).

        Raises:
          RequestError: it is settled, and nothing runs twice.
        """
        with self._lock, transaction(self._db):
            self._refuse_released()
            if self.row(index).state in (SETTLED, FAILED):
                raise RequestError(f'a trial of sweep "{self.sweep}" that is settled cannot run again')
            self._start()
            self._db.execute(CLAIM, (now(), index))
            return self.row(index)

    def settle(self, index: int, result: TrialResult) -> bool:
        """Record a trial's result. False, and nothing changes, when it was settled before: the first one counts.

        Of `result.sealed`, "error" and "output" are texts with columns of their own.
        """
        released, sealed = result.released, dict(result.sealed)
        error, output = sealed.pop("error", None), sealed.pop("output", None)
        params = None if released.get("params") is None else bytes(released["params"])
        if params is not None and len(params) % 4:
            raise ValueError("params must be float32 bytes")
        settings, trace = (None if released.get(key) is None else json.dumps(dict(released[key])) for key in ("settings", "trace"))
        values = (finite(released.get("score")), settings, trace, params, diagnostics(sealed), text(error), text(output))
        return self._settle(index, SETTLED, values)

    def fail(self, index: int, error: str, output: str) -> bool:
        """Record that a trial failed for a reason data may have influenced. It counts as run, without a score, for good."""
        return self._settle(index, FAILED, (None, None, None, None, None, text(error), text(output)))

    def checkpoint(self, index: int) -> bytes | None:
        """The state of a trial that was kept in the middle of it; None: none was, or it is settled."""
        return read_kept(self.directory, index)

    def keep_checkpoint(self, index: int, content: bytes) -> None:
        """Keep a running trial's state, whole or not at all. Of a trial that is settled nothing is kept."""
        with self._lock:
            if self.row(index).state not in (SETTLED, FAILED):
                write_kept(self.directory, index, content)

    # The end of the sweep.

    def winner(
        self, ties: BitSource | Iterator[float], *, stage: str = SEARCH, arm: str | None = None, partial: bool = False
    ) -> int:
        """Index of the best score of a stage, or of an arm's part of it; equals are drawn uniformly from `ties`.

        Without a finite score a trial ranks last.
        `partial`: look although trials are unsettled, for sweeps whose every trial is public. For select-best it would be another
        law of K than the one that was paid for.

        Raises:
          RequestError: trials are unsettled, or none is settled.
        """
        where, values = _where(stage, arm)
        scored = self._all(f"SELECT trial, score FROM trials{where} AND state IN (?, ?) ORDER BY trial", *values, SETTLED, FAILED)
        if not scored or (not partial and len(scored) < self.count(stage, arm)):
            raise RequestError(f'sweep "{self.sweep}" has no winner yet: not every run is settled. sweeper resume {self.sweep}')
        ranked = [(-math.inf if finite(score) is None else float(score), index) for index, score in scored]
        best = max(score for score, _ in ranked)
        equals: list[int] = [index for score, index in ranked if score == best]
        drawn = ties.randbelow(len(equals)) if isinstance(ties, BitSource) else int(next(ties) * len(equals))
        return equals[min(drawn, len(equals) - 1)]

    @property
    def phase(self) -> str:
        """sealed, running or released."""
        return str(self.meta("phase"))

    @property
    def release_id(self) -> str | None:
        """The fresh random id under which the winner is published; None before the release."""
        found = self.meta("release_id")
        return None if found is None else str(found)

    def release(self) -> str:
        """Running -> released, once: a second call returns the same id. Nothing can be claimed or added afterwards."""
        with self._lock, transaction(self._db):
            if self.release_id is None:
                self._set(release_id=secrets.token_hex(16), phase=RELEASED)
            return str(self.release_id)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def destroy(self) -> None:
        """Remove everything, the secret included. The name is free at once."""
        self.close()
        close_down(self.directory)

    def _catch_up(self) -> None:
        """Add the columns that a vault of an earlier version lacks; of its rows they hold the defaults."""
        if set(LATER) <= self._columns():
            return
        with self._lock, transaction(self._db):
            for name in set(LATER) - self._columns():  # asked again: another process may have been here
                self._db.execute(f"ALTER TABLE trials ADD COLUMN {name} {LATER[name]}")

    def _columns(self) -> set[str]:
        return {str(column[1]) for column in self._all("PRAGMA table_info(trials)")}

    def _settle(self, index: int, state: str, values: tuple[Any, ...]) -> bool:
        with self._lock, transaction(self._db):
            if self._db.execute(SETTLE, (state, now(), *values, index)).rowcount == 1:
                drop_kept(self.directory, index)  # the same record again would not need it, and a lost one replays from the start
                return True
            if self.row(index).state == SEALED:
                raise ValueError(f"a trial of sweep {self.sweep} was settled before it was claimed")
            return False

    def _start(self) -> None:
        if self.phase == SEALED:
            self._set(phase=RUNNING)

    def _refuse_released(self) -> None:
        if self.phase == RELEASED:
            raise RequestError(f'sweep "{self.sweep}" is released: nothing of it runs any more')

    def _set(self, **values: str) -> None:
        self._db.executemany("UPDATE meta SET value = ? WHERE key = ?", [(json.dumps(v), k) for k, v in values.items()])

    def _all(self, statement: str, *values: Any) -> list[Any]:
        with self._lock:
            return self._db.execute(statement, values).fetchall()

    def _one(self, statement: str, *values: Any) -> Any:
        with self._lock:
            row = self._db.execute(statement, values).fetchone()
        return None if row is None else row[0]


def _where(stage: str | None, arm: str | None) -> tuple[str, tuple[str, ...]]:
    """The clause that picks rows, with its values."""
    given = {name: value for name, value in (("stage", stage), ("arm", arm)) if value is not None}
    return (" WHERE " + " AND ".join(f"{name} = ?" for name in given) if given else ""), tuple(given.values())
