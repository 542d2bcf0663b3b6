"""What `make bench` and `make bench-quick` run: every line of the performance table beside its peer, in one run.

Steps, prices and stores are CPU seconds of one thread on one CPU, medians of turns that ours and its peer take in alternation.
Exit 1 when a target is missed by more than 10%. Writes build/bench.json.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
sys.path.insert(0, str(Path(__file__).parent))

import growth
import launch
import peer_script
import peers_opacus
import prices
import roofline
import sizes
import store_rows
import torch
from measured import Row, machine, report

OUT = Path(__file__).resolve().parents[2] / "build" / "bench.json"
Group = Callable[[], Iterable[Any]]


def quick() -> Mapping[str, Group]:
    """Under two minutes: steps, stores, no Ray."""
    return {
        "steps": lambda: roofline.rows(roofline.limits(turns=3), scale=0.5, turns=3),
        "peers": lambda: peers_opacus.rows(scale=0.5, turns=3),
        "sizes": lambda: sizes.rows(turns=3),
        "line search": lambda: sizes.search_rows(turns=3),
        "store": lambda: store_rows.logging_rows("SQLite", 20, 1, target=15, stretch=5),
        "queries": store_rows.query_rows,
    }


def whole() -> dict[str, Group]:
    """All of it; whole sweeps and the peers' script take most of the time."""
    return {
        "steps": lambda: roofline.rows(roofline.limits()),
        "peers": peers_opacus.rows,
        "sizes": sizes.rows,
        "line search": sizes.search_rows,
        "prices": prices.price_rows,
        "processes": prices.process_rows,
        "store": store_rows.rows,
        "growth": growth.rows,
        "launch": launch.rows,
        "script": peer_script.rows,
    }


def long() -> dict[str, Group]:
    """What takes minutes and is asked for by name."""
    return {"many": lambda: launch.rows(10_000)}


def measured(groups: Mapping[str, Group]) -> Iterator[Row]:
    """The lines of all groups, each said on standard error as soon as it is there."""
    known = {field.name for field in fields(Row)}
    for name, group in groups.items():
        start = time.perf_counter()
        for row in group():
            found = Row(**{key: value for key, value in vars(row).items() if key in known})
            passed = time.perf_counter() - start
            print(
                f"{name}, {passed:.0f} s: {found.what}: {found.value:.3g} {found.unit} ({found.detail})",
                file=sys.stderr,
                flush=True,
            )
            yield found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer lines and turns, in under two minutes")
    parser.add_argument(
        "--only", nargs="+", metavar="GROUP", choices=[*whole(), *long()], help="these groups, at their full length"
    )
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    groups: Mapping[str, Group] = quick() if given.quick else whole()
    if given.only:
        groups = {name: group for name, group in (whole() | long()).items() if name in given.only}
    facts = machine()
    return report(list(measured(groups)), facts, OUT)


if __name__ == "__main__":
    sys.exit(main())
