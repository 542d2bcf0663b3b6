"""Typed values out of a mapping: keys known, types as declared, errors with the path of the field."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import fields
from typing import Any

from sweeper import checks
from sweeper.checks import FieldError

DOMAIN_KEYS = ("value", "values", "range", "scale")


def read_record(cls: type[Any], section: object, owner: str = "") -> Any:
    """A frozen dataclass from a mapping: keys known, required ones given, values of the declared types."""
    mapping = as_mapping(owner or cls.__name__, section, whole=True)
    names = [f.name for f in fields(cls)]
    for key in mapping:
        if key not in names:
            of = f" of {owner}" if owner else ""
            raise FieldError(str(key), checks.MISSING, f"is not a field{of}{checks.suggestion(key, names)}")
    for f in fields(cls):
        if f.default is NO_DEFAULT and f.default_factory is NO_DEFAULT and mapping.get(f.name) is None:
            raise FieldError(f.name, checks.MISSING, "is missing")
    hints = type_hints(cls)
    return cls(**{key: read_value(key, value, hints[key]) for key, value in mapping.items()})


def type_hints(cls: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def read_value(field: str, value: Any, wanted: Any) -> Any:
    """The value as its declared type: whole numbers become floats where a float is declared; nothing else is converted."""
    options = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    if value is None and type(None) in options:
        return None
    if isinstance(value, bool) and bool not in options and any(o in (int, float, str) for o in options):
        raise FieldError(field, value, f"must be {_names(options)}, not true or false")
    if float in options and isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise FieldError(field, value, "is too large a number") from None
    if tuple[float, ...] in options:
        if not isinstance(value, (list, tuple)):
            raise FieldError(field, value, "must be a list of numbers")
        return tuple(read_value(field, item, float) for item in value)
    simple = [o for o in options if o in (int, float, str, bool)]
    if simple and not any(type(value) is o for o in simple):
        hint = ""
        if isinstance(value, str) and _is_number(value) and (int in options or float in options):
            hint = f"Write {value} without quotes."
        raise FieldError(field, value, f"must be {_names(options)}", hint)
    return value


def _names(options: tuple[Any, ...]) -> str:
    words = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}
    return " or ".join(words[o] for o in options if o in words)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def as_mapping(field: str, value: object, whole: bool = False) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise FieldError("" if whole else field, value, "must be a mapping of fields")
    for key in value:
        if not isinstance(key, str):
            raise FieldError("" if whole else field, key, "is a key, and keys must be text")
    return value


def as_text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise FieldError(field, value, "must be text")
    return value


def only_known(owner: str, mapping: Mapping[str, Any], names: tuple[str, ...], prefix: bool = True, what: str = "a sweep") -> None:
    for key in mapping:
        if key not in names:
            where = f"{owner}.{key}" if prefix else key
            raise FieldError(where, checks.MISSING, f"is not a field of {what}{checks.suggestion(key, names)}")


def inside(parent: str, build: Callable[[], Any], flat: bool = False) -> Any:
    """Run a builder; its FieldErrors are reported with the path of the section they arose in."""
    try:
        return build()
    except FieldError as error:
        own = flat and error.field in DOMAIN_KEYS  # `range` of a searched field is that field
        raise (FieldError(parent, error.value, error.rule, error.hint) if own else error.within(parent)) from None
