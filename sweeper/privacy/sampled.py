"""Events on a random part of the table. Which rows are in it is drawn per row position, never from contents, and stays secret."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy.event import REPLACE_ONE, ZERO_OUT, Event, as_float, one_relation, only_events
from sweeper.privacy.mechanisms import AdaptiveQuantileStep, Gaussian


@dataclass(frozen=True)
class PoissonSubsampled(Event):
    """`event` on a batch that holds every record independently with probability sampling_probability.

    Guarantee: under zero-out, the mixture q M(D) + (1-q) M(D') against M(D') and the reverse (Zhu, Dong, Wang 2022, Theorem
    11). The noisy sum must be divided by a public constant, never by the realised batch size. Everything asked of ONE batch (a
    gradient and its line search) stands inside one event: two amplified events of one batch composed would under-report.
    Relation: zero-out only; replace-one has another pair.
    """

    sampling_probability: float
    event: Event
    kind: ClassVar[str] = "poisson-subsampled"

    def __post_init__(self) -> None:
        checks.real(0.0, 1.0, sampling_probability=self.sampling_probability)
        as_float(self, "sampling_probability")
        only_events("event", (self.event,))
        if self.event.relation == REPLACE_ONE:
            raise FieldError(
                "event", self.event.kind, "is stated for replace-one, and Poisson sampling is priced for zero-out", "Use zero-out."
            )

    @property
    def unprotected(self) -> bool:
        return self.sampling_probability > 0 and self.event.unprotected

    @property
    def relation(self) -> str | None:
        return self.event.relation if self.sampling_probability > 0 else None

    @property
    def inside(self) -> tuple[Event, ...]:
        return (self.event,)


@dataclass(frozen=True)
class FixedSizeSampled(Event):
    """A Gaussian sum on `sample_size` of `rows` records, drawn uniformly without replacement.

    Guarantee: the profile of sweeper/privacy/subsampled.py, `fixed_size_sampled` (Balle, Barthe, Gaboardi 2018, Theorem 9). `rows`
    is the public number of rows that are drawn from; draws of different steps are independent.
    Relation: replace-one. Convention: the inner noise multiplier is in units of ONE record's bound (the clip norm), as
    everywhere; a replaced record moves a clipped sum by up to twice that, so the Gaussian is priced at half its multiplier.
    Line searches on such a batch are refused: no bound for them is proved here.
    """

    rows: int
    sample_size: int
    event: Gaussian | AdaptiveQuantileStep
    kind: ClassVar[str] = "fixed-size-sampled"

    def __post_init__(self) -> None:
        checks.whole(1, 1_000_000_000, rows=self.rows, sample_size=self.sample_size)
        if self.sample_size > self.rows:
            raise FieldError("sample_size", self.sample_size, f"must be at most rows = {self.rows:,}")
        if not isinstance(self.event, (Gaussian, AdaptiveQuantileStep)):
            kind = getattr(self.event, "kind", self.event)
            raise FieldError(
                "event",
                kind,
                "must be gaussian: of what runs on a batch drawn without replacement only sums are priced",
                "Use sampling: poisson for line searches.",
            )

    @property
    def unprotected(self) -> bool:
        return Gaussian(self.event.noise_multiplier / 2).unprotected

    @property
    def relation(self) -> str | None:
        return REPLACE_ONE

    @property
    def inside(self) -> tuple[Event, ...]:
        return (self.event,)


@dataclass(frozen=True)
class RandomPart(Event):
    """Every record is put into one of two disjoint parts, into the first with probability `fraction`; one event runs on each.

    Guarantee: delta(e) <= fraction delta_first(e) + (1 - fraction) delta_second(e): given where the differing record lies, only
    that part's event sees it and the other, whatever it read of the first's answers, is post-processing; hockey-stick
    divergences are jointly convex. The second event may depend on the answers of the first.
    Repeated, every run has coins of its own.
    Relation: zero-out. Source: ALGORITHMS section 7, subsample-tune; convexity: Balle, Barthe, Gaboardi 2018.
    """

    fraction: float
    first: Event
    second: Event
    kind: ClassVar[str] = "random-part"

    def __post_init__(self) -> None:
        checks.real(0.0, 1.0, fraction=self.fraction)
        as_float(self, "fraction")
        only_events("first", (self.first,))
        only_events("second", (self.second,))
        if one_relation("second", self._seen()) == REPLACE_ONE:
            raise FieldError(
                "first",
                self._seen()[0].kind,
                f"must be stated for {ZERO_OUT}: a part drawn by coins has no public number of rows",
                "Use sampling: poisson.",
            )

    def _seen(self) -> tuple[Event, ...]:
        chances = ((self.first, self.fraction), (self.second, 1 - self.fraction))
        return tuple(event for event, chance in chances if chance > 0)

    @property
    def unprotected(self) -> bool:
        return any(event.unprotected for event in self._seen())

    @property
    def relation(self) -> str | None:
        return one_relation("second", self._seen())

    @property
    def inside(self) -> tuple[Event, ...]:
        return (self.first, self.second)
