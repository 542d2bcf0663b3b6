"""What a check says: fine, look at this, or fix this."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import NamedTuple
from urllib.parse import quote, quote_plus, unquote, urlsplit

from sweeper.checks import FieldError

OK, WARN, FAIL = "ok", "warn", "fail"
SECRETIVE = ("SWEEPER_MLFLOW_URI", "SWEEPER_LEDGER_URI", "RAY_ADDRESS")  # addresses that may hold a password
MASK = "***"


class Verdict(NamedTuple):
    """One line of a check, and the way out where there is something to do."""

    word: str  # one of OK, WARN, FAIL
    text: str
    fix: str = ""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A verdict with the name of what was looked at."""

    group: str
    name: str
    word: str
    text: str
    fix: str

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Check:
    """Something to look at."""

    group: str
    name: str
    look: Callable[[], Iterable[Verdict]]


def refused(error: BaseException) -> Verdict:
    """What an error of this project says, its way out as the fix."""
    if isinstance(error, FieldError) and error.hint:
        return Verdict(FAIL, hidden(str(FieldError(error.field, error.value, error.rule))), hidden(error.hint))
    text, _, fix = hidden(" ".join(str(error).split())).partition(". ")
    return Verdict(FAIL, text, fix)


def raised(error: BaseException, limit: int = 200) -> str:
    """Kind and first line of any other error."""
    lines = hidden(str(error)).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:limit]}" if lines else type(error).__name__


def hidden(text: str) -> str:
    """`text` without the passwords of any address in the environment, however they are written."""
    for name in SECRETIVE:
        for secret in _secrets(os.environ.get(name, "")):
            text = text.replace(secret, MASK)
    return text


def _secrets(address: str) -> list[str]:
    """What stands for a password in an address, longest first: behind the user's name, or an option named so."""
    rest, query = (address.split("://", 1)[-1].partition("?")[at] for at in (0, 2))
    found = [value for key, _, value in (part.partition("=") for part in query.split("&")) if "password" in key.lower()]
    if "@" in rest:
        found.append(rest.rpartition("@")[0].partition(":")[2])
    try:
        found.append(urlsplit(address).password or "")
    except ValueError:  # not an address at all: what stands before its last @ is hidden already
        found.append("")
    plain = {way(secret) for secret in found if secret for way in (str, unquote)}
    return sorted({way(secret) for secret in plain for way in (str, quote_all, quote_plus)}, key=len, reverse=True)


def quote_all(text: str) -> str:
    return quote(text, safe="")
