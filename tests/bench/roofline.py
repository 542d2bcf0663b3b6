"""How far one step is from this machine's limits, float32 on one thread: products per second, and bytes copied per second."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from measured import Row, in_turn, words
from shapes import Shape, main_shapes

from sweeper.models.layers import Conv, Dense

SIDE = 1024  # of the square matrices that are multiplied: compute-bound, and of a size that libraries are tuned for
FLOATS = 2**26  # that are copied: 256 MB, beyond every cache
PLAIN_TARGETS = ((0.7, 0.5), (1.2, 1.05), (1.5, 1.2))  # DP step / plain SGD step of main_shapes, and the stretch


@dataclass(frozen=True)
class Limits:
    """Of this machine, in this run."""

    flops: float  # of a matrix product, per second
    bytes: float  # read and written by a copy, per second

    @property
    def rows(self) -> tuple[Row, Row]:
        return (
            Row(what="matrix product, float32, one thread", value=self.flops / 1e9, unit="Gflop/s"),
            Row(what="memory copy, one thread, read + written", value=self.bytes / 1e9, unit="GB/s"),
        )


def limits(turns: int = 5, side: int = SIDE, floats: int = FLOATS) -> Limits:
    a, b, c = (torch.rand(side, side) for _ in range(3))
    source, target = torch.rand(floats), torch.zeros(floats)
    seconds = in_turn({"product": lambda: torch.mm(a, b, out=c), "copy": lambda: target.copy_(source)}, turns=turns)
    return Limits(2 * side**3 / seconds["product"], 8 * floats / seconds["copy"])


def rows(found: Limits, scale: float = 1.0, turns: int = 5, shapes: Sequence[Shape] | None = None) -> Iterator[Row]:
    """A step over a plain one, and over the longer of its two limits: its products at this machine's rate, its least traffic.

    Private steps on rows kept as bytes, as those of a source that says so, have a line of their own.
    """
    yield from found.rows
    for shape, (target, stretch) in zip(main_shapes(scale) if shapes is None else shapes, PLAIN_TARGETS, strict=True):
        runs: dict[str, Callable[[], object]] = {"private": shape.private(), "bytes": replace(shape, pixels=True).private()}
        runs |= {"plain": shape.plain(), "noise": shape.noise()}
        seconds = {name: value / shape.steps for name, value in in_turn(runs, turns=turns).items()}
        for name, kept in (("private", ""), ("bytes", ", rows kept as bytes")):
            yield Row(
                what=f"DP step / plain SGD step, {shape.name}{kept}",
                value=seconds[name] / seconds["plain"],
                unit="x",
                target=target,
                stretch=stretch,
                detail=words(seconds),
            )
        products, traffic = step_flops(shape) / found.flops, step_bytes(shape) / found.bytes
        yield Row(
            what=f"step / limit of this machine, {shape.name}",
            value=seconds["private"] / max(products, traffic),
            unit="x",
            detail=f"{words(seconds)}; products alone {1e3 * products:.2f} ms, traffic alone {1e3 * traffic:.2f} ms",
        )


def step_flops(shape: Shape) -> float:
    """Of the products of one step: forward, weights' gradients, and deltas of all layers but the first."""
    each = [forward_flops(layer) for layer in layers_of(shape)]
    return shape.batch_size * (3 * sum(each) - each[0])


def step_bytes(shape: Shape) -> float:
    """The least that passes memory: gathered rows read and written, parameters read and written, noise and gradient written."""
    parameters = shape.model.parameters(shape.description)
    return 4.0 * (2 * shape.batch_size * shape.features + 4 * parameters)


def layers_of(shape: Shape) -> list[Any]:
    """Those with parameters."""
    if not hasattr(shape.model, "stack"):
        return [Dense(inputs=shape.features + 1, outputs=shape.model.outputs(shape.description))]
    return [layer for layer in shape.model.stack(shape.features, shape.classes) if layer.shapes]


def forward_flops(layer: Any) -> float:
    """Of one record."""
    weights = math.prod(layer.shapes[0])
    places = layer.out[1] * layer.out[2] if isinstance(layer, Conv) else 1
    return 2.0 * weights * places
