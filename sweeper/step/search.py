"""What line searches share: public candidates, a budget, and the sums that they ask of the gradient's own minibatch.

A search reads the noisy gradient, so the two compose, and both look at one minibatch, so they compose inside its subsample
(trainers.minibatch.minibatch_event). Candidates are initial * ratio^j, j = 0, ..., candidates - 1.
Budgets: of a step whose whole multiplier is z, worth 1/(2 z^2) of zCDP, a share s is the search's and the rest the gradient's:
the gradient has multiplier z / sqrt(1 - s), the search the epsilon whose zCDP cost is s/(2 z^2). That is how noise is divided; what
is charged is the composed pair. With `epsilon` given, the search has that epsilon whatever z is, and the gradient all of z.
Scores are sums over the batch of per-record terms, and public terms beside them: the penalty, which no data enters. A ball that
a trainer projects on (`radius`) is not seen: candidates are scored where the step itself would lead.
Shapes: J candidates.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper import checks
from sweeper.privacy.events import Event
from sweeper.spec.protocols import Look
from sweeper.step.base import StepPolicy

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

LEAST_EPSILON = 1e-9  # of one search: below, the noise is beyond what events are priced for, and nothing is seen anyway
MOST_EPSILON = 500.0  # beyond, no noise is left and no price is finite
MOST_PUBLIC = 1e9  # of a public term, in units of the bound: beyond, a float64 score loses the digits that one record moves


@dataclass(frozen=True, kw_only=True)
class LineSearch(StepPolicy):
    """Base of the line searches."""

    initial: float = 50.0  # the largest candidate
    ratio: float = 0.7  # of a candidate to the one before
    candidates: int = 20
    bound: float = 1.0  # C_obj or B: what one record's term is clipped to, in units of the loss
    share: float = 0.2  # of a step's budget
    epsilon: float | None = None  # of one search; None: what `share` gives
    searched: ClassVar[str] = "initial"
    searches: ClassVar[bool] = True
    costs: ClassVar[Mapping[str, int]] = {"epsilon": 1, "share": 0}
    removes: ClassVar[str] = "the step size is found at every step, at a price inside it"
    zcdp: ClassVar[float] = 0.125  # rho / epsilon^2 of one search; a property where it depends on a field

    def __post_init__(self) -> None:
        checks.positive(initial=self.initial, bound=self.bound)
        checks.real(1e-30, 1e30, initial=self.initial, bound=self.bound)  # beyond, float32 loses the step
        checks.real(0.0, 1.0, open_low=True, open_high=True, ratio=self.ratio)
        checks.real(1e-4, 0.99, share=self.share)  # beyond, one of the two has no budget to speak of
        checks.whole(1, 200, candidates=self.candidates)
        if self.epsilon is not None:
            checks.real(1e-6, MOST_EPSILON, epsilon=self.epsilon)

    @property
    def sizes(self) -> tuple[float, ...]:
        """The candidates, the largest first."""
        return tuple(self.initial * self.ratio**j for j in range(self.candidates))

    def budget(self, noise_multiplier: float) -> float:
        """Epsilon of one search inside a step of this whole multiplier."""
        if self.epsilon is not None:
            return self.epsilon
        epsilon = math.sqrt(self.share / (2 * self.zcdp)) / max(noise_multiplier, 1e-9)
        return min(max(epsilon, LEAST_EPSILON), MOST_EPSILON)

    def gradient_noise(self, noise_multiplier: float) -> float:
        return noise_multiplier if self.epsilon is not None else noise_multiplier / math.sqrt(1 - self.share)

    def event(self, noise_multiplier: float) -> Event:
        return self.event_of(self.budget(noise_multiplier))

    def size(self, look: Look) -> float:
        return self.search(look, self.budget(look.noise_multiplier), self.bound)

    @abstractmethod
    def event_of(self, epsilon: float) -> Event:
        """One search with this budget, on the records of one minibatch."""

    @abstractmethod
    def scores(self, look: Look, bound: float) -> np.ndarray:
        """What a search without noise would compare [J]. Sealed: only `search` may look at them."""

    @abstractmethod
    def search(self, look: Look, epsilon: float, bound: float) -> float:
        """The step size, found with this budget and records' terms clipped to this bound; 0 where none helps, if it `may_fail`."""

    def penalty_rises(self, look: Look, bound: float) -> np.ndarray:
        """divisor times how much the model's penalty rises at each candidate [J]: public, in the scale of sums over the batch."""
        here = look.problem.penalty(look.params_P)
        rises = [look.problem.penalty(look.params_P.add(look.direction_P, alpha=-size)) - here for size in self.sizes]
        return held([look.divisor * rise for rise in rises], bound)


def held(values_J: Sequence[float] | np.ndarray, bound: float) -> np.ndarray:
    """Public terms, as large ones in float64 as leave the sums beside them exact; NaN is as bad as the largest."""
    import numpy as np

    most = MOST_PUBLIC * bound
    return np.nan_to_num(np.asarray(values_J, np.float64), nan=most).clip(-most, most)


def clipped_losses(losses: Tensor, bound: float) -> Tensor:
    """Losses held to [0, bound] in float64, in which a bound is what it says; NaN counts as the bound."""
    return losses.double().clamp_(0.0, bound).nan_to_num_(nan=bound)
