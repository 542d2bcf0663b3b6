"""What a person is told during a wait, on standard error."""

from __future__ import annotations

import sys
import time

EVERY = 5.0  # seconds between two counts


def tell(text: str) -> None:
    """A line of its own, whatever a progress line on a terminal has left there."""
    print(f"\r\x1b[K{text}" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


class Counted:
    """Counts records while they are computed, on a terminal alone: the length of a log tells no time."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0
        self._started = self._told = time.monotonic()

    def add(self, records: int) -> None:
        """So many more are done."""
        self._done += records
        now = time.monotonic()
        if now - self._told >= EVERY and self._done < self._total and sys.stderr.isatty():
            self._told = now
            left = (now - self._started) * (self._total - self._done) / self._done
            tell(f"  {self._done:,} of {self._total:,} records, about {left:.0f} s left")
