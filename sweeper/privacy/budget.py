"""The budget of a data set and the one rule by which its sweeps add up.

The rule. One charge costs its exact epsilon at the budget's delta. Two or more cost the smaller of what two filters say of ALL of
them, each with half of delta:

- addition: sum of the epsilons that the sweeps state, when the deltas they state add up to at most delta/2;
- a Renyi filter at one order a, fixed when the budget was first set (Feldman and Zrnic 2021): every charge is d_i-approximate
  (a, r_i)-Renyi DP, R = sum r_i, D = sum d_i, D at most 0.025 delta, and
  epsilon = R + log((a - 1)/a) - (log(0.45 delta) + log a)/(a - 1)      (Canonne, Kamath, Steinke 2020, Proposition 12).

The last 0.025 of delta is kept for unsealing, which only addition counts: see the end.

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

Unsealing. A sweep i that released its winner w may later show all its trials T, because of what w and other sweeps said. The
charge of w, (e_i, d_i), becomes a charge of T: epsilon E_i = the larger of e_i and the exact epsilon of T at delta u_i. Here u_i is
fixed by the place of the sweep among the data set's reservations, i = 1, 2, ..: u_i = U/(i (i + 1)), U = 0.025 delta, so that all
u_i of all sweeps, unsealed or not, add up to U at most. Only addition counts a charge of T, with E_i, and still with d_i.

Argument. Given what was visible when sweep i was reserved, split its laws: P(w) = g(w) + b(w) with g <= e^{e_i} Q(w) and b of mass
d_i, P(T) = G(T) + B(T) with G <= e^{E_i} Q(T) and B of mass u_i. (The simulation of Kairouz, Oh, Viswanath 2015: [P - e^E Q]_+ is
the bad part.) What is visible in the end has the density prod P(w) prod P(T), over the sealed and the unsealed sweeps: w is a
random function of T whose coins are not data, and nobody's choices depend on a T that was not shown. Where all parts are good, the
product is at most e^(sum of the epsilons in force) Q, and the answers end within addition. The others have some bad part in force.
Toss for every reserved sweep both flags, whatever is shown of it later: the chance that any is up is at most the d_i of one path
(delta/2) and the u_i of one path (U). So P[S] <= e^epsilon Q[S] + delta/2 + U for answers that end within addition.

Why are the u_i set aside for sweeps that are never unsealed? Because B may lie wholly on the answers after which one unseals. The
sealed branches spend their deltas as if nothing had happened, and do not count it: with the delta of T added on the unsealed branch
alone, 1.2 delta can be lost (tests/privacy/test_ledger_unseal_rule.py builds it). For the same reason u_i may not depend on what
was unsealed before.

Why not the exact epsilon at delta for a sweep that is alone on its data set? Winner, choice and trials are a function of T then,
but only on the branch that unseals. On the others a second sweep may have been admitted by a filter; each branch can spend all of
delta (1.8 delta, the same file).

Why not the Renyi filter for T? Its bound is a moment, and the moment of w leaves room on the sealed branches while that of T uses
it all on the branch that unseals: twice the moment is a factor of two in that filter's delta (1.3 delta, the same file).

After publication K is public, and it never depended on data: B and G split as above for every K, at the same u_i. So the charge
may fall to that of the K trials that were shown. Who decides to unseal has seen nothing but what is public, or else the decision
itself tells of T.
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
APPROXIMATE_SHARE = 0.025  # of the budget's delta, for the sum of the charges' delta0; the Renyi filter converts at the rest
UNSEAL_SHARE = 0.025  # of the budget's delta, for what unsealing any of the sweeps may add
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
    log_delta = math.log((1 - ADDITION_SHARE - APPROXIMATE_SHARE - UNSEAL_SHARE) * budget.delta)
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


def unseal_delta(place: int, budget: Budget) -> float:
    """u_i of the text at the top: the delta at which the sweep of the place-th reservation of a data set may be unsealed."""
    checks.whole(1, place=place)
    return UNSEAL_SHARE * budget.delta / (place * (place + 1))


def unsealed(sealed: Price, event: Event, guarantee: Guarantee, place: int, budget: Budget, accountant: Accountant) -> Price:
    """The price of a sweep of which all trials are shown, in place of `sealed`, that of its winner.

    Guarantee: by addition, as the text at the top says. `event` is all trials together: fixed when the sweep was reserved, but for
      their public number.
    Relation, unit: those of `guarantee`, which is what is stated of `event`.
    Edge cases: infinite where the accountant has no epsilon at so small a delta (it has none below about 1e-10).
    """
    delta, reason = unseal_delta(place, budget), ""
    try:
        epsilon = float(accountant.epsilon(event, delta))
    except Exception as error:  # the stated guarantee stands in, if it is one at so small a delta
        reason = f"unsealed epsilon: {type(error).__name__}: {error}"
        epsilon = guarantee.epsilon if guarantee.delta <= delta else math.inf
    epsilon = math.inf if math.isnan(epsilon) else epsilon
    epsilon = max(epsilon, sealed.stated_epsilon)
    alone = epsilon if sealed.stated_delta <= ADDITION_SHARE * budget.delta * (1 + 1e-12) else math.inf
    return Price(
        epsilon=alone,
        rho=math.inf,
        delta0=1.0,
        stated_epsilon=epsilon,
        stated_delta=sealed.stated_delta,
        unpriced=reason,
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
