"""The one place that speaks dp_accounting's language: our events as its events, with its conventions of neighbours.

dp_accounting's multipliers are noise over the sensitivity of ITS relation: in its Renyi accountant nothing is doubled for
REPLACE_ONE, while its PLD accountant doubles (Gaussian 1 at delta 1e-5: 4.729 against 9.997). Here a multiplier is noise over the
bound of one record's term. So a mechanism sampled without replacement is handed over at half its multiplier, to the Renyi
accountant only, and everything else as ADD_OR_REMOVE_ONE, whose costs are those of zero-out.
"""

from __future__ import annotations

from typing import Any

from sweeper.privacy.combined import Composed, Repeated, ReplaceOne, SelectBest
from sweeper.privacy.event import REPLACE_ONE, Event
from sweeper.privacy.mechanisms import AdaptiveQuantileStep, Gaussian, Laplace
from sweeper.privacy.sampled import FixedSizeSampled, PoissonSubsampled


def dp_event(event: Event) -> Any | None:
    """dp_accounting's event for its Renyi accountant, or None where it has none or ours is tighter.

    A long schedule of noise multipliers is handed over with them rounded down to a few, as it takes a second for a hundred.
    """
    from dp_accounting import dp_event as dp

    if isinstance(event, Laplace):
        return dp.LaplaceDpEvent(event.noise_multiplier)
    if isinstance(event, (Gaussian, AdaptiveQuantileStep)):
        return dp.GaussianDpEvent(event.noise_multiplier)
    if isinstance(event, PoissonSubsampled):
        inner = dp_event(event.event)
        return None if not isinstance(inner, dp.GaussianDpEvent) else dp.PoissonSampledDpEvent(event.sampling_probability, inner)
    if isinstance(event, FixedSizeSampled):
        halved = dp.GaussianDpEvent(event.event.noise_multiplier / 2)
        if event.sample_size == event.rows:
            return halved
        return dp.SampledWithoutReplacementDpEvent(event.rows, event.sample_size, halved)
    if isinstance(event, ReplaceOne):
        return dp_event(event.event)
    if isinstance(event, Repeated):
        if event.count == 0:
            return dp.NoOpDpEvent()
        inner = dp_event(event.event)
        return None if inner is None else dp.SelfComposedDpEvent(inner, event.count)
    if isinstance(event, Composed):
        from sweeper.privacy import schedule

        schedules, others = schedule.families(event.events)
        rounded = [part for family in schedules for part in schedule.rounded_down(family)]
        parts = [dp_event(part) for part in (*others, *rounded)]
        return None if any(part is None for part in parts) else dp.ComposedDpEvent(parts)
    if isinstance(event, SelectBest) and hasattr(event.law, "eta") and event.law.max_trials is None:
        inner = dp_event(event.trial)
        return None if inner is None else dp.RepeatAndSelectDpEvent(inner, event.law.mean, event.law.eta)
    return None


def renyi_accountant(event: Event, orders: list[float] | None = None) -> Any:
    """dp_accounting's Renyi accountant after `event`, in the relation that it speaks of.

    Raises:
      ValueError: dp_accounting has no such event.
    """
    import dp_accounting
    from dp_accounting.rdp import rdp_privacy_accountant

    theirs = dp_event(event)
    if theirs is None:
        raise ValueError(f"dp_accounting has no Renyi bound for event {event.kind}")
    relation = dp_accounting.NeighboringRelation
    asked = relation.REPLACE_ONE if event.relation == REPLACE_ONE else relation.ADD_OR_REMOVE_ONE
    accountant = rdp_privacy_accountant.RdpAccountant(orders, asked)
    accountant.compose(theirs)
    return accountant
