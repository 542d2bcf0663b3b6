"""The budget of a data set and the one rule by which its sweeps add up.

The rule. One charge costs its exact epsilon at the budget's delta. Two or more cost what a Renyi filter at one order a, fixed
when the budget was first set, says of ALL of them (Feldman and Zrnic 2021): every charge is d_i-approximate (a, r_i)-Renyi DP,
R = sum r_i, D = sum d_i, D at most a tenth of delta, and

    epsilon = R + log((a - 1)/a) - (log(0.9 delta) + log a)/(a - 1)      (Canonne, Kamath, Steinke 2020, Proposition 12).

Why not compose the loss distributions? A later sweep is designed by somebody who has seen the earlier answers, and the numerical
composition of mechanisms chosen that way bounds nothing: it is a theorem about a list fixed beforehand. The filter is a
supermartingale at its order, whatever the choices.

Why may one charge use its exact value? Nothing was seen before it, so it is a fixed mechanism M. Before anybody looks, its event
says whether the filter's value of M alone is within the budget. If not, no second charge is ever admitted and what happened is M
alone, within budget by its exact value. If it is, every admission satisfies the filter over all charges, M included.

Why is a tenth of delta set aside, instead of converting R at delta - D with the D that was spent? Because then the choice between
a charge with r and a charge with d could itself depend on earlier answers, and the two errors are averages under different
measures: the Renyi part under Q L^a e^{-(a-1)R}, the approximate part under P. They can both be nearly delta, on different
branches (tests/privacy/test_budget_rule.py builds one: true delta 1.9 times the stated one). With a fixed share they add up to
0.9 delta + 0.1 delta. Where every d_i is 0 the share costs log(1/0.9)/(a - 1), 0.04 at epsilon 8 and delta 1e-4.

Raising a budget after seeing answers makes a new promise; the argument then holds for the largest budget anybody would have set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from sweeper import checks
from sweeper.privacy.events import Composed, Event, event_from_dict
from sweeper.privacy.guarantee import Guarantee

APPROXIMATE_SHARE = 0.1  # of the budget's delta, for the sum of the charges' delta0


class Accountant(Protocol):
    """What sweeper.privacy.accountant offers."""

    def epsilon(self, event: Event, delta: float) -> float:
        """Tight epsilon of an event at delta, nats; may be infinite."""
        ...

    def renyi(self, event: Event, order: float) -> tuple[float, float]:
        """(rho, delta0): the event is delta0-approximate (order, rho)-Renyi DP in both directions."""
        ...


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What may be spent on a data set. The order is fixed with its first budget."""

    data_set: str
    epsilon: float
    delta: float
    order: float

    def __post_init__(self) -> None:
        checks.name(data_set=self.data_set)
        checks.positive(epsilon=self.epsilon)
        checks.probability(delta=self.delta)
        checks.real(1.0, open_low=True, order=self.order)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Price:
    """Two prices of one charge: exact and alone (epsilon at the budget's delta), and its share of the filter (rho, delta0)."""

    epsilon: float
    rho: float
    delta0: float
    unpriced: str = ""  # why the stated (epsilon, delta) stands in for the event

    def to_dict(self) -> dict[str, Any]:
        return {key: None if value == math.inf else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Price:
        epsilon, rho, delta0 = (math.inf if data[key] is None else float(data[key]) for key in ("epsilon", "rho", "delta0"))
        return cls(epsilon=epsilon, rho=rho, delta0=delta0, unpriced=data["unpriced"])


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What a data set's charges come to at the budget's delta."""

    epsilon: float
    delta: float
    epsilon_if_fixed_beforehand: float | None  # had all sweeps been fixed in advance: for information, not a promise
    charges: int

    def to_dict(self) -> dict[str, Any]:
        return {key: None if value == math.inf else value for key, value in asdict(self).items()}


def filter_order(epsilon: float, delta: float) -> float:
    """The Renyi order that is best for a Gaussian mechanism that spends all of (epsilon, delta).

    rho-zCDP is (a, a rho)-Renyi DP, so epsilon = min over a of a rho + L/(a - 1), L = log(1/delta), which is
    rho + 2 sqrt(rho L) at a = 1 + sqrt(L/rho); solved for rho. Any order is valid; this one wastes least.
    """
    log_delta = math.log(1 / delta)
    root = math.sqrt(log_delta + epsilon) - math.sqrt(log_delta)
    return 1 + math.sqrt(log_delta) / root


def total(prices: Sequence[Price], budget: Budget) -> float:
    """Epsilon of all charges together at the budget's delta, by the rule at the top of this file.

    Guarantee: (epsilon, budget.delta)-DP of everything released, each charge free to depend on earlier answers, as long as
      no charge is admitted for which this exceeds budget.epsilon.
    Relation: that of the prices (zero-out here). Units: nats.
    Edge cases: 0 without charges; infinite when the delta0 add up to more than their share of delta; never below the largest
      single charge.
    Source: the Renyi privacy filter of Feldman and Zrnic 2021; conversion Canonne, Kamath, Steinke 2020, Proposition 12.
    """
    if len(prices) < 2:
        return prices[0].epsilon if prices else 0.0
    order = budget.order
    if math.fsum(p.delta0 for p in prices) > APPROXIMATE_SHARE * budget.delta:
        return math.inf
    rho = math.fsum(p.rho for p in prices)
    log_delta = math.log((1 - APPROXIMATE_SHARE) * budget.delta)
    together = rho + math.log1p(-1 / order) - (log_delta + math.log(order)) / (order - 1)
    return max(together, *(p.epsilon for p in prices))


def price(event: Event, guarantee: Guarantee | None, budget: Budget, accountant: Accountant) -> Price:
    """Both prices of one event; where the accountant has none, those of its stated guarantee.

    Guarantee: an (e, d)-DP mechanism is d-approximate (a, min(e, a e^2/2))-Renyi DP in both directions.
    Source: it is an e-DP mechanism but for an event of probability d (the four-outcome pair of Kairouz, Oh, Viswanath 2015, from
      which it can be simulated); e-DP bounds every Renyi divergence by e, and by a e^2/2 (Bun and Steinke 2016, Prop. 3.3).
    Edge cases: without an accountant's price and without a guarantee everything is infinite.
    """
    reasons = []
    try:
        epsilon = accountant.epsilon(event, budget.delta)
    except Exception as error:  # whatever the reason, the stated guarantee is a sound price; the reason is kept with the charge
        reasons.append(f"epsilon: {type(error).__name__}: {error}")
        epsilon = guarantee.epsilon if guarantee is not None and guarantee.delta <= budget.delta else math.inf
    try:
        rho, delta0 = accountant.renyi(event, budget.order)
        if not (0 <= rho < math.inf and 0 <= delta0 < 1):
            raise ArithmeticError(f"({rho}, {delta0}) at order {budget.order:.6g}")
    except Exception as error:
        reasons.append(f"renyi: {type(error).__name__}: {error}")
        rho, delta0 = (math.inf, 1.0) if guarantee is None else _stated(guarantee, budget.order)
    return Price(
        epsilon=math.inf if math.isnan(epsilon) else max(0.0, float(epsilon)),
        rho=float(rho),
        delta0=float(delta0),
        unpriced="; ".join(reasons),
    )


def _stated(guarantee: Guarantee, order: float) -> tuple[float, float]:
    return min(guarantee.epsilon, order * guarantee.epsilon**2 / 2), guarantee.delta


def fixed_beforehand(events: Sequence[Mapping[str, Any]], delta: float, accountant: Accountant) -> float | None:
    """Epsilon of the events as if their list had been fixed before any answer; None where it cannot be computed."""
    if not events:
        return 0.0
    try:
        parts = tuple(event_from_dict(event) for event in events)
        epsilon = accountant.epsilon(parts[0] if len(parts) == 1 else Composed(parts), delta)
    except Exception:  # shown as information only: a charge must not fail because this does
        return None
    return epsilon if math.isfinite(epsilon) else None
