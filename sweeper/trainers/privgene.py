"""PrivGene: a genetic algorithm whose parents are picked by the exponential mechanism (Zhang et al. 2013)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper import checks, seeds
from sweeper.privacy.event import LEAST_NOISE
from sweeper.privacy.events import Event, ExponentialMechanism, Gaussian, Repeated
from sweeper.seeds import Streams
from sweeper.spec.protocols import Batch, Clip, Fitted, Problem, Step
from sweeper.step.search import LEAST_EPSILON, MOST_EPSILON, clipped_losses, held
from sweeper.trainers.unclipped import Unclipped

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class PrivGene(Unclipped):
    """Genetic search: parents by the exponential mechanism on clipped losses, then crossover and mutation (Zhang et al. 2013).

    A generation: `parents` picks, with replacement, among `population` vectors. A child takes every coordinate from one of two of
    them; then each coordinate moves, with chance mutation_rate, by a Gaussian draw of size spread * cooling^generation. After
    `steps` generations one more pick is the answer. Children are post-processing of the picks.
    Fit: minus the sum over all rows of losses clipped to [0, bound] (NaN counts as bound), the penalty beside it. A record only
    raises the sum, by at most bound, so Pr[j] proportional to exp(-e F_j / bound) is e-DP and e-bounded-range.
    Guarantee: steps * parents + 1 ExponentialMechanism(e), composed; e = 2 / (z sqrt(their number)), so that they cost together
    what a Gaussian of multiplier z does in zCDP (e^2/8 each). Relation: zero-out.
    Exactness of a pick: one uniform of 53 bits, so that candidates of chance below 2^-53 may never be drawn.
    Source: Zhang, Xiao, Yang, Zhang, Winslett 2013; bounded range: Dong, Durfee, Rogers 2020.
    """

    steps: int = 20
    population: int = 100
    parents: int = 10
    bound: float = 1.0
    spread: float = 1.0  # standard deviation of the first population, and of the first mutations
    cooling: float = 0.9
    mutation_rate: float = 0.1
    kind: ClassVar[str] = "privgene"
    example: ClassVar[str] = "{kind: privgene, steps: 20, population: 100}"
    no_clip: ClassVar[str] = "it computes no gradient"
    no_step: ClassVar[str] = "it takes no step along a gradient"

    def __post_init__(self) -> None:
        checks.whole(1, 10_000, steps=self.steps)
        checks.whole(2, 100_000, population=self.population)
        checks.whole(1, self.population, parents=self.parents)
        checks.positive(bound=self.bound, spread=self.spread)
        checks.real(1e-6, 1e6, bound=self.bound, spread=self.spread)
        checks.real(0.0, 1.0, open_low=True, cooling=self.cooling, mutation_rate=self.mutation_rate)

    @property
    def picks(self) -> int:
        return self.steps * self.parents + 1

    def epsilon(self, noise_multiplier: float) -> float:
        """Of one pick."""
        epsilon = 2.0 / (max(noise_multiplier, LEAST_NOISE) * math.sqrt(self.picks))
        return min(max(epsilon, LEAST_EPSILON), MOST_EPSILON)

    def event(self, rows: int, noise_multiplier: float, clip: Clip, step: Step) -> Event:
        if noise_multiplier < LEAST_NOISE:
            return Gaussian(0.0)  # nothing is promised
        return Repeated(ExponentialMechanism(self.epsilon(noise_multiplier)), self.picks)

    def fit(
        self,
        problem: Problem,
        clip: Clip,
        step: Step,
        noise_multiplier: float,
        streams: Streams,
        on_step: Callable[[int], None] | None = None,
        *,
        share: float = 1.0,
    ) -> Fitted:
        """share: of the rows that the problem lets into a batch; the penalty is multiplied by share * rows."""
        import numpy as np
        import torch

        size, epsilon, nonfinite = sum(problem.layers), self.epsilon(noise_multiplier), problem.nonfinite
        problem.label_counts()  # counts the rows that are not finite, which losses leave out in silence
        everybody, weight = problem.batch(np.arange(problem.rows)), share * problem.rows
        breeding, picking = streams.generator(seeds.INIT), streams.generator(seeds.SEARCH)
        people_MP = self.spread * breeding.standard_normal((self.population, size))
        for generation in range(self.steps):
            scores_M = self._scores(people_MP, everybody, problem, weight)
            parents_RP = people_MP[[self._pick(scores_M, epsilon, picking) for _ in range(self.parents)]]
            people_MP = self._children(parents_RP, breeding, self.spread * self.cooling**generation)
            if on_step is not None:
                on_step(generation + 1)
        answer = self._pick(self._scores(people_MP, everybody, problem, weight), epsilon, picking)
        sealed = {"steps": self.steps, "nonfinite": problem.nonfinite - nonfinite}
        return Fitted(torch.from_numpy(people_MP[answer]).float(), sealed, {}, {})

    def _scores(self, people_MP: np.ndarray, everybody: Batch, problem: Problem, weight: float) -> np.ndarray:
        """F_j [M], in units of the bound."""
        import numpy as np
        import torch

        def losses(here_B1: Tensor, there_B0: Tensor) -> Tensor:
            return clipped_losses(here_B1, self.bound)

        sums, penalties = [], []
        for person_P in torch.from_numpy(people_MP).float():
            sums.append(float(everybody.losses_along(person_P, torch.zeros_like(person_P), (0.0,), losses)[0]))
            penalties.append(weight * problem.penalty(person_P))
        scores_M: np.ndarray = (np.array(sums) + held(penalties, self.bound)) / self.bound
        return scores_M

    @staticmethod
    def _pick(scores_M: np.ndarray, epsilon: float, draws: np.random.Generator) -> int:
        import numpy as np

        logs_M = -epsilon * scores_M
        reached_M = np.cumsum(np.exp(logs_M - logs_M.max()))
        return min(int(np.searchsorted(reached_M, draws.random() * reached_M[-1], side="right")), len(scores_M) - 1)

    def _children(self, parents_RP: np.ndarray, draws: np.random.Generator, spread: float) -> np.ndarray:
        """A new population [M, P]."""
        import numpy as np

        size = (self.population, parents_RP.shape[1])
        first, second = (parents_RP[draws.integers(0, len(parents_RP), self.population)] for _ in range(2))
        children_MP: np.ndarray = np.where(draws.random(size) < 0.5, first, second)
        return children_MP + np.where(draws.random(size) < self.mutation_rate, spread * draws.standard_normal(size), 0.0)
