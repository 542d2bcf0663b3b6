"""Privacy filters: budgets for runs that choose the price of the next round after seeing the earlier answers.

How a trainer uses one (DP-BLSGD; a round is ONE minibatch with all that is asked of it, priced by amplification.py):

    state = filter.start()
    while (after := filter.admit(state, RoundCost(rho=amplified_renyi(attempt, q, filter.order, tight=True)))) is not None:
        state = after        # saved before the batch is drawn: a crash leaves a charge, never a hole
        ...                  # draw the batch, ask, update w; budgets of the next attempt may depend on all answers so far
    return w                 # the next round does not fit

Why one order, fixed before the run. For one pair of neighbouring tables and one order a, let X_t be the product over the first t
rounds of (p_s/q_s)^a exp(-(a-1) rho_s), answers drawn from q. Given the past, a round multiplies it by at most 1 on average,
because rho_s was settled before the round. So its mean is at most 1, and with sum rho_s <= R on every path the whole run has
D_a <= R (Feldman and Zrnic 2021). That argument has one a. A rule "admit while SOME order still has room" uses one order on one
path and another on another path: two runs, each of which spends all of delta on its own answers; their deltas add
(tests/privacy/test_filter.py: 1.9 times delta).

Why nothing is given back. rho_s must be settled before the round. A price that falls when the answers turn out cheap (a search that
ended early, a retry that was not needed, an empty batch, a step that was not taken) is settled by the answers: the factor above
then exceeds 1 on average, since the answers that are not refunded are the revealing ones. Refunding a retry that did not happen
lets a run try again and again at a cheap price until the dear answer comes up, once for every chance (same file: five tries, 5.3
times delta).

A round that was refused is over before it began: nothing was asked, nothing is charged. A cheaper one may still be asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Protocol

from sweeper import checks
from sweeper.checks import FieldError


@dataclass(frozen=True, kw_only=True)
class RoundCost:
    """A round is delta0-approximate (order, rho)-Renyi DP in both directions, at the filter's order, whatever came before it."""

    rho: float  # nats; may be infinite, which never fits
    delta0: float = 0.0

    def __post_init__(self) -> None:
        if not self.rho >= 0:
            raise FieldError("rho", self.rho, "must be at least 0")
        checks.real(0.0, 1.0, delta0=self.delta0)


@dataclass(frozen=True, kw_only=True)
class FilterState:
    """What was admitted so far. Sums are rounded up, so that they are never below the exact ones."""

    rho: float = 0.0
    delta0: float = 0.0
    admitted: int = 0

    def __post_init__(self) -> None:
        checks.non_negative(rho=self.rho, delta0=self.delta0)
        checks.whole(0, admitted=self.admitted)

    def plus(self, cost: RoundCost) -> FilterState:
        return FilterState(rho=_up(self.rho, cost.rho), delta0=_up(self.delta0, cost.delta0), admitted=self.admitted + 1)


def _up(total: float, more: float) -> float:
    return math.nextafter(total + more, math.inf) if more else total


class _Settings(Protocol):
    kind: ClassVar[str]

    def to_dict(self) -> dict[str, Any]: ...


def saved(settings: _Settings, state: FilterState) -> dict[str, Any]:
    """A JSON object from which the run goes on exactly where it was. Written before the admitted round starts."""
    return {"filter": settings.to_dict(), "state": asdict(state)}


def resumed(settings: _Settings, data: Mapping[str, Any]) -> FilterState:
    """The state that `saved` wrote.

    Raises:
      FieldError: it was written under other settings. An order or a budget changed after answers were seen is no filter.
    """
    if set(data) != {"filter", "state"} or set(data["state"]) != {f.name for f in fields(FilterState)}:
        raise FieldError("state", dict(data), "is not what a filter saved")  # a missing sum must not read as 0
    before, now = dict(data["filter"]), settings.to_dict()
    for key in ("kind", *sorted(before.keys() | now.keys())):
        if before.get(key) != now.get(key):
            raise FieldError(
                f"{settings.kind}.{key}",
                now.get(key),
                f"was {checks.show(before.get(key))} when this run was saved, and may not change within a run",
                "Resume with the settings that it started with.",
            )
    return FilterState(**data["state"])


