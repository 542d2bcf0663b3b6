"""The label that most training rows have, by noisy counts: what a model must beat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sweeper import seeds
from sweeper.checks import FieldError
from sweeper.privacy.discrete_laplace import discrete_laplace
from sweeper.privacy.event import LEAST_NOISE
from sweeper.privacy.events import DiscreteLaplace, Event, Gaussian
from sweeper.spec.protocols import Clip, Fitted, Problem, Step
from sweeper.trainers.unclipped import Unclipped

if TYPE_CHECKING:
    from sweeper.seeds import Streams

LEAST_EPSILON, MOST_EPSILON = 1e-7, 100.0


@dataclass(frozen=True, kw_only=True)
class Majority(Unclipped):
    """Give every row the label with the largest noisy count: one Laplace query, no training.

    Guarantee: DiscreteLaplace(e), e = 1/z, so that it costs what a Gaussian of multiplier z does in zCDP (e^2/2). One record adds 1
    to one of the counts, so that noise on each of them costs what it costs on one. Relation: zero-out (a replaced record moves
    two counts). Ties go to the lower label.
    """

    steps: ClassVar[int] = 1
    kind: ClassVar[str] = "majority"
    example: ClassVar[str] = "{kind: majority}"
    no_clip: ClassVar[str] = "it computes no gradient"
    no_step: ClassVar[str] = "it takes no step"

    def epsilon(self, noise_multiplier: float) -> float:
        return min(max(1.0 / max(noise_multiplier, LEAST_NOISE), LEAST_EPSILON), MOST_EPSILON)

    def event(self, rows: int, noise_multiplier: float, clip: Clip, step: Step) -> Event:
        if noise_multiplier < LEAST_NOISE:
            return Gaussian(0.0)  # nothing is promised
        return DiscreteLaplace(self.epsilon(noise_multiplier))

    def assumes(self, spec: Any) -> Iterator[FieldError]:
        if not hasattr(spec.model, "constant"):
            rule = f"does not go with trainer {self.kind}: no parameters of it are known that give every row one label"
            yield FieldError("model.kind", spec.model.kind, rule, "Use a linear model, mlp or convnet.")

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
        nonfinite, bits, epsilon = problem.nonfinite, streams.bits(seeds.SEARCH), self.epsilon(noise_multiplier)
        noisy = [int(count) + discrete_laplace(bits, epsilon) for count in problem.label_counts()]
        if on_step is not None:
            on_step(1)
        sealed = {"steps": 1, "nonfinite": problem.nonfinite - nonfinite}
        return Fitted(problem.constant(noisy.index(max(noisy))), sealed, {}, {})
