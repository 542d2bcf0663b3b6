"""A layer at work on one chunk: forward, backward, the norms of every record's gradient, and the weighted sum of gradients.

A record's gradient in a dense layer is the outer product of its delta (loss derivative by the layer's outputs) and its inputs, so
its norm is the product of theirs, and the weighted sum is one matrix product after the deltas have been scaled. In a convolution
it is delta times the unfolded inputs, summed over positions. That sum is small where a picture has more positions than there are
filters; there it is kept until the factors are known. Elsewhere it is computed twice by the same call, so that what is summed is,
bit for bit, what was measured. (The product of two Gram matrices would give the norm with up to 3.6 times less work in the last
convolutions of a large network; but it cancels, and a norm that came out too short would break the sensitivity.)
Buffers are made once, for chunks of up to a given number of records, and belong to one problem.
Shapes: B records, I inputs, O outputs, K filters, C channels, H x W pictures, T positions of a filter, U = C kernel^2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from sweeper.backends.products import product
from sweeper.models.layers import WINDOW, Activation, Conv, Dense, Layer, Pool

_TINY = 2.0**-126  # a square below it may count as 0 in float32


class Pass(ABC):
    """One layer. `backward` must follow the `forward` of the same chunk."""

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs, new or in a buffer that the next forward overwrites."""

    @abstractmethod
    def backward(self, delta: Tensor, *, further: bool) -> Tensor | None:
        """Loss derivative by the inputs from that by the outputs, which may be overwritten; None unless `further`."""


class Weighted(Pass):
    """A layer with weights and biases."""

    def bind(self, weights: Tensor, biases: Tensor) -> None:
        """The parameters to work with."""
        self._weights, self._biases = weights, biases

    @abstractmethod
    def squares(self) -> tuple[Tensor, Tensor]:
        """Squared norms [B] of every record's gradient by the weights and by the biases; after `backward`."""

    @abstractmethod
    def silence(self, wrong_B: Tensor) -> None:
        """Make these records' gradients 0, whatever they are."""

    @abstractmethod
    def sums(self, weights_B: Tensor, biases_B: Tensor) -> tuple[Tensor, Tensor]:
        """The sums of gradients times these factors; after `backward`, once. Records beyond the factors are null records."""


class DensePass(Weighted):
    """Squares are rounded up by what may have fallen below float32's range, so that a large input cannot hide a tiny delta."""

    def __init__(self, layer: Dense, few: bool) -> None:
        """few: whether there are few lengths of chunks."""
        self._layer, self._few = layer, few
        self.known_B: Tensor | None = None  # squared norms of the inputs, where the caller has them

    def forward(self, inputs: Tensor) -> Tensor:
        self._in_BI = inputs.flatten(1)
        return product(self._in_BI, self._weights.t(), self._biases, few=self._few)

    def backward(self, delta: Tensor, *, further: bool) -> Tensor | None:
        self._delta_BO = delta
        return product(delta, self._weights, few=self._few) if further else None

    def squares(self) -> tuple[Tensor, Tensor]:
        deltas_B = _squares(self._delta_BO).add_(_TINY * self._layer.outputs)
        inputs_B = _squares(self._in_BI) if self.known_B is None else self.known_B
        return (inputs_B + _TINY * self._layer.inputs).mul_(deltas_B), deltas_B

    def silence(self, wrong_B: Tensor) -> None:
        self._in_BI[wrong_B], self._delta_BO[wrong_B] = 0.0, 0.0

    def sums(self, weights_B: Tensor, biases_B: Tensor) -> tuple[Tensor, Tensor]:
        delta_BO = self._delta_BO[: len(weights_B)]  # of null records they are 0
        biases_sum = torch.mv(delta_BO.t(), biases_B)
        delta_BO.mul_(weights_B.unsqueeze(1))
        return product(self._delta_BO.t(), self._in_BI, few=self._few), biases_sum


