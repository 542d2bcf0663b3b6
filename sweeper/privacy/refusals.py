"""What the ledger says when it refuses: the figures, the rule, and the command that helps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from sweeper.checks import RequestError
from sweeper.privacy.account import RESERVED, Account, Reservation
from sweeper.privacy.budget import ADDITION_SHARE, APPROXIMATE_SHARE, Budget, Price, total
from sweeper.privacy.guarantee import Guarantee


class OverBudget(RequestError):
    """A sweep that would pass the budget of its data set. Nothing was reserved."""

    def __init__(self, text: str, budget: Budget, spent: float, asked: float, together: float) -> None:
        super().__init__(text, budget, spent, asked, together)
        self.budget, self.spent, self.asked, self.together = budget, spent, asked, together

    @property
    def left(self) -> float:
        return self.budget.epsilon - self.spent

    def __str__(self) -> str:
        return str(self.args[0])


def no_budget(data_set: str, guarantee: Guarantee | None) -> RequestError:
    epsilon = _round_up(4 * guarantee.epsilon, digits=2) if guarantee and 0 < guarantee.epsilon < math.inf else 8.0
    delta = 10 * guarantee.delta if guarantee and 0 < guarantee.delta < 0.1 else 1e-5
    return RequestError(
        f'data set "{data_set}" has no privacy budget, so nothing may be asked of it. Set one: '
        f"sweeper ledger set-budget {data_set} --epsilon {epsilon:.3g} --delta {delta:.0e}"
    )


def no_reservation(reservation_id: str) -> RequestError:
    return RequestError(f"no reservation {reservation_id} in this ledger: `sweeper ledger` lists them")


def started_already(held: Reservation) -> RequestError:
    return RequestError(
        f'reservation {held.id} of sweep "{held.sweep}" has started, so it may have opened data and stays charged. '
        f"Finish it: sweeper resume {held.sweep}. What is known of it: sweeper ledger recover {held.sweep}"
    )


def over_budget(account: Account, budget: Budget, asked: Price) -> OverBudget:
    """Of a sweep that is not charged yet."""
    spent, together = account.total(), account.total(asked)
    text = (
        f"over budget: {_standing(budget, spent)}; this sweep asks {asked.epsilon:.2f}, which makes {together:.2f}"
        + _unfinished(account)
        + _way_out(account, budget, asked, "Use a smaller privacy.epsilon, or raise the budget: ")
    )
    return OverBudget(text, budget, spent, asked.epsilon, together)


def unseal_over_budget(account: Account, budget: Budget, held: Reservation, asked: Price, delta: float) -> OverBudget:
    """Of unsealing a sweep: `asked` would take the place of what it costs now."""
    others = account.without(held.id)
    spent, together = account.total(), others.total(asked)
    text = (
        f'over budget: {_standing(budget, spent)}; showing all trials of sweep "{held.sweep}" costs {asked.stated_epsilon:.2f} (at '
        f"delta {delta:.1e}) in place of {held.price.epsilon:.2f}, which makes {together:.2f}" + _unfinished(account)
    )
    if math.isinf(asked.stated_epsilon):
        text += f". All its trials together have no finite price at delta {delta:.1e}, so it stays sealed"
    else:
        text += _way_out(others, budget, asked, "Raise the budget: ")
    return OverBudget(text, budget, spent, asked.epsilon, together)


def _standing(budget: Budget, spent: float) -> str:
    left = max(0.0, budget.epsilon - spent)
    return f'"{budget.data_set}" has epsilon {budget.epsilon:g} at delta {budget.delta:.0e}, spent {spent:.2f}, left {left:.2f}'


def _unfinished(account: Account) -> str:
    count = sum(charge.state == RESERVED for charge in account.charges)
    if not count:
        return ""
    return f" ({count} of {len(account.charges)} charges never committed: still running, or crashed; see sweeper ledger)"


def _way_out(account: Account, budget: Budget, asked: Price, advice: str) -> str:
    """The command that makes room, where there is one."""
    together, prices = account.total(asked), [*(charge.price for charge in account.charges), asked]
    command = f"sweeper ledger set-budget {budget.data_set}"
    if math.isfinite(together):
        return f". {advice}{command} --epsilon {math.ceil(together)} --delta {budget.delta:.0e}"
    if (larger := _larger(prices, budget)) is not None:
        deltas = math.fsum(p.stated_delta for p in prices)
        return (
            f". The sweeps' deltas add up to {deltas:.1e}, and half of the budget's is kept for them. Use a smaller privacy.delta, "
            f"or raise the budget: {command} --epsilon {larger.epsilon:g} --delta {larger.delta:.0e}"
        )
    return ". A sweep whose price is infinite fits no budget: give it more noise, or a smaller privacy.delta than the budget's"


def _larger(prices: Sequence[Price], budget: Budget) -> Budget | None:
    """The budget with the smallest delta, to one digit, at which one of the two filters has room; None where none has."""
    added = math.fsum(p.stated_delta for p in prices) / ADDITION_SHARE
    approximate = math.fsum(p.delta0 for p in prices) / APPROXIMATE_SHARE
    for delta in sorted(map(_round_up, (added, approximate))):
        if budget.delta < delta < 1:
            larger = replace(budget, delta=delta)
            epsilon = total(prices, larger)
            if math.isfinite(epsilon):
                return replace(larger, epsilon=max(budget.epsilon, math.ceil(epsilon)))
    return None


def _round_up(value: float, digits: int = 1) -> float:
    """The next number with so many significant digits."""
    if not 0 < value < math.inf:
        return value
    power = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return math.ceil(value / power - 1e-12) * power
