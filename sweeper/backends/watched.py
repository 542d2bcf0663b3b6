"""Where a module's Python reads numbers out of its records, which lets one record decide what becomes of a whole batch.

`if x.max() > 1: x = x / 255` is an example: no made-up records can be sure to meet its threshold. So what is looked for is not the
decision but the reading that it needs: every tensor made of records is followed through a pass, down to torch's own operators.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, overrides
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_LEAVING = {"tolist", "numpy", "__array__", "data_ptr", "untyped_storage", "storage", "__dlpack__"}  # no operator sees these
_SHAPED = {"zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_empty", "new_full"}
_ASIDE = (str(Path(torch.__file__).parent), str(Path(__file__).parent))  # frames in between that are nobody's decision


class Followed:
    """The tensors made of records, known by their memory, and the places in the user's code where one was read."""

    def __init__(self) -> None:
        self._memory: dict[int, Any] = {}  # kept, so that no address is used again
        self.places: dict[str, str] = {}  # "nets.py:12" -> what was called there

    def add(self, tensor: Tensor) -> None:
        if tensor.layout is torch.strided:
            memory = tensor.untyped_storage()
            self._memory[memory._cdata] = memory

    def holds(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.layout is torch.strided and value.untyped_storage()._cdata in self._memory

    def read(self, what: str) -> None:
        self.places.setdefault(_place(sys._getframe(2)), what)


def followed(run: Callable[[], Any], *records: Tensor) -> Followed:
    """What becomes of records in one pass."""
    found = Followed()
    for part in records:
        found.add(part)
    with _Methods(found), _Operators(found):
        run()
    return found


class _Operators(TorchDispatchMode):
    def __init__(self, found: Followed) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, found = kwargs or {}, self._found
        name = str(func.overloadpacket).rpartition(".")[2]
        some = (args[1:], kwargs) if name in _SHAPED else (args, kwargs)  # those ask the first for its shape and type alone
        of_records = any(found.holds(value) for value in tree_leaves(some))
        result = func(*args, **kwargs)
        if not of_records:
            return result
        results = tree_leaves(result)
        if any(isinstance(value, (bool, int, float, complex)) for value in results) or self._of_unknown_size(func, args):
            found.read("a Python number" if name == "_local_scalar_dense" else name)
        for value in results:
            if isinstance(value, Tensor):
                found.add(value)
        if func._schema.is_mutable:
            named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
            for argument in func._schema.arguments:
                if argument.alias_info is not None and argument.alias_info.is_write:
                    for value in tree_leaves(named.get(argument.name)):
                        if isinstance(value, Tensor):
                            found.add(value)
        return result

    def _of_unknown_size(self, func: Any, args: Any) -> bool:
        """Whether the shape of what comes out depends on the numbers that go in."""
        if func.overloadpacket is torch.ops.aten.index:
            wanted = tree_leaves(args[1])
            return any(self._found.holds(at) and at.dtype in (torch.bool, torch.uint8) for at in wanted)
        if func.overloadpacket is torch.ops.aten._pack_padded_sequence:
            return self._found.holds(args[1])
        return torch.Tag.dynamic_output_shape in func.tags


class _Methods(TorchFunctionMode):
    def __init__(self, found: Followed) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        with torch._C.DisableTorchFunction():
            if name in _LEAVING and args and self._found.holds(args[0]) and not _inside(_caller(sys._getframe(1), name)):
                self._found.read(name)
        return func(*args, **(kwargs or {}))


def _caller(frame: FrameType | None, name: str) -> FrameType | None:
    """Who called a method of a tensor: torch hands some on through Python functions of its own."""
    while frame is not None and (frame.f_code.co_filename == overrides.__file__ or frame.f_code.co_name == name):
        frame = frame.f_back
    return frame


def _inside(frame: FrameType | None) -> bool:
    """Whether it is torch itself, or this package, that calls."""
    return frame is not None and frame.f_code.co_filename.startswith(_ASIDE)


def _place(frame: FrameType | None) -> str:
    """file:line of the innermost frame of the user's own code."""
    while frame is not None and _inside(frame):
        frame = frame.f_back
    return "a layer of torch" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
