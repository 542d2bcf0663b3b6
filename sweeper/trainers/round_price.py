"""What one round of a run with moving budgets costs, and the allowance from which rounds are paid.

A round is one minibatch with all that is asked of it. Its cost is settled before the batch is drawn, from released values alone,
and nothing of it is given back (privacy/filter.py says why). With several attempts on one minibatch the round is charged the
dearest curve to which any answers can lead: at each Renyi order the largest sum over all paths of attempts, which bounds their
adaptive composition at that order, and then this curve is amplified once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, reduce, singledispatch
from typing import TYPE_CHECKING, Any

from sweeper.privacy.amplification import amplified_renyi, zcdp
from sweeper.privacy.event import Event
from sweeper.privacy.filter import FilterState, RoundCost, conversion
from sweeper.privacy.mechanisms import AboveThresholdLaplace, AdaptiveQuantileStep, ExponentialMechanism, Gaussian, NoisyMin
from sweeper.trainers.budget_rule import AGAIN, REFINE

if TYPE_CHECKING:
    from sweeper.privacy.convolution import Floats

NOMINAL_DELTA = 1e-6  # picks the order. Any order is valid; at this delta the one picked wastes least
MOST_ORDER = 2_048
PASSES = 4  # of the search for it
EXACT = 8  # whole orders up to which a search's curve is read at every one
SPACING = 1.15  # ratio of the orders at which it is read beyond
LEAST_COST = 1e-30  # of a round: sums must move
LEAST_SHARE = 0.01  # of a starting round's cost that every round is charged at least, so that a run ends


@dataclass(frozen=True)
class Round:
    """What may be asked of one minibatch: the first attempt is gradients[0], if any, and searches[0].

    gradients[k]: the k-th look at the gradient. searches[k]: a search whose budget was raised k times since the first attempt.
    """

    gradients: tuple[Event, ...]
    searches: tuple[Event, ...]
    attempts: int = 1
    moves: tuple[str, ...] = ()  # from one attempt to the next


def dearest(asked: Round, price: Callable[[Event], Any], larger: Callable[[Any, Any], Any]) -> Any:
    """The largest sum of prices over all ways in which a round may go; prices may be curves, then at each order by itself."""

    @cache
    def attempts(looks: int, raises: int, left: int) -> Any:
        """The largest sum of what may still come, when the gradient was looked at and the search raised so often."""
        ways: list[tuple[Event | None, Event, Any]] = []
        if left and REFINE in asked.moves:
            ways.append((asked.gradients[looks], asked.searches[raises], attempts(looks + 1, raises, left - 1)))
        if left and AGAIN in asked.moves:
            ways.append((None, asked.searches[raises + 1], attempts(looks, raises + 1, left - 1)))
        return reduce(larger, (total(*way) for way in ways)) if ways else None

    def total(look: Event | None, search: Event, rest: Any) -> Any:
        known = price(search) if look is None else price(look) + price(search)
        return known if rest is None else known + rest

    return total(asked.gradients[0] if asked.gradients else None, asked.searches[0], attempts(1, 0, asked.attempts - 1))


@lru_cache(maxsize=4_096)
def renyi_cost(asked: Round, sampling_probability: float, order: int) -> float:
    """Renyi cost of a round at one whole order, both directions, record present against absent: rho in nats.

    Relation: zero-out, Poisson sampling. Source: amplification.py, tight; curves of the parts by event_renyi.py.
    """
    import numpy as np

    curve = dearest(asked, lambda event: _curve(event, order), np.maximum).tolist()  # by order
    return amplified_renyi(curve.__getitem__, sampling_probability, order, tight=True)


@lru_cache(maxsize=4_096)
def zcdp_cost(asked: Round) -> float | None:
    """rho of a round on the whole table; None where a part has no bound at all orders at once."""
    parts = {event: zcdp_of(event) for event in (*asked.gradients, *asked.searches)}
    if None in parts.values():
        return None
    return float(dearest(asked, lambda event: parts[event] or 0.0, max))


@lru_cache(maxsize=1_024)
def _curve(event: Event, order: int) -> Floats:
    """Renyi divergences of a part at all whole orders from 0 to `order`; 0 at the first two, which nothing reads.

    Beyond EXACT, between two orders that are read: the chord of (a - 1) D_a, which is convex in a for every pair, so that the
    chord of bounds is a bound.
    """
    import numpy as np

    orders = np.arange(order + 1)
    if isinstance(event, Gaussian) and not event.unprotected:
        return np.where(orders > 1, orders * (zcdp_of(event) or 0.0), 0.0)
    nodes = [at for at in _nodes() if at < order] + [order]
    moments = np.array([(at - 1) * _read(event, at) for at in nodes])
    values = np.interp(orders, nodes, moments) / np.maximum(orders - 1, 1) * (1 + 1e-15)  # more than rounding takes
    return np.where(orders > 1, np.where(np.isnan(values), math.inf, values), 0.0)


@cache
def _nodes() -> list[int]:
    """The orders at which a search's curve is read."""
    nodes = [2]
    while nodes[-1] < MOST_ORDER:
        nodes.append(nodes[-1] + 1 if nodes[-1] < EXACT else max(nodes[-1] + 1, math.floor(nodes[-1] * SPACING)))
    return nodes


