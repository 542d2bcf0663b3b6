"""What touches data, as frozen records. An event says what was released; it never says how it was computed.

Relation of every event here: ZERO-OUT. Two data sets are neighbours when one record is replaced by a null record that adds 0
to every sum. Its costs equal those of add/remove-one. Table length and row positions are public.

Canonical form: a JSON object with a `kind` tag (never a module path), keys sorted. Two events are equal when their canonical
forms are equal, and that form is the key of the price cache and what the ledger stores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from sweeper import checks
from sweeper.checks import FieldError

EVENTS: dict[str, type[Event]] = {}


@dataclass(frozen=True)
class Event:
    """Base of all events. Subclasses are registered by their `kind`."""

    kind: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        EVENTS[cls.kind] = cls

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind} | {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    def canonical(self) -> str:
        """One line of JSON, the same for equal events whatever built them."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, Event):
        return value.to_dict()
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return value


def event_from_dict(data: Mapping[str, Any]) -> Event:
    """The event written by `to_dict`.

    Raises:
      FieldError: unknown kind, unknown or missing field, or a value that breaks the event's own rule.
    """
    if not isinstance(data, Mapping) or "kind" not in data:
        raise FieldError("event", data, "must be a mapping with a kind")
    checks.one_of(EVENTS, kind=data["kind"])
    cls = EVENTS[data["kind"]]
    known = {f.name for f in fields(cls)}
    given = {key: value for key, value in data.items() if key != "kind"}
    for key in given:
        if key not in known:
            raise FieldError(key, checks.MISSING, f"is not a field of event {cls.kind}{checks.suggestion(key, known)}")
    for key in known - set(given):
        raise FieldError(key, checks.MISSING, f"is missing in event {cls.kind}")
    return cls(**{key: _event_value(value) for key, value in given.items()})


def _only_events(field: str, values: object) -> None:
    if not isinstance(values, (tuple, list)) or not all(isinstance(value, Event) for value in values):
        raise FieldError(field, values, "must hold events")


def _as_float(event: Event, field: str) -> None:
    """One notation of a number: 1 and 1.0 (and -0.0 and 0.0) are one event, so they have one canonical form."""
    object.__setattr__(event, field, float(getattr(event, field)) + 0.0)


def _event_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        if "kind" not in value and "law" in value:  # an event of kind select-best has a `law` of its own
            from sweeper.privacy.laws import law_from_dict

            return law_from_dict(value)
        return event_from_dict(value)
    if isinstance(value, list):
        return tuple(_event_value(v) for v in value)
    return value


@dataclass(frozen=True)
class Gaussian(Event):
    """Gaussian mechanism on a sum: noise of standard deviation noise_multiplier times the sum's zero-out sensitivity.

    Guarantee: the privacy profile of N(1, s^2) against N(0, s^2), s = noise_multiplier (Balle and Wang 2018, Theorem 8).
    Sensitivity: of ONE record's contribution appearing or vanishing. noise_multiplier 0 protects nothing (epsilon infinite).
    """

    noise_multiplier: float
    kind: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        checks.real(0.0, 1e9, noise_multiplier=self.noise_multiplier)
        _as_float(self, "noise_multiplier")


@dataclass(frozen=True)
class DiscreteLaplace(Event):
    """Two-sided geometric noise, P[X = x] proportional to exp(-epsilon |x|), on an integer count of zero-out sensitivity 1.

    Guarantee: epsilon-DP (Ghosh, Roughgarden, Sundararajan 2009). A count over a public size is post-processing.
    """

    epsilon: float
    kind: ClassVar[str] = "discrete-laplace"

    def __post_init__(self) -> None:
        checks.real(0.0, 1000.0, open_low=True, epsilon=self.epsilon)
        _as_float(self, "epsilon")


@dataclass(frozen=True)
class PoissonSubsampled(Event):
    """`event` on a batch that holds every record independently with probability sampling_probability.

    Guarantee: under zero-out, the mixture q M(D) + (1-q) M(D') against M(D') and the reverse (Zhu, Dong, Wang 2022, Theorem
    11). The noisy sum must be divided by a public constant, never by the realised batch size.
    """

    sampling_probability: float
    event: Gaussian
    kind: ClassVar[str] = "poisson-subsampled"

    def __post_init__(self) -> None:
        checks.real(0.0, 1.0, sampling_probability=self.sampling_probability)
        _as_float(self, "sampling_probability")
        if not isinstance(self.event, Gaussian):
            kind = getattr(self.event, "kind", self.event)
            raise FieldError("event", kind, "must be gaussian: nothing else can be subsampled yet")


@dataclass(frozen=True)
class Repeated(Event):
    """`event`, `count` times with fresh randomness, each run free to depend on earlier answers. Count 0 is free."""

    event: Event
    count: int
    kind: ClassVar[str] = "repeated"

    def __post_init__(self) -> None:
        _only_events("event", (self.event,))
        checks.whole(0, 1_000_000_000, count=self.count)


@dataclass(frozen=True)
class Composed(Event):
    """All of `events`, on the same records, with independent randomness."""

    events: tuple[Event, ...]
    kind: ClassVar[str] = "composed"

    def __post_init__(self) -> None:
        _only_events("events", self.events)
        object.__setattr__(self, "events", tuple(self.events))


@dataclass(frozen=True)
class Disjoint(Event):
    """Events on disjoint parts of the table (training rows, hold-out rows); which row is where depends on position only.

    Guarantee: a neighbour differs in one record of one part, and parts that do not hold it run on the same input, so the
    profile is the largest of the parts' profiles, at every epsilon (parallel composition, McSherry 2009).
    """

    parts: tuple[Event, ...]
    kind: ClassVar[str] = "disjoint"

    def __post_init__(self) -> None:
        _only_events("parts", self.parts)
        object.__setattr__(self, "parts", tuple(self.parts))
        if not self.parts:
            raise FieldError("parts", [], "must name at least one event")


@dataclass(frozen=True)
class SelectBest(Event):
    """The best of K runs of `trial`, K drawn from `law` in secret; nothing else is released, not even K.

    Guarantee: the price of sweeper/privacy/README.md, section "Selection", for every score, however chosen.
    """

    trial: Event
    law: Any  # a RunCountLaw of sweeper.privacy.laws
    kind: ClassVar[str] = "select-best"

    def __post_init__(self) -> None:
        _only_events("trial", (self.trial,))
        if not hasattr(self.law, "slope"):
            raise FieldError("law", self.law, "must be a law of the number of runs")


NOTHING = Composed(())
