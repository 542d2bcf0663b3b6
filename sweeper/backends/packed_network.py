"""Several trials' networks at once, seat by seat: as in layered.py, whose numbers this is to give up to rounding.

Shapes: S seats, B records of a seat, N = S B, J step sizes, K logits, d features, P parameters, L layers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sweeper.backends.layered import LayeredProblem
from sweeper.backends.packed_layers import aligned, packed_passes
from sweeper.backends.passes import DensePass, Weighted
from sweeper.models.layers import Conv, Layer


class PackedNetwork:
    """What all seats ask of one chunk each. Rows beyond a seat's own number weigh nothing: they are as null records."""

    def __init__(
        self, alone: LayeredProblem, layers: tuple[Layer, ...], seats: int, length: int, device: torch.device | str
    ) -> None:
        self._model, self.seats, self.length, self.device = alone.model, seats, length, device
        stored = alone._stored
        self._store_nd, self._pixels = stored._store_nd.to(device), stored._pixels
        self._squares_n, self._marks_n, self._labels_n = (
            of_n.to(device) for of_n in (stored._squares_n, stored._marks_n, stored._labels_n)
        )
        self._passes = packed_passes(layers, seats, length, device)
        self._weighted = [layer for layer in self._passes if isinstance(layer, Weighted)]
        self._shapes = [shape for layer in layers for shape in layer.shapes]
        first = layers[0]
        self._shape = (first.channels, first.height, first.width) if isinstance(first, Conv) else (self._store_nd.shape[1],)

    def bind(self, params_SP: Tensor) -> None:
        """The parameters to work with; the sum begins at 0."""
        self._params_SP = params_SP
        self._put(params_SP)
        self._sum_SP = torch.zeros(params_SP.shape, dtype=torch.float64, device=self.device)

    def norms(self, rows_SB: Tensor, there_SB: Tensor, by_layer: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Squared norms [S, B, L], which records are not null [S, B], and how many are left out [S]: they are null from here on."""
        logits_NK, marks_N, labels_N, squares_N = self._forward(rows_SB, there_SB)
        delta: Tensor | None = self._model.residual_(logits_NK, labels_N).mul_(marks_N.unsqueeze(1))
        if isinstance(self._passes[0], DensePass):
            self._passes[0].known_B = squares_N
        squares: list[Tensor] = []
        for layer in reversed(self._passes):
            assert delta is not None
            delta = layer.backward(delta, further=layer is not self._passes[0])
            if isinstance(layer, Weighted):
                squares = [*layer.squares(), *squares]
        squares_NL = torch.stack(squares, dim=1)
        whole_N1 = squares_NL.sum(dim=1, keepdim=True)
        wrong_N = ~whole_N1.isfinite().squeeze(1)
        norms_NL = (squares_NL if by_layer else whole_N1).masked_fill_(wrong_N.unsqueeze(1), 0.0)
        if wrong_N.any():
            for weighted in self._weighted:
                weighted.silence(wrong_N)
        self._by_layer, real_SB = by_layer, ((marks_N != 0) & ~wrong_N).view_as(rows_SB)
        left_out_S = ((marks_N != 0) & wrong_N).view_as(rows_SB).sum(dim=1)
        return norms_NL.unflatten(0, rows_SB.shape), real_SB, left_out_S

    def add_(self, factors_SBL: Tensor) -> None:
        """Add the chunk last looked at, each record times its factor."""
        factors_NL, sums = factors_SBL.flatten(0, 1), self._views(self._sum_SP)
        each = factors_NL.unbind(dim=1) if self._by_layer else [factors_NL.squeeze(1)] * len(self._shapes)
        for at, layer in enumerate(self._weighted):
            layer.add_(sums[2 * at], sums[2 * at + 1], each[2 * at], each[2 * at + 1])

    def total(self) -> Tensor:
        """The sums [S, P] in float64."""
        return self._sum_SP

    def losses(self, rows_SB: Tensor, there_SB: Tensor, direction_SP: Tensor, sizes_SJ: Tensor) -> tuple[Tensor, Tensor]:
        """Losses here and at every size along the direction [S, B, 1 + J], and which records are neither null nor broken [S, B].

        One forward pass for each size.
        """
        losses, marks_N = [], torch.empty(0)
        for at in range(1 + sizes_SJ.shape[1]):
            if at:
                moved_SP = aligned(self.device, *self._params_SP.shape)
                torch.sub(self._params_SP, sizes_SJ[:, at - 1 : at] * direction_SP, out=moved_SP)
                self._put(moved_SP)
            logits_NK, marks_N, labels_N, _ = self._forward(rows_SB, there_SB)
            losses.append(self._model.losses(logits_NK.unsqueeze(1), labels_N))
        self._put(self._params_SP)
        return torch.cat(losses, dim=1).unflatten(0, rows_SB.shape), (marks_N == 1).view_as(rows_SB)

    def _forward(self, rows_SB: Tensor, there_SB: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits [N, K], marks, labels, and squared norms of the features [N]."""
        rows_N, gone_N = rows_SB.flatten(), ~there_SB.flatten()
        at = self._store_nd.index_select(0, rows_N).float()
        if self._pixels:
            at.div_(255)
        at = at.view(-1, *self._shape)
        for layer in self._passes:
            at = layer.forward(at)
        marks_N = self._marks_n.index_select(0, rows_N).masked_fill_(gone_N, 0.0)
        return at, marks_N, self._labels_n.index_select(0, rows_N), self._squares_n.index_select(0, rows_N)

    def _put(self, params_SP: Tensor) -> None:
        views = self._views(params_SP)
        for at, layer in enumerate(self._weighted):
            layer.bind(views[2 * at], views[2 * at + 1])

    def _views(self, of_SP: Tensor) -> list[Tensor]:
        """Weights and biases of every layer in turn, as parts of every seat's vector."""
        parts = of_SP.split([math.prod(shape) for shape in self._shapes], dim=1)
        return [part.unflatten(1, shape) for part, shape in zip(parts, self._shapes, strict=True)]