@dataclass(frozen=True, kw_only=True)
class RenyiFilter:
    """Admits rounds while the sum of their Renyi costs at ONE order stays within what (epsilon, delta) allows.

    Guarantee: everything the admitted rounds release is (epsilon, delta)-DP, each round and its cost free to depend on all earlier
      answers, and the run free to stop when it likes. Stopping early gives no smaller guarantee.
    Relation: that of the costs (zero-out here). Units: nats.
    Settings: `order` is public and fixed before the run (`best_order`). `approximate_share` of delta is set aside for the sum of
      the rounds' delta0; with 0 only rounds of delta0 = 0 fit. The share is fixed too: letting rho use what the delta0 of the path
      left over admits paths that fail in rho and paths that fail in delta0, each with nearly all of delta (budget.py).
    Source: Feldman and Zrnic 2021; conversion Canonne, Kamath, Steinke 2020, Proposition 12, at (1 - approximate_share) delta. With
      delta0: the parts p'_s <= p_s of mass 1 - delta0_s satisfy the argument above, and what they miss has mass at most the largest
      sum of delta0 on a path.

    >>> filter = RenyiFilter(order=10.0, epsilon=2.0, delta=1e-5)
    >>> state, rounds = filter.start(), 0
    >>> while (after := filter.admit(state, RoundCost(rho=0.2))) is not None:
    ...     state, rounds = after, rounds + 1
    >>> rounds, round(filter.capacity, 4)
    (5, 1.082)
    """

    kind: ClassVar[str] = "renyi-filter"

    order: float
    epsilon: float
    delta: float
    approximate_share: float = 0.0

    def __post_init__(self) -> None:
        checks.real(1.0, open_low=True, order=self.order)
        checks.positive(epsilon=self.epsilon)
        checks.probability(delta=self.delta)
        checks.real(0.0, 1.0, open_high=True, approximate_share=self.approximate_share)
        if self.capacity <= 0:
            raise FieldError(
                "order",
                self.order,
                f"leaves nothing of epsilon = {self.epsilon:.6g} at delta = {self.delta:.6g}: its conversion costs more",
                f"Try order: {best_order(self.epsilon, self.delta, approximate_share=self.approximate_share):.4g}.",
            )

    @cached_property
    def capacity(self) -> float:
        """The largest sum of rho, nats."""
        return capacity(self.order, self.epsilon, (1 - self.approximate_share) * self.delta)

    def start(self) -> FilterState:
        return FilterState()

    def admit(self, state: FilterState, cost: RoundCost) -> FilterState | None:
        """The state with the round charged, to be saved before the round starts; None where it does not fit."""
        after = state.plus(cost) if math.isfinite(cost.rho) else None
        fits = after is not None and after.rho <= self.capacity and after.delta0 <= self.approximate_share * self.delta
        return after if fits else None

    def reading(self, state: FilterState) -> float:
        """Epsilon that rounds of these costs, fixed beforehand, would have at delta. For display: the promise is `epsilon`."""
        if state.admitted == 0:
            return 0.0
        return max(0.0, state.rho + conversion(self.order, (1 - self.approximate_share) * self.delta))

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind} | asdict(self)


