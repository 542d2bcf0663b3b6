"""The state of one data set, replayed from the ledger's rows. Prices were stored when they were made: nothing is priced here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from sweeper.privacy.budget import Budget, Price, Spent, total
from sweeper.privacy.chain import Entry
from sweeper.privacy.ledger_layout import canonical

RESERVED, COMMITTED, RELEASED = "reserved", "committed", "released"
UNKNOWN_RUN = "unknown"  # the run of a reservation that was open when the ledger learnt to record runs: data may have been opened


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """What one sweep may cost or did cost. Reserved counts like committed; only a released one costs nothing."""

    id: str
    data_set: str
    sweep: str
    fingerprint: str
    state: str
    reserved: Mapping[str, Any]  # the event asked for
    event: Mapping[str, Any]  # the event charged: another one only if that is what was committed or unsealed
    guarantee: Mapping[str, Any]  # as stated by the plan, or of all trials once unsealed; epsilon None is infinite
    price: Price
    unit: str
    relation: str
    who: str
    at: str
    started: str = ""  # the run that it pays for; empty: no data was opened
    unsealed: str = ""  # the id of its unsealing; empty: only what its protocol releases may be seen
    sealed_price: Price | None = None  # what it cost before it was unsealed
    reason: str = ""  # why it was released, or committed as another event

    def to_dict(self) -> dict[str, Any]:
        sealed = self.sealed_price.to_dict() if self.sealed_price else None
        return asdict(self) | {"price": self.price.to_dict(), "sealed_price": sealed}


@dataclass(frozen=True, kw_only=True)
class Account:
    """One data set: its budget, every reservation ever made, and the digests of its source file, the latest last."""

    data_set: str
    budget: Budget | None = None
    reservations: tuple[Reservation, ...] = ()
    digests: tuple[str, ...] = ()
    fixed_beforehand: float | None = 0.0

    @classmethod
    def replay(cls, data_set: str, entries: Iterable[Entry]) -> Account:
        replaying = _Replay(data_set)
        for entry in entries:
            if entry.data_set == data_set:
                replaying.step(entry)
        return replaying.account()

    @classmethod
    def all(cls, entries: Iterable[Entry]) -> list[Account]:
        """Every data set's, in the order in which they first appear."""
        replaying: dict[str, _Replay] = {}
        for entry in entries:
            replaying.setdefault(entry.data_set, _Replay(entry.data_set)).step(entry)
        return [one.account() for one in replaying.values()]

    @property
    def charges(self) -> tuple[Reservation, ...]:
        return tuple(r for r in self.reservations if r.state != RELEASED)

    def events(self) -> list[Mapping[str, Any]]:
        return [charge.event for charge in self.charges]

    def find(self, reservation_id: str) -> Reservation | None:
        return next((r for r in self.reservations if r.id == reservation_id), None)

    def place(self, reservation_id: str) -> int:
        """Which reservation of this data set it is, from 1 on, released ones counted."""
        return next(i for i, r in enumerate(self.reservations, start=1) if r.id == reservation_id)

    def without(self, reservation_id: str) -> Account:
        """The account as it would be without one of its charges. Places change, so none is asked of this one."""
        return replace(self, reservations=tuple(r for r in self.reservations if r.id != reservation_id))

    def total(self, *more: Price) -> float:
        """Epsilon spent, with `more` on top."""
        return 0.0 if self.budget is None else total([c.price for c in self.charges] + list(more), self.budget)

    def spent(self) -> Spent:
        return Spent(
            epsilon=self.total(),
            delta=self.budget.delta if self.budget else 0.0,
            epsilon_if_fixed_beforehand=self.fixed_beforehand,
            charges=len(self.charges),
        )


def same_event(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    return canonical(first) == canonical(second)


class _Replay:
    """An account under construction: one step per row, whatever their number."""

    def __init__(self, data_set: str) -> None:
        self._data_set = data_set
        self._budget: Budget | None = None
        self._reservations: dict[str, Reservation] = {}
        self._digests: list[str] = []
        self._fixed_beforehand: float | None = 0.0

    def account(self) -> Account:
        return Account(
            data_set=self._data_set,
            budget=self._budget,
            reservations=tuple(self._reservations.values()),
            digests=tuple(self._digests),
            fixed_beforehand=self._fixed_beforehand,
        )

    def step(self, entry: Entry) -> None:
        body = entry.body
        if "fixed_beforehand" in body:
            self._fixed_beforehand = body["fixed_beforehand"]
        match entry.kind:
            case "budget":
                self._budget = Budget(data_set=self._data_set, epsilon=body["epsilon"], delta=body["delta"], order=body["order"])
                for reservation_id, price in body["prices"].items():
                    self._change(reservation_id, price=Price.from_dict(price))
            case "reservation":
                self._reservations[body["id"]] = self._made(entry)
            case "start":
                self._change(body["reservation"], started=body["run"])
            case "commit":
                state = RELEASED if body["released"] else COMMITTED
                self._change(body["reservation"], state=state, reason=body["reason"], **_charged(body))
            case "unseal":
                sealed = self._reservations[body["reservation"]].price
                news = {"unsealed": body["id"], "guarantee": body["guarantee"], "sealed_price": sealed}
                self._change(body["reservation"], **news, **_charged(body))
            case "binding":
                self._digests.append(body["digest"])

    def _made(self, entry: Entry) -> Reservation:
        body = entry.body
        return Reservation(
            id=body["id"],
            data_set=self._data_set,
            sweep=body["sweep"],
            fingerprint=body["fingerprint"],
            state=RESERVED,
            reserved=body["event"],
            event=body["event"],
            guarantee=body["guarantee"],
            price=Price.from_dict(body["price"]),
            unit=body["guarantee"]["unit"],
            relation=body["guarantee"]["relation"],
            who=body["who"],
            at=entry.at,
        )

    def _change(self, reservation_id: str, **changes: Any) -> None:
        self._reservations[reservation_id] = replace(self._reservations[reservation_id], **changes)


def _charged(body: Mapping[str, Any]) -> dict[str, Any]:
    """The event and price that a row puts in force, if it does."""
    return {"event": body["event"], "price": Price.from_dict(body["price"])} if "event" in body else {}
