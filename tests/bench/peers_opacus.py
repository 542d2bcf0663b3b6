"""A private step of Opacus, hooks and ghost, with its Poisson loader, as a good user writes it, beside ours."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import torch
from measured import Row, in_turn, words
from shapes import Shape, main_shapes

SLOWER = {"hooks": 10, "ghost": 3}  # of our steps one is timed of theirs, so that a turn lasts about as long


class Targets(NamedTuple):
    """Opacus / ours, and the stretch."""

    hooks: tuple[float, float]
    ghost: tuple[float, float]


TARGETS = (Targets((12, 18), (5, 7)), Targets((55, 70), (1.9, 2.2)), Targets((5, 8), (1.5, 2)))  # of main_shapes, in order


def opacus(shape: Shape, mode: str) -> Callable[[], None]:
    """`steps` of Opacus: DataLoader, make_private, one optimiser step per Poisson batch. Noise multiplier 1, clip norm 1."""
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    module, criterion = shape.module(), torch.nn.CrossEntropyLoss()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(*shape.tensors()), batch_size=shape.batch_size)
    given = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "data_loader": loader}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice about secure_mode
        engine = PrivacyEngine()
        if mode == "ghost":
            module, optimiser, criterion, loader = engine.make_private(
                module=module, optimizer=optimiser, criterion=criterion, grad_sample_mode="ghost", **given
            )
        else:
            module, optimiser, loader = engine.make_private(module=module, optimizer=optimiser, **given)

    def run() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for features, labels in islice(loader, shape.steps):
                optimiser.zero_grad()
                criterion(module(features), labels).backward()
                optimiser.step()

    return run


def rows(scale: float = 1.0, turns: int = 5, shapes: Sequence[Shape] | None = None) -> Iterator[Row]:
    """Two lines for each shape."""
    for shape, targets in zip(main_shapes(scale) if shapes is None else shapes, TARGETS, strict=False):
        fewer = {mode: replace(shape, steps=max(1, shape.steps // slower)) for mode, slower in SLOWER.items()}
        runs = {"ours": shape.private()} | {mode: opacus(fewer[mode], mode) for mode in fewer}
        seconds = in_turn(runs, turns=turns)
        each = {"ours": seconds["ours"] / shape.steps} | {mode: seconds[mode] / fewer[mode].steps for mode in fewer}
        for mode, (target, stretch) in targets._asdict().items():
            yield Row(
                what=f"Opacus {mode} / ours, {shape.name}",
                value=each[mode] / each["ours"],
                unit="x",
                target=target,
                stretch=stretch,
                at_least=True,
                detail=words(each),
            )
