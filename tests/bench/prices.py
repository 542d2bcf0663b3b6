"""Prices and calibrations inside this process, and the commands that a person waits for."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from measured import Row, in_turn

from sweeper.privacy import accountant
from sweeper.privacy.events import DiscreteLaplace, Disjoint, Event, Gaussian, PoissonSubsampled, Repeated, SelectBest
from sweeper.privacy.laws import TruncatedNegativeBinomial

ROOT = Path(__file__).resolve().parents[2]
JOB = "jobs/adult_logistic_clip.yaml"
LAW = TruncatedNegativeBinomial(eta=2.0, mean=12.0, max_trials=64)


def waited(turns: int, run: Callable[[], object]) -> float:
    """Seconds on the wall, the median of some turns after one that is not counted."""
    run()
    times = []
    for _ in range(turns):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def process(*words: str) -> Callable[[], object]:
    command = [str(Path(sys.executable).parent / "sweeper"), *words]
    return lambda: subprocess.run(command, cwd=ROOT, check=True, capture_output=True)


def price_rows() -> list[Row]:
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
    return in_turn({"run": run}, turns=turns)["run"]


def process_rows() -> list[Row]:
    """Whole processes, on the wall."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["SWEEPER_HOME"] = home
        cold = waited(3, lambda: (shutil.rmtree(Path(home) / "cache", ignore_errors=True), process("plan", JOB)()))
        return [
            Row(what="sweeper --help", value=waited(5, process("--help")), unit="s", target=0.3, stretch=0.15),
            Row(what="sweeper plan, warm cache", value=waited(5, process("plan", JOB)), unit="s", target=0.8, stretch=0.4),
            Row(what="sweeper plan, cold cache", value=cold, unit="s", target=2.5, stretch=1.5),
        ]
