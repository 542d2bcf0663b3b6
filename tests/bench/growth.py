"""How time and memory grow: records, parameters and steps x4 in one process each, trials x4 and nodes 1, 2, 4 as whole sweeps.

python growth.py '{"rows": 15000, "features": 196, "steps": 400}' trains one model and prints its CPU seconds and memory as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measured import Row

BASE = {"rows": 15_000, "features": 196, "steps": 400}  # softmax regression, 10 classes, batches of 250
BATCH_SIZE = 250
TRIAL = {"rows": 2_000, "features": 100, "batch_size": 200, "steps": 600}  # of the sweeps: long enough to show beside Ray's start
GROWTH = {"records": "rows", "parameters, by features,": "features", "steps": "steps"}


def rows(trials: int = 24, nodes: tuple[int, ...] = (1, 2, 4), base: dict[str, int] | None = None) -> Iterator[Row]:
    yield from training_rows(BASE if base is None else base)
    yield from sweep_rows(trials, nodes)


def training_rows(base: dict[str, int]) -> Iterator[Row]:
    """Ratios after one number is four times as large, the batch size the same."""
    before = _child(base)
    for name, field in GROWTH.items():
        after = _child(base | {field: 4 * base[field]})
        detail = ", ".join(f"{key} {before[key]:.3g} -> {after[key]:.3g}" for key in before)
        yield Row(what=f"{name} x4: time of training", value=after["seconds"] / before["seconds"], unit="x", detail=detail)
        yield Row(what=f"{name} x4: memory", value=after["megabytes"] / max(before["megabytes"], 1.0), unit="x", detail=detail)


def sweep_rows(trials: int, nodes: tuple[int, ...]) -> Iterator[Row]:
    """CPU of all processes for trials x4, seconds on the wall for nodes: a machine has no more CPUs for more nodes."""
    from one_sweep import run

    few, many = (run(trials=count, **TRIAL) for count in (trials, 4 * trials))
    detail = ", ".join(f"{s['trials']} trials {s['cpu']['whole']:.1f} CPU s, {s['wall']['whole']:.1f} s" for s in (few, many))
    growth = many["cpu"]["whole"] / few["cpu"]["whole"]
    yield Row(what="trials x4: CPU time of a sweep", value=growth, unit="x", target=4.2, stretch=4.0, detail=detail)
    memory, detail = grown(few, many)
    yield Row(what="trials x4: memory, of the process that grows most", value=memory, unit="x", detail=detail)
    for count in nodes:
        found = run(trials=trials, nodes=count, **TRIAL)
        yield Row(
            what=f"{trials} trials on {count} local node{'s' * (count > 1)} of one CPU",
            value=found["wall"]["trials"],
            unit="s",
            detail=f"{found['cpu']['trials']:.1f} CPU s, of which training {found['wall']['training']:.1f} s",
        )


def grown(few: dict[str, Any], many: dict[str, Any]) -> tuple[float, str]:
    """By how much the memory of the process that grows most grows, and how much each holds."""
    words = ", ".join(f"{name} {few['memory'][name]:.0f} -> {many['memory'][name]:.0f} MB" for name in few["memory"])
    return max(many["memory"][name] / few["memory"][name] for name in few["memory"]), words


def _child(settings: dict[str, int]) -> dict[str, float]:
    command = [sys.executable, str(Path(__file__).resolve()), json.dumps(settings)]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"training with {settings} failed: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def train(*, rows: int, features: int, steps: int) -> dict[str, float]:
    """CPU seconds of training, and megabytes beyond those of the imports."""
    import psutil
    import torch
    from shapes import Shape

    from sweeper.models.linear import Softmax

    torch.set_num_threads(1)
    small = Shape(name="", model=Softmax(), batch_size=16, steps=20, rows=100, features=features)
    small.private()()
    before = psutil.Process().memory_info().rss
    shape = Shape(name="", model=Softmax(), batch_size=BATCH_SIZE, steps=steps, rows=rows, features=features)
    run = shape.private()
    start = time.process_time()
    run()
    seconds = time.process_time() - start
    return {"seconds": seconds, "megabytes": (psutil.Process().memory_info().rss - before) / 2**20}  # all of it is still held


if __name__ == "__main__":
    print(json.dumps(train(**json.loads(sys.argv[1]))))
