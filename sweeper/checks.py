"""Checks of field values. Every failure is a FieldError: one line that names the field, the value, the rule and the way out."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any


class RequestError(Exception):
    """The request was wrong, refused or over budget. The command line prints it on one line and exits with 2."""


class FieldError(RequestError):
    """A field whose value breaks a rule."""

    def __init__(self, field: str, value: object, rule: str, hint: str = "") -> None:
        super().__init__(field, value, rule, hint)
        self.field, self.value, self.rule, self.hint = field, value, rule, hint

    def within(self, parent: str) -> FieldError:
        """The same error seen from the mapping that holds the field."""
        return FieldError(f"{parent}.{self.field}" if self.field else parent, self.value, self.rule, self.hint)

    def __str__(self) -> str:
        text = f"{self.field} = {show(self.value)} {self.rule}" if self.value is not MISSING else f"{self.field} {self.rule}"
        return text + (f"{' ' if text.endswith('?') else '. '}{self.hint}" if self.hint else "")


class _Missing:
    def __repr__(self) -> str:
        return "nothing"

    def __reduce__(self) -> str:
        return "MISSING"  # an error that comes back from a worker must still know that it has no value to show


MISSING = _Missing()  # stands for "no value to show" in a FieldError


def show(value: object, limit: int = 60) -> str:
    """A value as the user wrote it, on one line and never long."""
    try:
        text = f"{value:.6g}" if isinstance(value, float) else repr(value)
    except ValueError:  # Python refuses to write whole numbers of more than 4,300 digits
        text = "a number too long to write"
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def real(
    low: float = -math.inf, high: float = math.inf, /, *, open_low: bool = False, open_high: bool = False, **fields: Any
) -> None:
    """Every named field is a finite number in the interval."""
    for field, value in fields.items():
        rule = _interval_rule(low, high, open_low, open_high)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise FieldError(field, value, f"must be a number{rule}")
        if isinstance(value, float) and not math.isfinite(value):  # a whole number may be too large for isfinite
            raise FieldError(field, value, f"must be a finite number{rule}")
        if value < low or value > high or (open_low and value == low) or (open_high and value == high):
            raise FieldError(field, value, f"must be{rule}")


def _interval_rule(low: float, high: float, open_low: bool, open_high: bool) -> str:
    parts = []
    if low > -math.inf:
        parts.append(f" above {low:g}" if open_low else f" at least {low:g}")
    if high < math.inf:
        parts.append(f" below {high:g}" if open_high else f" at most {high:g}")
    return " and".join(parts)


def positive(**fields: Any) -> None:
    real(0.0, open_low=True, **fields)


def non_negative(**fields: Any) -> None:
    real(0.0, **fields)


def probability(**fields: Any) -> None:
    """Strictly between 0 and 1."""
    real(0.0, 1.0, open_low=True, open_high=True, **fields)


def whole(low: int, high: int | None = None, /, **fields: Any) -> None:
    """Every named field is a whole number in [low, high]."""
    for field, value in fields.items():
        rule = f"must be a whole number of at least {low}" + (f" and at most {high}" if high is not None else "")
        if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
            raise FieldError(field, value, rule)


def flag(**fields: Any) -> None:
    for field, value in fields.items():
        if not isinstance(value, bool):
            raise FieldError(field, value, "must be true or false")


def one_of(allowed: Iterable[str], /, **fields: Any) -> None:
    """Every named field is one of the allowed words; a near miss is suggested."""
    names = list(allowed)
    for field, value in fields.items():
        if value not in names:
            raise FieldError(field, value, f"must be one of {', '.join(names)}{suggestion(value, names)}")


def suggestion(value: object, names: Iterable[str]) -> str:
    """`; did you mean X?` for the closest name, or nothing."""
    close = difflib.get_close_matches(value if isinstance(value, str) else show(value), list(names), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def name(**fields: Any) -> None:
    """A name that is safe as a file name, an experiment name and a URL part."""
    for field, value in fields.items():
        good = isinstance(value, str) and 0 < len(value) <= 100 and value[0].isalnum() and value.isascii()
        if not good or not all(c.isalnum() or c in "-_." for c in value):
            raise FieldError(field, value, "must be 1 to 100 letters, digits, '-', '_' or '.', starting with a letter or digit")
