"""The ledger: what a sweep may cost is reserved before data is opened and committed after. A crash leaves a charge, never a hole.

Append-only, one hash-chained table (chain.py). How charges add up, and why that holds for sweeps chosen after seeing earlier
answers, is in budget.py.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from sweeper import checks
from sweeper.checks import FieldError, RequestError
from sweeper.privacy.account import COMMITTED, RELEASED, RESERVED, Account, Reservation, same_event
from sweeper.privacy.budget import Accountant, Budget, Price, Spent, filter_order, fixed_beforehand, price
from sweeper.privacy.chain import Broken, Chain, Entry, New
from sweeper.privacy.events import NOTHING, Event, event_from_dict
from sweeper.privacy.guarantee import Guarantee
from sweeper.privacy.refusals import OverBudget as OverBudget
from sweeper.privacy.refusals import no_budget, over_budget


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One line of `sweeper ledger`."""

    data_set: str
    budget: Budget | None
    spent: Spent
    open_reservations: int  # reserved, never committed: running or crashed

    @property
    def left(self) -> float:
        return max(0.0, self.budget.epsilon - self.spent.epsilon) if self.budget else 0.0

    def to_dict(self) -> dict[str, Any]:
        budget = self.budget.to_dict() if self.budget else None
        parts = {"data_set": self.data_set, "budget": budget, "spent": self.spent.to_dict()}
        return parts | {"left": self.left, "open_reservations": self.open_reservations}


