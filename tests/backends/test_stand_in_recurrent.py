"""Recurrent layers and cells of dense layers against torch's: the same outputs, states and gradients over all of their options."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from stand_in_nets import length, pulled_back, same, stand_in
from torch import nn

from sweeper.backends.stand_in_recurrent import DenseCell, DenseRecurrent

B, L = 3, 4  # records, steps
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")  # what the original says


RECURRENT = [
    (kind, layers, both, bias, first, projected)
    for kind in ("LSTM", "GRU", "RNN_TANH", "RNN_RELU")
    for layers, both, bias, first in itertools.product((1, 3), (False, True), (False, True), (False, True))
    for projected in ((0, 2) if kind == "LSTM" else (0,))
]


@pytest.mark.parametrize(("kind", "layers", "both", "bias", "first", "projected"), RECURRENT)
def test_recurrent_layers_are_those_of_torch(kind, layers, both, bias, first, projected) -> None:
    torch.manual_seed(6)
    options = {"num_layers": layers, "bidirectional": both, "bias": bias, "batch_first": first}
    options |= {"proj_size": projected} if projected else {}
    options |= {"nonlinearity": kind[4:].lower()} if kind.startswith("RNN") else {}
    x = torch.randn(B, L, 3) if first else torch.randn(L, B, 3)
    ways = layers * (2 if both else 1)
    h, c = torch.randn(ways, B, projected or 5), torch.randn(ways, B, 5)
    # with a dropout of 1 outputs show where torch drops, without chance
    for dropout, training in ((0.0, True), (0.4, False), (1.0, True)):
        if layers == 1 and dropout:
            continue
        layer = getattr(nn, kind[:3] if kind.startswith("RNN") else kind)(3, 5, dropout=dropout, **options).train(training)
        other = stand_in(layer)
        assert type(other) is DenseRecurrent
        for state in (None, (h, c) if kind == "LSTM" else h):
            inputs = [x.clone().requires_grad_()]
            expected, found = layer(inputs[0], state), other(inputs[0], state)
            same(found, expected)
            same(pulled_back(found, other, inputs), pulled_back(expected, layer, inputs), 1e-4)
            assert length(other) == pytest.approx(length(layer), rel=1e-4)


def test_recurrent_dropout_keeps_the_mean() -> None:
    """Kept outputs are scaled by 1 / (1 - p), and the states that are handed on are not dropped."""
    layer = nn.RNN(1, 1, 2, nonlinearity="relu", bias=False, dropout=0.5, batch_first=True)
    for parameter in layer.parameters():
        nn.init.ones_(parameter)
    nn.init.zeros_(layer.weight_hh_l1)
    found = stand_in(layer)(torch.ones(4000, 3, 1))[0][:, :, 0]  # layer 0 gives 1, 2, 3; each is dropped, or doubled
    assert all(set(found[:, at].tolist()) == {0.0, 2.0 * (at + 1)} for at in range(3))
    share = (found > 0).float().mean(dim=0)
    assert ((share - 0.5).abs() < 5 * 0.5 / math.sqrt(4000)).all()  # five deviations: by chance once in a million


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell", "relu"])
def test_cells_are_those_of_torch(kind: str, bias: bool) -> None:
    torch.manual_seed(7)
    layer = nn.RNNCell(3, 5, bias, "relu") if kind == "relu" else getattr(nn, kind)(3, 5, bias)
    other, x = stand_in(layer), torch.randn(B, 3, requires_grad=True)
    assert type(other) is DenseCell
    state = (torch.randn(B, 5), torch.randn(B, 5)) if kind == "LSTMCell" else torch.randn(B, 5)
    for given_state in ((), (None,), (state,)):
        expected, found = layer(x, *given_state), other(x, *given_state)
        same(found, expected)
        same(pulled_back(found, other, [x]), pulled_back(expected, layer, [x]), 1e-4)
        assert length(other) == pytest.approx(length(layer), rel=1e-4)


def test_single_records_and_packed_sequences_are_refused() -> None:
    layer, cell = stand_in(nn.GRU(3, 5, batch_first=True)), stand_in(nn.GRUCell(3, 5))
    with pytest.raises(ValueError, match=r"takes records \[B, T, I\]"):
        layer(torch.randn(4, 3))
    with pytest.raises(ValueError, match="no packed sequence"):
        layer(nn.utils.rnn.pack_padded_sequence(torch.randn(B, 4, 3), torch.tensor([4, 2, 1]), batch_first=True))
    with pytest.raises(ValueError, match=r"takes records \[B, I\]"):
        cell(torch.randn(3))
