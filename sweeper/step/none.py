"""No step policy, for trainers that take steps of a size of their own, or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sweeper.spec.protocols import Look
from sweeper.step.base import StepPolicy


@dataclass(frozen=True, kw_only=True)
class NoStep(StepPolicy):
    """No step size: for trainers that have one of their own, or take no steps."""

    kind: ClassVar[str] = "none"
    searched: ClassVar[str] = ""
    example: ClassVar[str] = "{policy: none}"
    absent: ClassVar[bool] = True

    def size(self, look: Look) -> float:
        raise RuntimeError("step policy none has no size")
