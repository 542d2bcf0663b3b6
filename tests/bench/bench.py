"""What `make bench` runs: speed as ratios to peers measured in the same run, one thread. Exit 1 when a target is missed by 10%.

The step against plain torch SGD; prices; whole processes. The other peers of the performance table come with the packed backend.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from bench_step import Row, rows

from sweeper.privacy import accountant
from sweeper.privacy.events import DiscreteLaplace, Disjoint, Event, Gaussian, PoissonSubsampled, Repeated, SelectBest
from sweeper.privacy.laws import TruncatedNegativeBinomial
from sweeper.report.tables import table

ROOT = Path(__file__).resolve().parents[2]
JOB = "jobs/adult_logistic_clip.yaml"
MISS = 1.1
LAW = TruncatedNegativeBinomial(eta=2.0, mean=12.0, max_trials=64)


def best_of(turns: int, run: Callable[[], object]) -> float:
    """Seconds on the wall, the best of some turns."""
    times = []
    for _ in range(turns):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def process(*words: str) -> Callable[[], object]:
    command = [str(Path(sys.executable).parent / "sweeper"), *words]
    return lambda: subprocess.run(command, cwd=ROOT, check=True, capture_output=True)


def prices() -> list[Row]:
    """Prices and calibrations inside this process, nothing known beforehand: CPU seconds, the middle of some turns."""
    return [Row(what=what, value=cpu(lambda ask=ask: fresh(ask)), unit="CPU s", target=target) for what, target, ask in questions()]


def questions() -> Iterator[tuple[str, float, Callable[[], object]]]:
    """(what, target in seconds, call)."""
    yield "price of one trial", 1.0, lambda: accountant.epsilon(training(0.01, 2000)(1.0), 1e-5)
    yield "price of a select-best sweep", 1.0, lambda: accountant.epsilon(SelectBest(training(0.01, 2000)(1.0), LAW), 1e-5)
    for epsilon in (0.02, 0.1, 1.0, 2.0, 8.0, 30.0, 100.0, 200.0):
        yield f"noise of one trial, epsilon {epsilon:g}", 1.0, calibration(training(1 / 120, 1200), epsilon)
    for q, steps in ((1e-4, 20_000), (0.5, 20_000), (0.01, 1_000_000)):
        yield f"noise of one trial, epsilon 1, q {q:g}, {steps:,} steps", 1.0, calibration(training(q, steps), 1.0)
    for epsilon in (0.5, 2.0, 200.0):
        yield f"noise of a select-best sweep, epsilon {epsilon:g}", 2.5, calibration(swept(1 / 120, 1200), epsilon)
    yield "noise of a select-best sweep, epsilon 1, q 0.0001, 20,000 steps", 2.5, calibration(swept(1e-4, 20_000), 1.0)


def training(q: float, steps: int) -> Callable[[float], Event]:
    return lambda noise_multiplier: Repeated(PoissonSubsampled(q, Gaussian(noise_multiplier)), steps)


def swept(q: float, steps: int) -> Callable[[float], Event]:
    """Training and a score on held-out rows, the best of a secret number of runs."""
    trial = training(q, steps)
    return lambda noise_multiplier: SelectBest(Disjoint((trial(noise_multiplier), DiscreteLaplace(0.1))), LAW)


def calibration(make: Callable[[float], Event], epsilon: float) -> Callable[[], object]:
    return lambda: accountant.calibrate(make, epsilon, 1e-5)


def fresh(ask: Callable[[], object]) -> None:
    """With an empty cache, on disk and in memory."""
    accountant.forget()
    with tempfile.TemporaryDirectory() as home:
        os.environ["SWEEPER_HOME"] = home
        ask()


def cpu(run: Callable[[], None], turns: int = 5) -> float:
    """Seconds of this process's time, the median of some turns after one that loads what is needed."""
    run()
    times = []
    for _ in range(turns):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return statistics.median(times)


def processes() -> list[Row]:
    """Whole processes."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["SWEEPER_HOME"] = home
        cold = best_of(3, lambda: (shutil.rmtree(Path(home) / "cache", ignore_errors=True), process("plan", JOB)()))
        return [
            Row(what="sweeper --help", value=best_of(5, process("--help")), unit="s", target=0.3),
            Row(what="sweeper plan, warm cache", value=best_of(5, process("plan", JOB)), unit="s", target=0.8),
            Row(what="sweeper plan, cold cache", value=cold, unit="s", target=2.5),
        ]


def main() -> int:
    torch.set_num_threads(1)
    found = [*rows(), *prices(), *processes()]
    lines = [[r.what, f"{r.value:.3g} {r.unit}", f"{r.target:g} {r.unit}" if r.target else "-", _verdict(r)] for r in found]
    print(table(["what", "measured", "target", ""], lines, align="lrrl"))
    out = ROOT / "build" / "bench.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps([vars(r) for r in found], indent=1))
    print(f"\nwritten to {out.relative_to(ROOT)}")
    return int(any(_missed(r) for r in found))


def _missed(row: Row) -> bool:
    return row.target is not None and row.value > MISS * row.target


def _verdict(row: Row) -> str:
    return "" if row.target is None else "missed" if _missed(row) else "reached"


if __name__ == "__main__":
    sys.exit(main())
