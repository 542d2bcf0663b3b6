"""A step size given outright."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sweeper import checks
from sweeper.spec.protocols import Clip
from sweeper.step.schedule import Scheduled


@dataclass(frozen=True, kw_only=True)
class FixedStep(Scheduled):
    """Step size learning_rate, times the schedule."""

    learning_rate: float
    kind: ClassVar[str] = "fixed"
    searched: ClassVar[str] = "learning_rate"
    example: ClassVar[str] = "{policy: fixed, range: [0.1, 10.0], scale: log}"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive(learning_rate=self.learning_rate)
        checks.real(1e-30, 1e30, learning_rate=self.learning_rate)  # beyond, float32 has no such step

    def learning_rate_at(self, clip: Clip, step: int, steps: int) -> float:
        return self.learning_rate * self._scale(step, steps)
