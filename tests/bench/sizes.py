"""A private step beside a plain one at other sizes, and with a line search over 20 candidates in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from measured import Row, in_turn, words
from shapes import Shape, main_shapes

from sweeper.models.convnet import ConvNet
from sweeper.models.linear import Logistic, Softmax
from sweeper.models.mlp import Mlp
from sweeper.step.backtracking import Backtracking

TARGET, STRETCH = 1.3, 1.1
SEARCH_TARGETS = ((2.5, 1.8), (6.0, 4.0))  # of softmax and MLP


def other_shapes() -> tuple[Shape, ...]:
    """Small and large batches, many classes, deep networks."""
    adult = {"rows": 26_131, "features": 105, "classes": 2}
    return (
        Shape(name="logistic 105-1 B=256", model=Logistic(), batch_size=256, steps=300, **adult),
        Shape(name="softmax 784-10 B=64", model=Softmax(), batch_size=64, steps=300),
        Shape(name="softmax 784-10 B=2000", model=Softmax(), batch_size=2000, steps=40),
        Shape(name="softmax 784-257 B=500", model=Softmax(), batch_size=500, steps=30, classes=257),
        Shape(name="MLP 784-256-256-10 B=64", model=Mlp(), batch_size=64, steps=60),
        Shape(name="MLP 784-256-256-10 B=2000", model=Mlp(), batch_size=2000, steps=6),
        Shape(name="MLP 784-256-256-256-10 B=500", model=Mlp(hidden=(256, 256, 256)), batch_size=500, steps=15),
        Shape(name="MLP 784-256-256-256-256-10 B=500", model=Mlp(hidden=(256,) * 4), batch_size=500, steps=15),
        Shape(name="CNN 6-16-256-128 B=64", model=ConvNet(), batch_size=64, steps=25),
        Shape(name="CNN 6-16-256-128 B=2000", model=ConvNet(), batch_size=2000, steps=2),
    )


def rows(turns: int = 5, shapes: Sequence[Shape] | None = None) -> Iterator[Row]:
    """(ours - one noise draw) / plain: an optimised step has nothing beside the plain one's work but its noise."""
    for shape in other_shapes() if shapes is None else shapes:
        seconds = in_turn({"ours": shape.private(), "plain": shape.plain(), "noise": shape.noise()}, turns=turns)
        yield Row(
            what=f"(ours - one noise draw) / plain, {shape.name}",
            value=(seconds["ours"] - seconds["noise"]) / seconds["plain"],
            unit="x",
            target=TARGET,
            stretch=STRETCH,
            detail=words(seconds, shape.steps),
        )


def search_rows(turns: int = 5, shapes: Sequence[Shape] | None = None) -> Iterator[Row]:
    """A whole private step that searches 20 candidates / a plain step."""
    for shape, (target, stretch) in zip(main_shapes(0.3) if shapes is None else shapes, SEARCH_TARGETS, strict=False):
        search = Backtracking(initial=0.5, candidates=20)
        runs = {"with search": shape.private(search), "without": shape.private(), "plain": shape.plain()}
        seconds = in_turn(runs, turns=turns)
        yield Row(
            what=f"step with a line search over 20 candidates / plain, {shape.name}",
            value=seconds["with search"] / seconds["plain"],
            unit="x",
            target=target,
            stretch=stretch,
            detail=words(seconds, shape.steps),
        )
