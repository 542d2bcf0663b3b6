"""What a sweep costs beside its training: launching, claiming, settling, publishing; and whether memory grows with its trials."""

from __future__ import annotations

from collections.abc import Iterator

from growth import grown
from measured import Row
from one_sweep import run

TRIALS = 1_000


def rows(trials: int = TRIALS) -> Iterator[Row]:
    """A sweep of tiny trials (a linear model on 10 rows, one step) and one of a quarter of them, each in a fresh home.

    Launching is several processes side by side. The longest line among them is the driver's, which hands out the trials and then
    publishes them: its CPU time is what a sweep lasts on a machine that is free.
    """
    few, many = run(trials=trials // 4), run(trials=trials)
    cpu, wall = many["cpu"], many["wall"]
    stages = [
        f"{name} {1e3 * cpu[name] / trials:.1f} ms of CPU in all processes, {1e3 * wall[name] / trials:.1f} on the wall"
        for name in ("trials", "publishing", "whole")
    ]
    yield Row(
        what=f"overhead per trial at {trials:,} trials, CPU of the driver",
        value=many["driver_cpu"]["whole"] / trials,
        unit="s",
        target=0.03,
        stretch=0.01,
        detail="; ".join(stages),
    )
    yield Row(
        what=f"overhead per trial at {trials:,} trials, on the wall",
        value=(wall["whole"] - wall["training"]) / trials,
        unit="s",
        detail=f"load of the machine {many['load']:.1f}",
    )
    memory, words = grown(few, many)
    yield Row(
        what=f"memory at {trials:,} trials / at {trials // 4:,}, of the process that grows most",
        value=memory,
        unit="x",
        target=1.1,
        detail=words,
    )
    yield Row(
        what=f"{trials // 4:,} trials x4: CPU time of a sweep",
        value=cpu["whole"] / few["cpu"]["whole"],
        unit="x",
        target=4.2,
        stretch=4.0,
        detail=f"{few['cpu']['whole']:.1f} -> {cpu['whole']:.1f} CPU s, {few['wall']['whole']:.0f} -> {wall['whole']:.0f} s",
    )
