"""Modules around layers that need a stand-in, as torch has them (`replace` False) or with the stand-in, and what compares them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sweeper.backends.replaced import replaced
from sweeper.backends.stand_ins import private_stand_in

KINDS = (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase, nn.modules.batchnorm._BatchNorm)


def with_stand_ins(module: nn.Module) -> nn.Module:
    return replaced(module, {name: layer for name, layer in module.named_modules() if isinstance(layer, KINDS)})


class Sequences(nn.Module):
    """Rows [B, 12] as sequences [B, 3, 4], through a layer by `call`, and the mean of its outputs to 3 classes."""

    def __init__(self, layer: nn.Module, call: Callable[[nn.Module, Tensor], Tensor], width: int = 4) -> None:
        super().__init__()
        self.inner, self.out, self._call = layer, nn.Linear(width, 3), call

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(torch.tanh(self._call(self.inner, rows.reshape(len(rows), 3, 4))).mean(dim=1))


class Stepping(nn.Module):
    """A cell called step after step, from no state."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell, self.out = cell, nn.Linear(5, 3)

    def forward(self, rows: Tensor) -> Tensor:
        state = None
        for step in rows.reshape(len(rows), 3, 4).unbind(dim=1):
            state = self.cell(step, state)
        return self.out(state[0] if isinstance(state, tuple) else state)


class Rooted(nn.Module):
    """A parameter of the module itself before attention, as a vision transformer's class token: vmap goes through all of it."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.linspace(-1, 1, 4))
        self.inner, self.out = nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True, **options), nn.Linear(4, 3)

    def forward(self, rows: Tensor) -> Tensor:
        tokens = torch.cat([self.token.expand(len(rows), 1, 4), rows.reshape(len(rows), 3, 4)], dim=1)
        return self.out(self.inner(tokens)[:, 0])


class Decoding(nn.Module):
    """A decoder layer: attention to itself, causal, and to a memory of other positions."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.TransformerDecoderLayer(4, 2, 6, 0.0, batch_first=True), nn.Linear(4, 3)

    def forward(self, rows: Tensor) -> Tensor:
        sequences = rows.reshape(len(rows), 3, 4)
        mask = nn.Transformer.generate_square_subsequent_mask(2)
        return self.out(self.inner(sequences[:, :2], sequences, tgt_mask=mask, tgt_is_causal=True).mean(dim=1))


def to_itself(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x, x, x)[0]


def to_itself_time_first(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(*[x.transpose(0, 1)] * 3, need_weights=False)[0].transpose(0, 1)


def across(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x[:, :2], x[..., :3], x[..., 1:3])[0]


def causal(layer: nn.Module, x: Tensor) -> Tensor:
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    return layer(x, mask, is_causal=True) if isinstance(layer, nn.TransformerEncoder) else layer(x, src_mask=mask, is_causal=True)


def padded(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x, src_key_padding_mask=x[..., 0] > 0.6)


def steps(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x)[0]


def steps_time_first(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x.transpose(0, 1))[0].transpose(0, 1)


def encoder_layer(dropout: float = 0.0, **options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 6, dropout, batch_first=True, **options)


def half_frozen() -> nn.Module:
    """Of the packed parameters the weights frozen, the biases not; of the last layer the other way round."""
    layer = nn.MultiheadAttention(4, 2, batch_first=True)
    layer.in_proj_weight.requires_grad_(False), layer.out_proj.bias.requires_grad_(False)
    return layer


NETS: dict[str, Callable[[], nn.Module]] = {
    "attention": lambda: Sequences(nn.MultiheadAttention(4, 2, batch_first=True), to_itself),
    "attention-time-first": lambda: Sequences(nn.MultiheadAttention(4, 2), to_itself_time_first),
    "attention-across": lambda: Sequences(nn.MultiheadAttention(4, 2, kdim=3, vdim=2, batch_first=True), across),
    "attention-more-keys": lambda: Sequences(
        nn.MultiheadAttention(4, 2, add_bias_kv=True, add_zero_attn=True, bias=False, batch_first=True), to_itself
    ),
    "attention-half-frozen": lambda: Sequences(half_frozen(), to_itself),
    "encoder-layer": lambda: Sequences(encoder_layer(), causal),
    "encoder-layer-norm-first": lambda: Sequences(encoder_layer(norm_first=True), padded),
    "encoder": lambda: Sequences(nn.TransformerEncoder(encoder_layer(), 2), padded),
    "encoder-causal": lambda: Sequences(nn.TransformerEncoder(encoder_layer(), 2), causal),
    "decoder-layer": Decoding,
    "rooted": Rooted,
    "lstm": lambda: Sequences(nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True), steps, 10),
    "lstm-projected": lambda: Sequences(nn.LSTM(4, 5, proj_size=2, batch_first=True), steps, 2),
    "encoder-dropout": lambda: Sequences(nn.TransformerEncoder(encoder_layer(0.3), 2), padded),
    "lstm-dropout": lambda: Sequences(nn.LSTM(4, 5, 2, dropout=0.3, batch_first=True), steps, 5),
    "gru": lambda: Sequences(nn.GRU(4, 5), steps_time_first, 5),
    "rnn": lambda: Sequences(nn.RNN(4, 5, 2, nonlinearity="relu", bias=False, batch_first=True), steps, 5),
    "gru-cell": lambda: Stepping(nn.GRUCell(4, 5)),
    "rnn-cell": lambda: Stepping(nn.RNNCell(4, 5)),
    "lstm-cell": lambda: Stepping(nn.LSTMCell(4, 5)),
    "norm-of-rows": lambda: nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)),
    "norm-of-sequences": lambda: nn.Sequential(
        nn.Unflatten(1, (4, 3)), nn.Conv1d(4, 8, 2), nn.BatchNorm1d(8), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)
    ),
}


def net(name: str, replace: bool = True) -> nn.Module:
    module = NETS[name]()
    return with_stand_ins(module) if replace else module


def stand_in(layer: nn.Module) -> nn.Module:
    """Of a copy, so that gradients do not meet."""
    found = private_stand_in(copy.deepcopy(layer))
    assert found is not None
    return found


def tensors(value) -> list[Tensor]:
    if value is None or isinstance(value, Tensor):
        return [] if value is None else [value]
    return [part for some in value for part in tensors(some)]


def same(found, expected, tolerance: float = 1e-5) -> None:
    ours, theirs = tensors(found), tensors(expected)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().max() <= tolerance


def length(module: nn.Module) -> float:
    """Of the gradient by all parameters: packing them otherwise does not change it."""
    return math.sqrt(sum(float(p.grad.double().square().sum()) for p in module.parameters() if p.grad is not None))


def pulled_back(found, module: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
    """Gradients by the inputs of a weighted sum of outputs; those by parameters stay in .grad."""
    total = sum((part * torch.linspace(-1, 1, part.numel()).view(part.shape)).sum() for part in tensors(found))
    for value in inputs:
        value.grad = None
    module.zero_grad()
    total.backward()
    return [value.grad.clone() for value in inputs]