class ConvPass(Weighted):
    """`scratch` is shared by the convolutions of a network."""

    def __init__(self, layer: Conv, records: int, scratch: Scratch) -> None:
        self._layer, self._scratch = layer, scratch
        filters, high, wide = layer.out
        unfolded, positions = layer.channels * layer.kernel**2, high * wide
        self._kept = filters <= positions
        if self._kept:
            self._gradients_BUK = torch.empty(records, unfolded, filters)
        self._sizes = (layer.channels, layer.kernel, layer.kernel, high, wide), (unfolded, positions), (unfolded, filters)
        scratch.reserve(records * unfolded * positions, 0 if self._kept else records * unfolded * filters)
        pad = 2 * layer.padding
        self._padded_BCHW = torch.zeros(records, layer.channels, layer.height + pad, layer.width + pad) if pad else None

    def forward(self, inputs: Tensor) -> Tensor:
        if self._padded_BCHW is None:
            self._in_BCHW = inputs
        else:
            side, self._in_BCHW = self._layer.padding, self._padded_BCHW[: len(inputs)]
            self._in_BCHW[:, :, side:-side, side:-side] = inputs
        return torch.conv2d(self._in_BCHW, self._weights, self._biases)

    def backward(self, delta: Tensor, *, further: bool) -> Tensor | None:
        self._delta_BKT = delta.flatten(2)
        self._biases_BK = self._delta_BKT.sum(dim=2)
        return torch.conv_transpose2d(delta, self._weights, padding=self._layer.padding) if further else None

    def squares(self) -> tuple[Tensor, Tensor]:
        return _squares(self._gradients().flatten(1)), _squares(self._biases_BK)

    def silence(self, wrong_B: Tensor) -> None:
        self._in_BCHW[wrong_B], self._delta_BKT[wrong_B], self._biases_BK[wrong_B] = 0.0, 0.0, 0.0
        if self._kept:
            self._gradients_BUK[: len(wrong_B)][wrong_B] = 0.0

    def sums(self, weights_B: Tensor, biases_B: Tensor) -> tuple[Tensor, Tensor]:
        records = len(weights_B)
        gradients_BUK = self._gradients_BUK[:records] if self._kept else self._gradients()[:records]
        summed_UK = torch.mv(gradients_BUK.flatten(1).t(), weights_B).view(gradients_BUK.shape[1:])
        return summed_UK.t().reshape(self._layer.shapes[0]), torch.mv(self._biases_BK[:records].t(), biases_B)

    def _gradients(self) -> Tensor:
        """Every record's gradient by the weights, [B, U, K]."""
        windows, (unfolded, positions), (_, filters) = self._sizes
        records, kernel = len(self._delta_BKT), self._layer.kernel
        first, second = self._scratch.of(records * unfolded * positions, 0 if self._kept else records * unfolded * filters)
        at_BCHWkk = self._in_BCHW.unfold(2, kernel, 1).unfold(3, kernel, 1)
        first.view(records, *windows).copy_(at_BCHWkk.permute(0, 1, 4, 5, 2, 3))
        out_BUK = self._gradients_BUK[:records] if self._kept else second.view(records, unfolded, filters)
        return torch.bmm(first.view(records, unfolded, positions), self._delta_BKT.transpose(1, 2), out=out_BUK)


class MaxPass(Pass):
    """The largest of every window; of equals the first one, row by row, as torch does."""

    def __init__(self, layer: Pool, records: int) -> None:
        filters, high, wide = layer.out
        self._high, self._wide = WINDOW * high, WINDOW * wide
        self._columns = torch.empty(records, filters, self._high, wide)
        self._out = torch.empty(records, filters, high, wide)
        self._by_column = torch.empty_like(self._columns)
        self._back = torch.zeros(records, filters, layer.height, layer.width)

    def forward(self, inputs: Tensor) -> Tensor:
        records = len(inputs)
        self._left, self._right = self._halves(inputs, records)
        columns = torch.maximum(self._left, self._right, out=self._columns[:records])
        return torch.maximum(columns[:, :, 0::2], columns[:, :, 1::2], out=self._out[:records])

    def backward(self, delta: Tensor, *, further: bool) -> Tensor | None:
        records = len(delta)
        columns, by_column, delta = self._columns[:records], self._by_column[:records], delta.view_as(self._out[:records])
        _route(delta, columns[:, :, 0::2], columns[:, :, 1::2], by_column[:, :, 0::2], by_column[:, :, 1::2])
        _route(by_column, self._left, self._right, *self._halves(self._back, records))
        return self._back[:records]

    def _halves(self, pictures: Tensor, records: int) -> tuple[Tensor, Tensor]:
        """The columns of even and of odd number."""
        whole = pictures[:records, :, : self._high, : self._wide]
        return whole[..., 0::2], whole[..., 1::2]