class Ledger:
    """The ledger in an SQLite file, created when it is not there. Any number of processes may use it at once."""

    def __init__(self, path: str | Path, *, accountant: Accountant | None = None) -> None:
        self._chain = Chain(Path(path))
        self._given = accountant

    def __repr__(self) -> str:
        return f"Ledger({str(self._chain.path)!r})"

    # Reading: no event is priced, so neither numpy nor dp_accounting is loaded (`after` excepted).

    def verify(self) -> Broken | None:
        """The first row that is not what was appended, or None."""
        return self._chain.verify()

    def entries(self, data_set: str | None = None) -> list[Entry]:
        return [entry for entry in self._chain.read() if data_set in (None, entry.data_set)]

    def reservations(self, state: str | None = None) -> list[Reservation]:
        """All reservations in the order they were made, or those that are `reserved`, `committed` or `released`."""
        if state is not None:
            checks.one_of((RESERVED, COMMITTED, RELEASED), state=state)
        entries = self._chain.read()
        place = {entry.body["id"]: entry.seq for entry in entries if entry.kind == "reservation"}
        found = [r for account in _accounts(entries) for r in account.reservations if state in (None, r.state)]
        return sorted(found, key=lambda r: place[r.id])

    def data_sets(self) -> list[Standing]:
        return [
            Standing(
                data_set=account.data_set,
                budget=account.budget,
                spent=account.spent(),
                open_reservations=sum(r.state == RESERVED for r in account.reservations),
            )
            for account in _accounts(self._chain.read())
        ]

    def charged_as(self, digest: str) -> str | None:
        """The name under which a file is charged, if it is."""
        return next((a.data_set for a in _accounts(self._chain.read()) if digest in a.digests and a.charges), None)

    def budget(self, data_set: str) -> Budget | None:
        return Account.replay(data_set, self._chain.read()).budget

    def spent(self, data_set: str) -> Spent:
        """What the data set's charges come to; reserved ones count in full."""
        return Account.replay(data_set, self._chain.read()).spent()

    def after(self, data_set: str, event: Event, guarantee: Guarantee | None = None) -> Spent:
        """What `spent` would say with this event on top. Reserves nothing; does not ask whether the budget allows it."""
        account = Account.replay(data_set, self._chain.read())
        if account.budget is None:
            raise no_budget(data_set, guarantee)
        asked = price(event, guarantee, account.budget, self._accountant())
        return Spent(
            epsilon=account.total(asked),
            delta=account.budget.delta,
            epsilon_if_fixed_beforehand=self._fixed_beforehand(account, account.budget, event),
            charges=len(account.charges) + 1,
        )

    # Writing.

    def set_budget(self, data_set: str, epsilon: float, delta: float, who: str) -> Budget:
        """Set or change a budget. The first one fixes the filter's order for good: an order chosen after answers is no filter.

        A new delta prices the data set's charges again, at that delta. A budget below what is spent admits nothing more.
        """
        checks.name(data_set=data_set)
        checks.positive(epsilon=epsilon)
        checks.real(1e-6, 1e6, epsilon=epsilon)
        checks.probability(delta=delta)
        result: list[Budget] = []

        def decide(entries: list[Entry]) -> list[New]:
            account = Account.replay(data_set, entries)
            old = account.budget
            order = old.order if old else filter_order(epsilon, delta)
            new = Budget(data_set=data_set, epsilon=float(epsilon), delta=float(delta), order=order)
            result[:] = [new]
            prices, beforehand = {}, account.fixed_beforehand
            if old and account.charges and old.delta != new.delta:
                for charge in account.charges:
                    again = price(event_from_dict(charge.event), _guarantee(charge), new, self._accountant())
                    prices[charge.id] = again.to_dict()
                beforehand = fixed_beforehand(account.events(), new.delta, self._accountant())
            body = new.to_dict() | {"who": who, "prices": prices, "fixed_beforehand": beforehand}
            del body["data_set"]
            return [New(kind="budget", data_set=data_set, body=body)]

        self._chain.append(decide)
        return result[0]

    def reserve(
        self,
        data_set: str,
        sweep: str,
        fingerprint: str,
        event: Event,
        guarantee: Guarantee,
        who: str,
        source_digest: str | None = None,
    ) -> str:
        """Charge the worst case of a sweep before its data is opened, and return the reservation's id.

        Guarantee: see sweeper.privacy.budget.total; this is the only place where a charge is admitted, in one transaction.
        Relation, unit: those of `guarantee`, which must be those of the data set's other charges.

        Raises:
          OverBudget: with the charges so far it would pass the budget.
          RequestError: no budget is set, another relation or unit, or a file that is charged under another name.
        """
        checks.name(data_set=data_set, sweep=sweep)
        if not isinstance(event, Event):
            raise FieldError("event", event, "must be an event of sweeper.privacy.events")
        reservation_id = secrets.token_hex(16)

        def decide(entries: list[Entry]) -> list[New]:
            account = Account.replay(data_set, entries)
            if account.budget is None:
                raise no_budget(data_set, guarantee)
            _check_relation(account, guarantee)
            bound = _bind(account, entries, source_digest or (account.digests[-1] if account.digests else None))
            asked = price(event, guarantee, account.budget, self._accountant())
            if not account.total(asked) <= account.budget.epsilon:
                raise over_budget(account, account.budget, asked)
            body = {
                "id": reservation_id,
                "sweep": sweep,
                "fingerprint": fingerprint,
                "event": event.to_dict(),
                "guarantee": guarantee.to_dict(),
                "price": asked.to_dict(),
                "fixed_beforehand": self._fixed_beforehand(account, account.budget, event),
                "who": who,
            }
            return [*bound, New(kind="reservation", data_set=data_set, body=body)]

        self._chain.append(decide)
        return reservation_id

    def commit(self, reservation_id: str, event: Event | None = None, *, reason: str = "") -> Reservation:
        """Close a reservation: charged as reserved, or as a cheaper `event`, or, with NOTHING, not at all.

        The caller answers for an `event` of its own: it must not have been chosen by looking at data or at answers, and NOTHING
        means that no data was opened; the reason is kept. The same commit again changes nothing.

        Raises:
          RequestError: no such reservation, committed otherwise before, dearer than reserved, or no reason given.
        """
        result: list[Reservation] = []

        def decide(entries: list[Entry]) -> list[New]:
            account = _holder(entries, reservation_id)
            held = cast(Reservation, account.find(reservation_id))
            final = held.reserved if event is None else event.to_dict()
            if held.state != RESERVED:
                if not same_event(final, held.event):
                    raise RequestError(
                        f'reservation {reservation_id} of sweep "{held.sweep}" is already {held.state}, as another event'
                    )
                result[:] = [held]
                return []
            body: dict[str, Any] = {
                "reservation": reservation_id,
                "reason": reason,
                "released": same_event(final, NOTHING.to_dict()),
            }
            if not same_event(final, held.reserved):
                body |= self._other_event(account, held, cast(Event, event), reason)
            return [New(kind="commit", data_set=account.data_set, body=body)]

        self._chain.append(decide)
        return result[0] if result else cast(Reservation, _holder(self._chain.read(), reservation_id).find(reservation_id))

    def bind(self, data_set: str, digest: str) -> None:
        """Record the digest of the data set's source file, so that the file cannot be charged under a second name.

        A name may have several digests over time (a corrected file).

        Raises:
          RequestError: the digest belongs to another name that has charges.
        """
        checks.name(data_set=data_set)
        self._chain.append(lambda entries: _bind(Account.replay(data_set, entries), entries, digest))

    def _other_event(self, account: Account, held: Reservation, event: Event, reason: str) -> dict[str, Any]:
        budget = cast(Budget, account.budget)
        if not reason:
            raise FieldError("reason", reason, "must say why this is not what was reserved")
        others = [charge.event for charge in account.charges if charge.id != held.id]
        if event == NOTHING:
            cost, kept = Price(epsilon=0.0, rho=0.0, delta0=0.0, stated_epsilon=0.0, stated_delta=0.0), others
        else:
            stated = _cheaper(held, event, self._accountant())
            cost, kept = price(event, stated, budget, self._accountant()), [*others, event.to_dict()]
            if not cost.within(held.price):
                raise RequestError(f'sweep "{held.sweep}" cannot be committed as an event that costs more than reserved')
        beforehand = fixed_beforehand(kept, budget.delta, self._accountant())
        return {"event": event.to_dict(), "price": cost.to_dict(), "fixed_beforehand": beforehand}

    def _fixed_beforehand(self, account: Account, budget: Budget, event: Event) -> float | None:
        return fixed_beforehand([*account.events(), event.to_dict()], budget.delta, self._accountant())

    def _accountant(self) -> Accountant:
        if self._given is not None:
            return self._given
        from sweeper.privacy import accountant  # loads numpy when a price is not in its cache

        return cast(Accountant, accountant)


