"""Release protocols: what may be seen of a sweep, how many runs are made, and the event of it all. One class each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy.events import Event, Repeated, SelectBest
from sweeper.privacy.laws import RunCountLaw, run_count_law


@dataclass(frozen=True, kw_only=True)
class SelectBestProtocol:
    """The best of a secret number of runs, candidates drawn i.i.d. with replacement; the winner alone is released."""

    law: str = "tnb"  # tnb, logarithmic (eta 0) or geometric (eta 1)
    eta: float | None = None  # shape of tnb
    mean_trials: float = 12.0  # mean of K before conditioning on K <= max_trials
    max_trials: int | None = None  # default: five times the mean
    release_every: float | None = None  # seconds: release at the next multiple of this after the start, so that time hides K
    kind: ClassVar[str] = "select-best"
    runs_one: ClassVar[bool] = False
    releases_all: ClassVar[bool] = False
    visible: ClassVar[str] = "the winner: its settings, its noisy score, its model"
    example: ClassVar[str] = "{kind: select-best, law: tnb, eta: 2, mean_trials: 12, max_trials: 64}"

    def __post_init__(self) -> None:
        checks.real(1.0, 10_000.0, open_low=True, mean_trials=self.mean_trials)
        if self.max_trials is None:
            object.__setattr__(self, "max_trials", round(5 * self.mean_trials))
        checks.whole(1, 100_000, max_trials=self.max_trials)
        if self.eta is None:
            object.__setattr__(self, "eta", {"logarithmic": 0.0}.get(self.law, 1.0))
        if self.release_every is not None:
            checks.positive(release_every=self.release_every)
        self.run_counts()

    def run_counts(self) -> RunCountLaw:
        """The law of K."""
        return run_count_law(self.law, eta=self.eta, mean=self.mean_trials, max_trials=self.max_trials)

    def total(self, trial: Event) -> Event:
        return SelectBest(trial, self.run_counts())

    def draw_count(self, uniforms: Iterator[float]) -> int:
        return self.run_counts().draw(uniforms)

    def faults(self, spec: Any) -> Iterator[FieldError]:
        return iter(())


@dataclass(frozen=True, kw_only=True)
class ReleaseAllProtocol:
    """Every trial is released, with its score and model; all of them are paid for."""

    trials: int = 12
    kind: ClassVar[str] = "release-all"
    runs_one: ClassVar[bool] = False
    releases_all: ClassVar[bool] = True
    visible: ClassVar[str] = "every trial: its settings, its noisy score, its model"
    example: ClassVar[str] = "{kind: release-all, trials: 12}"

    def __post_init__(self) -> None:
        checks.whole(1, 100_000, trials=self.trials)

    @property
    def max_trials(self) -> int:
        return self.trials

    def total(self, trial: Event) -> Event:
        return Repeated(trial, self.trials)

    def draw_count(self, uniforms: Iterator[float]) -> int:
        return self.trials

    def faults(self, spec: Any) -> Iterator[FieldError]:
        return iter(())


@dataclass(frozen=True, kw_only=True)
class PublicProxyProtocol:
    """Search on a public table, then one private run of the setting that won there; only that run is paid for."""

    proxy: str  # a data source, used as public
    trials: int = 12
    kind: ClassVar[str] = "public-proxy"
    runs_one: ClassVar[bool] = False
    releases_all: ClassVar[bool] = True
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

    def draw_count(self, uniforms: Iterator[float]) -> int:
        return self.trials

    def faults(self, spec: Any) -> Iterator[FieldError]:
        if self.proxy == spec.data.source.kind:
            yield FieldError(
                "protocol.proxy", self.proxy, "is the private table itself", "Name a public table, or set data.public: true."
            )


@dataclass(frozen=True, kw_only=True)
class NoTuningProtocol:
    """One run of one setting that was fixed beforehand."""

    kind: ClassVar[str] = "no-tuning"
    runs_one: ClassVar[bool] = True
    releases_all: ClassVar[bool] = True
    visible: ClassVar[str] = "the one run: its noisy score, its model"
    example: ClassVar[str] = "{kind: no-tuning}"

    @property
    def max_trials(self) -> int:
        return 1

    def total(self, trial: Event) -> Event:
        return trial

    def draw_count(self, uniforms: Iterator[float]) -> int:
        return 1

    def faults(self, spec: Any) -> Iterator[FieldError]:
        return iter(())
