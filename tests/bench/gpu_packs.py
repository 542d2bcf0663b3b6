"""What `make bench-gpu` runs: a private step of one trial in packs of 1, 2, 4, ... on the GPU that is here, else on the CPU.

Seconds on the wall, of joint steps with the trial's own trainer and policies, on a table of zeros: what `pack: auto` measures.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

import torch
from measured import Row, machine, report
from shapes import Shape, main_shapes

from sweeper.clip.fixed import FixedClip
from sweeper.launch.pack_size import SIZES, length_for, measured
from sweeper.step.fixed import FixedStep
from sweeper.trainers.dp_sgd import DpSgd

OUT = Path(__file__).resolve().parents[2] / "build" / "bench_gpu.json"
ON_CPU = (1, 2, 4)  # where larger packs bring nothing


def rows(device: str, sizes: Sequence[int], shapes: Sequence[Shape] | None = None, steps: int = 20) -> Iterator[Row]:
    """Per shape: a trial's step alone in this process, in each pack, and by how much the best pack is faster."""
    for shape in main_shapes() if shapes is None else shapes:
        trial: Any = SimpleNamespace(
            model=shape.model,
            trainer=DpSgd(batch_size=shape.batch_size, steps=steps),
            clip=FixedClip(clip_norm=1.0),
            step=FixedStep(learning_rate=0.1),
            noise_multiplier=1.0,
        )
        length = length_for(trial.trainer, shape.model, shape.description, shape.rows)
        joint = measured(trial, shape.description, length=length, pixels=False, device=device, sizes=sizes, steps=steps)
        each = {size: seconds / size for size, seconds in joint.items()}
        best, alone = min(each, key=lambda size: each[size]), _alone(replace(shape, steps=steps))
        words = ", ".join(f"{size}: {1e3 * seconds:.3g} ms" for size, seconds in each.items())
        yield Row(
            what=f"a trial's step in a pack of {best} on {device}, {shape.name}", value=1e3 * each[best], unit="ms", detail=words
        )
        yield Row(
            what=f"one trial at a time on one CPU / in that pack, {shape.name}",
            value=alone / each[best],
            unit="x",
            detail=f"alone {1e3 * alone:.3g} ms; by size of pack {words}",
        )


def _alone(shape: Shape) -> float:
    """Seconds on the wall of one step, the way a worker runs it on a CPU."""
    run = shape.private()
    run()
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) / shape.steps


def main() -> int:
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        print("no GPU here: packs on the CPU, which show that the path works and nothing about its speed", file=sys.stderr)
    found = list(rows(device, SIZES if device == "cuda" else ON_CPU))
    for row in found:
        print(f"{row.what}: {row.detail}", file=sys.stderr)
    return report(found, machine(), OUT)


if __name__ == "__main__":
    sys.exit(main())
