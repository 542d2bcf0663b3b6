"""Dense layers that hold the parameters of another layer, for stand-ins made of them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def dense(weight: nn.Parameter, bias: nn.Parameter | None = None) -> nn.Linear:
    """A dense layer that holds these very parameters, so that their values, types, flags and ties stay. Draws no numbers."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = weight
    if bias is not None:
        layer.bias = bias
    return layer


def part_of(whole: nn.Parameter, values: Tensor) -> nn.Parameter:
    """A parameter of its own for a part of a packed one, trained if that is."""
    return nn.Parameter(values.detach().clone(memory_format=torch.contiguous_format), requires_grad=whole.requires_grad)


def as_built(layer: nn.Module, names: Iterable[str]) -> bool:
    """Whether a layer holds the parameters of these names and no others, and nothing was hung on it that a stand-in would lose."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    held = {name for name, value in layer._parameters.items() if value is not None}
    return held == set(names) and not any(hooks) and "forward" not in vars(layer)
