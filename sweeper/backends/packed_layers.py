"""The layers of several trials' networks at work at once: as in passes.py, with parameters of its own for every seat of a pack.

A chunk holds `length` records of each of S seats, one seat after the other. Layers without parameters see S * length records and
serve as they are; those with parameters multiply seat by seat. What a record's norm is measured on is what is summed, at most BLOCK
records in float32, the blocks in float64, as for a trial alone.
Shapes: S seats, B records of a seat, N = S B, I inputs, O outputs, K filters, C channels, T positions of a filter, U = C kernel^2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import fold, unfold

from sweeper.backends.passes import ConvPass, DensePass, Pass, floats, passes
from sweeper.clip.base import BLOCK
from sweeper.models.layers import Conv, Dense, Layer

ALIGNED = 16  # float32 numbers: 64 bytes


def aligned(device: torch.device | str, *shape: int) -> Tensor:
    """An empty tensor [S, ...] whose seats all begin at multiples of 64 bytes.

    Products round differently where numbers lie differently in memory, and a trial's must not depend on its seat.
    """
    seats, *rest = shape
    numbers = math.prod(rest)
    whole = torch.empty(seats, -(-numbers // ALIGNED) * ALIGNED, device=device)
    return whole[:, :numbers].view(shape)


def product(left_SXY: Tensor, right_SYZ: Tensor) -> Tensor:
    """Seat by seat, into aligned memory."""
    out = aligned(left_SXY.device, len(left_SXY), left_SXY.shape[1], right_SYZ.shape[2])
    return torch.bmm(left_SXY, right_SYZ, out=out)


def add_blocks_(sum_SOI: Tensor, scaled_SBO: Tensor, inputs_SBI: Tensor) -> None:
    """Add scaled^T inputs of every seat to a float64 sum, by blocks short enough for sweeper.clip.base.MARGIN."""
    block_SOI = aligned(sum_SOI.device, *sum_SOI.shape)
    for scaled, inputs in zip(scaled_SBO.split(BLOCK, dim=1), inputs_SBI.split(BLOCK, dim=1), strict=True):
        sum_SOI.add_(torch.bmm(scaled.transpose(1, 2), inputs, out=block_SOI))


class PackedDense(DensePass):
    """Its `squares` and `silence` are those of one trial: they look at one record at a time."""

    def __init__(self, layer: Dense, seats: int, length: int) -> None:
        self._layer, self._seats, self._length = layer, seats, length
        self.known_B: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        self._in_BI = inputs.flatten(1)
        out_SBO = product(self._by_seat(self._in_BI), self._weights.transpose(1, 2))
        return out_SBO.add_(self._biases.unsqueeze(1)).flatten(0, 1)

    def backward(self, delta: Tensor, *, further: bool) -> Tensor | None:
        self._delta_BO = delta
        return product(self._by_seat(delta), self._weights).flatten(0, 1) if further else None

    def add_(self, weights_sum: Tensor, biases_sum: Tensor, weights_B: Tensor, biases_B: Tensor) -> None:
        """Sums are [S, ...] in float64, factors [N]."""
        delta_SBO, ones_SB1 = self._by_seat(self._delta_BO), self._by_seat(biases_B.unsqueeze(1))
        add_blocks_(biases_sum.unsqueeze(1), ones_SB1, delta_SBO)
        add_blocks_(weights_sum, delta_SBO.mul_(self._by_seat(weights_B.unsqueeze(1))), self._by_seat(self._in_BI))

    def _by_seat(self, of_NX: Tensor) -> Tensor:
        return of_NX.view(self._seats, self._length, -1)


class PackedConv(ConvPass):
    """By products over unfolded pictures, so that no library for convolutions decides on rounding. Gradients are always kept."""

    def __init__(self, layer: Conv, seats: int, length: int) -> None:
        self._layer, self._seats, self._length, self._kept = layer, seats, length, True

    def forward(self, inputs: Tensor) -> Tensor:
        self._in_BCHW = inputs
        filters, high, wide = self._layer.out
        self._unfolded_NUT = unfold(inputs, self._layer.kernel, padding=self._layer.padding)
        kernels_SKU = self._weights.flatten(2)
        out_NKT = torch.bmm(self._each(kernels_SKU), self._unfolded_NUT)
        out_NKT.view(self._seats, self._length, filters, -1).add_(self._biases[:, None, :, None])
        return out_NKT.view(-1, filters, high, wide)

    def backward(self, delta: Tensor, *, further: bool) -> Tensor | None:
        self._delta_BKT = delta.flatten(2)
        self._biases_BK = self._delta_BKT.sum(dim=2)
        self._gradients_BUK = torch.bmm(self._unfolded_NUT, self._delta_BKT.transpose(1, 2))
        if not further:
            return None
        back_NUT = torch.bmm(self._each(self._weights.flatten(2).transpose(1, 2)), self._delta_BKT)
        size = (self._layer.height, self._layer.width)
        return fold(back_NUT, size, self._layer.kernel, padding=self._layer.padding)

    def add_(self, weights_sum: Tensor, biases_sum: Tensor, weights_B: Tensor, biases_B: Tensor) -> None:
        """Sums are [S, ...] in float64, factors [N]."""
        seats, length = self._seats, self._length
        add_blocks_(biases_sum.unsqueeze(1), biases_B.view(seats, length, 1), self._biases_BK.view(seats, length, -1))
        summed_S1N = weights_sum.new_zeros(seats, 1, self._gradients_BUK[0].numel())
        add_blocks_(summed_S1N, weights_B.view(seats, length, 1), self._gradients_BUK.view(seats, length, -1))
        filters = self._biases_BK.shape[1]
        weights_sum.add_(summed_S1N.view(seats, -1, filters).transpose(1, 2).view_as(weights_sum))

    def _each(self, of_SXY: Tensor) -> Tensor:
        """A seat's matrix for each of its records [N, X, Y]."""
        return of_SXY.unsqueeze(1).expand(-1, self._length, -1, -1).flatten(0, 1)

    def _gradients(self) -> Tensor:
        return self._gradients_BUK


def packed_passes(layers: Sequence[Layer], seats: int, length: int, device: torch.device | str) -> list[Pass]:
    """The layers at work on chunks of `length` records of each seat."""
    made: list[Pass] = []
    with torch.device(device):
        for layer in layers:
            match layer:
                case Dense():
                    made.append(PackedDense(layer, seats, length))
                case Conv():
                    made.append(PackedConv(layer, seats, length))
                case _:
                    made += passes([layer], seats * length)
    return made


def floats_of(layers: Sequence[Layer]) -> int:
    """About how many numbers a record keeps while it is worked on: several of the outputs that a pass alone keeps are made anew."""
    return 2 * sum(map(floats, layers)) + max((layer.inputs for layer in layers if isinstance(layer, Dense)), default=0)