class MeanPass(Pass):
    """The mean of every window."""

    def __init__(self, layer: Pool, records: int) -> None:
        _, self._high, self._wide = self._out = layer.out
        self._back = torch.zeros(records, layer.channels, layer.height, layer.width)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.nn.functional.avg_pool2d(inputs, WINDOW)

    def backward(self, delta: Tensor, *, further: bool) -> Tensor | None:
        back = self._back[: len(delta)]
        share = delta.view(len(delta), *self._out).mul_(1 / WINDOW**2)
        for row in range(WINDOW):
            for column in range(WINDOW):
                back[:, :, row : WINDOW * self._high : WINDOW, column : WINDOW * self._wide : WINDOW] = share
        return back


class ActivationPass(Pass):
    """In place: what it is given is overwritten."""

    def __init__(self, layer: Activation) -> None:
        self._relu = layer.how == "relu"

    def forward(self, inputs: Tensor) -> Tensor:
        self._out = inputs.relu_() if self._relu else inputs.tanh_()
        return self._out

    def backward(self, delta: Tensor, *, further: bool) -> Tensor | None:
        delta = delta.view_as(self._out)
        if self._relu:
            return torch.ops.aten.threshold_backward.grad_input(delta, self._out, 0, grad_input=delta)
        return torch.ops.aten.tanh_backward.grad_input(delta, self._out, grad_input=delta)


class Scratch:
    """Two buffers as large as the largest of their users asked for."""

    def __init__(self) -> None:
        self._sizes, self._buffers = [0, 0], [torch.empty(0), torch.empty(0)]

    def reserve(self, *sizes: int) -> None:
        self._sizes = [max(before, size) for before, size in zip(self._sizes, sizes, strict=True)]

    def of(self, *sizes: int) -> tuple[Tensor, ...]:
        if self._buffers[0].numel() < self._sizes[0]:
            self._buffers = [torch.empty(size) for size in self._sizes]
        return tuple(buffer[:size] for buffer, size in zip(self._buffers, sizes, strict=True))


def passes(layers: Sequence[Layer], records: int) -> list[Pass]:
    """The layers at work on chunks of up to `records` records."""
    scratch, made, few = Scratch(), [], fills(layers)
    for layer in layers:
        match layer:
            case Dense():
                made.append(DensePass(layer, few))
            case Conv():
                made.append(ConvPass(layer, records, scratch))
            case Pool():
                made.append(MaxPass(layer, records) if layer.how == "max" else MeanPass(layer, records))
            case Activation():
                made.append(ActivationPass(layer))
    return made


def fills(layers: Sequence[Layer]) -> bool:
    """Whether chunks are filled up with null records, so that lengths are few. With convolutions those would cost too much."""
    return all(isinstance(layer, (Dense, Activation)) for layer in layers)


def floats(layer: Layer) -> int:
    """About how many numbers a record keeps in this layer's buffers."""
    match layer:
        case Dense():
            return layer.inputs + layer.outputs
        case Conv():
            filters, high, wide = layer.out
            unfolded = layer.channels * layer.kernel**2
            return unfolded * high * wide + 2 * filters * high * wide + unfolded * filters
        case Pool():
            return 2 * layer.channels * layer.height * layer.width
        case Activation():
            return 0


def _squares(of_BN: Tensor) -> Tensor:
    """Not by vector_norm, which adds up one after the other: 4,096 equal numbers give 5.5e-6 too little. sum stays within 2e-7."""
    return of_BN.square().sum(dim=1)


def _route(delta: Tensor, first: Tensor, second: Tensor, to_first: Tensor, to_second: Tensor) -> None:
    """Delta to whichever of two was the larger, 0 to the other."""
    torch.mul(delta, first >= second, out=to_first)
    torch.sub(delta, to_first, out=to_second)
