"""Output perturbation of permuted SGD (Wu et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.seeds import Streams
from sweeper.spec.curvature import Curvature
from sweeper.trainers.output_perturbation import OutputPerturbed, permuted
from sweeper.trainers.unclipped import curvature_of

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class OutputPerturbationSgd(OutputPerturbed):
    """Permuted SGD on a convex loss, noise on its answer alone (Wu et al. 2017).

    One permutation, drawn per row position, serves all passes; of its last batch that is not full the rows are dropped. Batches
    are of exactly batch_size rows, which sums are divided by. Step policy fixed: sizes of at most 2/B. Step policy none: steps
    min(1/B, 1/(gamma t)) of a strongly convex objective (model with l2 > 0 and penalise_bias: true).
    Guarantee, relation, theorem: those of `OutputPerturbed`. The record may be anywhere in the permutation, known or not.
    """

    batch_size: int
    kind: ClassVar[str] = "output-perturbation-sgd"
    example: ClassVar[str] = "{kind: output-perturbation-sgd, batch_size: 50, steps: 5000}"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole(1, batch_size=self.batch_size)

    def expected_batch(self, rows: int) -> int:
        return self.batch_size

    def order(self, rows: int, streams: Streams) -> np.ndarray:
        return permuted(rows, streams)

    def own_size(self, step: int, curvature: Curvature, smoothness: float) -> float:
        if curvature.strong == 0.0:
            raise _not_strong("none")
        return min(1.0 / smoothness, 1.0 / (curvature.strong * (step + 1)))

    def assumes(self, spec: Any) -> Iterator[FieldError]:
        yield from super().assumes(spec)
        if spec.space.step.policy.absent and curvature_of(spec).strong == 0.0:
            yield _not_strong(spec.space.step.policy.kind)


def _not_strong(policy: str) -> FieldError:
    rule = (
        "leaves steps to trainer output-perturbation-sgd, which has sizes for strongly convex objectives alone: "
        "model.l2 above 0, model.penalise_bias true"
    )
    return FieldError("space.step.policy", policy, rule, "Use policy: fixed, or such a model.")
