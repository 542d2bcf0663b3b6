"""The budget of a data set and the one rule by which its sweeps add up.

The rule. One charge costs its exact epsilon at the budget's delta. Two or more cost the smaller of what two filters say of ALL of
them, each with half of delta:

- addition: sum of the epsilons that the sweeps state, when the deltas they state add up to at most delta/2;
- a Renyi filter at one order a, fixed when the budget was first set (Feldman and Zrnic 2021): every charge is d_i-approximate
  (a, r_i)-Renyi DP, R = sum r_i, D = sum d_i, D at most 0.05 delta, and
  epsilon = R + log((a - 1)/a) - (log(0.45 delta) + log a)/(a - 1)      (Canonne, Kamath, Steinke 2020, Proposition 12).

Why not compose the loss distributions? A later sweep is designed by somebody who has seen the earlier answers, and the numerical
composition of mechanisms chosen that way bounds nothing: it is a theorem about a list fixed beforehand. Both filters hold whatever
the choices.

Why half of delta each, instead of the better of the two at delta? Because which one is in force at the end may depend on the
answers (tests/privacy/test_budget_rule.py builds 1.8 delta that way). Sums only grow, so answers that end within a filter were
within it all along: on a set S of them the run is that of a filter that halts, and P[S] <= e^epsilon Q[S] + delta/2. Any set of
answers is a part that ends within addition and a rest that ends within the Renyi filter. The two add up.

Why may one charge use its exact value? Nothing was seen before it, so it is a fixed mechanism M. Before anybody looks, its event
says whether a filter's value of M alone is within the budget. If not, no second charge is ever admitted and what happened is M
alone, within budget by its exact value. If it is, every admission satisfies a filter over all charges, M included.

Why is a share of delta set aside for D, instead of converting R at what D leaves? Because then the choice between a charge with r
and a charge with d could itself depend on earlier answers, and the two errors are averages under different measures: the Renyi part
under Q L^a e^{-(a-1)R}, the approximate part under P. They can both be nearly delta, on different branches
(the same file builds one: true delta 1.9 times the stated one). With a fixed share they add up.

What it leans on. A sweep, once reserved, asks what its event says whatever other sweeps answer meanwhile, so its answers may be
thought given at once, when it was reserved. A commit as another event was chosen without looking, so that this event is what was
asked all along; it may raise none of the prices, or what was admitted since would no longer fit. A commit of nothing means that no
data was opened. Raising a budget after seeing answers makes a new promise; the argument then holds for the largest epsilon and the
largest delta that anybody would have set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from sweeper import checks
from sweeper.privacy.events import Composed, Event, event_from_dict
from sweeper.privacy.guarantee import Guarantee

ADDITION_SHARE = 0.5  # of the budget's delta, for the filter that adds epsilons and deltas
APPROXIMATE_SHARE = 0.05  # of the budget's delta, for the sum of the charges' delta0; the Renyi filter converts at the rest
PARTS = ("epsilon", "rho", "delta0", "stated_epsilon", "stated_delta")  # of a Price


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
        checks.real(1e-6, 1e6, epsilon=self.epsilon)
        checks.probability(delta=self.delta)
        checks.real(1.0, open_low=True, order=self.order)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Price:
    """Three prices of one charge: exact and alone (epsilon at the budget's delta), and its share of each filter."""

    epsilon: float
    rho: float  # Renyi, at the budget's order
    delta0: float
    stated_epsilon: float = math.inf  # addition: the guarantee that the sweep states, or more where its event costs more
    stated_delta: float = 1.0
    unpriced: str = ""  # why the stated (epsilon, delta) stands in for the event

    def within(self, other: Price) -> bool:
        """Whether no part of it is dearer."""
        return all(getattr(self, part) <= getattr(other, part) for part in PARTS)

    def to_dict(self) -> dict[str, Any]:
        return {key: None if value == math.inf else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Price:
        return cls(**{part: math.inf if data[part] is None else float(data[part]) for part in PARTS}, unpriced=data["unpriced"])


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What a data set's charges use up of its budget. The promise is the budget: see `total`."""

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
    root = epsilon / (math.sqrt(log_delta + epsilon) + math.sqrt(log_delta))
    return 1 + math.sqrt(log_delta) / root


def total(prices: Sequence[Price], budget: Budget) -> float:
    """Epsilon of all charges together at the budget's delta, by the rule at the top of this file.

    Guarantee: everything released is (budget.epsilon, budget.delta)-DP, each charge free to depend on earlier answers, as long
      as no charge is admitted for which this exceeds budget.epsilon. The value itself promises that much only for charges fixed
      beforehand: who stops when the answers please has the budget's promise, not this reading.
    Relation: that of the prices (zero-out here). Units: nats.
    Edge cases: 0 without charges; infinite when the deltas are too large for both filters; never below the largest single
      charge.
    Source: the Renyi privacy filter of Feldman and Zrnic 2021; conversion Canonne, Kamath, Steinke 2020, Proposition 12.
    """
    if len(prices) < 2:
        return prices[0].epsilon if prices else 0.0
    return max(min(_added(prices, budget), _filtered(prices, budget)), *(p.epsilon for p in prices))


def _added(prices: Sequence[Price], budget: Budget) -> float:
    """Addition: basic composition, sound for adaptive choices of the parameters too (Rogers, Roth, Ullman, Vadhan 2016)."""
    if math.fsum(p.stated_delta for p in prices) > ADDITION_SHARE * budget.delta * (1 + 1e-12):
        return math.inf
    return math.fsum(p.stated_epsilon for p in prices)


def _filtered(prices: Sequence[Price], budget: Budget) -> float:
    """The Renyi filter at the budget's order."""
    order = budget.order
    if math.fsum(p.delta0 for p in prices) > APPROXIMATE_SHARE * budget.delta:
        return math.inf
    rho = math.fsum(p.rho for p in prices)
    log_delta = math.log((1 - ADDITION_SHARE - APPROXIMATE_SHARE) * budget.delta)
    return rho + math.log1p(-1 / order) - (log_delta + math.log(order)) / (order - 1)


def price(event: Event, guarantee: Guarantee | None, budget: Budget, accountant: Accountant) -> Price:
    """All prices of one event; where the accountant has none, those of its stated guarantee.

    Guarantee: an (e, d)-DP mechanism is d-approximate (a, min(e, a e^2/2))-Renyi DP in both directions.
    Source: it is an e-DP mechanism but for an event of probability d (the four-outcome pair of Kairouz, Oh, Viswanath 2015, from
      which it can be simulated); e-DP bounds every Renyi divergence by e, and by a e^2/2 (Bun and Steinke 2016, Prop. 3.3).
    Edge cases: without an accountant's price and without a guarantee everything is infinite.
    """
    reasons = []

    def ask(name: str, delta: float, otherwise: float) -> float:
        try:
            found = float(accountant.epsilon(event, delta))
        except Exception as error:  # whatever the reason, the stated guarantee is a sound price; the reason is kept with the charge
            reasons.append(f"{name}: {type(error).__name__}: {error}")
            return otherwise
        return math.inf if math.isnan(found) else max(0.0, found)

    stated = guarantee
    if stated is not None:  # addition trusts no statement that the event is known to break
        stated = replace(stated, epsilon=max(stated.epsilon, ask("stated epsilon", stated.delta, 0.0)))
    epsilon = ask("epsilon", budget.delta, stated.epsilon if stated is not None and stated.delta <= budget.delta else math.inf)
    try:
        rho, delta0 = accountant.renyi(event, budget.order)
        if not (0 <= rho < math.inf and 0 <= delta0 < 1):
            raise ArithmeticError(f"({rho}, {delta0}) at order {budget.order:.6g}")
    except Exception as error:
        reasons.append(f"renyi: {type(error).__name__}: {error}")
        rho, delta0 = (math.inf, 1.0) if stated is None else _stated(stated, budget.order)
    return Price(
        epsilon=epsilon,
        rho=float(rho),
        delta0=float(delta0),
        stated_epsilon=math.inf if stated is None else stated.epsilon,
        stated_delta=1.0 if stated is None else stated.delta,
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
