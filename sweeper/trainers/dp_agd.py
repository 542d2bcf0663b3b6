"""DP-AGD: full-batch steps along the normalised noisy gradient, their size by the smallest noisy loss (Lee and Kifer 2018)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from sweeper.checks import FieldError
from sweeper.spec.protocols import Clip
from sweeper.trainers.blsgd import DpBlgd


@dataclass(frozen=True, kw_only=True)
class DpAgd(DpBlgd):
    """DP-AGD: noisy gradient of the whole table at length 1, the step with the smallest noisy loss, staying among them.

    Where staying wins, the gradient's rho is multiplied by 1 + gradient_raise, and a fresh look of the difference is averaged with
    the one there is (always: another budget rule is another trainer, dp-blgd). Candidates of the step are fixed beforehand.
    Guarantee and relation: those of `LineSearched`, by a filter on zCDP: rho is 1/(2 z^2) of a look at the gradient, epsilon^2/8 of
    a choice by Gumbel noise, epsilon^2/2 by the paper's Laplace noise. Normalising and averaging are post-processing.
    Source: Lee and Kifer 2018, Algorithm 2; the choice: Dwork and Roth 2014, section 3.3.
    """

    gradient_raise: float = 0.1  # gamma, of the authors' code
    relax: float = 1.0  # a budget that was raised stays raised
    kind: ClassVar[str] = "dp-agd"
    example: ClassVar[str] = "{kind: dp-agd, steps: 50}"
    normalises: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget != "always":
            rule = f"is refused: in trainer {self.kind} every choice to stay raises the gradient's budget"
            raise FieldError("budget", self.budget, rule, "Leave it out, or use trainer dp-blgd.")

    def faults(self, clip: Clip, step: Any) -> Iterator[FieldError]:
        yield from super().faults(clip, step)
        if step.kind != "noisy-min":
            rule = f"does not go with trainer {self.kind}, whose step is the one with the smallest noisy loss"
            yield FieldError("space.step.policy", step.kind, rule, "Use policy: noisy-min, or trainer dp-blgd.")
