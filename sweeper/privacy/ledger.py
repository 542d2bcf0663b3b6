"""The ledger: what a sweep may cost is reserved before data is opened and committed after. A crash leaves a charge, never a hole.

    reserve -> start (the vault is sealed, data is about to be opened) -> commit [-> unseal -> commit_unsealed]
    reserve -> release, where it never started; recover, where it started and its vault proves that nothing ran

Append-only and hash-chained (chain.py), in an SQLite file or a PostgreSQL database. How charges add up, and why that holds for
sweeps chosen after seeing earlier answers, is in budget.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy import ledger_charges, ledger_unseal
from sweeper.privacy.account import COMMITTED, RELEASED, RESERVED, UNKNOWN_RUN, Account, Reservation
from sweeper.privacy.budget import Accountant, Budget, Spent, fixed_beforehand, price
from sweeper.privacy.chain import Broken, Chain, Entry, Head, New
from sweeper.privacy.events import NOTHING, Event
from sweeper.privacy.guarantee import Guarantee
from sweeper.privacy.refusals import OverBudget as OverBudget
from sweeper.privacy.refusals import no_budget, over_budget

T = TypeVar("T")


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
    """The ledger at a path or a URI (sqlite:///FILE, postgresql+psycopg://...), made when it is not there.

    Any number of processes may use it at once; a connection lives for one transaction.
    """

    def __init__(self, where: str | Path, *, accountant: Accountant | None = None) -> None:
        self._chain = Chain(where)
        self._given = accountant

    def __repr__(self) -> str:
        return f"Ledger({str(self._chain.address)!r})"

    # Reading: no event is priced, so neither numpy nor dp_accounting is loaded (`after` and `after_unseal` excepted).

    def verify(self, head: Head | None = None) -> Broken | None:
        """The first row that is not what was appended, or not the row that `head` quotes; None where all is well."""
        return self._chain.verify(head)

    def head(self) -> Head:
        """The last row now. Bills and receipts quote it, so that a rebuilt ledger shows."""
        return self._chain.head()

    def entries(self, data_set: str | None = None) -> list[Entry]:
        return [entry for entry in self._chain.read() if data_set in (None, entry.data_set)]

    def reservations(self, state: str | None = None) -> list[Reservation]:
        """All reservations in the order they were made, or those that are `reserved`, `committed` or `released`."""
        if state is not None:
            checks.one_of((RESERVED, COMMITTED, RELEASED), state=state)
        entries = self._chain.read()
        place = {entry.body["id"]: entry.seq for entry in entries if entry.kind == "reservation"}
        found = [r for account in Account.all(entries) for r in account.reservations if state in (None, r.state)]
        return sorted(found, key=lambda r: place[r.id])

    def find(self, reservation_id: str) -> Reservation:
        """One reservation.

        Raises:
          RequestError: there is none with this id.
        """
        return ledger_charges.holder(self._chain.read(), reservation_id)[1]

    def of_sweep(self, sweep: str) -> list[Reservation]:
        """All reservations under a sweep's name, the oldest first; other homes may use the name too."""
        return [r for r in self.reservations() if r.sweep == sweep]

    def data_sets(self) -> list[Standing]:
        return [
            Standing(
                data_set=account.data_set,
                budget=account.budget,
                spent=account.spent(),
                open_reservations=sum(r.state == RESERVED for r in account.reservations),
            )
            for account in Account.all(self._chain.read())
        ]

    def charged_as(self, digest: str) -> str | None:
        """The name under which a file is charged, if it is."""
        return next((a.data_set for a in Account.all(self._chain.read()) if digest in a.digests and a.charges), None)

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
            epsilon_if_fixed_beforehand=fixed_beforehand(
                [*account.events(), event.to_dict()], account.budget.delta, self._accountant()
            ),
            charges=len(account.charges) + 1,
        )

    def after_unseal(self, reservation_id: str, event: Event, guarantee: Guarantee) -> Spent:
        """What `spent` would say had `unseal` been called so. Changes nothing; does not ask whether the budget allows it."""
        return ledger_unseal.after(self._chain.read(), reservation_id, event, guarantee, self._accountant())

    def refusal(self, data_set: str, event: Event, guarantee: Guarantee) -> str | None:
        """Why `reserve` would refuse this event now, in its words; None where it would not."""
        account = Account.replay(data_set, self._chain.read())
        if account.budget is None:
            return str(no_budget(data_set, guarantee))
        asked = price(event, guarantee, account.budget, self._accountant())
        fits = account.total(asked) <= account.budget.epsilon
        return None if fits else str(over_budget(account, account.budget, asked))

    # Writing.

    def set_budget(self, data_set: str, epsilon: float, delta: float, who: str) -> Budget:
        """Set or change a budget. The first reservation fixes the filter's order: an order chosen after answers is no filter.

        A new delta prices the data set's charges again, at that delta. A budget below what is spent admits nothing more.
        """
        checks.name(data_set=data_set)
        checks.positive(epsilon=epsilon)
        checks.real(1e-6, 1e6, epsilon=epsilon)
        checks.probability(delta=delta)

        def decide(entries: list[Entry]) -> tuple[Budget, list[New]]:
            return ledger_charges.set_budget(Account.replay(data_set, entries), epsilon, delta, who, self._accountant())

        return self._append(decide)

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

        Guarantee: see sweeper.privacy.budget.total; sweeps are admitted here and nowhere else, each in one transaction.
        Relation, unit: those of `guarantee`, which must be those of the data set's other charges.

        Raises:
          OverBudget: with the charges so far it would pass the budget.
          RequestError: no budget is set, another relation or unit, or a file that is charged under another name.
        """
        checks.name(data_set=data_set, sweep=sweep)
        if not isinstance(event, Event):
            raise FieldError("event", event, "must be an event of sweeper.privacy.events")
        made = {"id": secrets.token_hex(16), "sweep": sweep, "fingerprint": fingerprint, "who": who}
        self._chain.append(
            lambda entries: ledger_charges.reserve(entries, data_set, made, event, guarantee, self._accountant(), source_digest)
        )
        return made["id"]

    def start(self, reservation_id: str, run: str) -> None:
        """Record the run that a reservation pays for: after its vault is sealed, before any data is opened.

        `run` is a random id that the vault keeps. The same run may start again (resume). A reservation without a start opened no
        data, so that it can be released.

        Raises:
          RequestError: another run has started on it, it was released, or it was committed as another event.
        """
        if not run or run == UNKNOWN_RUN:
            raise FieldError("run", run, "must be the random id of a vault")
        self._chain.append(lambda entries: ledger_charges.start(*ledger_charges.holder(entries, reservation_id), run))

    def commit(self, reservation_id: str, event: Event | None = None, *, reason: str = "") -> Reservation:
        """Close a reservation: charged as reserved, or as a cheaper `event`, or, with NOTHING, not at all.

        The caller answers for an `event` of its own: it must not have been chosen by looking at data or at answers, and NOTHING
        means that no data was opened; the reason is kept. The same commit again changes nothing.

        Raises:
          RequestError: no such reservation, committed otherwise before, dearer than reserved, no reason given, or NOTHING for
            one that has started.
        """
        return self._commit(reservation_id, event, reason, proven=False)

    def release(self, reservation_id: str, reason: str) -> Reservation:
        """Give back a reservation that never started: no data was opened on it.

        Raises:
          RequestError: it has started, or it is committed.
        """
        return self._commit(reservation_id, NOTHING, reason, proven=False)

    def recover(self, reservation_id: str, evidence: str) -> Reservation:
        """Give back a reservation that has started, because its vault proves that no trial of it ever ran.

        Proof is the one vault that was sealed for this reservation: it holds the reservation's id and the run that the ledger
        names (`started`; "unknown" where an earlier version started it), it is whole, and no trial in it was ever claimed: a
        claim is on disk before a worker is given data. No proof: a vault that is gone, damaged, restored from a copy or of
        another run, or that no result is to be seen. `evidence` says in words what was found, and is kept.

        Raises:
          RequestError: it is committed.
        """
        return self._commit(reservation_id, NOTHING, evidence, proven=True)

    def bind(self, data_set: str, digest: str) -> None:
        """Record the digest of the data set's source file, so that the file cannot be charged under a second name.

        A name may have several digests over time (a corrected file).

        Raises:
          RequestError: the digest belongs to another name that has charges.
        """
        checks.name(data_set=data_set)
        self._chain.append(lambda entries: ledger_charges.bind(entries, data_set, digest))

    def unseal(self, reservation_id: str, event: Event, guarantee: Guarantee, who: str) -> str:
        """Charge a committed sweep for showing all its trials, before they are shown, and return the id of the unsealing.

        `event` is all its trials together, at the most that there can be; `guarantee` is what is stated of it. The same call again
        changes nothing and returns the same id.
        Guarantee: see the end of sweeper/privacy/budget.py; who decides must have seen nothing but what is public.
        Relation, unit: those of `guarantee`, which must be those of the data set's charges.

        Raises:
          OverBudget: in place of what the sweep costs now, it would pass the budget.
          RequestError: the sweep is not committed, or unsealed as another event.
        """
        return self._append(
            lambda entries: ledger_unseal.unseal(entries, reservation_id, event, guarantee, who, self._accountant())
        )

    def commit_unsealed(self, reservation_id: str, event: Event, reason: str) -> Reservation:
        """Lower the charge of an unsealed sweep to that of the trials that were shown, once they are.

        Their number K never depended on data, and is public now. The same call again changes nothing.

        Raises:
          RequestError: it is not unsealed, it was lowered to another event before, or this one costs more than reserved.
        """
        self._chain.append(
            lambda entries: ledger_unseal.commit_unsealed(entries, reservation_id, event, reason, self._accountant())
        )
        return self.find(reservation_id)

    def _commit(self, reservation_id: str, event: Event | None, reason: str, *, proven: bool) -> Reservation:
        def decide(entries: list[Entry]) -> list[New]:
            account, held = ledger_charges.holder(entries, reservation_id)
            return ledger_charges.commit(account, held, event, reason, self._accountant(), proven=proven)

        self._chain.append(decide)
        return self.find(reservation_id)

    def _append(self, decide: Callable[[list[Entry]], tuple[T, list[New]]]) -> T:
        """Append what `decide` says, and return what else it made."""
        made: list[T] = []

        def rows(entries: list[Entry]) -> list[New]:
            result, new = decide(entries)
            made[:] = [result]
            return new

        self._chain.append(rows)
        return made[0]

    def _accountant(self) -> Accountant:
        if self._given is not None:
            return self._given
        from sweeper.privacy import accountant  # loads numpy when a price is not in its cache

        return cast(Accountant, accountant)
