"""DP-SGD: noisy gradient steps on random minibatches (Abadi et al. 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper import checks
from sweeper.trainers.minibatch import MinibatchTrainer, Rule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class DpSgd(MinibatchTrainer):
    """Noisy sum of clipped gradients over a random batch, divided by the public batch_size; penalty, momentum, step.

    Guarantee and relation: those of `MinibatchTrainer`. Momentum (heavy ball), penalty, schedule and averaging are
    post-processing.
    """

    momentum: float = 0.0
    kind: ClassVar[str] = "dp-sgd"
    example: ClassVar[str] = "{kind: dp-sgd, batch_size: 256, steps: 2000, average: tail}"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.real(0.0, 1.0, open_high=True, momentum=self.momentum)

    def rule(self, params_P: Tensor, sum_noise: float) -> Rule:
        return HeavyBall(self.momentum, params_P)


class HeavyBall:
    """velocity <- momentum * velocity + gradient / scale; the velocity is the direction. Without momentum none is kept."""

    def __init__(self, momentum: float, params_P: Tensor, scale: float = 1.0) -> None:
        self._momentum, self._velocity_P, self._weight = momentum, params_P.new_zeros(params_P.shape), 1.0 / scale

    def direction(self, gradient_P: Tensor, noise_std: float) -> Tensor:
        if self._momentum == 0.0:
            return gradient_P if self._weight == 1.0 else gradient_P * self._weight
        return self._velocity_P.mul_(self._momentum).add_(gradient_P, alpha=self._weight)
