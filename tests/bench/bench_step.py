"""A DP-SGD step beside a plain torch SGD step (autograd, in memory): same model, table and batch size, one thread, one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from sweeper.backends.closed_form import LinearProblem
from sweeper.backends.layered import LayeredProblem
from sweeper.clip.fixed import FixedClip
from sweeper.data.table import Table
from sweeper.models.convnet import ConvNet
from sweeper.models.layers import Network
from sweeper.models.linear import Linear, Logistic, Softmax
from sweeper.models.mlp import Mlp
from sweeper.seeds import Streams, secret_from_seed
from sweeper.spec.protocols import Description
from sweeper.step.fixed import FixedStep
from sweeper.trainers.dp_sgd import DpSgd

TURNS = 7


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the benchmark."""

    what: str
    value: float
    unit: str
    target: float | None = None
    detail: str = ""


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


def compare(model: Linear | Network, *, rows: int, features: int, classes: int, batch_size: int, steps: int, pixels: bool) -> Row:
    """CPU-ms per step of both, best of several turns."""
    generator = np.random.default_rng(0)
    table = Table(
        features=(generator.integers(0, 256, (rows, features)) / 255).astype(np.float32),
        labels=generator.integers(0, classes, rows),
        valid=np.ones(rows, np.bool_),
    )
    description = Description(rows=rows, features=features, classes=classes)
    build = LayeredProblem if isinstance(model, Network) else LinearProblem
    problem = build(model=model, description=description, table=table, rows=np.arange(rows), pixels=pixels)
    trainer, streams = DpSgd(batch_size=batch_size, steps=steps), Streams(secret_from_seed("bench"), 0)
    net = model.torch_module(problem.start(streams), description)
    turns = {
        "private": lambda: trainer.fit(problem, FixedClip(clip_norm=1.0), FixedStep(learning_rate=0.1), 1.0, streams),
        "plain": plain(torch.from_numpy(table.features), torch.from_numpy(table.labels), net, batch_size, steps),
    }
    best = dict.fromkeys(turns, float("inf"))
    for _ in range(TURNS):  # in turns, so that a busy machine is unfair to both alike
        for name, run in turns.items():
            start = time.process_time()
            run()
            best[name] = min(best[name], (time.process_time() - start) / steps * 1e3)
    middle = getattr(model, "hidden", getattr(model, "layers", ()))
    outputs = list(net.parameters())[-1].numel()  # of the last bias
    shape = f"{model.kind} {'-'.join(map(str, (features, *middle, outputs)))} B={batch_size}{' bytes' if pixels else ''}"
    return Row(what=f"DP step / plain SGD step, {shape}", value=best["private"] / best["plain"], unit="x", detail=str(best))


def rows() -> list[Row]:
    """Every shape that is measured, with its target."""
    return [
        replace(compare(Softmax(), rows=60_000, features=784, classes=10, batch_size=500, steps=300, pixels=False), target=0.7),
        replace(compare(Softmax(), rows=60_000, features=784, classes=10, batch_size=500, steps=300, pixels=True), target=0.7),
        compare(Softmax(), rows=60_000, features=784, classes=10, batch_size=64, steps=100, pixels=False),
        compare(Softmax(), rows=60_000, features=784, classes=10, batch_size=2000, steps=100, pixels=False),
        compare(Softmax(), rows=60_000, features=784, classes=257, batch_size=500, steps=30, pixels=False),
        compare(Logistic(), rows=26_131, features=105, classes=2, batch_size=256, steps=1000, pixels=False),
        replace(compare(Mlp(), rows=60_000, features=784, classes=10, batch_size=500, steps=30, pixels=False), target=1.2),
        replace(compare(Mlp(), rows=60_000, features=784, classes=10, batch_size=500, steps=30, pixels=True), target=1.2),
        compare(Mlp(), rows=60_000, features=784, classes=10, batch_size=64, steps=200, pixels=False),
        compare(Mlp(), rows=60_000, features=784, classes=10, batch_size=2000, steps=8, pixels=False),
        compare(Mlp(hidden=(256,) * 4), rows=60_000, features=784, classes=10, batch_size=500, steps=30, pixels=False),
        replace(compare(ConvNet(), rows=60_000, features=784, classes=10, batch_size=300, steps=20, pixels=False), target=1.5),
        replace(compare(ConvNet(), rows=60_000, features=784, classes=10, batch_size=300, steps=20, pixels=True), target=1.5),
        compare(ConvNet(pool="average"), rows=60_000, features=784, classes=10, batch_size=300, steps=20, pixels=False),
    ]
