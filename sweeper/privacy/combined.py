"""Events made of events: repeated, composed, on disjoint parts, best of several; and the statement of another relation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy.event import REPLACE_ONE, Event, one_relation, only_events
from sweeper.privacy.mechanisms import ApproximateDp, DiscreteLaplace, ExponentialMechanism, Gaussian, Laplace


@dataclass(frozen=True)
class Repeated(Event):
    """`event`, `count` times with fresh randomness (batches, coins, noise), each run free to depend on earlier answers.

    Guarantee: the composition of `count` losses. A record lies in the same part of every `Disjoint` in it. Count 0 is free.
    """

    event: Event
    count: int
    kind: ClassVar[str] = "repeated"

    def __post_init__(self) -> None:
        only_events("event", (self.event,))
        checks.whole(0, 1_000_000_000, count=self.count)

    @property
    def unprotected(self) -> bool:
        return self.count > 0 and self.event.unprotected

    @property
    def relation(self) -> str | None:
        return self.event.relation if self.count else None

    @property
    def inside(self) -> tuple[Event, ...]:
        return (self.event,)


@dataclass(frozen=True)
class Composed(Event):
    """All of `events`, on the same records, with independent randomness; later ones may depend on earlier answers.

    Guarantee: the composition of their losses, a record in any part of each `Disjoint` among them. Which events there are, and
    their parameters, is fixed beforehand.
    """

    events: tuple[Event, ...]
    kind: ClassVar[str] = "composed"

    def __post_init__(self) -> None:
        only_events("events", self.events)
        object.__setattr__(self, "events", tuple(self.events))
        one_relation("events", self.events)

    @property
    def unprotected(self) -> bool:
        return any(event.unprotected for event in self.events)

    @property
    def relation(self) -> str | None:
        return one_relation("events", self.events)

    @property
    def inside(self) -> tuple[Event, ...]:
        return self.events


@dataclass(frozen=True)
class Disjoint(Event):
    """Events on disjoint parts of the table (training rows, hold-out rows); which row is where depends on position only.

    Guarantee: a neighbour differs in one record of one part, and parts that do not hold it run on the same input, so the
    profile is the largest of the parts' profiles, at every epsilon (parallel composition, McSherry 2009).
    """

    parts: tuple[Event, ...]
    kind: ClassVar[str] = "disjoint"

    def __post_init__(self) -> None:
        only_events("parts", self.parts)
        object.__setattr__(self, "parts", tuple(self.parts))
        if not self.parts:
            raise FieldError("parts", [], "must name at least one event")
        one_relation("parts", self.parts)

    @property
    def unprotected(self) -> bool:
        return any(part.unprotected for part in self.parts)

    @property
    def relation(self) -> str | None:
        return one_relation("parts", self.parts)

    @property
    def inside(self) -> tuple[Event, ...]:
        return self.parts


@dataclass(frozen=True)
class SelectBest(Event):
    """The best of K runs of `trial`, K drawn from `law` in secret; nothing else is released, not even K.

    Guarantee: the price of sweeper/privacy/README.md, section "Selection", for every score, however chosen.
    """

    trial: Event
    law: Any  # a RunCountLaw of sweeper.privacy.laws
    kind: ClassVar[str] = "select-best"

    def __post_init__(self) -> None:
        only_events("trial", (self.trial,))
        if not hasattr(self.law, "slope"):
            raise FieldError("law", self.law, "must be a law of the number of runs")

    @property
    def unprotected(self) -> bool:
        return self.trial.unprotected

    @property
    def relation(self) -> str | None:
        return self.trial.relation

    @property
    def inside(self) -> tuple[Event, ...]:
        return (self.trial,)


@dataclass(frozen=True)
class ReplaceOne(Event):
    """`event` with every sensitivity in it stated for replace-one: one record exchanged for any other.

    Guarantee: the loss law of `event`, now for replace-one. A clipped sum moves by twice the clip norm, so the same noise is half
    the noise multiplier here; a count of yes/no answers still moves by 1; an exponential mechanism's B is for a replaced record.
    What rests on zero-out itself (Poisson sampling, monotone scores, the zero-out form of a quantile's ranks) is refused, and so
    is what states replace-one by itself. Both directions of every law here are one law, as a relation with no direction needs.
    """

    event: Event
    kind: ClassVar[str] = "replace-one"

    def __post_init__(self) -> None:
        only_events("event", (self.event,))
        for found in _leaves(self.event):
            if isinstance(found, (Gaussian, Laplace, DiscreteLaplace, ApproximateDp, ExponentialMechanism)):
                continue
            if found.relation == REPLACE_ONE:
                raise FieldError("event", found.kind, "is stated for replace-one by itself", "Compose it with replace-one events.")
            raise FieldError("event", found.kind, "cannot be stated for replace-one: its price rests on zero-out")

    @property
    def unprotected(self) -> bool:
        return self.event.unprotected

    @property
    def relation(self) -> str | None:
        return REPLACE_ONE if self.event.relation is not None else None

    @property
    def inside(self) -> tuple[Event, ...]:
        return (self.event,)


def _leaves(event: Event) -> tuple[Event, ...]:
    if isinstance(event, (Repeated, Composed, Disjoint, SelectBest)):
        return tuple(leaf for part in event.inside for leaf in _leaves(part))
    return (event,)


NOTHING = Composed(())


def in_turn(events: Iterable[Event]) -> Event:
    """`events` one after the other, each run of equal ones written once with its length, so that a schedule's JSON stays small.

    A record is taken to lie in the same part of equal neighbours, as `Repeated` says.
    """
    found: list[Event] = []
    for event, copies in groupby(events):
        count = sum(1 for _ in copies)
        found.append(Repeated(event, count) if count > 1 else event)
    return found[0] if len(found) == 1 else Composed(tuple(found))
