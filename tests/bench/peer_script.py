"""48 trials of softmax regression on Fashion-MNIST as whole processes: `sweeper run` beside a script of Ray Tune, Opacus, MLflow.

The same settings (8 clip norms x 6 step sizes), rows, batch size, noise multiplier, steps, test rows, and one CPU a trial. With 60
steps a trial most of the script's time is 48 starts of a process; more steps move the ratio towards that of the steps alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from measured import Row
from peer_ray_opacus import BATCH_SIZE, CLIPS, DELTA, NOISE_MULTIPLIER, RATES

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".sweeper" / "cache"
STEPS = 60
OURS = """
name: fashion
data: {{source: fashion-mnist, holdout: test, public: true}}
model: {{kind: softmax}}
trainer: {{kind: dp-sgd, batch_size: {batch_size}, steps: {steps}}}
privacy: {{noise_multiplier: {noise}, delta: {delta}}}
protocol: {{kind: release-all, trials: {trials}}}
search: {{kind: grid}}
space:
  clip: {{policy: fixed, values: {clips}}}
  step: {{policy: fixed, values: {rates}}}
"""


def rows(steps: int = STEPS) -> Iterator[Row]:
    """Seconds on the wall of each process, one after the other. Of ours the home is fresh: its store and prices are made too."""
    from sweeper.data.fashion_mnist import FILES

    FILES.fetch(str(CACHE))
    with tempfile.TemporaryDirectory() as place:
        theirs, said = _peer(Path(place), steps)
        ours, best = _ours(Path(place), steps)
    yield Row(
        what=f"Ray Tune + Opacus script / sweeper run, {len(CLIPS) * len(RATES)} trials of {steps} steps on Fashion-MNIST",
        value=theirs / ours,
        unit="x",
        target=8,
        stretch=20,
        at_least=True,
        detail=f"script {theirs:.0f} s ({said}), sweeper {ours:.0f} s (best accuracy {best:.3f}), whole processes on the wall",
    )


def spec_text(steps: int) -> str:
    given = {"batch_size": BATCH_SIZE, "noise": NOISE_MULTIPLIER, "delta": DELTA, "trials": len(CLIPS) * len(RATES)}
    return OURS.format(steps=steps, clips=CLIPS, rates=RATES, **given)


def _peer(place: Path, steps: int) -> tuple[float, str]:
    (place / "peer").mkdir()
    folder, store = CACHE / "data" / "fashion-mnist", f"sqlite:///{place}/peer/mlflow.db"
    command = [sys.executable, str(HERE / "peer_ray_opacus.py"), str(folder), str(place / "results"), store, str(steps)]
    seconds, output = _timed(command, place, {})
    trials, clip, rate, accuracy = output.split()
    return seconds, f"{trials} trials, best accuracy {float(accuracy):.3f} at clip norm {clip}, step size {rate}"


def _ours(place: Path, steps: int) -> tuple[float, float]:
    file = place / "fashion.yaml"
    file.write_text(spec_text(steps))
    command = [str(Path(sys.executable).parent / "sweeper"), "run", str(file), "--json"]
    seconds, output = _timed(command, place, {"SWEEPER_HOME": str(place / "home"), "SWEEPER_DATA": str(CACHE / "data")})
    return seconds, json.loads(output)["score"]


def _timed(command: list[str], place: Path, environment: dict[str, str]) -> tuple[float, str]:
    """(seconds, the last line or the JSON of standard output)."""
    settings = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "MLFLOW_DISABLE_TELEMETRY": "true"}
    start = time.perf_counter()
    done = subprocess.run(command, cwd=place, env=os.environ | settings | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{Path(command[1]).name} failed: {done.stderr[-2000:]}")
    output = done.stdout.strip()
    return time.perf_counter() - start, output if output.startswith("{") else output.splitlines()[-1]
