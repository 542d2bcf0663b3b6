"""What a person sees while trials run: time and state, and counts only where every trial is visible anyway."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from sweeper.launch.outcome import Say


class Progress:
    """A line a second, from a thread of its own, as long as the block lasts. Says nothing that depends on what is sealed."""

    def __init__(self, say: Say, sweep: str, *, counts: bool) -> None:
        self._say, self._sweep, self.counts = say, sweep, counts
        self._settled, self._before, self._total = 0, 0, 0
        self._started, self._stop = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        self._say("\r")

    def expect(self, trials: int) -> None:
        """A stage of this many trials begins; those of earlier stages are done."""
        self._before, self._settled, self._total = self._total, 0, self._total + trials

    def settled(self, trials: int) -> None:
        """How many trials of the stage are settled."""
        self._settled = trials

    def _tick(self) -> None:
        while not self._stop.wait(1.0):
            count = f"{self._before + self._settled} of {self._total} trials" if self.counts else "trials sealed"
            self._say(f"\r{self._sweep}  running  {time.monotonic() - self._started:4.0f} s  {count}")
