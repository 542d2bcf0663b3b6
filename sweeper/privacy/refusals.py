"""What the ledger says when it refuses: the figures, the rule, and the command that helps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from sweeper.checks import RequestError
from sweeper.privacy.account import RESERVED, Account
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
    epsilon = 4 * guarantee.epsilon if guarantee and 0 < guarantee.epsilon < math.inf else 8.0
    delta = 10 * guarantee.delta if guarantee and 0 < guarantee.delta < 0.1 else 1e-5
    return RequestError(
        f'data set "{data_set}" has no privacy budget, so nothing may be asked of it. Set one: '
        f"sweeper ledger set-budget {data_set} --epsilon {epsilon:.3g} --delta {delta:.0e}"
    )


def over_budget(account: Account, budget: Budget, asked: Price) -> OverBudget:
    spent, together = account.total(), account.total(asked)
    prices = [*(charge.price for charge in account.charges), asked]
    text = (
        f'over budget: "{budget.data_set}" has epsilon {budget.epsilon:g} at delta {budget.delta:.0e}, spent {spent:.2f}, '
        f"left {max(0.0, budget.epsilon - spent):.2f}; this sweep asks {asked.epsilon:.2f}, which makes {together:.2f}"
    )
    unfinished = sum(charge.state == RESERVED for charge in account.charges)
    if unfinished:
        text += f" ({unfinished} of {len(account.charges)} charges never committed: still running, or crashed; see sweeper ledger)"
    command = f"sweeper ledger set-budget {budget.data_set}"
    if math.isfinite(together):
        text += ". Use a smaller privacy.epsilon, or raise the budget: "
        text += f"{command} --epsilon {math.ceil(together)} --delta {budget.delta:.0e}"
    elif (larger := _larger(prices, budget)) is not None:
        deltas = math.fsum(p.stated_delta for p in prices)
        text += f". The sweeps' deltas add up to {deltas:.1e}, and half of the budget's is kept for them. "
        text += "Use a smaller privacy.delta, or raise the budget: "
        text += f"{command} --epsilon {larger.epsilon:g} --delta {larger.delta:.0e}"
    else:
        text += ". A sweep whose price is infinite fits no budget: give it more noise, or a smaller privacy.delta than the budget's"
    return OverBudget(text, budget, spent, asked.epsilon, together)


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


def _round_up(value: float) -> float:
    """The next number with one significant digit."""
    if not 0 < value < math.inf:
        return value
    power = 10.0 ** math.floor(math.log10(value))
    return math.ceil(value / power - 1e-12) * power
