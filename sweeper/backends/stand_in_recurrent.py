"""torch's recurrent layers and their cells of dense layers, each of which is called with the records first.

Shapes: B records, T steps, I inputs, H numbers of a state, G numbers that its gates are made of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sweeper.backends.stand_in_linear import as_built, dense

LSTM, GRU, TANH, RELU = "LSTM", "GRU", "RNN_TANH", "RNN_RELU"  # as torch.nn.RNNBase names its modes

State = tuple[Tensor, ...]  # what a step hands on: (h,), or (h, c) of an LSTM


class Step(nn.Module):
    """The dense layers of one cell: ih of inputs, hh of states, and hr from a cell to a smaller state, if there is one."""

    def __init__(self, mode: str, own: Mapping[str, nn.Parameter]) -> None:
        super().__init__()
        self.mode = mode
        self.ih, self.hh = dense(own["weight_ih"], own.get("bias_ih")), dense(own["weight_hh"], own.get("bias_hh"))
        self.hr = dense(own["weight_hr"]) if "weight_hr" in own else None

    def start(self, inputs: Tensor) -> State:
        """A state of zeros for these records."""
        h_BH = inputs.new_zeros(len(inputs), self.hh.in_features)
        return (h_BH, inputs.new_zeros(len(inputs), self.hh.out_features // 4)) if self.mode == LSTM else (h_BH,)

    def next(self, inputs_BG: Tensor, state: State) -> State:
        """The state after a step. inputs_BG: what ih makes of the step's inputs."""
        h_BH = state[0]
        states_BG = self.hh(h_BH)
        if self.mode == GRU:
            (r, z, n), (more_r, more_z, more_n) = inputs_BG.chunk(3, dim=1), states_BG.chunk(3, dim=1)
            z = torch.sigmoid(z + more_z)
            n = torch.tanh(n + torch.sigmoid(r + more_r) * more_n)
            return ((1 - z) * n + z * h_BH,)
        if self.mode == LSTM:
            i, f, g, o = (inputs_BG + states_BG).chunk(4, dim=1)
            c_BH = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
            h_BH = torch.sigmoid(o) * torch.tanh(c_BH)
            return (h_BH if self.hr is None else self.hr(h_BH), c_BH)
        total_BG = inputs_BG + states_BG
        return (torch.tanh(total_BG) if self.mode == TANH else torch.relu(total_BG),)


class DenseCell(Step):
    """Computes what a torch.nn.LSTMCell, GRUCell or RNNCell computes and is called as one."""

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        """The next state: a tensor [B, H], or two of an LSTM."""
        if input.dim() != 2:
            raise ValueError(f"a cell takes records [B, I], not {list(input.shape)}")
        state = self.start(input) if hx is None else tuple(hx) if self.mode == LSTM else (hx,)
        found = self.next(self.ih(input), state)
        return found if self.mode == LSTM else found[0]


class DenseRecurrent(nn.Module):
    """Computes what a torch.nn.LSTM, GRU or RNN computes and is called as one, but for packed sequences and single records."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.mode, self.batch_first, self.bidirectional = layer.mode, layer.batch_first, layer.bidirectional
        self.input_size, self.hidden_size, self.proj_size = layer.input_size, layer.hidden_size, layer.proj_size
        self.num_layers, self.bias, self.dropout = layer.num_layers, layer.bias, layer.dropout
        self.drop, self.steps = nn.Dropout(layer.dropout), nn.ModuleDict()
        for suffix in _suffixes(layer):
            self.steps[suffix] = Step(layer.mode, {part: getattr(layer, f"{part}_{suffix}") for part in _parts(layer)})

    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        """Outputs of all steps, and the last states as torch gives them."""
        if not isinstance(input, Tensor):
            raise ValueError("a recurrent layer takes no packed sequence: some of its steps are without some records; pad it")
        if input.dim() != 3:
            raise ValueError(f"a recurrent layer takes records [B, T, I] or [T, B, I], not {list(input.shape)}")
        found_BTI = input if self.batch_first else input.transpose(0, 1)
        starts = None if hx is None else tuple(hx) if self.mode == LSTM else (hx,)
        lasts, directions = list[State](), 2 if self.bidirectional else 1
        for at in range(self.num_layers):
            if at:
                found_BTI = self.drop(found_BTI)
            outputs = list[Tensor]()
            for name in list(self.steps)[at * directions : (at + 1) * directions]:
                step, backwards = self.steps[name], len(outputs) == 1
                state = step.start(found_BTI[:, 0]) if starts is None else tuple(part[len(lasts)] for part in starts)
                outputs_BTH, last = _run(step, found_BTI, state, backwards=backwards)
                outputs.append(outputs_BTH)
                lasts.append(last)
            found_BTI = torch.cat(outputs, dim=2)
        found = tuple(torch.stack(parts) for parts in zip(*lasts, strict=True))
        outputs_ = found_BTI if self.batch_first else found_BTI.transpose(0, 1)
        return outputs_, found if self.mode == LSTM else found[0]


def recurrent(layer: nn.Module) -> DenseRecurrent | None:
    """The stand-in of a torch.nn.LSTM, GRU or RNN; None if it is not as it was built."""
    assert isinstance(layer, nn.RNNBase)
    names = {f"{part}_{suffix}" for suffix in _suffixes(layer) for part in _parts(layer)}
    return DenseRecurrent(layer) if as_built(layer, names) else None


def cell(layer: nn.Module) -> DenseCell | None:
    """The stand-in of a torch.nn.LSTMCell, GRUCell or RNNCell; None if it is not as it was built."""
    assert isinstance(layer, nn.RNNCellBase)
    modes = {nn.LSTMCell: LSTM, nn.GRUCell: GRU}
    mode = modes.get(type(layer)) or {"tanh": TANH, "relu": RELU}[layer.nonlinearity]
    parts = _parts(layer)
    return DenseCell(mode, {part: getattr(layer, part) for part in parts}) if as_built(layer, parts) else None


def _parts(layer: nn.RNNBase | nn.RNNCellBase) -> list[str]:
    """The parameters of one cell."""
    biases = ["bias_ih", "bias_hh"] if layer.bias else []
    return ["weight_ih", "weight_hh", *biases, *(["weight_hr"] if getattr(layer, "proj_size", 0) else [])]


def _suffixes(layer: nn.RNNBase) -> list[str]:
    """How torch names the parameters of each layer and direction, in the order of its states."""
    ways = ("", "_reverse") if layer.bidirectional else ("",)
    return [f"l{at}{way}" for at in range(layer.num_layers) for way in ways]


def _run(step: Step, inputs_BTI: Tensor, state: State, *, backwards: bool) -> tuple[Tensor, State]:
    """Outputs of all steps in the order of the inputs, and the last state."""
    each_BG = step.ih(inputs_BTI).unbind(dim=1)  # all steps in one call, whose gradients are made at once
    outputs = []
    for inputs_BG in reversed(each_BG) if backwards else each_BG:
        state = step.next(inputs_BG, state)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backwards else outputs, dim=1), state
