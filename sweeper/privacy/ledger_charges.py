"""What setting a budget, reserving, committing and binding append, given the rows so far. Nothing here touches a file."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sweeper import checks
from sweeper.checks import FieldError, RequestError
from sweeper.privacy.account import RELEASED, RESERVED, UNKNOWN_RUN, Account, Reservation, same_event
from sweeper.privacy.budget import Accountant, Budget, Price, filter_order, fixed_beforehand, price, unsealed
from sweeper.privacy.chain import Entry, New
from sweeper.privacy.events import NOTHING, Event, event_from_dict
from sweeper.privacy.guarantee import Guarantee
from sweeper.privacy.refusals import no_budget, no_reservation, over_budget, started_already

FREE = Price(epsilon=0.0, rho=0.0, delta0=0.0, stated_epsilon=0.0, stated_delta=0.0)


def set_budget(account: Account, epsilon: float, delta: float, who: str, accountant: Accountant) -> tuple[Budget, list[New]]:
    """A budget, with the charges' prices at its delta where that is a new one.

    The filter's order is fixed with the first reservation: before it nobody has seen an answer that could have chosen it.
    """
    old = account.budget
    order = old.order if old and account.reservations else filter_order(epsilon, delta)
    new = Budget(data_set=account.data_set, epsilon=float(epsilon), delta=float(delta), order=order)
    prices, beforehand = {}, account.fixed_beforehand
    if old and account.charges and old.delta != new.delta:
        prices = {charge.id: _again(account, charge, new, accountant).to_dict() for charge in account.charges}
        beforehand = fixed_beforehand(account.events(), new.delta, accountant)
    body = new.to_dict() | {"who": who, "prices": prices, "fixed_beforehand": beforehand}
    del body["data_set"]
    return new, [New(kind="budget", data_set=account.data_set, body=body)]


def reserve(
    entries: list[Entry], data_set: str, made: Mapping[str, str], event: Event, guarantee: Guarantee, accountant: Accountant,
    source_digest: str | None,
) -> list[New]:  # fmt: skip
    """A reservation; `made` has its id, sweep, fingerprint and who asked.

    Raises:
      RequestError: see Ledger.reserve.
    """
    account = Account.replay(data_set, entries)
    if account.budget is None:
        raise no_budget(data_set, guarantee)
    check_relation(account, guarantee)
    bound = bind(entries, data_set, source_digest or (account.digests[-1] if account.digests else None))
    asked = price(event, guarantee, account.budget, accountant)
    if not account.total(asked) <= account.budget.epsilon:
        raise over_budget(account, account.budget, asked)
    body = dict(made) | {
        "event": event.to_dict(),
        "guarantee": guarantee.to_dict(),
        "price": asked.to_dict(),
        "fixed_beforehand": fixed_beforehand([*account.events(), event.to_dict()], account.budget.delta, accountant),
    }
    return [*bound, New(kind="reservation", data_set=data_set, body=body)]


def commit(
    account: Account, held: Reservation, event: Event | None, reason: str, accountant: Accountant, *, proven: bool
) -> list[New]:
    """The end of a reservation, or nothing to append where it ended so before. `proven`: a started one may be given back.

    Raises:
      RequestError: see Ledger.commit.
    """
    final = held.reserved if event is None else event.to_dict()
    if held.state != RESERVED:
        if held.unsealed and event is None:  # it was committed as reserved, and more is charged since
            return []
        if not same_event(final, held.event):
            raise RequestError(f'reservation {held.id} of sweep "{held.sweep}" is already {held.state}, as another event')
        return []
    nothing = same_event(final, NOTHING.to_dict())
    if nothing and held.started and not proven:
        raise started_already(held)
    body: dict[str, Any] = {"reservation": held.id, "reason": reason, "released": nothing}
    if event is not None and not same_event(final, held.reserved):
        body |= _other_event(account, held, event, reason, accountant)
    return [New(kind="commit", data_set=account.data_set, body=body)]


def start(account: Account, held: Reservation, run: str) -> list[New]:
    """The run that a reservation pays for, or nothing to append where it is recorded.

    Raises:
      RequestError: see Ledger.start.
    """
    if held.started == run:
        return []
    if held.state == RELEASED or not same_event(held.event, held.reserved):
        raise RequestError(f'reservation {held.id} of sweep "{held.sweep}" is {held.state}, so it pays for no run. Reserve again')
    if held.started not in ("", UNKNOWN_RUN):
        raise RequestError(
            f'reservation {held.id} of sweep "{held.sweep}" pays for one run, and another one has started. Finish that one '
            f"(sweeper resume {held.sweep}), or reserve again"
        )
    return [New(kind="start", data_set=account.data_set, body={"reservation": held.id, "run": run})]


def bind(entries: list[Entry], data_set: str, digest: str | None) -> list[New]:
    """The row that binds a digest, if it is new; refused when another name with charges has it.

    The salt makes the row's hash, which later rows carry along, useless for guessing the digest of a private file.
    """
    if digest is None:
        return []
    if not isinstance(digest, str) or not digest:
        raise FieldError("digest", checks.MISSING, "must be the digest of the source file, as text")
    accounts = {account.data_set: account for account in Account.all(entries)}
    for other in accounts.values():
        if other.data_set != data_set and digest in other.digests and other.charges:
            raise RequestError(f'this file is already charged under "{other.data_set}"; use privacy.budget_of: {other.data_set}')
    own = accounts.get(data_set)
    if own is not None and own.digests and own.digests[-1] == digest:
        return []
    return [New(kind="binding", data_set=data_set, body={"digest": digest, "salt": secrets.token_hex(16)})]


def holder(entries: list[Entry], reservation_id: str) -> tuple[Account, Reservation]:
    """The account that holds a reservation, and the reservation."""
    for entry in entries:
        if entry.kind == "reservation" and entry.body["id"] == reservation_id:
            account = Account.replay(entry.data_set, entries)
            found = account.find(reservation_id)
            if found is not None:
                return account, found
    raise no_reservation(reservation_id)


def check_relation(account: Account, guarantee: Guarantee) -> None:
    """One budget speaks of one neighbour relation and one unit."""
    for charge in account.charges:
        if (charge.relation, charge.unit) != (guarantee.relation, guarantee.unit):
            raise RequestError(
                f'"{account.data_set}" is charged for {charge.relation}/{charge.unit}, this sweep speaks of {guarantee.relation}/'
                f"{guarantee.unit}: a budget speaks of one relation and one unit. Use another budget_of only for other data."
            )


def guarantee_of(charge: Reservation) -> Guarantee:
    """What is stated about the event charged: with another epsilon than the plan's if that event was cheaper or the plan wrong."""
    return Guarantee(**dict(charge.guarantee) | {"epsilon": charge.price.stated_epsilon})


