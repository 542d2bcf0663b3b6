"""Append-only rows of which each carries the hash of the row before it, whatever table holds its content.

One number counts the rows of all tables, so that the order in which things happened is part of the chain. Files and databases are
in ledger_database.py, tables in ledger_layout.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy.ledger_address import Address, address

if TYPE_CHECKING:
    from sweeper.privacy.ledger_database import Database

GENESIS = "0" * 64  # `previous` of the first row
OPTIMISTIC_TRIES = 5  # after which a decision is taken while holding the lock, so that a slow one is not overtaken for ever
CURATOR_ONLY = ("digest", "salt")  # fields of a body that say something about private data


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
class Head:
    """The last row of a chain at some moment. Bills and receipts quote it: a chain that was rebuilt or cut no longer holds it."""

    seq: int  # 0 and GENESIS before the first row
    hash: str

    def __post_init__(self) -> None:
        checks.whole(0, seq=self.seq)
        if not isinstance(self.hash, str) or len(self.hash) != 64 or set(self.hash) - set("0123456789abcdef"):
            raise FieldError("hash", self.hash, "must be 64 hexadecimal digits")

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """The head that was printed as SEQ:HASH.

        Raises:
          FieldError: it is written otherwise.
        """
        seq, _, own = text.strip().partition(":")
        if not seq.isdecimal():
            raise FieldError("head", text, "must be SEQ:HASH, as a bill quotes it")
        return cls(seq=int(seq), hash=own)

    def to_dict(self) -> dict[str, Any]:
        return {"seq": self.seq, "hash": self.hash}


@dataclass(frozen=True, kw_only=True)
class Broken:
    """The first row that is not what was appended."""

    seq: int
    rule: str

    def to_dict(self) -> dict[str, Any]:
        return {"seq": self.seq, "rule": self.rule}


class Chain:
    """The rows of one file or database, made when it is not there."""

    def __init__(self, where: str | Path) -> None:
        self.address: Address = address(where)
        self._database  # noqa: B018  (what cannot be opened is refused here)

    def read(self) -> list[Entry]:
        from sweeper.privacy import ledger_rows

        return self._database.read(ledger_rows.read).decoded()

    def head(self) -> Head:
        from sweeper.privacy import ledger_rows

        return self._database.read(ledger_rows.head)

    def append(self, decide: Callable[[list[Entry]], Sequence[New]]) -> None:
        """Append what `decide` makes of the rows so far, if those are still all the rows; else ask it again.

        The check and the insertion are one transaction. `decide` may be slow (it prices events): only its last try holds the
        lock. What it raises leaves the tables as they were.

        Raises:
          RequestError: a row is not what was appended; nothing is added to such a ledger.
        """
        from sweeper.privacy import ledger_rows

        for _ in range(OPTIMISTIC_TRIES):
            entries = self._database.read(ledger_rows.read).trusted()
            new = decide(entries)
            if not new:
                return
            last = Head(seq=entries[-1].seq, hash=entries[-1].hash) if entries else Head(seq=0, hash=GENESIS)
            if self._database.write(partial(ledger_rows.append_after, last=last, new=new)):
                return
        self._database.write(lambda db: ledger_rows.append(db, decide(ledger_rows.read(db).trusted()), now()))

    def verify(self, head: Head | None = None) -> Broken | None:
        """The first row that breaks the chain, or that is not the one that `head` quotes; None where there is none.

        Without a head that was kept elsewhere, a chain that was cut or rebuilt as a whole is not seen.
        """
        from sweeper.privacy import ledger_rows

        rows = self._database.read(ledger_rows.read)
        broken = rows.verify()
        if head is None or (broken is not None and broken.seq <= head.seq):
            return broken
        found = {row["seq"]: row["hash"] for row in rows.entries} | {0: GENESIS}
        if found.get(head.seq) == head.hash:
            return broken
        last = max(found)
        if head.seq > last:
            return Broken(seq=last, rule=f"the chain ends here, and row {head.seq} was quoted: it was cut, or it is another ledger")
        return Broken(seq=head.seq, rule="it has another hash than was quoted: the chain was rebuilt, or it is another ledger")

    @cached_property
    def _database(self) -> Database:
        from sweeper.privacy.ledger_database import Database

        return Database(self.address)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
