"""How a minibatch is drawn. A sampler draws the batches AND declares their event, so the two cannot disagree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy.events import REPLACE_ONE, ZERO_OUT, Event, FixedSizeSampled, PoissonSubsampled

if TYPE_CHECKING:
    import numpy


@dataclass(frozen=True, kw_only=True)
class PoissonSampler:
    """Every row joins every batch independently, with probability batch_size / rows.

    Guarantee: that of sweeper.privacy.events.PoissonSubsampled. Batches of different steps are independent; an empty batch is
    legal and is a step like any other. Divide sums by batch_size, never by the length of a batch.
    Relation: zero-out. `rows` is the public number of training rows, null records included.
    Method: a Binomial(rows, q) size, then a uniform set of that size: the law of independent inclusions given their number.
    """

    rows: int
    batch_size: int  # expected, public
    kind: ClassVar[str] = "poisson"
    relation: ClassVar[str] = ZERO_OUT

    def __post_init__(self) -> None:
        _check(self.rows, self.batch_size)

    @property
    def sampling_probability(self) -> float:
        return self.batch_size / self.rows

    def draw(self, generator: numpy.random.Generator) -> numpy.ndarray:
        """Distinct rows in [0, rows), int64, in no particular order."""
        size = generator.binomial(self.rows, self.sampling_probability)
        return generator.choice(self.rows, size=size, replace=False, shuffle=False)

    def event(self, event: Event) -> Event:
        """The event of applying `event` to one batch."""
        return PoissonSubsampled(sampling_probability=self.sampling_probability, event=event)


@dataclass(frozen=True, kw_only=True)
class FixedSizeSampler:
    """Every batch is a uniform set of exactly batch_size distinct rows; batches of different steps are independent.

    Guarantee: that of sweeper.privacy.events.FixedSizeSampled, whose noise multiplier, like every other, is in units of one
    record's bound: the event counts that a replaced record moves a clipped sum by twice that.
    Relation: replace-one. Under zero-out the number of real records in a batch would depend on the record, and no bound for that
    is stated here. `rows` is the public number of training rows.
    """

    rows: int
    batch_size: int  # exact, public
    kind: ClassVar[str] = "without-replacement"
    relation: ClassVar[str] = REPLACE_ONE

    def __post_init__(self) -> None:
        _check(self.rows, self.batch_size)

    @property
    def sampling_probability(self) -> float:
        return self.batch_size / self.rows

    def draw(self, generator: numpy.random.Generator) -> numpy.ndarray:
        """Distinct rows in [0, rows), int64, in no particular order."""
        return generator.choice(self.rows, size=self.batch_size, replace=False, shuffle=False)

    def event(self, event: Event) -> Event:
        """The event of applying `event` to one batch. Only sums are priced there: another event is refused."""
        return FixedSizeSampled(self.rows, self.batch_size, event)  # type: ignore[arg-type]


Sampler = PoissonSampler | FixedSizeSampler
SAMPLERS: dict[str, type[Sampler]] = {sampler.kind: sampler for sampler in (PoissonSampler, FixedSizeSampler)}


def _check(rows: int, batch_size: int) -> None:
    checks.whole(1, rows=rows, batch_size=batch_size)
    if batch_size > rows:
        raise FieldError("batch_size", batch_size, f"must be at most the number of training rows, {rows:,}")
