"""A step size coupled to the clip norm, so that the two are nearly one dimension to search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sweeper import checks
from sweeper.spec.protocols import Clip
from sweeper.step.schedule import Scheduled


@dataclass(frozen=True, kw_only=True)
class CoupledStep(Scheduled):
    """Step size c / sensitivity of the clip policy, times the schedule.

    While every gradient is longer than the clip norm, an update depends on step size and clip norm through their product c
    alone, noise included: all small clip norms then behave alike.
    """

    c: float
    kind: ClassVar[str] = "coupled"
    removes: ClassVar[str] = "clip norm and step size are nearly one dimension"
    scaled: ClassVar[bool] = True
    searched: ClassVar[str] = "c"
    example: ClassVar[str] = "{policy: coupled, range: [0.3, 10.0], scale: log}"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive(c=self.c)
        checks.real(1e-30, 1e30, c=self.c)

    def learning_rate_at(self, clip: Clip, step: int, steps: int) -> float:
        return self.c / clip.sensitivity * self._scale(step, steps)
