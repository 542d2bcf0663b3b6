"""Release protocol no-tuning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from sweeper.checks import FieldError
from sweeper.privacy.events import Event


@dataclass(frozen=True, kw_only=True)
class NoTuningProtocol:
    """One run of one setting that was fixed beforehand."""

    kind: ClassVar[str] = "no-tuning"
    runs_one: ClassVar[bool] = True
    releases_all: ClassVar[bool] = True
    final_run: ClassVar[bool] = False
    drawn: ClassVar[bool] = False
    visible: ClassVar[str] = "the one run: its noisy score, its model"
    example: ClassVar[str] = "{kind: no-tuning}"

    @property
    def max_trials(self) -> int:
        return 1

    def total(self, trial: Event) -> Event:
        return trial

    def unsealed(self, trial: Event, runs: int) -> Event:
        return trial

    def part(self, *, final: bool) -> None:
        return None

    def draw_count(self, uniforms: Iterator[float]) -> int:
        return 1

    def faults(self, spec: Any) -> Iterator[FieldError]:
        return iter(())
