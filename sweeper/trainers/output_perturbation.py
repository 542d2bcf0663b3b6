"""Output perturbation: gradient descent without noise, and Gaussian noise on the one vector that is released.

The objective is (1/N) sum_i f_i + penalty, N the public number of rows. f_i is convex, L-Lipschitz and beta-smooth for every
record there could be (spec/curvature.py: model and public bound on the rows; the bias column is in ||[x, 1]||).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sweeper import checks, seeds
from sweeper.checks import FieldError
from sweeper.privacy.events import Event, Gaussian
from sweeper.seeds import Streams
from sweeper.spec.curvature import Curvature
from sweeper.spec.protocols import Clip, Fitted, Problem, Step
from sweeper.trainers.averaging import Answer
from sweeper.trainers.sensitivity import largest_move
from sweeper.trainers.unclipped import Unclipped, bounded, curvature_of, needed, released_

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class OutputPerturbed(Unclipped):
    """Base of the trainers that run gradient descent on a convex loss and add noise to its answer alone.

    Guarantee: Gaussian(z), for the vector returned and nothing else: no iterate, no trace. Its noise has standard deviation z times
    `sensitivity`. Relation: zero-out.
    Theorem: a step w - eta grad h, h gamma-strongly convex and B-smooth, has Lipschitz constant max(1 - eta gamma, eta B - 1)
    (1 without strong convexity and eta <= 2/B, where steps are held to), and a record's own part of a step is at most eta L / b
    long. largest_move adds these up: k L eta / b for k passes at a constant step without strong convexity; at most L / (gamma n)
    for the LAST iterate at steps min(1/B, 1/(gamma t)); averages move by more than that. Published figures are twice as large:
    they are for a replaced record.
    Source: Wu et al. 2017; Zhang, Zheng, Mou, Wang 2017. Arithmetic is float64, so that rounding is no part of a move.
    """

    steps: int
    average: str = "last"  # or tail: the mean of the last iterates
    tail_fraction: float = 0.5  # of the steps, for average: tail
    no_clip: ClassVar[str] = "its noise is scaled to what the model bounds"
    no_step: ClassVar[str] = "a step may depend on public numbers alone"

    def __post_init__(self) -> None:
        checks.whole(1, steps=self.steps)
        checks.one_of(("last", "tail"), average=self.average)
        checks.real(0.0, 1.0, open_low=True, tail_fraction=self.tail_fraction)

    @property
    def step_kinds(self) -> tuple[str, ...]:
        return ("none", "fixed")

    @abstractmethod
    def order(self, rows: int, streams: Streams) -> np.ndarray:
        """The rows in the order in which batches take them, every pass alike."""

    @abstractmethod
    def own_size(self, step: int, curvature: Curvature, smoothness: float) -> float:
        """The step size of policy `none` at step 0, 1, ...; smoothness: of the whole objective."""

    def event(self, rows: int, noise_multiplier: float, clip: Clip, step: Step) -> Event:
        return Gaussian(noise_multiplier)

    def sizes(self, curvature: Curvature, step: Any, share: float = 1.0) -> np.ndarray:
        """Step sizes [T], held to 2/B: beyond, a step may drive neighbours apart."""
        import numpy as np

        smoothness = curvature.smoothness / share + curvature.penalty  # a batch may lie in the part whole
        sizes_T = np.array(
            [
                self.own_size(t, curvature, smoothness) if step.absent else step.learning_rate_at(None, t, self.steps)
                for t in range(self.steps)
            ]
        )
        return np.minimum(sizes_T, 2.0 / smoothness)

    def sensitivity(self, rows: int, curvature: Curvature, step: Any, share: float = 1.0) -> float:
        """How far one record that appears or vanishes can move the answer, in the Euclidean norm (zero-out)."""
        import numpy as np

        batch, smoothness = self.expected_batch(rows), curvature.smoothness / share + curvature.penalty
        sizes_T = self.sizes(curvature, step, share)
        shrinks_T = np.maximum(1.0 - sizes_T * curvature.strong, sizes_T * smoothness - 1.0)
        kept = math.ceil(self.tail_fraction * self.steps) if self.average == "tail" else 1
        weights_T = np.where(np.arange(self.steps) >= self.steps - kept, 1.0 / kept, 0.0)
        return largest_move(sizes_T * curvature.lipschitz / (share * batch), shrinks_T, weights_T, rows // batch)

    def assumes(self, spec: Any) -> Iterator[FieldError]:
        faults = list(bounded(self.kind, spec))
        yield from faults
        if faults:
            return
        curvature, space = curvature_of(spec), spec.space.step
        if space.policy.kind != "fixed":
            return
        most = 2.0 / (curvature.smoothness + curvature.penalty)
        given = space.settings.get("learning_rate")
        top = max(given.ends()) if hasattr(given, "ends") else given
        if top is not None and top > most:
            rule = f"must be at most 2 / smoothness = {most:.4g} in trainer {self.kind}: beyond, steps drive neighbours apart"
            yield FieldError("space.step.learning_rate", top, rule, f"Try {most:.2g}." if most >= 0.01 else "Lower it.")

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
        """share: of the rows that the problem lets into a batch; sums are divided by share * b."""
        curvature, batch = needed(self.kind, problem), self.expected_batch(problem.rows)
        sizes_T, order, batches = self.sizes(curvature, step, share), self.order(problem.rows, streams), problem.rows // batch
        params_P, nonfinite = problem.start(streams).double().zero_(), problem.nonfinite
        answer = Answer(self.average, self.tail_fraction, self.steps, params_P, streams)
        for t, size in enumerate(sizes_T.tolist()):
            start = t % batches * batch
            gradient_P = problem.batch(order[start : start + batch]).exact_sum(params_P).div_(share * batch)
            problem.add_penalty_(gradient_P, params_P)
            params_P.add_(gradient_P, alpha=-size)
            answer.hear(t, params_P)
            if on_step is not None:
                on_step(t + 1)
        std = noise_multiplier * self.sensitivity(problem.rows, curvature, step, share)
        sealed = {"steps": self.steps, "nonfinite": problem.nonfinite - nonfinite}
        return Fitted(released_(answer.params_P, std, streams), sealed, {}, {})


def permuted(rows: int, streams: Streams) -> np.ndarray:
    return streams.generator(seeds.SAMPLING).permutation(rows)
