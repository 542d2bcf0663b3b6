"""How a step size changes over a run. Schedules depend on the step's number only, so they cost no privacy."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

from sweeper import checks
from sweeper.spec.protocols import Clip, Look
from sweeper.step.base import StepPolicy

SCHEDULES = ("constant", "cosine", "linear")


@dataclass(frozen=True, kw_only=True)
class Scheduled(StepPolicy):
    """Base of step policies with a schedule: a linear warm-up over the first `warmup` of the steps, then the named decay."""

    schedule: str = "constant"  # constant; cosine or linear: down towards 0 at the end
    warmup: float = 0.0  # fraction of the steps

    def __post_init__(self) -> None:
        checks.one_of(SCHEDULES, schedule=self.schedule)
        checks.real(0.0, 1.0, open_high=True, warmup=self.warmup)

    @abstractmethod
    def learning_rate_at(self, clip: Clip, step: int, steps: int) -> float:
        """The step size at step 0, ..., steps - 1. (Not `learning_rate`: that is a field of `fixed`.)"""

    def size(self, look: Look) -> float:
        return self.learning_rate_at(look.clip, look.step, look.steps)

    def _scale(self, step: int, steps: int) -> float:
        """The multiple of the peak step size at step 0, ..., steps - 1. Never 0."""
        warm = math.ceil(self.warmup * steps)
        if step < warm:
            return (step + 1) / warm
        progress = (step - warm) / (steps - warm)
        if self.schedule == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * progress))
        return 1.0 - progress if self.schedule == "linear" else 1.0
