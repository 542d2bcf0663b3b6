"""How a step of `sweeper price` draws its minibatch, and what that makes of the mechanisms run on it."""

from __future__ import annotations

from dataclasses import dataclass

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy.events import (
    Composed,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    FixedSizeSampled,
    Gaussian,
    PoissonSubsampled,
    PrivateQuantile,
    ReplaceOne,
)

SAMPLINGS = ("poisson", "without-replacement")


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Poisson with probability q, or a fixed number of rows without replacement. q may be given as batch_size of rows.

    Relation: zero-out for Poisson, replace-one without replacement.
    """

    sampling: str = "poisson"
    sampling_probability: float | None = None
    rows: int | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        checks.one_of(SAMPLINGS, sampling=self.sampling)
        if self.rows is not None:
            checks.whole(1, 1_000_000_000, rows=self.rows)
        if self.sampling_probability is not None:
            checks.real(0.0, 1.0, sampling_probability=self.sampling_probability)
            if self.batch_size is not None:
                raise FieldError("batch_size", self.batch_size, "cannot be given with sampling_probability", "Leave one out.")
        if self.batch_size is not None:
            checks.whole(0, 1_000_000_000, batch_size=self.batch_size)
        if self.rows is None and (self.batch_size is not None or self.fixed_size):
            needs = "--batch-size" if self.batch_size is not None else "--sampling without-replacement"
            raise FieldError("rows", checks.MISSING, f"is missing: {needs} needs the public number of rows", "Give --rows N.")
        if self.sampling_probability is None and self.batch_size is None:
            name, hint = ("batch_size", "Give --batch-size B.") if self.fixed_size else ("sampling_probability", "Try 0.01.")
            raise FieldError(name, checks.MISSING, "is missing: a step needs to know how its minibatch is drawn", hint)
        if self.rows is not None and self.batch_size is not None and self.batch_size > self.rows:
            raise FieldError("batch_size", self.batch_size, f"must be at most rows = {self.rows:,}")
        if self.fixed_size:
            self._sample_size()

    @property
    def fixed_size(self) -> bool:
        return self.sampling == "without-replacement"

    @property
    def probability(self) -> float:
        """The share of the rows that a batch holds, on average."""
        if self.sampling_probability is not None:
            return float(self.sampling_probability)
        assert self.batch_size is not None
        assert self.rows is not None
        return self.batch_size / self.rows

    def _sample_size(self) -> int:
        assert self.rows is not None
        size = self.probability * self.rows if self.batch_size is None else float(self.batch_size)
        if abs(size - round(size)) > 1e-6 * max(size, 1.0):
            raise FieldError(
                "sampling_probability",
                self.sampling_probability,
                f"of {self.rows:,} rows is {size:.6g} rows, and a batch drawn without replacement has a whole number",
                f"Give --batch-size {max(1, round(size))} instead.",
            )
        return round(size)

    def step(self, gaussian: Gaussian, search: Event | None) -> Event:
        """One step: the noisy sum and its line search look at ONE batch, so they are composed first and sampled once."""
        if self.fixed_size:
            size = self._sample_size()
            assert search is None
            assert self.rows is not None
            return FixedSizeSampled(self.rows, size, gaussian) if size else Composed(())
        looked: Event = gaussian if search is None else Composed((gaussian, search))
        return PoissonSubsampled(self.probability, looked) if self.probability < 1 else looked

    def quantile(self, epsilon: float) -> Event:
        """A quantile of per-record numbers. Under replace-one its ranks move by 1, not max(p, 1 - p): its sampler must know."""
        return ReplaceOne(ExponentialMechanism(epsilon)) if self.fixed_size else PrivateQuantile(epsilon)

    def score(self, epsilon: float) -> Event:
        """A count of correct answers. It moves by at most 1 under either relation."""
        return ReplaceOne(DiscreteLaplace(epsilon)) if self.fixed_size else DiscreteLaplace(epsilon)
