"""Publishing holds a few hundred trials at a time, however many there are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

from releases import release, trial

from sweeper.store import queries
from sweeper.store.home import Home
from sweeper.store.mlflow import Store

FEW, MANY = 200, 800


class Made(Sequence[Any]):
    """So many trials, each made when it is read, as those of a Vault are."""

    def __init__(self, submission: str, count: int, make: Callable[[str, bool], Any]) -> None:
        self.submission, self.count, self.make = submission, count, make

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, position: Any) -> Any:
        if not 0 <= position < self.count:
            raise IndexError(position)
        return self.make(f"{self.submission}-{position}", position == 0)


def peak(call: Callable[[], object]) -> float:
    """Megabytes that Python holds at most during a call, beyond what it held before."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def published(home: Home, name: str, count: int, make: Callable[[str, bool], Any]) -> float:
    made = release(sweep=name, submission=f"sub-{name}", trials=Made(name, count, make), protocol="release-all")
    return peak(lambda: Store(home).publish(made))


def lean(identity: str, best: bool) -> Any:
    return trial(identity, is_best=best, params=None, score=0.9 if best else 0.5)


def test_four_times_the_trials_take_the_same_memory(home: Home) -> None:
    """A list of all rows would hold about four times as much."""
    published(home, "warm", 2, lean)
    few, many = published(home, "few", FEW, lean), published(home, "many", MANY, lean)
    assert many < 1.5 * few + 1.0
    kept: list[Any] = []
    rows = published(home, "kept", MANY, lambda i, best: kept.append(bytes(20_000)) or lean(i, best))
    assert rows > 1.5 * few + 1.0, "what keeps 20 kB of each trial is noticed"
    assert queries.best("many", home).id == "many-0"
