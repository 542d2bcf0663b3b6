"""Whatever a module's objects lead to that can hold a number is found, and told apart when it changes."""

from __future__ import annotations

import functools
import itertools
import random
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from sweeper.backends.attributes import attributes_of, marks_of


def closure(value: list[float]) -> Any:
    return lambda: value[0]


class Reader:
    def read(self) -> int:
        return len(COUNTED)


class Bound:
    def __init__(self) -> None:
        self.value = 1.0

    def read(self) -> float:
        return self.value


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@dataclass(slots=True)
class Slotted:
    held: Any


class Shared:
    held: ClassVar[list[int]] = [0]


def counting(start: list[int] = [0]) -> int:  # noqa: B006
    return start[0]


COUNTED = [0]


def reading() -> int:
    return len(COUNTED)


@functools.lru_cache
def cached(value: int) -> int:
    return value


def yielding() -> Iterator[int]:
    at = 0
    while True:
        yield at
        at += 1


HOLDERS: dict[str, tuple[Any, Any]] = {  # what an attribute is, and what changes it
    "number": (SimpleNamespace(held=1.0), lambda m: setattr(m.box, "held", 2.0)),
    "text": (SimpleNamespace(held="a"), lambda m: setattr(m.box, "held", "b")),
    "none": (SimpleNamespace(held=None), lambda m: setattr(m.box, "held", torch.zeros(1))),
    "tensor": (torch.zeros(3), lambda m: m.box.add_(1)),
    "empty tensor": (torch.zeros(0), lambda m: setattr(m, "box", torch.zeros(1))),
    "half": (torch.zeros(3, dtype=torch.bfloat16), lambda m: m.box.add_(1)),
    "array": (np.zeros(3), lambda m: m.box.__iadd__(1)),
    "list": ([1, [2.0]], lambda m: m.box[1].append(3)),
    "tuple": ((1, [2.0]), lambda m: m.box[1].append(3)),
    "dict": ({"a": {"b": 1}}, lambda m: m.box["a"].update(b=2)),
    "set": ({1}, lambda m: m.box.add(2)),
    "deque": (deque([1.0]), lambda m: m.box.append(2.0)),
    "object": (SimpleNamespace(a=SimpleNamespace(b=1)), lambda m: setattr(m.box.a, "b", 2)),
    "closure": (closure(cell := [1.0]), lambda m: cell.append(2.0)),
    "method": (Bound().read, lambda m: setattr(m.box.__self__, "value", 2.0)),
    "generator": (generator(), lambda m: torch.rand(1, generator=m.box)),
    "slots": (Slotted(1.0), lambda m: setattr(m.box, "held", 2.0)),
    "class": (Shared(), lambda m: Shared.held.append(1)),
    "class itself": (Shared, lambda m: Shared.held.append(1)),
    "defaults": (counting, lambda m: counting.__defaults__[0].append(1)),
    "a function's attribute": (counting, lambda m: setattr(counting, "seen", 1)),
    "globals": (reading, lambda m: COUNTED.append(1)),
    "globals of a method": (Reader(), lambda m: COUNTED.append(1)),
    "partial": (functools.partial(counting, [0]), lambda m: m.box.args[0].append(1)),
    "count": (itertools.count(), lambda m: next(m.box)),
    "iterator": (iter([1, 2, 3]), lambda m: next(m.box)),
    "generator function": (yielding(), lambda m: next(m.box)),
    "cache": (cached, lambda m: cached(3)),
    "Python's generator": (random.Random(1), lambda m: m.box.random()),
    "numpy's generator": (np.random.default_rng(1), lambda m: m.box.random()),
    "numpy's older one": (np.random.RandomState(1), lambda m: m.box.rand()),
    "array of objects": (np.array([[1], None], dtype=object), lambda m: m.box[0].append(2)),
    "array of the library": (array("d", [1.0]), lambda m: m.box.append(2.0)),
    "bytes": (bytearray(b"a"), lambda m: m.box.append(1)),
    "sparse": (torch.eye(3).to_sparse(), lambda m: setattr(m, "box", 2 * m.box)),
    "eight lists deep": ([[[[[[[[deepest := [1]]]]]]]]], lambda m: deepest.append(2)),
    "unregistered layer": ([nn.Linear(2, 2)], lambda m: m.box[0].weight.data.add_(1)),
    "another attribute": ([0], lambda m: setattr(m, "more", 1)),
    "of a layer": ([0], lambda m: setattr(m.layer, "more", 1)),
}


def test_a_loss_is_looked_into_too() -> None:
    loss, module = Bound(), nn.Linear(2, 2)
    before = marks_of(module, loss)
    loss.value = 2.0
    assert marks_of(module, loss) != before


@pytest.mark.parametrize(("held", "change"), HOLDERS.values(), ids=HOLDERS)
def test_a_change_is_seen_and_no_change_is_none(held: Any, change: Any) -> None:
    module = nn.Module()
    module.layer = nn.Linear(2, 2)
    module.box = held
    before = marks_of(module)
    assert marks_of(module) == before
    change(module)
    assert marks_of(module) != before


def test_parameters_buffers_layers_and_loops_are_left_to_others() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    module.itself = module
    module.ring = [1]
    module.ring.append(module.ring)
    before = marks_of(module)
    with torch.no_grad():
        module[0].weight.add_(1), module[1].running_mean.add_(1)
    assert marks_of(module) == before
    assert not any(isinstance(value, torch.Tensor) for _, value in attributes_of(module))
