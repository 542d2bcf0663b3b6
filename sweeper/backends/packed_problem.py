"""A seat of a pack, as the problem of the trial that sits there; and what the pack is asked for it.

A trainer sees a Problem like any other. What its batches are asked waits until every trial of the pack has asked something.
Shapes: B records of a batch, J step sizes, P parameters, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sweeper.backends.meeting import Question
from sweeper.spec.protocols import Terms

if TYPE_CHECKING:
    from sweeper.backends.vmapped import Pack
    from sweeper.seeds import Streams
    from sweeper.spec.curvature import Curvature


@dataclass(eq=False, kw_only=True)
class Sum(Question):
    """The clipped sum of a batch. Answer: (sum [P] in float64, count, how many records are left out)."""

    rows_B: Tensor
    params_P: Tensor
    factors: Callable[[Tensor], Tensor]
    by_layer: bool
    counted: Callable[[Tensor], Tensor] | None

    @property
    def together(self) -> Any:
        """Questions with the same are answered by one call."""
        return self.by_layer


@dataclass(eq=False, kw_only=True)
class Line(Question):
    """Losses along a line. Answer: sums [J] in float64."""

    rows_B: Tensor
    params_P: Tensor
    direction_P: Tensor
    sizes: Sequence[float]
    terms: Terms

    @property
    def together(self) -> Any:
        return f"line of {len(self.sizes)}"


class PackedProblem:
    """A seat of a pack, as the problem of the trial that sits there. Counts its own records that are left out."""

    def __init__(self, pack: Pack, seat: int) -> None:
        self._pack, self._alone, self.seat = pack, pack.alone, seat
        self.rows, self.nonfinite, self.chunk = pack.alone.rows, 0, pack.length
        self._parameters = sum(self._alone.layers)

    @property
    def layers(self) -> tuple[int, ...]:
        return self._alone.layers

    @property
    def curvature(self) -> Curvature | None:
        return self._alone.curvature

    @property
    def lipschitz_range(self) -> tuple[float, float | None]:
        return self._alone.lipschitz_range

    def start(self, streams: Streams) -> Tensor:
        return self._alone.start(streams)

    def batch(self, rows_B: np.ndarray) -> PackedBatch:
        return PackedBatch(self, torch.from_numpy(rows_B))

    def state(self) -> None:
        """A run changes nothing of it."""
        return

    def restore(self, state: None) -> None:
        return None

    def label_counts(self, rows: np.ndarray | None = None) -> Tensor:
        """Rows with each label [classes]; broken ones are counted as left out."""
        with self._pack.meeting.aside():  # the problem that all seats share keeps a count and scratch space
            before = self._alone.nonfinite
            counts_K = self._alone.label_counts(rows)
            self.nonfinite += self._alone.nonfinite - before
        return counts_K

    def constant(self, label: int) -> Tensor:
        return self._alone.constant(label)

    def released(self, params_P: Tensor) -> Tensor:
        """The parameters as the source's features want them. Asked for once, after the last step: nobody waits for this seat."""
        self._pack.meeting.leave(self.seat)
        return self._alone.released(params_P)

    def lipschitz_sum(self, terms: Callable[[Tensor], Tensor], rows: np.ndarray | None = None) -> Tensor:
        return self._alone.lipschitz_sum(terms, rows)

    def penalty(self, params_P: Tensor) -> float:
        return self._alone.penalty(params_P)

    def add_penalty_(self, gradient_P: Tensor, params_P: Tensor) -> None:
        self._alone.add_penalty_(gradient_P, params_P)

    def ask(self, question: Question) -> Any:
        """The answer, when all of the pack have asked. What is wrong with a question is told to its asker alone."""
        for name in ("params_P", "direction_P"):
            vector = getattr(question, name, None)
            if vector is not None and vector.shape != (self._parameters,):
                raise ValueError(f"{name} must be [{self._parameters}], not {tuple(vector.shape)}")
        rows_B: Tensor = question.rows_B  # type: ignore[attr-defined]
        if len(rows_B) and not 0 <= int(rows_B.min()) <= int(rows_B.max()) < self.rows:
            raise IndexError(f"row positions must be in [0, {self.rows})")
        return self._pack.meeting.ask(self.seat, question)

    def exact_sum(self, rows_B: Tensor, params_P: Tensor) -> Tensor:
        """Alone, on the host: the trainers that ask for it take few steps, in float64."""
        with self._pack.meeting.aside():
            before = self._alone.nonfinite
            sum_P = self._alone.batch(rows_B.numpy()).exact_sum(params_P)
            self.nonfinite += self._alone.nonfinite - before
        return sum_P


class PackedBatch:
    """One minibatch of the trial on a seat."""

    def __init__(self, problem: PackedProblem, rows_B: Tensor) -> None:
        self._problem, self._rows_B = problem, rows_B

    def sum(self, params_P: Tensor, factors: Callable[[Tensor], Tensor], *, by_layer: bool = False) -> Tensor:
        """Sum of factor times gradient, a new [P] in float64; `factors` sees squared norms [at most length, 1] of this trial alone.

        by_layer: `factors` sees squared norms [at most length, L], and gives a factor for each.
        Sensitivity (zero-out): that of the policy behind `factors`. A null record's term is zero; so is the term of a record
        whose squared norm is not finite in float32 (a norm beyond 1.8e19 included).
        """
        return self._sum(params_P, factors, by_layer, None)[0]

    def sum_and_count(
        self, params_P: Tensor, factors: Callable[[Tensor], Tensor], counted: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, float]:
        """`sum`, and the sum of `counted` over the records that are neither null nor left out."""
        return self._sum(params_P, factors, False, counted)

    def exact_sum(self, params_P: Tensor) -> Tensor:
        """Sum of gradients, a new [P] in float64, at params_P in float64; see closed_form.py."""
        return self._problem.exact_sum(self._rows_B, params_P)

    def losses_along(self, params_P: Tensor, direction_P: Tensor, sizes: Sequence[float], terms: Terms) -> Tensor:
        """Sums [J] of terms of the losses here and at each size along the direction, of at most `length` rows a call.

        A loss may be infinite or NaN where parameters are huge: what it counts as is for `terms` to say.
        """
        line = Line(rows_B=self._rows_B, params_P=params_P, direction_P=direction_P, sizes=tuple(sizes), terms=terms)
        found: Tensor = self._problem.ask(line)
        return found

    def _sum(
        self,
        params_P: Tensor,
        factors: Callable[[Tensor], Tensor],
        by_layer: bool,
        counted: Callable[[Tensor], Tensor] | None,
    ) -> tuple[Tensor, float]:
        asked = Sum(rows_B=self._rows_B, params_P=params_P, factors=factors, by_layer=by_layer, counted=counted)
        sum_P, count, left_out = self._problem.ask(asked)
        self._problem.nonfinite += left_out
        return sum_P, count
