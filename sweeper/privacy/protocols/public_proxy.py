"""Release protocol public-proxy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy.events import Event


@dataclass(frozen=True, kw_only=True)
class PublicProxyProtocol:
    """Search on a public table, then one private run of the setting that won there; only that run is paid for."""

    proxy: str  # a data source, used as public
    trials: int = 12
    kind: ClassVar[str] = "public-proxy"
    runs_one: ClassVar[bool] = False
    releases_all: ClassVar[bool] = True
    final_run: ClassVar[bool] = True
    drawn: ClassVar[bool] = False
    visible: ClassVar[str] = "everything on the proxy table, and the one private run"
    example: ClassVar[str] = "{kind: public-proxy, proxy: fashion-mnist, trials: 12}"

    def __post_init__(self) -> None:
        checks.whole(1, 100_000, trials=self.trials)
        if not isinstance(self.proxy, str):
            raise FieldError("proxy", self.proxy, "must name a data source", "See: sweeper kinds data.")

    @property
    def max_trials(self) -> int:
        return self.trials

    def total(self, trial: Event) -> Event:
        return trial

    def unsealed(self, trial: Event, runs: int) -> Event:
        return trial

    def part(self, *, final: bool) -> None:
        return None

    def draw_count(self, uniforms: Iterator[float]) -> int:
        return self.trials

    def faults(self, spec: Any) -> Iterator[FieldError]:
        if self.proxy == spec.data.source.kind:
            yield FieldError(
                "protocol.proxy", self.proxy, "is the private table itself", "Name a public table, or set data.public: true."
            )
