"""Release protocol subsample-tune: select-best on a random part of the training rows, then one run of what won there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy.events import ZERO_OUT, Composed, Disjoint, Event, PoissonSubsampled, RandomPart, Repeated, SelectBest
from sweeper.privacy.protocols.drawn_runs import AUTO, DrawnRuns


@dataclass(frozen=True, kw_only=True)
class Part:
    """The training rows that a run may use: those of the secret part, or all others."""

    fraction: float  # chance of a row to be in the part that is tuned on
    rest: bool  # the others

    @property
    def share(self) -> float:
        """Expected share of the training rows, public. Divide by this times a public number, never by how many rows there are."""
        return 1.0 - self.fraction if self.rest else self.fraction


@dataclass(frozen=True, kw_only=True)
class SubsampleTuneProtocol(DrawnRuns):
    """Select-best on a secret random part of the training rows, then one run of the winning setting on the others.

    Every run, of tuning or final, draws a row that it may use with the same probability per step and carries the same noise
    multiplier, so that one event describes them all; the tuning runs divide by tune_fraction * batch_size. The hold-out rows
    score all runs.
    Relation: zero-out, since a row's part is drawn for its position alone.
    Source: ALGORITHMS section 7; the events are RandomPart (final: disjoint) and PoissonSubsampled (final: all).
    """

    tune_fraction: float = 0.1  # chance of a training row to be tuned on, secret which
    final: str = "disjoint"  # the last run uses the rows that were not tuned on; or all: every training row
    kind: ClassVar[str] = "subsample-tune"
    runs_one: ClassVar[bool] = False
    releases_all: ClassVar[bool] = False
    final_run: ClassVar[bool] = True
    drawn: ClassVar[bool] = True
    visible: ClassVar[str] = "the winning setting, and its final run: its noisy score, its model"
    example: ClassVar[str] = "{kind: subsample-tune, tune_fraction: 0.1, final: disjoint, law: tnb, eta: 2, mean_trials: 12}"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.real(0.0, 1.0, open_low=True, open_high=True, tune_fraction=self.tune_fraction)
        checks.one_of(("disjoint", "all"), final=self.final)
        if self.law == AUTO:
            rule = "weighs select-best alone, not what follows it in subsample-tune"
            raise FieldError("law", AUTO, rule, "Name a law, or use protocol: {kind: select-best}.")

    @classmethod
    def of(cls, drawn: DrawnRuns) -> SubsampleTuneProtocol:
        """The protocol with the runs of another, and the usual part."""
        return cls(**{field.name: getattr(drawn, field.name) for field in fields(DrawnRuns)})

    def total(self, trial: Event) -> Event:
        """The event of the whole sweep.

        Guarantee: a training record is in the tuned part with probability tune_fraction. final disjoint: it is then seen by the
        tuning alone, and otherwise by the final run alone, whose setting is post-processing of the tuning. final all: the
        tuning, on a Poisson sample, and the final run. A hold-out record is seen by the score of each tuning run and by that of
        the final run, which compose. The winning tuning run's own score and model are paid for, and stay sealed all the same.
        `trial`: Disjoint((a training record's event, a hold-out record's event)), or one event of a training record, the score on
        the same rows included; the tuning runs then score on their part alone.
        """
        law = self.run_counts()
        return self._over_parts(trial, lambda one: SelectBest(one, law))

    def unsealed(self, trial: Event, runs: int) -> Event:
        return self._over_parts(trial, lambda one: Repeated(one, runs))

    def _over_parts(self, trial: Event, tuned: Any) -> Event:
        training, *scores = trial.parts if isinstance(trial, Disjoint) else (trial,)
        if self.final == "disjoint":
            seen: Event = RandomPart(self.tune_fraction, tuned(training), training)
        else:
            seen = Composed((PoissonSubsampled(self.tune_fraction, tuned(training)), training))
        return Disjoint((seen, *(Composed((tuned(score), score)) for score in scores))) if scores else seen

    def part(self, *, final: bool) -> Part | None:
        """Which training rows the tuning runs, or the final one, may use."""
        if final and self.final == "all":
            return None
        return Part(fraction=self.tune_fraction, rest=final)

    def faults(self, spec: Any) -> Iterator[FieldError]:
        yield from super().faults(spec)
        if spec.trainer.relation != ZERO_OUT:
            yield FieldError(
                "trainer.sampling",
                spec.trainer.sampling,
                f"is priced for {spec.trainer.relation}, and subsample-tune draws its part of the rows for zero-out: "
                "a bill speaks of one relation",
                "Use sampling: poisson, or protocol: {kind: select-best}.",
            )
