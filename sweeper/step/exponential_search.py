"""A private line search whose cost does not grow with the number of candidates: the exponential mechanism on loss differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper.privacy.events import ExponentialMechanism
from sweeper.spec.protocols import Look
from sweeper.step.search import LineSearch

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ExponentialSearch(LineSearch):
    """Draw candidate j with probability proportional to exp(-epsilon L_j / (2 bound)), L_j how the step changes the loss.

    L_j sums each record's change of loss, clipped to [-bound, bound] (NaN counts as bound), and the change of the penalty.
    Guarantee: epsilon-DP and epsilon-bounded-range for each search, however many candidates, also after the noisy gradient.
    Relation: zero-out.  Sensitivity: bound, for every L_j, either way (a null record's term is 0).
    Exactness: one uniform of 53 bits, so that candidates of chance below 2^-53 may never be drawn.
    Source: McSherry and Talwar 2007; bounded range: Dong, Durfee, Rogers 2020.
    """

    kind: ClassVar[str] = "exponential-search"
    example: ClassVar[str] = "{policy: exponential-search, value: 50.0, bound: 1.0}"

    def event_of(self, epsilon: float) -> ExponentialMechanism:
        return ExponentialMechanism(epsilon)

    def scores(self, look: Look, bound: float) -> np.ndarray:
        """L_j for each candidate [J]."""

        def changes(here_B1: Tensor, there_BJ: Tensor) -> Tensor:
            return (there_BJ.double() - here_B1.double()).clamp_(-bound, bound).nan_to_num_(nan=bound)

        changes_J = look.batch.losses_along(look.params_P, look.direction_P, self.sizes, changes)
        scores_J: np.ndarray = changes_J.cpu().numpy() + self.penalty_rises(look, bound)
        return scores_J

    def search(self, look: Look, epsilon: float, bound: float) -> float:
        import numpy as np

        logs_J = self.scores(look, bound) * (-epsilon / (2 * bound))
        reached_J = np.cumsum(np.exp(logs_J - logs_J.max()))
        drawn = int(np.searchsorted(reached_J, look.draws.random() * reached_J[-1], side="right"))
        return self.sizes[min(drawn, self.candidates - 1)]