def _accounts(entries: list[Entry]) -> list[Account]:
    names = dict.fromkeys(entry.data_set for entry in entries)
    return [Account.replay(name, entries) for name in names]


def _holder(entries: list[Entry], reservation_id: str) -> Account:
    for entry in entries:
        if entry.kind == "reservation" and entry.body["id"] == reservation_id:
            return Account.replay(entry.data_set, entries)
    raise RequestError(f"no reservation {reservation_id} in this ledger: `sweeper ledger` lists them")


def _bind(account: Account, entries: list[Entry], digest: str | None) -> list[New]:
    """The row that binds a digest, if it is new; refused when a name with charges has it.

    The salt makes the row's hash, which later rows carry along, useless for guessing the digest of a private file.
    """
    if digest is None:
        return []
    if not isinstance(digest, str) or not digest:
        raise FieldError("digest", checks.MISSING, "must be the digest of the source file, as text")
    for other in _accounts(entries):
        if other.data_set != account.data_set and digest in other.digests and other.charges:
            raise RequestError(f'this file is already charged under "{other.data_set}"; use privacy.budget_of: {other.data_set}')
    if account.digests and account.digests[-1] == digest:
        return []
    return [New(kind="binding", data_set=account.data_set, body={"digest": digest, "salt": secrets.token_hex(16)})]


def _check_relation(account: Account, guarantee: Guarantee) -> None:
    for charge in account.charges:
        earlier = (charge.guarantee["relation"], charge.guarantee["unit"])
        if earlier != (guarantee.relation, guarantee.unit):
            raise RequestError(
                f'"{account.data_set}" is charged for {earlier[0]}/{earlier[1]}, this sweep speaks of {guarantee.relation}/'
                f"{guarantee.unit}: a budget speaks of one relation and one unit. Use another budget_of only for other data."
            )


def _cheaper(held: Reservation, event: Event, accountant: Accountant) -> Guarantee:
    """What a sweep that released less than it reserved can state, at the delta that it stated."""
    stated = _guarantee(held)
    try:
        epsilon = accountant.epsilon(event, stated.delta)
    except Exception:  # nothing was ever stated about this event: infinite is dearer than whatever was reserved
        epsilon = math.inf
    return replace(stated, epsilon=epsilon)


def _guarantee(charge: Reservation) -> Guarantee:
    """What is stated about the event charged: with another epsilon than the plan's if that event was cheaper or the plan wrong."""
    return Guarantee(**dict(charge.guarantee) | {"epsilon": charge.price.stated_epsilon})
