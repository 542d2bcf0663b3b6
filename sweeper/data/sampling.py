"""How a minibatch is drawn. A sampler draws the batches AND declares their event, so the two cannot disagree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy.events import Event, Gaussian, PoissonSubsampled

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

    def __post_init__(self) -> None:
        checks.whole(1, rows=self.rows, batch_size=self.batch_size)
        if self.batch_size > self.rows:
            raise FieldError("batch_size", self.batch_size, f"must be at most the number of training rows, {self.rows:,}")

    @property
    def sampling_probability(self) -> float:
        return self.batch_size / self.rows

    def draw(self, generator: numpy.random.Generator) -> numpy.ndarray:
        """Distinct rows in [0, rows), int64, in no particular order."""
        size = generator.binomial(self.rows, self.sampling_probability)
        return generator.choice(self.rows, size=size, replace=False, shuffle=False)

    def event(self, event: Gaussian) -> Event:
        """The event of applying `event` to one batch."""
        return PoissonSubsampled(sampling_probability=self.sampling_probability, event=event)
