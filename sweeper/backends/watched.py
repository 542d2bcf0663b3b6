"""Where a module's Python reads numbers out of its records, which lets one record decide what becomes of a whole batch.

`if x.max() > 1: x = x / 255` is an example: no made-up records can be sure to meet its threshold. So what is looked for is not the
decision but the reading that it needs: every tensor made of records is followed through a pass, down to torch's own operators, and
back through its derivatives. What leaves their sight (threads, memory that is not torch's, layouts with numbers of elements of
their own) counts as a reading.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.pool import Pool
from pathlib import Path
from queue import Queue
from types import FrameType
from typing import Any

import torch
from torch import Tensor, overrides
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_LEAVING = {"tolist", "numpy", "__array__", "data_ptr", "untyped_storage", "storage", "__dlpack__", "__reduce_ex__"}
_SHOWN = {"__repr__", "__str__", "__format__", "__float__", "__int__", "__index__", "__bool__", "__complex__", "item"}
_FROM_OUTSIDE = {"from_numpy", "frombuffer", "from_dlpack"}  # memory that is not torch's
_FROM_LISTS = {"tensor", "as_tensor", "asarray", "new_tensor", "new", "sparse_coo_tensor", "sparse_csr_tensor"}  # no operator sees
_BY_NUMBERS = {"tensor_split", "apply_", "map_", "map2_"}  # read an argument, seen by no operator
_CHECKED = {"one_hot"}  # read their argument to raise an error, if they are told how many classes there are
_BY_ERRORS = {"_linalg_check_errors", "_assert_async", "_functional_assert_async"}  # raise one, which Python can catch
_BY_PLACES = {"_pack_padded_sequence": 1, "masked_scatter": 1, "masked_scatter_": 1}  # what the numbers of this argument decide
_TO_THREADS: tuple[tuple[Any, str], ...] = (
    (threading.Thread, "start"),
    (ThreadPoolExecutor, "submit"),
    (Pool, "apply_async"),
    (Pool, "_map_async"),
    (Pool, "imap"),
    (Pool, "imap_unordered"),
    (Queue, "put"),
)
_SHAPED = {"zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_empty", "new_full"}
_LIBRARY = {sys.modules[kind.__module__].__file__ for kind, _ in _TO_THREADS} | {sys.modules[Executor.__module__].__file__}
_ASIDE = tuple(f"{Path(file).parent}{os.sep}" for file in (torch.__file__, __file__))  # frames that are nobody's decision


class Followed:
    """The tensors made of records, known by their memory, and the places in the user's code where one was read."""

    def __init__(self) -> None:
        self._memory: dict[int, Any] = {}  # kept, so that no address is used again
        self._fresh: dict[int, Any] = {}  # what was made in the pass, of records or not
        self._given: set[int] = set()
        self._outside: dict[int, Any] = {}
        self.places: dict[str, str] = {}  # "nets.py:12" -> what was called there
        self.excused = False

    def give(self, tensor: Tensor) -> None:
        """One of the records themselves."""
        self.add(tensor)
        self._given.add(tensor.untyped_storage()._cdata)

    def add(self, tensor: Tensor) -> None:
        tensor = _under_vmap(tensor)
        if tensor.layout is torch.strided:
            memory = tensor.untyped_storage()
            self._memory[memory._cdata] = memory
        else:
            self.read(f"a tensor of layout {str(tensor.layout).removeprefix('torch.')}")

    def made(self, tensor: Tensor, given: list[Any]) -> None:
        """A tensor that is new, unless it is a view of one of those that were given."""
        tensor = _under_vmap(tensor)
        if tensor.layout is torch.strided:
            memory = tensor.untyped_storage()
            plain = [_under_vmap(value) for value in given if isinstance(value, Tensor)]
            old = {value.untyped_storage()._cdata for value in plain if value.layout is torch.strided}
            if memory._cdata not in old and memory._cdata not in self._outside:
                self._fresh[memory._cdata] = memory

    def from_outside(self, tensor: Tensor) -> None:
        memory = tensor.untyped_storage()
        self._outside[memory._cdata] = memory
        self._fresh.pop(memory._cdata, None)

    def is_fresh(self, tensor: Tensor) -> bool:
        return tensor.layout is torch.strided and tensor.untyped_storage()._cdata in self._fresh

    def holds(self, value: Any) -> bool:
        value = _under_vmap(value) if isinstance(value, Tensor) else value
        return isinstance(value, Tensor) and value.layout is torch.strided and value.untyped_storage()._cdata in self._memory

    def read(self, what: str) -> None:
        if not self.excused:
            self.places.setdefault(_place(sys._getframe(2)), what)

    @property
    def kept(self) -> int:
        """How many tensors made of records somebody still holds."""
        self._fresh.clear()
        if self._held():  # perhaps by what refers to itself, and is gone
            gc.collect()
        return self._held()

    def _held(self) -> int:
        return sum(torch._C._storage_Use_Count(at) > 1 for at in self._memory if at not in self._given)


def followed(run: Callable[[], Any], *records: Tensor) -> Followed:
    """What becomes of records in one pass."""
    found = Followed()
    for part in records:
        found.give(part)
    with _threads(found), _Methods(found), _Operators(found):
        run()
    return found


