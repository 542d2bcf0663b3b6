"""Trainers that fail where a worker must cope. Workers import this module, so it lies on their path."""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import dataclass
from typing import Any, ClassVar

from sweeper.trainers.dp_sgd import DpSgd

POISON = "age 39, Bachelors"  # stands for a row's content; it must be found in the Vault and nowhere else


@dataclass(frozen=True, kw_only=True)
class Failing(DpSgd):
    """Prints a row and fails when the clip norm is below `below`."""

    how: str = "raise"  # raise, exit or diverge
    below: float = 1e9
    kind: ClassVar[str] = "failing"

    def fit(
        self, problem: Any, clip: Any, step: Any, noise_multiplier: float, streams: Any, on_step: Any = None, **more: Any
    ) -> Any:
        if clip.clip_norm >= self.below:
            return super().fit(problem, clip, step, noise_multiplier, streams, **more)
        print(f"printed {POISON}")
        print(f"complained {POISON}", file=sys.stderr)
        if self.how == "exit":
            sys.exit(f"exit {POISON}")
        if self.how == "raise":
            raise ValueError(f"raised {POISON}")
        fitted = super().fit(problem, clip, step, noise_multiplier, streams, **more)
        return fitted._replace(params_P=fitted.params_P * float("inf"))


@dataclass(frozen=True, kw_only=True)
class Slow(DpSgd):
    """Takes this long before it does what DpSgd does."""

    seconds: float = 1.0
    kind: ClassVar[str] = "slow"

    def fit(
        self, problem: Any, clip: Any, step: Any, noise_multiplier: float, streams: Any, on_step: Any = None, **more: Any
    ) -> Any:
        logging.getLogger("slow").debug("waiting")
        time.sleep(self.seconds)
        return super().fit(problem, clip, step, noise_multiplier, streams, **more)
