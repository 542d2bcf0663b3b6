"""A problem seen through a part of its rows: what a run of subsample-tune trains on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sweeper.spec.protocols import Batch, Problem

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from sweeper.seeds import Streams
    from sweeper.spec.curvature import Curvature


class PartProblem:
    """A problem whose rows outside a part add nothing to any batch, as null records would.

    Guarantee: with a Poisson sampler every row inside joins every batch with the sampler's own probability, independently; rows
    outside are never touched, whatever the trainer asks for. `rows` stays the public number of training rows. (A trainer that
    counts the rows it drew counts those outside too.)
    """

    def __init__(self, whole: Problem, inside: np.ndarray) -> None:
        self._whole, self._inside, self.rows = whole, inside, whole.rows  # inside: bool [rows]

    @property
    def nonfinite(self) -> int:
        return self._whole.nonfinite

    @nonfinite.setter
    def nonfinite(self, count: int) -> None:
        self._whole.nonfinite = count

    def state(self) -> Any:
        return self._whole.state()

    def restore(self, state: Any) -> None:
        self._whole.restore(state)

    def start(self, streams: Streams) -> Tensor:
        return self._whole.start(streams)

    def batch(self, rows_B: Any) -> Batch:
        return self._whole.batch(rows_B[self._inside[rows_B]])

    @property
    def curvature(self) -> Curvature | None:
        return self._whole.curvature

    def label_counts(self, rows: Any = None) -> Tensor:
        return self._whole.label_counts(self._rows(rows))

    def constant(self, label: int) -> Tensor:
        return self._whole.constant(label)

    def released(self, params_P: Tensor) -> Tensor:
        return self._whole.released(params_P)

    @property
    def layers(self) -> tuple[int, ...]:
        return self._whole.layers

    @property
    def lipschitz_range(self) -> tuple[float, float | None]:
        return self._whole.lipschitz_range

    def lipschitz_sum(self, terms: Callable[[Tensor], Tensor], rows: Any = None) -> Tensor:
        return self._whole.lipschitz_sum(terms, self._rows(rows))

    def penalty(self, params_P: Tensor) -> float:
        return self._whole.penalty(params_P)

    def add_penalty_(self, gradient_P: Tensor, params_P: Tensor) -> None:
        self._whole.add_penalty_(gradient_P, params_P)

    def _rows(self, rows: Any) -> np.ndarray:
        """Those of these rows that are inside; None: all that are."""
        import numpy as np

        return np.flatnonzero(self._inside) if rows is None else rows[self._inside[rows]]
