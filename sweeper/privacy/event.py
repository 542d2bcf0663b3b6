"""What touches data, as frozen records. An event says what was released; it never says how it was computed.

Canonical form: a JSON object with a `kind` tag (never a module path), keys sorted. Two events are equal when their canonical
forms are equal, and that form is the key of the price cache and what the ledger stores.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from sweeper import checks
from sweeper.checks import FieldError

ZERO_OUT, REPLACE_ONE = "zero-out", "replace-one"
LEAST_NOISE = 1e-2  # a smaller noise multiplier costs thousands of nats and arrays of gigabytes: its price is given as infinite
EVENTS: dict[str, type[Event]] = {}


@dataclass(frozen=True)
class Event:
    """Base of all events. Subclasses are registered by their `kind`.

    Relation: `relation` is ZERO_OUT (one record replaced by a null record that adds 0 to every sum; costs equal add/remove-one)
    or REPLACE_ONE (one record replaced by any other), or None for an event that releases nothing. Table length and row positions
    are public. Events of two relations do not mix: building such an event is refused.
    """

    kind: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        EVENTS[cls.kind] = cls

    @property
    def relation(self) -> str | None:
        return ZERO_OUT

    @property
    def unprotected(self) -> bool:
        """Whether something is released with no noise, or with next to none: its price is infinite."""
        return False

    @property
    def inside(self) -> tuple[Event, ...]:
        """The events it is made of."""
        return ()

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


def read_event(data: Mapping[str, Any]) -> Event:
    """The event written by `to_dict`, of the kinds whose modules are loaded; `events.event_from_dict` loads them all.

    Raises:
      FieldError: unknown kind, unknown or missing field, or a value that breaks the event's own rule.
    """
    if not isinstance(data, Mapping) or "kind" not in data:
        raise FieldError("event", data, "must be a mapping with a kind")
    checks.one_of([kind for kind in EVENTS if kind], kind=data["kind"])
    cls = EVENTS[data["kind"]]
    known = {f.name for f in fields(cls)}
    given = {key: value for key, value in data.items() if key != "kind"}
    for key in given:
        if key not in known:
            raise FieldError(str(key), checks.MISSING, f"is not a field of event {cls.kind}{checks.suggestion(key, known)}")
    for key in known - set(given):
        raise FieldError(key, checks.MISSING, f"is missing in event {cls.kind}")
    return cls(**{key: _event_value(value) for key, value in given.items()})


def _event_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        if "kind" not in value and "law" in value:  # an event of kind select-best has a `law` of its own
            from sweeper.privacy.laws import law_from_dict

            return law_from_dict(value)
        return read_event(value)
    if isinstance(value, list):
        return tuple(_event_value(v) for v in value)
    return value


def only_events(field: str, values: object) -> None:
    if not isinstance(values, (tuple, list)) or not all(isinstance(value, Event) for value in values):
        raise FieldError(field, values, "must hold events")


def as_float(event: Event, *names: str) -> None:
    """One notation of a number: 1 and 1.0 (and -0.0 and 0.0) are one event, so they have one canonical form."""
    for name in names:
        object.__setattr__(event, name, float(getattr(event, name)) + 0.0)


def one_relation(field: str, events: Iterable[Event]) -> str | None:
    """The relation that all of them speak of.

    Raises:
      FieldError: they speak of two.
    """
    found = sorted({event.relation for event in events if event.relation is not None})
    if len(found) > 1:
        raise FieldError(
            field,
            " and ".join(found),
            "are two neighbour relations, and a bill speaks of one",
            "Sample by poisson for zero-out, or state every other mechanism for replace-one (event kind replace-one).",
        )
    return found[0] if found else None
