"""Release protocol select-best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sweeper.privacy.events import Event, Repeated, SelectBest
from sweeper.privacy.protocols.drawn_runs import DrawnRuns


@dataclass(frozen=True, kw_only=True)
class SelectBestProtocol(DrawnRuns):
    """The best of a secret number of runs, candidates drawn i.i.d. with replacement; the winner alone is released."""

    kind: ClassVar[str] = "select-best"
    runs_one: ClassVar[bool] = False
    releases_all: ClassVar[bool] = False
    final_run: ClassVar[bool] = False
    drawn: ClassVar[bool] = True
    visible: ClassVar[str] = "the winner: its settings, its noisy score, its model"
    example: ClassVar[str] = "{kind: select-best, law: tnb, eta: 2, mean_trials: 12, max_trials: 64}"

    def total(self, trial: Event) -> Event:
        return SelectBest(trial, self.run_counts())

    def unsealed(self, trial: Event, runs: int) -> Event:
        return Repeated(trial, runs)

    def part(self, *, final: bool) -> None:
        return None
