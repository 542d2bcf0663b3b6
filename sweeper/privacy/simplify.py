"""Rewriting an event into one of the same cost that is quicker to price. The ledger and the cache keep the event as it was said.

Every rule is an equality of guarantees: Gaussians on the same records (the same batch) are one Gaussian; repeats multiply; a
Poisson batch of a Poisson batch is one; a batch of all rows is the table; what releases nothing is dropped. Equal events in a list
become a repeat only where a record's part of the table cannot differ between the copies, which a list cannot say.

A quantile is told apart from other choices only where nothing about the table was answered before it in its run: at the head of a
composition, or alone. Elsewhere its scores may depend on earlier answers, and it is the exponential mechanism that it is. After
rewriting, a composition has at most one quantile of its own, at its head; a run that begins with one and comes later in a
composition stays a composition inside, behind the rest.

Renyi bounds at one order, and zCDP bounds, become one whose rho is their sum: composition is stated that way (Mironov 2017,
Proposition 1), and the sum is never below theirs together. Its loss law is far tighter than that of the single laws composed.
"""

from __future__ import annotations

import math
from dataclasses import replace

from sweeper.privacy.bounds import RenyiBound, ZeroConcentrated
from sweeper.privacy.combined import NOTHING, Composed, Disjoint, Repeated, ReplaceOne, SelectBest
from sweeper.privacy.event import Event
from sweeper.privacy.mechanisms import AdaptiveQuantileStep, ExponentialMechanism, Gaussian, PrivateQuantile, merged
from sweeper.privacy.sampled import FixedSizeSampled, PoissonSubsampled, RandomPart


def simplified(event: Event) -> Event:
    """An event with the same price."""
    if isinstance(event, AdaptiveQuantileStep):
        return Gaussian(event.noise_multiplier)
    if isinstance(event, Repeated):
        return _repeated(simplified(event.event), event.count)
    if isinstance(event, Composed):
        return _composed([simplified(part) for part in event.events])
    if isinstance(event, Disjoint):
        return Disjoint(tuple(simplified(part) for part in event.parts))
    if isinstance(event, PoissonSubsampled):
        inner = simplified(event.event)
        if event.sampling_probability == 0 or inner == NOTHING:
            return NOTHING
        if isinstance(inner, PoissonSubsampled):
            return PoissonSubsampled(event.sampling_probability * inner.sampling_probability, inner.event)
        return inner if event.sampling_probability == 1 else PoissonSubsampled(event.sampling_probability, inner)
    if isinstance(event, FixedSizeSampled):
        if event.sample_size == event.rows:  # a replaced record moves the sum by twice one record's bound
            return ReplaceOne(Gaussian(event.event.noise_multiplier / 2))
        return FixedSizeSampled(event.rows, event.sample_size, Gaussian(event.event.noise_multiplier))
    if isinstance(event, RandomPart):
        if event.fraction in (0.0, 1.0):
            return simplified(event.first if event.fraction else event.second)
        first, second = simplified(event.first), simplified(event.second)
        return NOTHING if first == second == NOTHING else RandomPart(event.fraction, first, second)
    if isinstance(event, SelectBest):
        trial = simplified(event.trial)
        return NOTHING if trial == NOTHING else SelectBest(trial, event.law)
    if isinstance(event, ReplaceOne):
        inner = simplified(event.event)
        return NOTHING if inner == NOTHING else ReplaceOne(inner)
    if isinstance(event, (RenyiBound, ZeroConcentrated)) and event.rho == 0:
        return NOTHING
    return event


def _repeated(event: Event, count: int) -> Event:
    if count == 0 or event == NOTHING:
        return NOTHING
    if count == 1:
        return event
    if isinstance(event, Repeated):
        return Repeated(event.event, event.count * count)
    if isinstance(event, PrivateQuantile):
        return Composed((event, _repeated(ExponentialMechanism(event.epsilon), count - 1)))
    if isinstance(event, ReplaceOne):
        return ReplaceOne(_repeated(event.event, count))
    if isinstance(event, Gaussian) and not event.unprotected:
        return Gaussian(event.noise_multiplier / count**0.5)
    if isinstance(event, (RenyiBound, ZeroConcentrated)) and not event.unprotected:
        return replace(event, rho=_up(event.rho * count))
    return Repeated(event, count)


def _up(rho: float) -> float:
    """No less than the exact sum or product that was rounded to rho."""
    return rho * (1 + 1e-13)


def _composed(events: list[Event]) -> Event:
    flat = _flat(events)
    if any(event.unprotected for event in flat):
        return Composed(tuple(flat))
    stated = [event.event for event in flat if isinstance(event, ReplaceOne)]
    if len(stated) > 1:
        flat = [event for event in flat if not isinstance(event, ReplaceOne)] + [ReplaceOne(_composed(stated))]
    gaussians = [event.noise_multiplier for event in flat if isinstance(event, Gaussian)]
    flat = _bounds_added(flat)
    counts: dict[Event, int] = {}
    loose: list[Event] = []
    for event in flat:
        if isinstance(event, Gaussian):
            continue
        base, count = (event.event, event.count) if isinstance(event, Repeated) else (event, 1)
        if _has_parts(base):
            loose.append(event)
        else:
            counts[base] = counts.get(base, 0) + count
    head: list[Event] = [quantile for quantile in counts if isinstance(quantile, PrivateQuantile)]
    head += [Gaussian(merged(gaussians))] if gaussians else []
    plain, runs = ([base for base in counts if isinstance(base, Composed) is runs] for runs in (False, True))
    repeats = ([_repeated(base, counts[base]) for base in some if base not in head] for some in (plain, runs))
    result = [*head, *next(repeats), *loose, *next(repeats)]
    return result[0] if len(result) == 1 else Composed(tuple(result))


def _flat(events: list[Event]) -> list[Event]:
    """The members of a composition, those of compositions among them, and what is no quantile asked first as what it is."""
    flat: list[Event] = []
    for event in events:
        parts = event.events if isinstance(event, Composed) else (event,)
        if flat and len(parts) > 1 and isinstance(parts[0], PrivateQuantile):
            flat.append(event)  # a run of its own
        else:
            flat += [_later(part) for part in parts] if flat else parts
    return flat


def _later(event: Event) -> Event:
    return ExponentialMechanism(event.epsilon) if isinstance(event, PrivateQuantile) else event


def _bounds_added(events: list[Event]) -> list[Event]:
    """Those of one kind and order as one, at the place of the first."""
    sums: dict[object, list[float]] = {}
    for event in events:
        if isinstance(event, (RenyiBound, ZeroConcentrated)):
            sums.setdefault(replace(event, rho=0.0), []).append(event.rho)
    result: list[Event] = []
    for event in events:
        if not isinstance(event, (RenyiBound, ZeroConcentrated)):
            result.append(event)
        elif found := sums.pop(replace(event, rho=0.0), None):
            result.append(event if len(found) == 1 else replace(event, rho=_up(math.fsum(found))))
    return result


def _has_parts(event: Event) -> bool:
    return isinstance(event, Disjoint) or any(_has_parts(part) for part in event.inside)
