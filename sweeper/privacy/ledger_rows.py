"""Reading and writing the ledger's rows inside one transaction. Importing this imports SQLAlchemy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select

from sweeper.checks import RequestError
from sweeper.privacy.chain import GENESIS, Broken, Entry, Head, New, now
from sweeper.privacy.ledger_layout import LAYOUTS, body_text, cells
from sweeper.privacy.ledger_tables import ENTRIES, TABLES


@dataclass(frozen=True)
class Rows:
    """Everything in the tables, as it stands there."""

    entries: Sequence[Mapping[str, Any]]  # by seq
    typed: Mapping[str, Mapping[int, Mapping[str, Any]]]  # kind -> seq -> cells

    def decoded(self) -> list[Entry]:
        """The entries with their bodies.

        Raises:
          RequestError: a row is missing or cannot be read.
        """
        found = []
        for expected, row in enumerate(self.entries, start=1):
            own = self.typed.get(row["kind"], {}).get(row["seq"])
            try:
                if own is None or row["seq"] != expected:
                    raise ValueError("a row is missing")
                body = json.loads(body_text(row["kind"], own))
            except (TypeError, ValueError):
                raise _unreadable(expected, "read") from None
            found.append(Entry(**row, data_set=own["data_set"], body=body))
        return found

    def trusted(self) -> list[Entry]:
        """The entries with their bodies, if every row is what was appended.

        Raises:
          RequestError: one is not.
        """
        broken = self.verify()
        if broken is not None:
            raise _unreadable(broken.seq, "added to")
        return self.decoded()

    def verify(self) -> Broken | None:
        """The first row that breaks the chain, or None."""
        strays = {seq for kind, rows in self.typed.items() for seq in rows} - {row["seq"] for row in self.entries}
        broken = [self._first_broken(), *(self._stray(seq) for seq in sorted(strays)[:1]), *self._misplaced()]
        return min((b for b in broken if b is not None), key=lambda b: b.seq, default=None)

    def _first_broken(self) -> Broken | None:
        previous, expected = GENESIS, 1
        for row in self.entries:
            seq = row["seq"]
            if seq != expected:
                return Broken(seq=seq, rule=f"row {expected} is missing before it")
            if row["previous"] != previous:
                return Broken(seq=seq, rule="it does not carry the hash of the row before it")
            own = self.typed.get(row["kind"], {}).get(seq)
            if own is None:
                return Broken(seq=seq, rule=f"its content is missing: {_table(row['kind'])} has no such row")
            if row["hash"] != own_hash(row, own):
                return Broken(seq=seq, rule="its content does not have its hash")
            previous, expected = row["hash"], expected + 1
        return None

    def _stray(self, seq: int) -> Broken:
        kind = next(kind for kind, rows in self.typed.items() if seq in rows)
        return Broken(seq=seq, rule=f"it stands in {_table(kind)} and not in the chain")

    def _misplaced(self) -> list[Broken]:
        """Rows whose number is in the chain, as a row of another table."""
        kinds = {row["seq"]: row["kind"] for row in self.entries}
        return [
            Broken(seq=seq, rule=f"it stands in {_table(kind)} and in {_table(kinds[seq])}")
            for kind, rows in self.typed.items()
            for seq in rows
            if kinds.get(seq, kind) != kind
        ]


def read(db: Connection) -> Rows:
    """All rows of all tables."""
    entries = [dict(row) for row in db.execute(select(ENTRIES).order_by(ENTRIES.c.seq)).mappings()]
    typed = {kind: {row["seq"]: dict(row) for row in db.execute(select(t)).mappings()} for kind, t in TABLES.items()}
    return Rows(entries, typed)


def head(db: Connection) -> Head:
    """The last row of the chain."""
    row = db.execute(select(ENTRIES.c.seq, ENTRIES.c.hash).order_by(ENTRIES.c.seq.desc()).limit(1)).one_or_none()
    return Head(seq=row.seq, hash=row.hash) if row else Head(seq=0, hash=GENESIS)


def append(db: Connection, new: Sequence[New], at: str) -> None:
    """Rows at the end of the chain."""
    last = head(db)
    for row in new:
        own = cells(row.kind, row.body) | {"data_set": row.data_set}
        entry = {"seq": last.seq + 1, "kind": row.kind, "at": at, "previous": last.hash}
        last = Head(seq=last.seq + 1, hash=own_hash(entry, own))
        store(db, entry | {"hash": last.hash}, own)


def append_after(db: Connection, last: Head, new: Sequence[New]) -> bool:
    """Append if `last` is still the last row; whether it was."""
    if head(db) != last:
        return False
    append(db, new, now())
    return True


def store(db: Connection, entry: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """One row in the chain and in its table."""
    db.execute(insert(ENTRIES).values(**entry))
    db.execute(insert(TABLES[entry["kind"]]).values(seq=entry["seq"], **own))


def own_hash(entry: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """What a row's hash must be; empty where its cells can be no row of the ledger's."""
    try:
        text = body_text(entry["kind"], own)
        content = json.dumps([entry["seq"], entry["kind"], own["data_set"], text, entry["at"]], separators=(",", ":"))
    except (TypeError, ValueError):
        return ""
    return hashlib.sha256((entry["previous"] + content).encode()).hexdigest()


def _unreadable(seq: int, done: str) -> RequestError:
    return RequestError(
        f"row {seq} of the ledger is not what was appended (sweeper ledger verify says why), so it cannot be {done}. Restore it "
        f"from a copy: a charge may be missing"
    )


def _table(kind: str) -> str:
    return LAYOUTS[kind].table if kind in LAYOUTS else f'"{kind}"'