def stated_guarantee(charge: Reservation) -> Guarantee:
    """The guarantee as it was stated."""
    epsilon = charge.guarantee["epsilon"]
    return Guarantee(**dict(charge.guarantee) | {"epsilon": math.inf if epsilon is None else epsilon})


def _again(account: Account, charge: Reservation, budget: Budget, accountant: Accountant) -> Price:
    """The price of what is charged, at another budget's delta."""
    event = event_from_dict(charge.event)
    if charge.sealed_price is None:
        return price(event, guarantee_of(charge), budget, accountant)
    return unsealed(charge.sealed_price, event, stated_guarantee(charge), account.place(charge.id), budget, accountant)


def _other_event(account: Account, held: Reservation, event: Event, reason: str, accountant: Accountant) -> dict[str, Any]:
    budget = account.budget
    assert budget is not None, "a reservation was made without a budget"
    if not reason:
        raise FieldError("reason", reason, "must say why this is not what was reserved")
    others: Sequence[Mapping[str, Any]] = account.without(held.id).events()
    if event == NOTHING:
        cost, kept = FREE, others
    else:
        cost = price(event, _cheaper(held, event, accountant), budget, accountant)
        kept = [*others, event.to_dict()]
        if not cost.within(held.price):
            raise RequestError(f'sweep "{held.sweep}" cannot be committed as an event that costs more than reserved')
    return {
        "event": event.to_dict(),
        "price": cost.to_dict(),
        "fixed_beforehand": fixed_beforehand(kept, budget.delta, accountant),
    }


def _cheaper(held: Reservation, event: Event, accountant: Accountant) -> Guarantee:
    """What a sweep that released less than it reserved can state, at the delta that it stated."""
    stated = guarantee_of(held)
    try:
        epsilon = accountant.epsilon(event, stated.delta)
    except Exception:  # nothing was ever stated about this event: infinite is dearer than whatever was reserved
        epsilon = math.inf
    return replace(stated, epsilon=epsilon)
