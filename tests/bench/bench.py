"""What `make bench` runs: speed as ratios to peers measured in the same run, one thread. Exit 1 when a target is missed by 10%.

The step against plain torch SGD; prices; whole processes. The other peers of the performance table come with the packed backend.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from bench_step import Row, rows

from sweeper.privacy.price import Question, answer
from sweeper.report.tables import table

ROOT = Path(__file__).resolve().parents[2]
JOB = "jobs/adult_logistic_clip.yaml"
MISS = 1.1


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
    """Prices in this process, with an empty cache each time."""
    trial = {"sampling_probability": 0.01, "steps": 2000, "delta": 1e-5}

    def fresh(question: Question) -> Callable[[], object]:
        def run() -> object:
            with tempfile.TemporaryDirectory() as home:
                os.environ["SWEEPER_HOME"] = home
                return answer(question)

        return run

    geometric = {"protocol": "select-best", "law": "geometric", "mean": 10.0}
    priced = fresh(Question(**trial, noise_multiplier=1.0, **geometric))
    calibrated = fresh(Question(**trial, epsilon=2.0, **geometric))
    return [
        Row(what="price of a select-best sweep, no cache", value=best_of(3, priced), unit="s"),
        Row(what="noise for a select-best bill of 2, no cache", value=best_of(3, calibrated), unit="s"),
    ]


def processes() -> list[Row]:
    """Whole processes."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["SWEEPER_HOME"] = home
        cold = best_of(1, process("plan", JOB))
        return [
            Row(what="sweeper --help", value=best_of(5, process("--help")), unit="s", target=0.3),
            Row(what="sweeper plan, warm cache", value=best_of(5, process("plan", JOB)), unit="s", target=0.8),
            Row(what="sweeper plan, cold cache", value=cold, unit="s"),
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