@dataclass(frozen=True, kw_only=True)
class RhoFilter:
    """Admits full-batch rounds while the sum of their zCDP costs stays within what (epsilon, delta) allows.

    Guarantee: everything the admitted rounds release is (epsilon, delta)-DP, each round and its rho free to depend on all earlier
      answers. A round is one call here (a gradient, a search): without sampling nothing is amplified together.
    Relation: that of the costs (zero-out here). Units: nats.
    Why the best order may be taken: a rho-zCDP round is (a, a rho)-Renyi DP at EVERY a > 1, and sum rho <= rho_max on every path
      keeps the filters of all orders within a rho_max at once. The run is rho_max-zCDP as a whole, and the order that converts
      rho_max best depends on (epsilon, delta) only, not on any answer. Renyi costs at one order have no such bound elsewhere.
    Source: Feldman and Zrnic 2021 at every order; Canonne, Kamath, Steinke 2020, Proposition 12, minimised over orders: rho_max is
      the largest (epsilon - conversion(a)) / a.

    >>> round(RhoFilter(epsilon=1.0, delta=1e-5).rho_max, 5)
    0.03056
    """

    kind: ClassVar[str] = "rho-filter"

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        checks.positive(epsilon=self.epsilon)
        checks.probability(delta=self.delta)

    @cached_property
    def rho_max(self) -> float:
        """The largest sum of rho, nats."""
        order = best_order(self.epsilon, self.delta)
        return math.nextafter(capacity(order, self.epsilon, self.delta) / order, 0.0)

    def start(self) -> FilterState:
        return FilterState()

    def admit(self, state: FilterState, rho: float) -> FilterState | None:
        """The state with a round of this zCDP cost charged; None where it does not fit."""
        cost = RoundCost(rho=rho)
        after = state.plus(cost) if math.isfinite(cost.rho) else None
        return after if after is not None and after.rho <= self.rho_max else None

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind} | asdict(self)


def conversion(order: float, delta: float) -> float:
    """What (order, R)-Renyi DP adds to R to be (R + conversion, delta)-DP (Canonne, Kamath, Steinke 2020, Proposition 12)."""
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def capacity(order: float, epsilon: float, delta: float) -> float:
    """The largest R for which (order, R)-Renyi DP is (epsilon, delta)-DP by `conversion`, rounded down; may be negative."""
    added = conversion(order, delta)
    return epsilon - added - 1e-13 * (epsilon + abs(added))


def best_order(
    epsilon: float, delta: float, *, approximate_share: float = 0.0, round_cost: Callable[[int], float] | None = None
) -> float:
    """The order at which the most rounds fit into (epsilon, delta), found from public numbers before the run.

    Any order is valid; this one wastes least. Without `round_cost`: rounds whose cost grows in proportion to the order (zCDP,
    and subsampled Gaussians of large noise). With `round_cost`, the Renyi cost of a typical round: the best whole order, at which
    amplified_renyi interpolates nothing.
    """
    checks.positive(epsilon=epsilon)
    checks.probability(delta=delta)
    checks.real(0.0, 1.0, open_high=True, approximate_share=approximate_share)
    converted = (1 - approximate_share) * delta
    if round_cost is None:
        return 1 + math.exp(_peak(lambda x: capacity(1 + math.exp(x), epsilon, converted) / (1 + math.exp(x)), -14.0, 21.0))
    return _best_whole(round_cost, epsilon, converted, best_order(epsilon, converted))


def _best_whole(round_cost: Callable[[int], float], epsilon: float, delta: float, guess: float) -> float:
    """Log-spaced whole orders around the guess, zoomed in on until they are next to each other."""
    low, high = 2, max(64, math.ceil(4 * guess))
    while True:
        steps = 24
        orders = sorted({round(low * (high / low) ** (i / steps)) for i in range(steps + 1)})
        costs = {order: max(round_cost(order), 1e-300) for order in orders}
        best = max(orders, key=lambda order: capacity(order, epsilon, delta) / costs[order])
        at = orders.index(best)
        closer = orders[max(at - 1, 0)], orders[min(at + 1, len(orders) - 1)]
        if closer == (low, high) or closer[1] - closer[0] <= 2:
            return float(best)
        low, high = closer


def _peak(gain: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with one peak is largest."""
    for _ in range(24):
        points = [low + (high - low) * i / 16 for i in range(17)]
        at = max(range(17), key=lambda i: gain(points[i]))
        low, high = points[max(at - 1, 0)], points[min(at + 1, 16)]
    return (low + high) / 2
