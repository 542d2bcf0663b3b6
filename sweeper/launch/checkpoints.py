"""A running trial's state on its way to the Vault and back: signed for one trial of one sweep under one charge.

The state is private: iterates that nobody paid to see. It lies in the Vault, closed to others, until the trial is settled.
"""

from __future__ import annotations

import hmac
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version

from sweeper import __version__, checks, seeds
from sweeper.checks import FieldError, RequestError
from sweeper.seeds import Streams

SECONDS = "SWEEPER_CHECKPOINT_SECONDS"  # of training between two states: what a lost worker costs at most
DEFAULT_SECONDS = 30.0
_BEGIN = b"sweeper checkpoint 1\0"
_SIGNATURE = 32  # bytes


def signed(content: bytes, streams: Streams, reference: str) -> bytes:
    """The state with its signature, by a key that the sweep's secret and the trial alone decide."""
    return _BEGIN + _signature(content, streams, reference) + content


def opened(kept: bytes, streams: Streams, reference: str) -> bytes:
    """The state, if it was signed for this trial, sweep, charge and version of the file, by the versions that run here.

    Raises:
      RequestError: it was not: its privacy cost may stand in no ledger, and its bytes may be anybody's.
    """
    begin, signature, content = kept[: len(_BEGIN)], kept[len(_BEGIN) :][:_SIGNATURE], kept[len(_BEGIN) + _SIGNATURE :]
    if begin != _BEGIN or not hmac.compare_digest(signature, _signature(content, streams, reference)):
        raise RequestError(
            "a checkpoint in the vault was not saved by this trial under this charge with these versions of Python and its "
            "packages, and is not loaded: what it cost may stand in no ledger. The trial starts again from its first step, with "
            "the same noise"
        )
    return content


def _signature(content: bytes, streams: Streams, reference: str) -> bytes:
    return hmac.digest(streams.key(seeds.CHECKPOINT), f"{reference}\0{made_with()}\0".encode() + content, "sha256")


@cache
def made_with() -> str:
    """What a pickled state, and the bits that come of it, depend on."""
    packages = " ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "opacus"))
    return f"sweeper {__version__} python {platform.python_version()} {packages}"


def seconds_between() -> float:
    """Of training between two states, as the environment says.

    Raises:
      FieldError: it says no such thing.
    """
    given = os.environ.get(SECONDS, str(DEFAULT_SECONDS))
    try:
        seconds = float(given)
    except ValueError:
        raise FieldError(SECONDS, given, "must be a number of seconds", f"Leave it out: {DEFAULT_SECONDS:g}.") from None
    checks.non_negative(**{SECONDS: seconds})
    return seconds


@dataclass(kw_only=True)
class TrialKeep:
    """A trainer's `Keep` (trainers/checkpoint.py) for one trial. A state that is refused is unused; the sealed output says so."""

    streams: Streams
    reference: str  # sweep, fingerprint, reservation, trial
    found: bytes | None  # what the Vault holds of this trial
    store: Callable[[bytes], None]
    seconds: float = field(default_factory=seconds_between)
    resumed_from: int = 0
    _next: float = field(init=False)

    def __post_init__(self) -> None:
        self._next = time.monotonic() + self.seconds

    def load(self) -> bytes | None:
        if self.found is None:
            return None
        try:
            return opened(self.found, self.streams, self.reference)
        except RequestError as refused:
            print(refused)
            return None

    def due(self) -> bool:
        return time.monotonic() >= self._next

    def save(self, content: bytes) -> None:
        try:
            self.store(signed(content, self.streams, self.reference))
        except Exception as error:  # a full disk, a lost answer: costs time at most, and raised here it would cost the trial
            print(f"a checkpoint could not be kept: {type(error).__name__}")
        self._next = time.monotonic() + self.seconds