class _Operators(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, found: Followed) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, found = kwargs or {}, self._found
        name = str(getattr(func, "overloadpacket", func)).rpartition(".")[2]
        some = (args[1:], kwargs) if name in _SHAPED else (args, kwargs)  # those ask the first for its shape and type alone
        of_records = any(found.holds(value) for value in tree_leaves(some))
        try:
            result = func(*args, **kwargs)
        except Exception:
            if of_records:  # perhaps for a number in them, and Python may catch it
                found.read("an error")
            raise
        results = tree_leaves(result)
        if of_records:
            if not hasattr(func, "_schema") or name in _BY_ERRORS:
                found.read(name)
            elif any(isinstance(value, (bool, int, float, complex)) for value in results):
                found.read("a Python number" if name == "_local_scalar_dense" else name)
            elif self._decides(func, name, args):
                found.read(name)
            for value in _written(func, args, kwargs):
                if not (found.holds(value) or found.is_fresh(value)):
                    found.read("written into what was there before")
                found.add(value)
            for value in results:
                if isinstance(value, Tensor):
                    found.add(value)
        else:
            for value in results:
                if isinstance(value, Tensor):
                    found.made(value, tree_leaves((args, kwargs)))
        return result

    def _decides(self, func: Any, name: str, args: Any) -> bool:
        """Whether shapes, or whose numbers go where, depend on the numbers that go in."""
        if name == "index":
            return any(self._found.holds(at) and at.dtype in (torch.bool, torch.uint8) for at in tree_leaves(args[1]))
        if name in _BY_PLACES:
            return self._found.holds(args[_BY_PLACES[name]])
        return torch.Tag.dynamic_output_shape in func.tags


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The tensors that an operator writes into."""
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return
    named = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
    for argument in schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from (value for value in tree_leaves(named.get(argument.name)) if isinstance(value, Tensor))


class _Methods(TorchFunctionMode):
    def __init__(self, found: Followed) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, found, kwargs = getattr(func, "__name__", ""), self._found, kwargs or {}
        if name in _FROM_LISTS:
            return self._from_list(func, name, args, kwargs)
        with torch._C.DisableTorchFunction():
            if args and found.holds(args[0]) and (name in _SHOWN or (name in _LEAVING and not _excused(sys._getframe(1), name))):
                found.read(name)
            asked = args[1:] if name == "tensor_split" else args
            if name in _BY_NUMBERS and any(found.holds(value) for value in tree_leaves((asked, kwargs))):
                found.read(name)
        before, found.excused = found.excused, found.excused or (name in _CHECKED and _told_classes(args, kwargs))
        try:
            result = func(*args, **kwargs)
        finally:
            found.excused = before
        with torch._C.DisableTorchFunction():
            if isinstance(result, Tensor) and name in _FROM_OUTSIDE:
                found.from_outside(result)
            other = isinstance(result, Tensor) and result.layout is not torch.strided
            if other and any(found.holds(value) for value in tree_leaves((args, kwargs))):
                found.read(f"a tensor of layout {str(result.layout).removeprefix('torch.')}")
        return result

    def _from_list(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Torch shuts its modes out while it makes a tensor of a list of tensors."""
        with torch._C.DisableTorchFunction():
            of_records = any(self._found.holds(value) for value in tree_leaves((args, kwargs)))
        result = func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            if of_records and (not isinstance(args[-1] if args else None, Tensor) or name.startswith("sparse")):
                self._found.read(name)
            if isinstance(result, Tensor):
                if of_records:
                    self._found.add(result)
                else:
                    self._found.made(result, tree_leaves((args, kwargs)))
        return result


def _told_classes(args: Any, kwargs: Any) -> bool:
    told = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    return isinstance(told, int) and told > 0


def _under_vmap(tensor: Tensor) -> Tensor:
    """What torch.func's wrappers wrap."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


@contextmanager
def _threads(found: Followed) -> Iterator[None]:
    """Modes hold for one thread: what another one does with records is not seen, whether it starts now or waits for work."""
    here, before = threading.get_ident(), [(kind, name, getattr(kind, name)) for kind, name in _TO_THREADS]

    def noted(method: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == here:
                found.read("a thread")
            return method(*args, **kwargs)

        return called

    for kind, name, method in before:
        setattr(kind, name, noted(method))
    try:
        yield
    finally:
        for kind, name, method in before:
            setattr(kind, name, method)


def _excused(frame: FrameType | None, name: str) -> bool:
    """Whether torch itself asks, for its own purposes; it hands some methods on through Python functions of its own."""
    while frame is not None and (frame.f_code.co_filename == overrides.__file__ or frame.f_code.co_name == name):
        frame = frame.f_back
    if not _inside(frame):
        return False
    while frame is not None and _inside(frame):
        if frame.f_code.co_name == "__reduce_ex__":
            return False
        frame = frame.f_back
    return True


def _inside(frame: FrameType | None) -> bool:
    """Whether it is torch itself, or this package, that calls."""
    return frame is not None and frame.f_code.co_filename.startswith(_ASIDE)


def _place(frame: FrameType | None) -> str:
    """file:line of the innermost frame of the user's own code."""
    while frame is not None and (_inside(frame) or frame.f_code.co_filename in _LIBRARY):
        frame = frame.f_back
    return "a layer of torch" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
