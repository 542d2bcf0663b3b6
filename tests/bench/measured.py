"""A line of the benchmark with its verdict, times of several runs taken in turn, and the report of all lines."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from sweeper.report.tables import sig, table

MISS = 1.1  # a target missed by more than this factor makes the benchmark fail
PACKAGES = ("torch", "numpy", "opacus", "ray", "mlflow")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the benchmark. `at_least`: the target is a floor, as of "peer / ours", and no ceiling."""

    what: str
    value: float
    unit: str
    target: float | None = None
    stretch: float | None = None
    at_least: bool = False
    detail: str = ""

    @property
    def shortfall(self) -> float:
        """How many times worse than the target; up to 1 it is reached. A value that is no number misses everything."""
        if self.target is None:
            return 0.0
        short = self.target / self.value if self.at_least and self.value else self.value / self.target
        return short if short == short and (self.value or not self.at_least) else float("inf")

    @property
    def missed(self) -> bool:
        return self.shortfall > MISS

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        if self.missed:
            return "MISSED"
        if self.shortfall > 1:
            return "within 10%"
        stretched = self.stretch is not None and (self.value >= self.stretch if self.at_least else self.value <= self.stretch)
        return "stretch" if stretched else "reached"


@contextmanager
def one_cpu() -> Iterator[None]:
    """This process on one CPU, so that no number depends on how many there are."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def in_turn(runs: Mapping[str, Callable[[], object]], *, turns: int, warm: bool = True) -> dict[str, float]:
    """CPU seconds of each run, the middle of some turns. In turns, so that a busy machine is unfair to all alike.

    warm: one turn beforehand that is not counted.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    with one_cpu():
        for turn in range(turns + warm):
            for name, run in runs.items():
                start = time.process_time()
                run()
                if turn >= warm:
                    times[name].append(time.process_time() - start)
    return {name: statistics.median(found) for name, found in times.items()}


def words(seconds: Mapping[str, float], each: int = 1) -> str:
    """Milliseconds of each run, for a row's detail."""
    return ", ".join(f"{name} {sig(1e3 * value / each, 3)} ms" for name, value in seconds.items())


def machine() -> dict[str, object]:
    """What numbers depend on, and nothing that tells one machine from another of its kind."""
    return {
        "cpus": os.cpu_count(),
        "cpus_usable": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "load_at_the_start": round(os.getloadavg()[0], 1),
    }


def report(rows: Sequence[Row], facts: Mapping[str, object], out: Path) -> int:
    """Print the table, write it as JSON, and give the exit code: 1 when a target is missed by more than 10%."""
    lines = [[row.what, f"{sig(row.value, 3)} {row.unit}", _target(row), row.verdict] for row in rows]
    print(table(["what", "measured", "target", ""], lines, align="lrrl", width=140))
    out.parent.mkdir(exist_ok=True)
    found = [asdict(row) | {"verdict": row.verdict} for row in rows]
    out.write_text(json.dumps({"machine": facts, "rows": found}, indent=1) + "\n")
    missed = [row for row in rows if row.missed]
    print(f"\n{len(missed)} of {sum(row.target is not None for row in rows)} targets missed by more than 10%")
    for row in missed:
        print(f"  {row.what}: {row.detail}")
    return int(bool(missed))


def _target(row: Row) -> str:
    if row.target is None:
        return "-"
    return f"{'>=' if row.at_least else '<='} {sig(row.target, 3)} {row.unit}"
