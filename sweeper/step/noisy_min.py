"""The line search of DP-AGD: the candidate of the smallest noisy loss wins, and staying is a candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper import checks
from sweeper.privacy.events import NoisyMin
from sweeper.spec.protocols import Look
from sweeper.step.search import LineSearch, clipped_losses

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class NoisyMinSearch(LineSearch):
    """Take the step after which the noisy sum of losses is smallest; where staying wins, the step size is 0 (DP-AGD).

    Losses are clipped to [0, bound] (NaN counts as bound); noise of scale bound / epsilon goes on each sum, the penalty included.
    A bound as low as a loss at the start (ln 2 for logistic, 1 for svm) hides who gets worse: the authors' code has 3.
    Guarantee: epsilon-DP for each search; gumbel noise: epsilon-bounded-range too, which costs a quarter in zCDP.
    Relation: zero-out.  Sensitivity: a record only raises sums, by at most bound each (a null record's term is 0).
    Source: Lee and Kifer 2018; Dwork and Roth 2014, section 3.3.
    """

    noise: str = "gumbel"  # or laplace, as in the paper
    kind: ClassVar[str] = "noisy-min"
    example: ClassVar[str] = "{policy: noisy-min, value: 50.0, bound: 1.0}"
    costs: ClassVar[Mapping[str, int]] = {**LineSearch.costs, "noise": 0}
    may_fail: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of(("gumbel", "laplace"), noise=self.noise)

    @property
    def zcdp(self) -> float:  # type: ignore[override]
        return 0.125 if self.noise == "gumbel" else 0.5

    def event_of(self, epsilon: float) -> NoisyMin:
        return NoisyMin(epsilon, self.noise)

    def scores(self, look: Look, bound: float) -> np.ndarray:
        """Sums of losses for staying and for each candidate [1 + J], less the penalty where the step starts."""
        import numpy as np
        import torch

        def losses(here_B1: Tensor, there_BJ: Tensor) -> Tensor:
            return clipped_losses(torch.cat((here_B1, there_BJ[:, 1:]), dim=1), bound)  # here itself: 0 times a slope may be NaN

        sums_J = look.batch.losses_along(look.params_P, look.direction_P, (0.0, *self.sizes), losses)
        scores_J: np.ndarray = sums_J.cpu().numpy() + np.append(0.0, self.penalty_rises(look, bound))
        return scores_J

    def search(self, look: Look, epsilon: float, bound: float) -> float:
        import numpy as np

        scores_J = self.scores(look, bound) * (epsilon / bound)
        if self.noise == "gumbel":
            noisy_J = scores_J - look.draws.gumbel(size=scores_J.size)
        else:
            noisy_J = scores_J + look.draws.laplace(size=scores_J.size)
        return (0.0, *self.sizes)[int(np.argmin(noisy_J))]
