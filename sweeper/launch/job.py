"""What a worker runs: a trial as it was claimed. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass

from sweeper.seeds import Streams
from sweeper.spec.sweep import TrialSpec
from sweeper.trainers.checkpoint import Keep


@dataclass(frozen=True, kw_only=True)
class Job:
    """A trial, its random numbers, and where its state is kept."""

    trial: TrialSpec
    streams: Streams
    keep: Keep | None = None
