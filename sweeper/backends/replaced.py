"""Layers of a module turned into their stand-ins."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from sweeper.backends.stand_in_attention import DenseAttention, split
from sweeper.backends.stand_ins import private_stand_in


def replaced(module: nn.Module, wrong: Mapping[str, nn.Module]) -> nn.Module:
    """The module itself, in which these layers became their stand-ins; those without one stay.

    A layer becomes its stand-in where it is, so that whoever holds it holds the stand-in: two parents, a list, or nobody at all.
    """
    for layer in {id(layer): layer for layer in wrong.values()}.values():
        if any(_holders(module, whole) > 1 for whole in split(layer)):
            continue  # tied to another layer's parameter, which its parts would no longer be
        found = private_stand_in(layer)
        if found is not None:
            _become(layer, found)
    for part in module.modules():
        if isinstance(part, nn.TransformerEncoder) and any(isinstance(inner, DenseAttention) for inner in part.modules()):
            part.use_nested_tensor = False  # it would hand records of different lengths to its layers
    return module


def _become(layer: nn.Module, other: nn.Module) -> None:
    layer.__class__ = type(other)
    vars(layer).clear()
    vars(layer).update(vars(other))


def _holders(module: nn.Module, parameter: nn.Parameter) -> int:
    """How many places in a module hold a parameter itself."""
    return sum(own is parameter for part in module.modules() for own in part._parameters.values())
