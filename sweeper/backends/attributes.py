"""What a module's objects hold besides parameters, buffers and layers: numbers and tensors in plain attributes.

They come into no state_dict and no checkpoint, and can carry what one batch of records left to the next.
"""

from __future__ import annotations

import hashlib
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_OF_TORCH = frozenset(vars(nn.Module())) - {"training"}
_DEEP = 6  # objects in objects


def attributes_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """(name, value) of every number, text, array and tensor that a layer's attributes lead to."""
    met: set[int] = {id(value) for value in (*module.modules(), *module.parameters(), *module.buffers())}
    for place, layer in module.named_modules():
        for name, value in vars(layer).items():
            if name not in _OF_TORCH:
                yield from _leaves(f"{place}.{name}" if place else name, value, met, _DEEP)


def marks_of(module: nn.Module) -> dict[str, str]:
    """What tells each of them from what it was."""
    return {name: _mark(value) for name, value in attributes_of(module)}


def _leaves(name: str, value: Any, met: set[int], deep: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (bool, int, float, complex, str, bytes, np.generic, type(None))):
        yield name, value
        return
    if id(value) in met or deep == 0:
        return
    met.add(id(value))
    if isinstance(value, (Tensor, np.ndarray)):
        yield name, value
        return
    inside: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        inside = [(f"{name}[{key!r}]", part) for key, part in list(value.items())]
    elif isinstance(value, (list, tuple, deque, set, frozenset)):
        inside = [(f"{name}[{at}]", part) for at, part in enumerate(value)]
    elif isinstance(value, types.FunctionType):
        inside = [(f"{name}()", cell.cell_contents) for cell in value.__closure__ or () if _full(cell)]
    elif isinstance(value, types.MethodType):
        inside = [(name, value.__self__), (name, value.__func__)]
    elif not isinstance(value, (type, types.ModuleType, torch.Generator)) and hasattr(value, "__dict__"):
        inside = [(f"{name}.{key}", part) for key, part in vars(value).items() if key not in _OF_TORCH]
        if isinstance(value, nn.Module):  # one that its owner does not know as a layer
            inside += [(f"{name}.{key}", part) for key, part in (*value.named_parameters(), *value.named_buffers())]
    if isinstance(value, torch.Generator):
        inside = [(f"{name}.get_state()", value.get_state())]
    yield f"{name} ({len(inside)})", type(value).__name__
    for below, part in inside:
        yield from _leaves(below, part, met, deep - 1)


def _full(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a name that is not bound yet
        return False


def _mark(value: Any) -> str:
    if isinstance(value, Tensor):
        plain = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
        value = plain.contiguous().flatten().view(torch.uint8).numpy() if plain.numel() else np.zeros(0)
        return hashlib.blake2b(value.tobytes()).hexdigest()
    if isinstance(value, np.ndarray):
        return hashlib.blake2b(repr(value.dtype).encode() + np.ascontiguousarray(value).tobytes()).hexdigest()
    return repr(value)