@lru_cache(maxsize=65_536)
def _read(event: Event, order: int) -> float:
    from sweeper.privacy.event_renyi import renyi_cost as renyi_of_event

    rho, lost = renyi_of_event(event, order)
    if lost:
        raise NotImplementedError(f"{event.kind} holds outside an event of mass {lost:g} only, which a filter cannot amplify")
    return rho


@singledispatch
def zcdp_of(event: Event) -> float | None:
    """rho for which an event is rho-zCDP; None where none is known here."""
    return None


@zcdp_of.register(Gaussian)
@zcdp_of.register(AdaptiveQuantileStep)
def _(event: Gaussian | AdaptiveQuantileStep) -> float | None:
    return 1 / (2 * event.noise_multiplier**2) if not event.unprotected else math.inf


@zcdp_of.register
def _(event: ExponentialMechanism) -> float | None:
    return event.epsilon**2 / 8  # bounded range: Cesar and Rogers 2021


@zcdp_of.register
def _(event: NoisyMin) -> float | None:
    return event.epsilon**2 / (8 if event.noise == "gumbel" else 2)


@zcdp_of.register
def _(event: AboveThresholdLaplace) -> float | None:
    return event.epsilon**2 / 2  # pure DP: Bun and Steinke 2016, Proposition 3.3


def order_for(asked: Round, sampling_probability: float, rounds: int) -> int:
    """A whole order at which `rounds` such rounds convert to nearly the least epsilon at NOMINAL_DELTA.

    As if the round were of zCDP: of what its curve says at order 2, then at the order which that gives, and so on. From there
    downhill.
    """
    order = 2
    for _ in range(PASSES):
        prices = {event: _read(event, order) for event in (*asked.gradients, *asked.searches)}
        order = _zcdp_order(dearest(asked, prices.__getitem__, max) / order, sampling_probability, rounds)

    def epsilon(order: int) -> float:
        return rounds * renyi_cost(asked, sampling_probability, order) + conversion(order, NOMINAL_DELTA)

    step = -1 if order > 2 and epsilon(order - 1) < epsilon(order) else 1
    while 2 <= order + step <= MOST_ORDER and epsilon(order + step) < epsilon(order):
        order += step
    return order


def _zcdp_order(rho: float, sampling_probability: float, rounds: int) -> int:
    """The best whole order for rounds of this zCDP. The search for it doubles, then halves."""

    @cache
    def epsilon(order: int) -> float:
        return rounds * amplified_renyi(zcdp(rho), sampling_probability, order, tight=True) + conversion(order, NOMINAL_DELTA)

    low, high = 2, 4
    while high < MOST_ORDER and epsilon(high) < epsilon(high // 2):
        low, high = high // 2, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if epsilon(middle + 1) < epsilon(middle) else (low, middle)
    return low


class Allowance:
    """A privacy filter whose capacity is given: rounds are admitted while the sum of their costs, rounded up, stays within it.

    Guarantee: the sum is at most `capacity` on every path, each cost free to depend on all earlier answers: what is released is
    RenyiBound(order, capacity), or ZeroConcentrated(capacity) where costs are values of rho. It is filter.RenyiFilter, and
    filter.RhoFilter, before capacity is converted to an epsilon at a delta. Relation: zero-out. Source: Feldman and Zrnic 2021.
    """

    def __init__(self, capacity: float, least: float) -> None:
        """least: what a round is charged at the least."""
        self.capacity, self._least, self.state = capacity, least, FilterState()

    def admits(self, cost: float) -> bool:
        """Charge a round, before it starts; False, and nothing charged, where it does not fit."""
        after = self.state.plus(RoundCost(rho=max(cost, self._least))) if math.isfinite(cost) else None
        if after is None or after.rho > self.capacity:
            return False
        self.state = after
        return True

    @property
    def left(self) -> float:
        """The share of the capacity that is left."""
        return max(0.0, 1.0 - self.state.rho / self.capacity)
