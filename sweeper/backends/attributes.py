"""What the objects of a module and of its loss hold besides parameters, buffers and layers: numbers, tensors, places of iterators.

They come into no state_dict and no checkpoint, and can carry what one batch of records left to the next. Looked into are
attributes, slots, classes, containers, and functions with what they close over, their defaults and the globals that they name; of
code in the user's own files, not of what is installed.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import pickle
import random
import sys
import types
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_OF_TORCH = frozenset(vars(nn.Module())) - {"training"}
_DEEP = 12  # objects in objects
_PLAIN = (bool, int, float, complex, str, bytes, bytearray, np.generic, type(None))
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_ELSEWHERE = tuple(f"{Path(file).parent}/" for file in (torch.__file__, np.__file__, __file__))  # wherever they are installed


def attributes_of(module: nn.Module, loss: Any = None) -> Iterator[tuple[str, Any]]:
    """(name, value) of everything that can hold a number, and that the module or its loss leads to."""
    met: set[int] = {id(value) for value in (*module.modules(), *module.parameters(), *module.buffers())}
    for place, layer in module.named_modules():
        for name, value in (*vars(layer).items(), *_of_class(layer)):
            if name not in _OF_TORCH:
                yield from _leaves(f"{place}.{name}" if place else name, value, met, _DEEP)
    if loss is not None:
        yield from _leaves("loss", loss, met, _DEEP)


def marks_of(module: nn.Module, loss: Any = None) -> dict[str, str]:
    """What tells each of them from what it was, in one process."""
    return {name: _mark(value) for name, value in attributes_of(module, loss)}


def values_of(module: nn.Module) -> dict[str, str]:
    """Of the numbers, arrays and tensors among the module's own attributes: the same in any process that builds the same."""
    kinds = (*_PLAIN, Tensor, np.ndarray)
    return {name: _mark(value) for name, value in attributes_of(module) if isinstance(value, kinds) and "()" not in name}


def whole_numbers_of(module: nn.Module) -> set[int]:
    """Positive whole numbers in the attributes of a module and in the code of the user's layers: they may mean something to it."""
    found = {value for _, value in attributes_of(module) if type(value) is int and value > 0}
    codes = [part.__code__ for layer in module.modules() for _, part in _of_class(layer) if isinstance(part, types.FunctionType)]
    while codes:
        for constant in codes.pop().co_consts:
            if isinstance(constant, types.CodeType):
                codes.append(constant)
            elif type(constant) is int and constant > 0:
                found.add(constant)
    return found


def _leaves(name: str, value: Any, met: set[int], deep: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, _PLAIN) or deep == 0:
        yield name, value
        return
    if id(value) in met or isinstance(value, types.ModuleType):
        return
    met.add(id(value))
    inside = _inside(name, value)
    yield (name, value) if inside is None else (f"{name} ({len(inside)})", type(value).__name__)
    for below, part in inside or ():
        yield from _leaves(below, part, met, deep - 1)


