"""A clip norm that follows a quantile of the gradients' norms, moved at every step by a noisy count."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.clip.base import ClipPolicy
from sweeper.clip.fixed import flat_factors
from sweeper.privacy.events import AdaptiveQuantileStep, Event, Gaussian

if TYPE_CHECKING:
    from torch import Tensor

LOWEST, HIGHEST = 1e-6, 1e6  # the norm stays between them, whatever the counts say
_MOST_NOISE = 1e9  # what events allow
_LARGEST = 1e6  # count_noise


@dataclass(frozen=True, kw_only=True)
class AdaptiveQuantileClip(ClipPolicy):
    """Flat clipping to a norm that moves towards a quantile of the gradients' norms, by a noisy count at every step.

    Each step: norm <- norm * exp(-rate (share - quantile)), share = noisy sum of (1[||g|| <= norm] - 1/2), divided by the public
    batch size, plus 1/2. The norm starts at clip_norm and stays in [1e-6, 1e6].
    Guarantee: sum and count of a step together cost one Gaussian of the step's multiplier z: the count has noise of standard
    deviation s (a record moves it by 1/2), the sum the multiplier (z^-2 - (2 s)^-2)^(-1/2) in units of the norm of that step.
    Relation: zero-out; under replace-one sum and count both move twice as far, which the sampler's event counts.
    Source: Andrew, Thakkar, McMahan, Ramaswamy 2021, Theorem 1.
    """

    clip_norm: float  # the start
    quantile: float = 0.5
    rate: float = 0.2
    count_noise: float | None = None  # s; None: 5 times the step's multiplier
    kind: ClassVar[str] = "adaptive-quantile"
    searched: ClassVar[str] = "clip_norm"
    example: ClassVar[str] = "{policy: adaptive-quantile, value: 1.0, quantile: {range: [0.1, 0.9]}}"
    counts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.positive(clip_norm=self.clip_norm)
        checks.real(LOWEST, HIGHEST, clip_norm=self.clip_norm)
        checks.real(0.0, 1.0, quantile=self.quantile)
        checks.real(0.0, 10.0, open_low=True, rate=self.rate)
        if self.count_noise is not None:
            checks.real(0.01, _LARGEST, count_noise=self.count_noise)

    @property
    def sensitivity(self) -> float:
        return self.clip_norm

    def factors(self, squared_norms_BL: Tensor) -> Tensor:
        """Factors [B] in [0, 1]."""
        return flat_factors(squared_norms_BL, self.clip_norm)

    def count_std(self, noise_multiplier: float) -> float:
        return min(5 * noise_multiplier, _MOST_NOISE) if self.count_noise is None else self.count_noise

    def sum_event(self, noise_multiplier: float) -> Event:
        """One step's sum and count. Where the count alone costs more than the whole should, what the count costs."""
        if noise_multiplier == 0.0:
            return Gaussian(0.0)
        count_noise = self.count_std(noise_multiplier)
        if noise_multiplier >= 2 * count_noise:
            return Gaussian(2 * count_noise)
        return AdaptiveQuantileStep(noise_multiplier, count_noise)

    def sum_noise(self, noise_multiplier: float) -> float:
        """The multiplier of the sum's own noise.

        Raises:
          FieldError: count_noise leaves nothing for the sum.
        """
        if noise_multiplier == 0.0:
            return 0.0
        count_noise = self.count_std(noise_multiplier)
        if noise_multiplier >= 2 * count_noise * (1 - 1e-6):
            raise FieldError(
                "count_noise",
                count_noise,
                f"must be above half the step's noise multiplier, {noise_multiplier / 2:.4g}: the count alone costs that much",
                f"Leave it out, or try {min(5 * noise_multiplier, _LARGEST):.3g}.",
            )
        return AdaptiveQuantileStep(noise_multiplier, count_noise).gradient_noise_multiplier

    def counted(self, squared_norms_BL: Tensor) -> Tensor:
        """1/2 for each record [B] whose norm is at most clip_norm, -1/2 for the others, also where it is not finite."""
        return (squared_norms_BL.sum(dim=1).sqrt_() <= self.clip_norm).to(squared_norms_BL.dtype).sub_(0.5)

    def moved(self, mean_count: float) -> Self:
        exponent = min(max(-self.rate * (mean_count + 0.5 - self.quantile), -100.0), 100.0)
        return replace(self, clip_norm=min(max(self.clip_norm * math.exp(exponent), LOWEST), HIGHEST))
