"""A clip norm that falls while a run goes on: by the step's number, or each time a trainer raises its gradient budget."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from sweeper import checks
from sweeper.clip.base import SHORTEST, ClipPolicy, check_norm
from sweeper.clip.fixed import FixedClip, flat_factors

if TYPE_CHECKING:
    from torch import Tensor

SCHEDULES = ("exponential", "step", "linear", "raise")


@dataclass(frozen=True, kw_only=True)
class Decay(ClipPolicy):
    """Flat clipping to a norm that falls over the run, by a schedule or by the rule of DP-BLSGD-AC.

    Schedules go from clip_norm at the first step to final * clip_norm at the last: exponential, linear, or step (`stages` equal
    stretches of the run, each the same fraction of the one before). schedule raise: the norm is divided by 1 + zeta each time the
    trainer raises its gradient budget, at most once per update.
    Guarantee: one record's term has norm at most the norm of its step, rounding included; the noise is scaled to that same norm.
    Relation: zero-out.  The norm depends on the step's number or on released values alone, so its moving costs nothing.
    Source: Chen and Lee 2020 (zeta; the formula is ours, ALGORITHMS section 2).
    """

    clip_norm: float  # the start
    schedule: str = "exponential"
    final: float = 0.1  # of the start, at the last step
    stages: int = 4  # of schedule: step
    zeta: float = 0.05  # of schedule: raise
    kind: ClassVar[str] = "decay"
    searched: ClassVar[str] = "clip_norm"
    example: ClassVar[str] = "{policy: decay, range: [0.1, 4.0], scale: log, schedule: exponential, final: 0.1}"

    def __post_init__(self) -> None:
        check_norm(clip_norm=self.clip_norm)
        checks.one_of(SCHEDULES, schedule=self.schedule)
        checks.real(1e-6, 1.0, final=self.final)
        checks.whole(2, 1_000, stages=self.stages)
        checks.real(0.0, 10.0, open_low=True, zeta=self.zeta)

    @property
    def raises(self) -> bool:  # type: ignore[override]
        """Whether it moves when a trainer raises its gradient budget."""
        return self.schedule == "raise"

    @property
    def sensitivity(self) -> float:
        return self.clip_norm

    def factors(self, squared_norms_BL: Tensor) -> Tensor:
        """Factors [B] in [0, 1]."""
        return flat_factors(squared_norms_BL, self.clip_norm)

    def at(self, step: int, steps: int) -> ClipPolicy:
        """A fixed clip to the norm of step 0, ..., steps - 1; with schedule raise, the policy itself."""
        return self if self.raises else FixedClip(clip_norm=max(self.clip_norm * self._scale(step, steps), SHORTEST))

    def raised(self) -> Self:
        return replace(self, clip_norm=max(self.clip_norm / (1 + self.zeta), SHORTEST)) if self.raises else self

    def _scale(self, step: int, steps: int) -> float:
        """The norm's fraction of its start."""
        if self.schedule == "step":
            return float(self.final ** ((step * self.stages // steps) / (self.stages - 1)))
        progress = step / max(steps - 1, 1)
        return float(self.final**progress) if self.schedule == "exponential" else 1.0 + (self.final - 1.0) * progress
