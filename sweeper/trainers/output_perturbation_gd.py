"""Output perturbation of full-batch gradient descent (Zhang et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper.seeds import Streams
from sweeper.spec.curvature import Curvature
from sweeper.trainers.output_perturbation import OutputPerturbed

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class OutputPerturbationGd(OutputPerturbed):
    """Full-batch gradient descent on a convex loss, noise on its answer alone (Zhang, Zheng, Mou, Wang 2017).

    Steps of 1/B, or those of policy fixed, of at most 2/B.
    Guarantee, relation, theorem: those of `OutputPerturbed`. Every step holds every record, so that d_t = (1 - eta gamma) d_{t-1} +
    eta L / n: at most L / (n gamma), and eta L T / n without strong convexity. The paper states 5 L (gamma + B) / (n gamma B) for a
    replaced record, more than twice this.
    """

    kind: ClassVar[str] = "output-perturbation-gd"
    example: ClassVar[str] = "{kind: output-perturbation-gd, steps: 100}"

    def order(self, rows: int, streams: Streams) -> np.ndarray:
        import numpy as np

        return np.arange(rows)

    def own_size(self, step: int, curvature: Curvature, smoothness: float) -> float:
        return 1.0 / smoothness
