"""Epsilon by Renyi accounting, beside the price: a second bound that no loss distribution goes into."""

from __future__ import annotations

import math

from sweeper import checks
from sweeper.privacy import accountant
from sweeper.privacy.cache import cached
from sweeper.privacy.events import Disjoint, Event, SelectBest
from sweeper.privacy.laws import TruncatedNegativeBinomial

ORDERS = (1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 32.0, 48.0, 64.0)


def renyi_check(event: Event, delta: float) -> float | None:
    """An epsilon of `event` at delta by Renyi accounting alone; None where no Renyi bound is known that does not use its loss.

    Guarantee: an upper bound, in the event's own relation; looser than `accountant.epsilon` nearly everywhere. dp_accounting's
    curves where it has the event, else those of event_renyi.py. Selection: Papernot and Steinke 2022, Theorem 2, for a truncated
    negative binomial law without max_trials. Conversion: Canonne, Kamath, Steinke 2020, Proposition 12. Units: nats.
    """
    checks.probability(delta=delta)
    if event.unprotected:
        return None
    theirs = accountant.renyi_epsilon(event, delta)
    if theirs is not None:
        return theirs
    question = {"what": "renyi-check", "event": event.to_dict(), "delta": float(delta)}
    found = cached(question, lambda: _ours(event, delta))
    return None if found is None else float(found)


def _ours(event: Event, delta: float) -> float | None:
    if isinstance(event, Disjoint):
        parts = [renyi_check(part, delta) for part in event.parts]
        return None if any(part is None for part in parts) else max(part for part in parts if part is not None)
    if isinstance(event, SelectBest):
        return _selected(event, delta)
    if _selects(event):
        return None
    found = min(to_epsilon(order, *accountant.renyi(event, order), delta) for order in ORDERS)
    return found if math.isfinite(found) else None


def to_epsilon(order: float, rho: float, lost: float, delta: float) -> float:
    """Epsilon at delta of what is at most rho at one order outside a mass `lost`."""
    if delta <= lost or math.isinf(rho):
        return math.inf
    return max(0.0, rho + math.log1p(-1 / order) - (math.log(delta - lost) + math.log(order)) / (order - 1))


def _selected(event: SelectBest, delta: float) -> float | None:
    """rho'(a) = rho(a) + (1 + eta) (1 - 1/c) rho(c) + (1 + eta) log(1/gamma) / c + log E[K] / (a - 1), the least over orders c."""
    law = event.law
    if not isinstance(law, TruncatedNegativeBinomial) or law.max_trials is not None or _selects(event.trial):
        return None
    curve = {order: accountant.renyi(event.trial, order) for order in ORDERS}
    if any(lost > 0 for _, lost in curve.values()):
        return None
    extra = min((1 + law.eta) * ((1 - 1 / c) * rho - math.log(law.gamma) / c) for c, (rho, _) in curve.items())
    mean = math.log(law.mean_trials())
    found = min(to_epsilon(a, rho + extra + mean / (a - 1), 0.0, delta) for a, (rho, _) in curve.items())
    return found if math.isfinite(found) else None


def _selects(event: Event) -> bool:
    return isinstance(event, SelectBest) or any(_selects(part) for part in event.inside)
