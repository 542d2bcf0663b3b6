"""Noisy backtracking: the largest candidate that passes a noisy Armijo test (Chen and Lee 2020, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper import checks
from sweeper.privacy.events import AboveThresholdGaussian, AboveThresholdLaplace
from sweeper.spec.protocols import Look
from sweeper.step.search import LineSearch, clipped_losses, held

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

NOISES = ("laplace", "gaussian")
MOST_NOISE = 1e9  # what events are priced for
LEAST_THRESHOLD, LEAST_QUERY = 0.01, 0.2  # below, the price of Gaussian noise is out of reach


@dataclass(frozen=True, kw_only=True)
class Backtracking(LineSearch):
    """Take the first candidate whose fall in loss, with noise, passes the Armijo test; where none does, the step size is 0.

    q_j = b (F(w) - F(w - eta_j d)) - alpha eta_j b <g, d>, with b the public batch size, g the noisy mean gradient, d the
    direction, and b F the sum over the batch of losses clipped to [0, bound] (NaN counts as bound) and b times the penalty.
    A direction that the gradient says is uphill must not raise the loss: <g, d> counts from 0.
    The first j with q_j + noise_j >= noise wins: one draw for the threshold, one for each candidate.
    Guarantee: that of `event_of`. Relation: zero-out.  Sensitivity: bound, for every q_j, either way.
    Source: Chen and Lee 2020, Algorithm 1; Laplace noise is divided as Lyu, Su, Li 2017 advise (one answer, queries that move both
    ways: 1 to 2^(2/3)), Gaussian noise so that threshold and one query cost epsilon^2/4 of zCDP each.
    """

    alpha: float = 0.5  # how much of the fall that the gradient promises is asked for
    noise: str = "laplace"  # or gaussian, of which long searches cost more
    never_zero: bool = False  # where none passes, take the next smaller candidate, as the paper does for networks
    kind: ClassVar[str] = "backtracking"
    searched: ClassVar[str] = "alpha"
    example: ClassVar[str] = "{policy: backtracking, range: [0.01, 0.5], scale: log, bound: 1.0}"
    costs: ClassVar[Mapping[str, int]] = {**LineSearch.costs, "noise": 0, "candidates": 1}
    zcdp: ClassVar[float] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.real(0.0, 1.0, open_low=True, open_high=True, alpha=self.alpha)
        checks.one_of(NOISES, noise=self.noise)
        checks.flag(never_zero=self.never_zero)

    @property
    def may_fail(self) -> bool:  # type: ignore[override]
        return not self.never_zero

    def noises(self, epsilon: float) -> tuple[float, float]:
        """Scales (Laplace) or standard deviations (Gaussian) of the threshold and of each query, in units of the bound."""
        if self.noise == "laplace":
            ratio = 2 ** (2 / 3)  # of the queries' part of epsilon to the threshold's
            threshold, query = (1 + ratio) / epsilon, 2 * (1 + 1 / ratio) / epsilon
        else:
            threshold, query = max(math.sqrt(2) / epsilon, LEAST_THRESHOLD), max(math.sqrt(8) / epsilon, LEAST_QUERY)
        return min(threshold, MOST_NOISE), min(query, MOST_NOISE)

    def event_of(self, epsilon: float) -> AboveThresholdLaplace | AboveThresholdGaussian:
        if self.noise == "laplace":
            return AboveThresholdLaplace(*self.noises(epsilon))
        return AboveThresholdGaussian(*self.noises(epsilon), searches=self.candidates)

    def scores(self, look: Look, bound: float) -> np.ndarray:
        """q_j for each candidate [J]."""
        import numpy as np

        def falls(here_B1: Tensor, there_BJ: Tensor) -> Tensor:
            return clipped_losses(here_B1, bound) - clipped_losses(there_BJ, bound)

        promised = look.divisor * max(float(look.gradient_P.double() @ look.direction_P.double()), 0.0)
        asked_J = held(self.alpha * promised * np.array(self.sizes), bound)
        falls_J = look.batch.losses_along(look.params_P, look.direction_P, self.sizes, falls)
        scores_J: np.ndarray = falls_J.cpu().numpy() - self.penalty_rises(look, bound) - asked_J
        return scores_J

    def search(self, look: Look, epsilon: float, bound: float) -> float:
        import numpy as np

        threshold_noise, query_noise = self.noises(epsilon)
        draw = look.draws.laplace if self.noise == "laplace" else look.draws.normal
        draws_J = draw(size=1 + self.candidates)
        above_J = self.scores(look, bound) / bound + query_noise * draws_J[1:] >= threshold_noise * draws_J[0]
        if above_J.any():
            return self.sizes[int(np.argmax(above_J))]
        return self.initial * self.ratio**self.candidates if self.never_zero else 0.0
