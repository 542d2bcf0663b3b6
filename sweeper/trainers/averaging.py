"""Which iterate is the answer. Every iterate is inside the price of a run, so any choice that reads nothing else is free."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sweeper import seeds
from sweeper.seeds import Streams

if TYPE_CHECKING:
    from torch import Tensor

AVERAGES = ("last", "tail", "random")


class Answer:
    """The last iterate, the mean of the last ones, or one of iterates 1, ..., steps drawn uniformly before the run."""

    def __init__(self, average: str, tail_fraction: float, steps: int, start_P: Tensor, streams: Streams) -> None:
        self.params_P = start_P.clone()
        self._first, self._last = steps - 1, steps - 1  # steps whose iterates count
        if average == "tail":
            self._first = steps - math.ceil(tail_fraction * steps)
        elif average == "random":
            self._first = self._last = streams.bits(seeds.ITERATE).randbelow(steps)

    def hear(self, step: int, params_P: Tensor) -> None:
        """The iterate after step 0, ..., steps - 1."""
        if self._first <= step <= self._last:
            self.params_P.lerp_(params_P, 1 / (step - self._first + 1))  # the running mean


class Reservoir:
    """The same for a run whose length is not known beforehand: tail averages from when half the budget is spent.

    A random iterate is drawn from those so far, each new one replacing it with probability 1 / (their number).
    """

    def __init__(self, average: str, start_P: Tensor, streams: Streams) -> None:
        self.params_P = start_P.clone()
        self._average, self._heard, self._counted, self._bits = average, 0, 0, streams.bits(seeds.ITERATE)

    def hear(self, spent: float, params_P: Tensor) -> None:
        """An iterate, and the share of the budget that is spent, in [0, 1]."""
        self._heard += 1
        if self._average == "random":
            if self._bits.randbelow(self._heard) == 0:
                self.params_P.copy_(params_P)
        elif self._average == "tail" and spent >= 0.5:
            self._counted += 1
            self.params_P.lerp_(params_P, 1 / self._counted)
        else:
            self.params_P.copy_(params_P)
