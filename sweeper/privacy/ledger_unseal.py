"""What unsealing a sweep appends: the charge of all its trials in place of the charge of its winner. Why so: budget.py."""

from __future__ import annotations

import secrets
from typing import Any

from sweeper.checks import FieldError, RequestError
from sweeper.privacy.account import COMMITTED, Account, Reservation, same_event
from sweeper.privacy.budget import Accountant, Budget, Price, Spent, fixed_beforehand, unseal_delta, unsealed
from sweeper.privacy.chain import Entry, New
from sweeper.privacy.events import Event
from sweeper.privacy.guarantee import Guarantee
from sweeper.privacy.ledger_charges import check_relation, holder, stated_guarantee
from sweeper.privacy.refusals import unseal_over_budget


def unseal(
    entries: list[Entry], reservation_id: str, event: Event, guarantee: Guarantee, who: str, accountant: Accountant
) -> tuple[str, list[New]]:
    """The id of the unsealing, and what to append.

    Raises:
      RequestError: see Ledger.unseal.
    """
    account, held = holder(entries, reservation_id)
    if held.unsealed:
        (made,) = (e for e in entries if e.kind == "unseal" and e.body["id"] == held.unsealed)
        if not same_event(made.body["event"], event.to_dict()):
            raise RequestError(f'sweep "{held.sweep}" is unsealed already, as another event')
        return held.unsealed, []
    budget, asked = _asked(account, held, event, guarantee, accountant)
    delta = unseal_delta(account.place(held.id), budget)
    if not account.without(held.id).total(asked) <= budget.epsilon:
        raise unseal_over_budget(account, budget, held, asked, delta)
    body: dict[str, Any] = {
        "id": secrets.token_hex(16),
        "reservation": held.id,
        "who": who,
        "event": event.to_dict(),
        "guarantee": guarantee.to_dict(),
        "delta": delta,
        "price": asked.to_dict(),
        "fixed_beforehand": _beforehand(account, held, event, budget, accountant),
    }
    return body["id"], [New(kind="unseal", data_set=account.data_set, body=body)]


def commit_unsealed(entries: list[Entry], reservation_id: str, event: Event, reason: str, accountant: Accountant) -> list[New]:
    """The charge of the trials that were shown, in place of the charge of the most that could have been.

    Raises:
      RequestError: see Ledger.commit_unsealed.
    """
    account, held = holder(entries, reservation_id)
    if not held.unsealed:
        raise RequestError(f'sweep "{held.sweep}" is not unsealed')
    if not reason:
        raise FieldError("reason", reason, "must say why this is not what was reserved")
    if same_event(event.to_dict(), held.event):
        return []
    kinds = [e.kind for e in entries if e.body.get("reservation") == held.id]
    if kinds[-1] != "unseal":
        raise RequestError(f'what was unsealed of sweep "{held.sweep}" is committed already, as another event')
    budget, cost = _price(account, held, event, stated_guarantee(held), accountant)
    if not cost.within(held.price):
        raise RequestError(
            f'what was unsealed of sweep "{held.sweep}" cannot be committed as an event that costs more than reserved'
        )
    body: dict[str, Any] = {
        "reservation": held.id,
        "reason": reason,
        "released": False,
        "event": event.to_dict(),
        "price": cost.to_dict(),
        "fixed_beforehand": _beforehand(account, held, event, budget, accountant),
    }
    return [New(kind="commit", data_set=account.data_set, body=body)]


def after(entries: list[Entry], reservation_id: str, event: Event, guarantee: Guarantee, accountant: Accountant) -> Spent:
    """What the data set would have spent."""
    account, held = holder(entries, reservation_id)
    if held.unsealed:
        return account.spent()
    budget, asked = _asked(account, held, event, guarantee, accountant)
    return Spent(
        epsilon=account.without(held.id).total(asked),
        delta=budget.delta,
        epsilon_if_fixed_beforehand=_beforehand(account, held, event, budget, accountant),
        charges=len(account.charges),
    )


def _asked(account: Account, held: Reservation, event: Event, guarantee: Guarantee, accountant: Accountant) -> tuple[Budget, Price]:
    if held.state != COMMITTED:
        raise RequestError(f'sweep "{held.sweep}" is {held.state}, not committed: only a sweep that has ended can be unsealed')
    check_relation(account, guarantee)
    return _price(account, held, event, guarantee, accountant)


def _price(account: Account, held: Reservation, event: Event, guarantee: Guarantee, accountant: Accountant) -> tuple[Budget, Price]:
    budget, sealed = account.budget, held.sealed_price or held.price
    assert budget is not None, "a reservation was made without a budget"
    if not isinstance(event, Event):
        raise FieldError("event", event, "must be an event of sweeper.privacy.events")
    return budget, unsealed(sealed, event, guarantee, account.place(held.id), budget, accountant)


def _beforehand(account: Account, held: Reservation, event: Event, budget: Budget, accountant: Accountant) -> float | None:
    others = account.without(held.id).events()
    return fixed_beforehand([*others, event.to_dict()], budget.delta, accountant)
