"""DP-Adam: Adam on noisy minibatch gradients, with or without what the noise adds to its second moment taken out again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.spec.protocols import Clip, Step
from sweeper.trainers.minibatch import MinibatchTrainer, Rule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class DpAdam(MinibatchTrainer):
    """Adam on the noisy mean of clipped gradients (Kingma and Ba 2015), penalty included.

    Guarantee and relation: those of `MinibatchTrainer`; moments are post-processing. `bias_correct_noise` subtracts the known
    variance of the noise from the second moment and keeps at least noise_floor (DP-AdamBC: Tang, Shpilevskiy, Lecuyer 2023).
    """

    beta1: float = 0.9
    beta2: float = 0.999
    stability: float = 1e-8  # added to the root of the second moment
    bias_correct_noise: bool = False
    noise_floor: float = 1e-8  # least second moment after the subtraction, in squared gradient units; `stability` is not used then
    kind: ClassVar[str] = "dp-adam"
    example: ClassVar[str] = "{kind: dp-adam, batch_size: 256, steps: 2000, bias_correct_noise: true}"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.real(0.0, 1.0, open_high=True, beta1=self.beta1, beta2=self.beta2)
        checks.positive(stability=self.stability, noise_floor=self.noise_floor)
        checks.flag(bias_correct_noise=self.bias_correct_noise)

    def rule(self, params_P: Tensor, sum_noise: float) -> Rule:
        return Adam(self, params_P)

    def faults(self, clip: Clip, step: Step) -> Iterator[FieldError]:
        yield from super().faults(clip, step)
        if step.scaled:
            yield FieldError(
                "space.step.policy",
                step.kind,
                f"does not go with trainer {self.kind}: Adam takes the gradient's scale out: search the step size alone",
                "Use policy: fixed, with a range of learning rates.",
            )


class Adam:
    """Running moments of the gradient, each divided by the weight it has gathered. The noise's variance runs along with them."""

    def __init__(self, settings: DpAdam, params_P: Tensor) -> None:
        self._settings = settings
        self._first_P, self._second_P = params_P.new_zeros(params_P.shape), params_P.new_zeros(params_P.shape)
        self._noise = 0.0  # the second moment's own mean of the noise's variance: a clip norm that moves takes the noise with it
        self._weight1 = self._weight2 = 0.0

    def direction(self, gradient_P: Tensor, noise_std: float) -> Tensor:
        s = self._settings
        self._weight1, self._weight2 = s.beta1 * self._weight1 + 1 - s.beta1, s.beta2 * self._weight2 + 1 - s.beta2
        self._noise = s.beta2 * self._noise + (1 - s.beta2) * noise_std**2
        self._first_P.mul_(s.beta1).add_(gradient_P, alpha=1 - s.beta1)
        self._second_P.mul_(s.beta2).addcmul_(gradient_P, gradient_P, value=1 - s.beta2)
        second_P = self._second_P / self._weight2
        if s.bias_correct_noise:
            root_P = second_P.sub_(self._noise / self._weight2).clamp_(min=s.noise_floor).sqrt_()
        else:
            root_P = second_P.sqrt_().add_(s.stability)
        return self._first_P.div(self._weight1).div_(root_P)
