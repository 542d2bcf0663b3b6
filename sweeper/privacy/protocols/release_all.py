"""Release protocol release-all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy.events import Event, Repeated


@dataclass(frozen=True, kw_only=True)
class ReleaseAllProtocol:
    """Every trial is released, with its score and model; all of them are paid for."""

    trials: int = 12
    kind: ClassVar[str] = "release-all"
    runs_one: ClassVar[bool] = False
    releases_all: ClassVar[bool] = True
    final_run: ClassVar[bool] = False
    drawn: ClassVar[bool] = False
    visible: ClassVar[str] = "every trial: its settings, its noisy score, its model"
    example: ClassVar[str] = "{kind: release-all, trials: 12}"

    def __post_init__(self) -> None:
        checks.whole(1, 100_000, trials=self.trials)

    @property
    def max_trials(self) -> int:
        return self.trials

    def total(self, trial: Event) -> Event:
        return Repeated(trial, self.trials)

    def unsealed(self, trial: Event, runs: int) -> Event:
        return Repeated(trial, runs)

    def part(self, *, final: bool) -> None:
        return None

    def draw_count(self, uniforms: Iterator[float]) -> int:
        return self.trials

    def faults(self, spec: Any) -> Iterator[FieldError]:
        return iter(())
