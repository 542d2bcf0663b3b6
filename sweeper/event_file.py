"""A privacy event in a YAML or JSON file, as `Event.to_dict` writes it, with or without the delta to price it at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from sweeper import checks
from sweeper.checks import FieldError, RequestError
from sweeper.privacy.events import EVENTS, Event, event_from_dict
from sweeper.yaml_file import one_line, read_yaml

DEEPEST = 40  # events inside events
MOST = 2_000  # events in one file


def load_event(path: str | Path) -> tuple[Event, float | None]:
    """(event, delta or None) of a file that holds an event, or a mapping with `event` and `delta`.

    A `delta` beside `kind` is the bill's, unless the kind has a delta of its own.

    Raises:
      RequestError: one line that starts with the file and names the field, its value and the rule.
    """
    data = read_yaml(path, "event")
    try:
        event, delta = _split(data)
        _count(event, 0)
        if delta is not None:
            checks.probability(delta=delta)
        return _event(event), delta
    except FieldError as error:
        raise RequestError(f"{path}: {one_line(str(error))}") from None


def _split(data: Any) -> tuple[Any, Any]:
    if not isinstance(data, Mapping):
        raise FieldError("event", data, "must be a mapping with a kind", "Try: {kind: gaussian, noise_multiplier: 1.0}.")
    if "kind" in data:
        kind = data["kind"]
        own = isinstance(kind, str) and kind in EVENTS and "delta" in {f.name for f in fields(EVENTS[kind])}
        return {key: value for key, value in data.items() if own or key != "delta"}, None if own else data.get("delta")
    for key in data:
        if key not in ("event", "delta"):
            hint = checks.suggestion(key, ("event", "delta", "kind"))
            raise FieldError(str(key), checks.MISSING, f"is not a field here: a file holds an event, or event and delta{hint}")
    if "event" not in data:
        raise FieldError("event", checks.MISSING, "is missing, and so is kind", "Try: {kind: gaussian, noise_multiplier: 1.0}.")
    return data["event"], data.get("delta")


def _event(data: Any) -> Event:
    """`event_from_dict`, with errors that say where in the file: events inside are read first, each under its own field."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            inside = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
            for place, part in inside:
                if isinstance(part, Mapping) and "kind" in part:
                    try:
                        _event(part)
                    except FieldError as error:
                        raise error.within(str(key) if place is None else f"{key}[{place}]") from None
    return event_from_dict(data)


def _count(data: Any, depth: int) -> int:
    """How many mappings and lists there are, before anything walks through them."""
    if depth > DEEPEST:
        raise FieldError("event", checks.MISSING, f"holds events inside events more than {DEEPEST} deep, which no mechanism is")
    parts = list(data.values()) if isinstance(data, Mapping) else data if isinstance(data, list) else []
    count = 1 + sum(_count(part, depth + 1) for part in parts if isinstance(part, (Mapping, list)))
    if count > MOST:
        raise FieldError("event", checks.MISSING, f"holds more than {MOST:,} parts", "Use kind repeated for equal events.")
    return count