def _inside(name: str, value: Any) -> list[tuple[str, Any]] | None:
    """What a value is made of; None: it is one thing."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = value.tolist()
    if isinstance(value, (dict, types.MappingProxyType)):
        return [(f"{name}[{key!r}]", part) for key, part in list(value.items())]
    if isinstance(value, (list, tuple, deque, set, frozenset)):
        return [(f"{name}[{at}]", part) for at, part in enumerate(value)]
    if isinstance(value, types.FunctionType):
        return _of_function(name, value)
    if isinstance(value, types.MethodType):
        return [(name, value.__self__), (f"{name}()", value.__func__)]
    if isinstance(value, functools.partial):
        return [(f"{name}.func", value.func), (f"{name}.args", value.args), (f"{name}.keywords", value.keywords)]
    if isinstance(value, type):
        return list(_of_class_itself(name, value))
    if isinstance(value, (Tensor, torch.Generator, np.ndarray, random.Random)) or hasattr(value, "cache_info"):
        return None
    if isinstance(value, (logging.Logger, logging.Handler)):  # they keep what they were asked, and the whole program hangs on them
        return []
    if not (hasattr(value, "__dict__") or _slots(value)):
        return None
    found = [(f"{name}.{key}", part) for key, part in getattr(value, "__dict__", {}).items() if key not in _OF_TORCH]
    found += [(f"{name}.{key}", getattr(value, key)) for key in _slots(value) if hasattr(value, key)]
    if isinstance(value, nn.Module):  # one that its owner does not know as a layer
        found += [(f"{name}.{key}", part) for key, part in (*value.named_parameters(), *value.named_buffers())]
    return found + [(f"{name}.{key}", part) for key, part in _of_class(value)]


def _of_function(name: str, function: types.FunctionType) -> list[tuple[str, Any]]:
    if not _is_users(function.__code__.co_filename):
        return []
    named = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    found = [(f"{name}()[{free!r}]", cell.cell_contents) for free, cell in named if _full(cell)]
    found += [(f"{name}().{key}", part) for key, part in vars(function).items()]
    found += [(f"{name}()[{at}]", part) for at, part in enumerate(function.__defaults__ or ())]
    found += [(f"{name}()[{key}]", part) for key, part in (function.__kwdefaults__ or {}).items()]
    known = function.__globals__
    return found + [(f"{function.__module__}.{key}", known[key]) for key in _names(function.__code__) if key in known]


def _names(code: types.CodeType) -> Iterator[str]:
    """What a function may take from its file, and functions inside it."""
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _names(part)


def _of_class(value: Any) -> list[tuple[str, Any]]:
    """The attributes of the classes of an object that are the user's, its methods among them."""
    return [pair for kind in type(value).__mro__ for pair in _of_class_itself(kind.__name__, kind)]


def _of_class_itself(name: str, kind: type) -> Iterator[tuple[str, Any]]:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if kind.__module__ == "builtins" or not (_is_users(file) if file else kind.__module__ == "__main__"):
        return
    for key, part in list(vars(kind).items()):
        if isinstance(part, (staticmethod, classmethod)):
            part = part.__func__
        if isinstance(part, property):
            yield f"{name}.{key}", part.fget
        elif isinstance(part, types.FunctionType) or not (key.startswith("__") or isinstance(part, _DESCRIPTORS)):
            yield f"{name}.{key}", part


def _is_users(file: str) -> bool:
    installed = "site-packages" in file or "dist-packages" in file or file.startswith((f"{sys.base_prefix}/lib", "<frozen"))
    return not installed and not file.startswith(_ELSEWHERE)


def _slots(value: Any) -> list[str]:
    return [name for kind in type(value).__mro__ for name in _listed(vars(kind).get("__slots__", ())) if not name.startswith("__")]


def _listed(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _full(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a name that is not bound yet
        return False


def _mark(value: Any) -> str:
    if isinstance(value, Tensor):
        plain = value.detach()
        plain = plain if plain.layout is torch.strided else plain.to_dense()
        value = plain.contiguous().flatten().view(torch.uint8).numpy() if plain.numel() else np.zeros(0)
        return hashlib.blake2b(value.tobytes()).hexdigest()
    if isinstance(value, torch.Generator):
        return hashlib.blake2b(value.get_state().numpy().tobytes()).hexdigest()
    if isinstance(value, np.ndarray):
        return hashlib.blake2b(repr(value.dtype).encode() + np.ascontiguousarray(value).tobytes()).hexdigest()
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        return "over" if frame is None else f"{frame.f_lasti} {sorted(map(repr, frame.f_locals.items()))}"
    if isinstance(value, _PLAIN):
        return repr(value)
    if hasattr(value, "cache_info"):
        return repr(value.cache_info())
    try:
        return hashlib.blake2b(pickle.dumps(value)).hexdigest()
    except Exception:  # what cannot be written down is told by how it shows itself
        return repr(value)
