"""Networks on a CPU: two passes over a chunk give every record's gradient norm and then the weighted sum of gradients.

Forward and backward run once, by hand; each layer keeps its inputs and deltas. Norms come from those, factors from the norms, and
the sum from deltas scaled by the factors. No dense layer's per-record gradient is ever built. Batches are worked off in chunks of
a fixed public size, so that neither memory nor results depend on how many rows a draw has.
Shapes: n training rows, B records of one chunk, J step sizes, K logits, d features, P parameters, L = 2 per layer with parameters:
weights, biases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sweeper.backends.passes import DensePass, Weighted, fills, floats, passes
from sweeper.backends.products import FILL, exact_products, filled
from sweeper.backends.stored import StoredRows
from sweeper.checks import FieldError
from sweeper.clip.base import BLOCK
from sweeper.data.table import Table
from sweeper.models.layers import Conv, Layer, Network
from sweeper.spec.protocols import Description, Terms

if TYPE_CHECKING:
    from sweeper.seeds import Streams

LARGEST_CHUNK, SMALLEST_CHUNK = BLOCK, 16
_FLOATS = 2**23  # of a chunk's buffers, 32 MB


def chunk_of(layers: Sequence[Layer]) -> int:
    """Rows per chunk: a power of two that shapes alone decide. Another one would sum in another order and change the last bits."""
    each = sum(map(floats, layers))
    return max(SMALLEST_CHUNK, min(LARGEST_CHUNK, 2 ** int(math.log2(max(_FLOATS / each, 1)))))


class LayeredProblem:
    """A network on the training rows of a table. Holds its own copy of them: float32, or one byte a feature if `pixels`.

    A null record's deltas are 0, so that its term is exactly zero. A record whose features or gradient are not finite is made one,
    and counted. Buffers are shared: one problem serves one trial at a time, any number of trials in turn.
    """

    def __init__(self, *, model: Network, description: Description, table: Table, rows: np.ndarray, pixels: bool = False) -> None:
        """`pixels`, a public statement of the source: features are k/255, whole k. Others are rounded to that, one by one."""
        self.model, self.rows, self.nonfinite = model, len(rows), 0
        self._description = description
        self._stored = StoredRows(description=description, table=table, rows=rows, pixels=pixels)
        layers = model.stack(description.features, description.classes)
        self.chunk = chunk_of(layers)
        self._fill = FILL if fills(layers) else 1
        self._passes = passes(layers, self.chunk)
        self._weighted = [layer for layer in self._passes if isinstance(layer, Weighted)]
        self._shapes = [shape for layer in layers for shape in layer.shapes]
        first = layers[0]
        self._shape = (first.channels, first.height, first.width) if isinstance(first, Conv) else (description.features,)
        self._chunk_Bd = torch.empty(self.chunk, description.features)

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(math.prod(shape) for shape in self._shapes)

    def start(self, streams: Streams) -> Tensor:
        return self.model.start(self._description, streams)

    def batch(self, rows_B: np.ndarray) -> LayeredBatch:
        return LayeredBatch(self, torch.from_numpy(rows_B))

    @property
    def curvature(self) -> None:
        """A network is not convex in its parameters."""
        return None

    def state(self) -> None:
        """A run changes nothing of it."""
        return

    def restore(self, state: None) -> None:
        return None

    def label_counts(self, rows: np.ndarray | None = None) -> Tensor:
        """Rows with each label [classes]; broken ones are counted as left out."""
        counts_K, broken = self._stored.label_counts(self._description.classes, rows)
        self.nonfinite += broken
        return counts_K

    def constant(self, label: int) -> Tensor:
        return self.model.constant(label, self._description)

    def released(self, params_P: Tensor) -> Tensor:
        return params_P

    @property
    def lipschitz_range(self) -> tuple[float, float | None]:
        return 0.0, None

    def lipschitz_sum(self, terms: Callable[[Tensor], Tensor], rows: np.ndarray | None = None) -> Tensor:
        """Refused: nothing bounds the gradient of a network's record at every parameter."""
        rule = "bounds no record's gradient, so that there are no Lipschitz constants to add up"
        raise FieldError("model.kind", self.model.kind, rule, "Use a linear model, or a policy that asks for none.")

    def penalty(self, params_P: Tensor) -> float:
        """l2 / 2 times the squared norm of the weights."""
        weights = self._views(params_P)[0::2] if self.model.l2 else []
        return 0.5 * self.model.l2 * sum(float(weight.double().square().sum()) for weight in weights)

    def add_penalty_(self, gradient_P: Tensor, params_P: Tensor) -> None:
        if self.model.l2:
            for gradient, weights in zip(self._views(gradient_P)[0::2], self._views(params_P)[0::2], strict=True):
                gradient.add_(weights, alpha=self.model.l2)

    def clipped_sum(
        self,
        rows_B: Tensor,
        params_P: Tensor,
        factors: Callable[[Tensor], Tensor],
        by_layer: bool = False,
        counted: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, float]:
        """What `LayeredBatch.sum_and_count` returns."""
        exact_products()
        self._bind(params_P)
        one = len(rows_B) <= self.chunk  # no more than BLOCK terms, which are added in float32; chunks are in float64
        sum_P, count = torch.empty(params_P.shape, dtype=torch.float32 if one else torch.float64), 0.0
        sums, join = self._views(sum_P), Tensor.copy_
        for rows in rows_B.split(self.chunk):
            marks_B, squares_BL = self._backward(rows)
            norms_BL = squares_BL if by_layer else squares_BL.sum(dim=1, keepdim=True)
            if not math.isfinite(norms_BL.sum()):
                wrong_B = ~squares_BL.sum(dim=1).isfinite()
                self.nonfinite += int((wrong_B & (marks_B != 0)).sum())
                norms_BL[wrong_B], marks_B[wrong_B] = 0.0, 0.0  # as null records
                for layer in self._weighted:
                    layer.silence(wrong_B)
            norms_BL, marks_B = norms_BL[: len(rows)], marks_B[: len(rows)]  # without what fills the chunk up
            if counted is not None:
                count += float(counted(norms_BL).masked_fill(marks_B == 0, 0.0).sum(dtype=torch.float64))
            found = factors(norms_BL)
            each = found.unbind(dim=1) if by_layer else [found] * len(self._shapes)
            for at, layer in enumerate(self._weighted):
                for total, part in zip(sums[2 * at :], layer.sums(each[2 * at], each[2 * at + 1]), strict=False):
                    join(total, part)
            join = Tensor.add_
        return sum_P, count

    def losses_along(self, rows_B: Tensor, params_P: Tensor, direction_P: Tensor, sizes: Sequence[float], terms: Terms) -> Tensor:
        """What `LayeredBatch.losses_along` returns."""
        sums_J = torch.zeros(len(sizes), dtype=torch.float64)
        moved_P = torch.empty_like(params_P)
        for rows in rows_B.split(self.chunk):
            losses, marks_B = [], torch.empty(0)
            for at in (params_P, *sizes):
                self._bind(at if isinstance(at, Tensor) else torch.sub(params_P, direction_P, alpha=at, out=moved_P))
                logits_BK, marks_B, labels_B, _ = self._forward(rows)
                losses.append(self.model.losses(logits_BK.unsqueeze(1), labels_B)[: len(rows)])
            there_BJ = torch.cat(losses[1:], dim=1) if len(sizes) else losses[0].new_empty(len(rows), 0)
            terms_BJ = terms(losses[0], there_BJ).masked_fill((marks_B[: len(rows)] != 1).unsqueeze(1), 0.0)
            sums_J += terms_BJ.sum(dim=0, dtype=torch.float64)
        return sums_J

    def _forward(self, rows_B: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits [B, K], marks, labels, and squared norms of the features [B], with null records behind the rows."""
        chunk_Bd = self._chunk_Bd[: filled(len(rows_B), self._fill, self.chunk)]
        squares_B, marks_B, labels_B = self._stored.gather(rows_B, chunk_Bd)
        at = chunk_Bd.view(len(chunk_Bd), *self._shape)
        for layer in self._passes:
            at = layer.forward(at)
        return at, marks_B, labels_B, squares_B

    def _backward(self, rows_B: Tensor) -> tuple[Tensor, Tensor]:
        """Marks [B] and squared norms [B, L], null records behind the rows included; layers are left ready to be summed."""
        logits_BK, marks_B, labels_B, squares_B = self._forward(rows_B)
        delta: Tensor | None = self.model.residual_(logits_BK, labels_B).mul_(marks_B.unsqueeze(1))
        if isinstance(self._passes[0], DensePass):
            self._passes[0].known_B = squares_B
        squares: list[Tensor] = []
        for layer in reversed(self._passes):
            assert delta is not None
            delta = layer.backward(delta, further=layer is not self._passes[0])
            if isinstance(layer, Weighted):
                squares = [*layer.squares(), *squares]
        return marks_B, torch.stack(squares, dim=1)

    def _bind(self, params_P: Tensor) -> None:
        views = self._views(params_P)
        for at, layer in enumerate(self._weighted):
            layer.bind(views[2 * at], views[2 * at + 1])

    def _views(self, vector_P: Tensor) -> list[Tensor]:
        """Weights and biases of every layer in turn, as parts of a vector."""
        parts = vector_P.split(self.layers)
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]


class LayeredBatch:
    """One minibatch of a layered problem."""

    def __init__(self, problem: LayeredProblem, rows_B: Tensor) -> None:
        self._problem, self._rows_B = problem, rows_B

    def sum(self, params_P: Tensor, factors: Callable[[Tensor], Tensor], *, by_layer: bool = False) -> Tensor:
        """Sum of factor times gradient, a new [P], chunk by chunk; in float64, or in float32 where one chunk is all.

        `factors` sees squared norms [chunk, 1].
        by_layer: `factors` sees squared norms [chunk, L], of each layer's weights and biases, and gives a factor for each.
        Sensitivity (zero-out): that of the policy behind `factors`. A null record's term is zero; so is the term of a record
        whose squared norm is not finite in float32 (a norm beyond 1.8e19 included).
        """
        return self._problem.clipped_sum(self._rows_B, params_P, factors, by_layer)[0]

    def sum_and_count(
        self, params_P: Tensor, factors: Callable[[Tensor], Tensor], counted: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, float]:
        """`sum`, and the sum of `counted` over the records that are neither null nor left out."""
        return self._problem.clipped_sum(self._rows_B, params_P, factors, False, counted)

    def exact_sum(self, params_P: Tensor) -> Tensor:
        """Refused: it is for trainers that need convex losses."""
        kind = self._problem.model.kind
        raise FieldError("model.kind", kind, "is not convex, and bounds no record's gradient", "Use a linear model.")

    def losses_along(self, params_P: Tensor, direction_P: Tensor, sizes: Sequence[float], terms: Terms) -> Tensor:
        """Sums [J] of terms of the losses here [chunk, 1] and at each size along the direction [chunk, J]; null records add 0.

        One forward pass for each size. A loss may be infinite or NaN where parameters are huge: what it counts as is for `terms`.
        """
        return self._problem.losses_along(self._rows_B, params_P, direction_P, sizes, terms)
