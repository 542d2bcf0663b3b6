"""The state of one data set, replayed from the ledger's rows. Prices were stored when they were made: nothing is priced here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from sweeper.privacy.budget import Budget, Price, Spent, total
from sweeper.privacy.chain import Entry, canonical

RESERVED, COMMITTED, RELEASED = "reserved", "committed", "released"


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """What one sweep may cost or did cost. Reserved counts like committed; only a released one costs nothing."""

    id: str
    data_set: str
    sweep: str
    fingerprint: str
    state: str
    reserved: Mapping[str, Any]  # the event asked for
    event: Mapping[str, Any]  # the event charged: another one only if that is what was committed
    guarantee: Mapping[str, Any]  # as stated by the plan; epsilon None is infinite
    price: Price
    who: str
    at: str
    reason: str = ""  # why it was released, or committed as another event

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"price": self.price.to_dict()}


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
        account = cls(data_set=data_set)
        for entry in entries:
            if entry.data_set == data_set:
                account = _STEPS[entry.kind](account, entry)
        return account

    @property
    def charges(self) -> tuple[Reservation, ...]:
        return tuple(r for r in self.reservations if r.state != RELEASED)

    def events(self) -> list[Mapping[str, Any]]:
        return [charge.event for charge in self.charges]

    def find(self, reservation_id: str) -> Reservation | None:
        return next((r for r in self.reservations if r.id == reservation_id), None)

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


def _budget(account: Account, entry: Entry) -> Account:
    body = entry.body
    budget = Budget(data_set=account.data_set, epsilon=body["epsilon"], delta=body["delta"], order=body["order"])
    repriced = tuple(
        replace(r, price=Price.from_dict(body["prices"][r.id])) if r.id in body["prices"] else r for r in account.reservations
    )
    return replace(account, budget=budget, reservations=repriced, fixed_beforehand=body["fixed_beforehand"])


def _reservation(account: Account, entry: Entry) -> Account:
    body = entry.body
    made = Reservation(
        id=body["id"],
        data_set=account.data_set,
        sweep=body["sweep"],
        fingerprint=body["fingerprint"],
        state=RESERVED,
        reserved=body["event"],
        event=body["event"],
        guarantee=body["guarantee"],
        price=Price.from_dict(body["price"]),
        who=body["who"],
        at=entry.at,
    )
    return replace(account, reservations=(*account.reservations, made), fixed_beforehand=body["fixed_beforehand"])


def _commit(account: Account, entry: Entry) -> Account:
    body = entry.body
    changes: dict[str, Any] = {"state": RELEASED if body["released"] else COMMITTED, "reason": body["reason"]}
    if "event" in body:
        changes |= {"event": body["event"], "price": Price.from_dict(body["price"])}
    after = tuple(replace(r, **changes) if r.id == body["reservation"] else r for r in account.reservations)
    return replace(account, reservations=after, fixed_beforehand=body.get("fixed_beforehand", account.fixed_beforehand))


def _binding(account: Account, entry: Entry) -> Account:
    return replace(account, digests=(*account.digests, entry.body["digest"]))


_STEPS = {"budget": _budget, "reservation": _reservation, "commit": _commit, "binding": _binding}
