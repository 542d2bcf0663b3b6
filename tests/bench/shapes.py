"""Models and tables that are measured, and their steps: ours, plain SGD, one noise draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from sweeper.backends.choice import problem_of
from sweeper.clip.fixed import FixedClip
from sweeper.data.table import Table
from sweeper.models.convnet import ConvNet
from sweeper.models.linear import Softmax
from sweeper.models.mlp import Mlp
from sweeper.seeds import NOISE, Streams, secret_from_seed
from sweeper.spec.protocols import Description
from sweeper.step.fixed import FixedStep
from sweeper.trainers.dp_sgd import DpSgd
from sweeper.trainers.noise import gaussian_

ROWS, FEATURES = 60_000, 784
STREAMS = Streams(secret_from_seed("bench"), 0)


@cache
def made_up(rows: int, features: int, classes: int) -> Table:
    """Pictures of noise. Times do not depend on what is in them."""
    generator = np.random.default_rng(0)
    return Table(
        features=(generator.integers(0, 256, (rows, features), dtype=np.uint8) / np.float32(255)),
        labels=generator.integers(0, classes, rows),
        valid=np.ones(rows, np.bool_),
    )


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model on a table, with a batch size and how many steps are timed at once."""

    name: str
    model: Any
    batch_size: int
    steps: int
    rows: int = ROWS
    features: int = FEATURES
    classes: int = 10
    pixels: bool = False  # rows kept as bytes

    @property
    def description(self) -> Description:
        return Description(rows=self.rows, features=self.features, classes=self.classes)

    @property
    def table(self) -> Table:
        return made_up(self.rows, self.features, self.classes)

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self.table.features), torch.from_numpy(self.table.labels)

    def problem(self) -> Any:
        return problem_of(self.model, description=self.description, table=self.table, rows=np.arange(self.rows), pixels=self.pixels)

    def module(self) -> torch.nn.Module:
        """The same model as a user of torch writes it."""
        start_P = torch.zeros(self.model.parameters(self.description))
        if hasattr(self.model, "start"):
            start_P = self.model.start(self.description, STREAMS)
        return self.model.torch_module(start_P, self.description)

    def private(self, step: Any = None) -> Callable[[], object]:
        """`steps` of our DP-SGD: clip norm 1, noise multiplier 1."""
        problem, trainer = self.problem(), DpSgd(batch_size=self.batch_size, steps=self.steps)
        clip, step = FixedClip(clip_norm=1.0), FixedStep(learning_rate=0.1) if step is None else step
        return lambda: trainer.fit(problem, clip, step, 1.0, STREAMS)

    def plain(self) -> Callable[[], None]:
        return plain(*self.tensors(), self.module(), self.batch_size, self.steps)

    def noise(self) -> Callable[[], None]:
        """As many draws as a run has steps."""
        out_P = torch.empty(self.model.parameters(self.description))
        generator = STREAMS.torch_generator(NOISE)

        def run() -> None:
            for _ in range(self.steps):
                gaussian_(out_P, 1.0, generator)

        return run


def plain(features: torch.Tensor, labels: torch.Tensor, net: torch.nn.Module, batch_size: int, steps: int) -> Callable[[], None]:
    """An ordinary training loop: shuffled minibatches, cross-entropy, autograd, torch.optim.SGD."""
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    order = torch.randperm(len(labels))

    def run() -> None:
        for step in range(steps):
            start = step * batch_size % (len(labels) - batch_size)
            rows = order[start : start + batch_size]
            logits = net(features[rows])
            if logits.shape[1] == 1:
                loss = torch.nn.functional.binary_cross_entropy_with_logits(logits[:, 0], labels[rows].float())
            else:
                loss = torch.nn.functional.cross_entropy(logits, labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    return run


def main_shapes(scale: float = 1.0) -> tuple[Shape, ...]:
    """The three of the performance table. `scale`: of the number of steps timed at once."""

    def steps(count: int) -> int:
        return max(1, round(count * scale))

    return (
        Shape(name="softmax 784-10 B=500", model=Softmax(), batch_size=500, steps=steps(100)),
        Shape(name="MLP 784-256-256-10 B=500", model=Mlp(), batch_size=500, steps=steps(20)),
        Shape(name="CNN 6-16-256-128 B=300", model=ConvNet(), batch_size=300, steps=steps(10)),
    )
