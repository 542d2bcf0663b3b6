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
from sweeper.step.search import LEAST_EPSILON, MOST_EPSILON, held
from sweeper.trainers.unclipped import Unclipped

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

LEAST_COOLED = 1e-6  # below, float32 tells no child from its parent


@dataclass(frozen=True, kw_only=True)
class PrivGene(Unclipped):
    """Genetic search: parents by the exponential mechanism on clipped changes of loss, crossover, mutation (Zhang et al. 2013).

    The first population are mutants of the start. A generation: `parents` picks, with replacement, among `population` vectors. A
    child takes every coordinate from one of two of them; then each coordinate moves, with chance mutation_rate, by a Gaussian draw
    of size spread * cooling^generation. After `steps` generations one more pick is the answer.
    Fit: S_j, how the sum of losses changes from the reference to vector j, the penalty's change beside it. The reference is the
    last pick (of a generation's the first), or the start: released. A record's change is clipped to [-c, c] (NaN counts as c),
    c = bound * cooling^generation: as vectors come closer to the reference, one record says less about them, and less noise will
    do. This stands for their enhanced exponential mechanism, and needs no assumption on the loss.
    Guarantee: steps * parents + 1 ExponentialMechanism(e), composed; e = 2 / (z sqrt(their number)), so that they cost together
    what a Gaussian of multiplier z does in zCDP (e^2/8 each). Pr[j] is proportional to exp(-e S_j / (2 c)), and a record moves all
    S_j by values in one interval of length 2 c: e-DP and e-bounded-range. Relation: zero-out.
    Exactness of a pick: one uniform of 53 bits, so that candidates of chance below 2^-53 may never be drawn.
    Source: Zhang, Xiao, Yang, Zhang, Winslett 2013; bounded range: Dong, Durfee, Rogers 2020.
    """

    steps: int = 20
    population: int = 100
    parents: int = 10
    bound: float = 0.5  # what a record's change of loss is clipped to in the first generation; then it shrinks as mutations do
    spread: float = 0.5  # standard deviation of the first mutations
    cooling: float = 0.95
    mutation_rate: float | None = None  # None: one coordinate of a child moves on average
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
        checks.real(0.0, 1.0, open_low=True, cooling=self.cooling)
        if self.mutation_rate is not None:
            checks.real(0.0, 1.0, open_low=True, mutation_rate=self.mutation_rate)

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

        epsilon, nonfinite = self.epsilon(noise_multiplier), problem.nonfinite
        problem.label_counts()  # counts the rows that are not finite, which losses leave out in silence
        everybody, weight = problem.batch(np.arange(problem.rows)), share * problem.rows
        breeding, picking = streams.generator(seeds.INIT), streams.generator(seeds.SEARCH)
        parents_RP = problem.start(streams).double().cpu().numpy()[None, :]
        for generation in range(self.steps + 1):
            cooled = max(self.cooling**generation, LEAST_COOLED)
            people_MP = self._children(parents_RP, breeding, self.spread * cooled)
            scores_M = self._scores(people_MP, parents_RP[0], everybody, problem, weight, self.bound * cooled)
            picks = self.parents if generation < self.steps else 1
            parents_RP = people_MP[[self._pick(scores_M, epsilon, picking) for _ in range(picks)]]
            if on_step is not None and generation < self.steps:
                on_step(generation + 1)
        sealed = {"steps": self.steps, "nonfinite": problem.nonfinite - nonfinite}
        return Fitted(torch.from_numpy(parents_RP[0]).float(), sealed, {}, {})

    @staticmethod
    def _scores(
        people_MP: np.ndarray, reference_P: np.ndarray, everybody: Batch, problem: Problem, weight: float, bound: float
    ) -> np.ndarray:
        """S_j [M], in units of 2 bound: a record moves the difference of any two by at most 1."""
        import numpy as np
        import torch

        def changes(here_B1: Tensor, there_BJ: Tensor) -> Tensor:
            return (there_BJ.double() - here_B1.double()).clamp_(-bound, bound).nan_to_num_(nan=bound)

        here_P = torch.from_numpy(reference_P).float()
        penalty, sums, rises = problem.penalty(here_P), [], []
        for person_P in torch.from_numpy(people_MP).float():
            sums.append(float(everybody.losses_along(here_P, here_P - person_P, (1.0,), changes)[0]))
            rises.append(weight * (problem.penalty(person_P) - penalty))
        scores_M: np.ndarray = (np.array(sums) + held(rises, bound)) / (2 * bound)
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
        rate = 1 / size[1] if self.mutation_rate is None else self.mutation_rate
        return children_MP + np.where(draws.random(size) < rate, spread * draws.standard_normal(size), 0.0)
