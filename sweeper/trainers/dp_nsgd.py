"""DP-NSGD: noisy steps along normalised gradients (Yang et al. 2022)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.spec.protocols import Clip, Step
from sweeper.trainers.dp_sgd import DpSgd, HeavyBall
from sweeper.trainers.minibatch import Rule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class DpNsgd(DpSgd):
    """DP-SGD whose records' gradients are normalised, g / (r + ||g||), so that no clip norm is left (Yang et al. 2022, Alg. 1).

    Guarantee and relation: those of `MinibatchTrainer`. `step_over_noise` divides every step by the noise multiplier of the
    gradient, as the step sizes of their Corollaries 3.3 and 3.5: then one step size serves at every privacy budget.
    """

    step_over_noise: bool = False
    kind: ClassVar[str] = "dp-nsgd"
    example: ClassVar[str] = "{kind: dp-nsgd, batch_size: 256, steps: 2000, step_over_noise: true}"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.flag(step_over_noise=self.step_over_noise)

    def rule(self, params_P: Tensor, sum_noise: float) -> Rule:
        return HeavyBall(self.momentum, params_P, sum_noise if self.step_over_noise and sum_noise > 0 else 1.0)

    def faults(self, clip: Clip, step: Step) -> Iterator[FieldError]:
        yield from super().faults(clip, step)
        if clip.kind != "normalise":
            yield FieldError(
                "space.clip.policy",
                clip.kind,
                f"does not go with trainer {self.kind}, which is DP-SGD on normalised gradients",
                "Use clip: {policy: normalise}, or trainer dp-sgd.",
            )
