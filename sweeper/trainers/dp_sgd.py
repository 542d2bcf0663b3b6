"""DP-SGD: noisy gradient steps on random minibatches (Abadi et al. 2016)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sweeper import checks, seeds
from sweeper.checks import FieldError
from sweeper.data.sampling import SAMPLERS, Sampler
from sweeper.privacy.events import Event, Gaussian, Repeated
from sweeper.seeds import Streams
from sweeper.spec.protocols import Clip, Problem, Step
from sweeper.trainers.noise import gaussian_

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class DpSgd:
    """Noisy sum of clipped gradients over a random batch, divided by the public batch_size; penalty, momentum, step.

    Guarantee: that of `event`, for the parameters returned and for every iterate on the way, when `clip` keeps its sensitivity.
    Relation: `relation`, that of the sampler: zero-out for poisson, replace-one for without-replacement. The noise is
    noise_multiplier times the clip norm in both; the event of the second counts that a replaced record moves a sum by twice that.
    batch_size is the EXPECTED batch (poisson) or the exact one, and the divisor; realised sizes stay sealed. A batch of no
    records takes its pure-noise step.  Momentum (heavy ball), penalty, schedule and averaging are post-processing.
    """

    batch_size: int
    steps: int
    sampling: str = "poisson"  # or without-replacement: exactly batch_size rows, priced for replace-one
    momentum: float = 0.0
    average: str = "last"  # last iterate, or tail: the mean of the last iterates
    tail_fraction: float = 0.5  # of the steps, for average: tail
    kind: ClassVar[str] = "dp-sgd"
    example: ClassVar[str] = "{kind: dp-sgd, batch_size: 256, steps: 2000, average: tail}"

    def __post_init__(self) -> None:
        checks.whole(1, batch_size=self.batch_size, steps=self.steps)
        if self.sampling not in SAMPLERS:
            raise FieldError(
                "sampling",
                self.sampling,
                "is refused: the bill counts on every record having the same chance in every batch, drawn afresh at each step"
                + checks.suggestion(self.sampling, SAMPLERS),
                "Use sampling: poisson, or sampling: without-replacement for batches of a fixed size.",
            )
        checks.real(0.0, 1.0, open_high=True, momentum=self.momentum)
        checks.one_of(("last", "tail"), average=self.average)
        checks.real(0.0, 1.0, open_low=True, tail_fraction=self.tail_fraction)

    @property
    def relation(self) -> str:
        return SAMPLERS[self.sampling].relation

    def event(self, rows: int, noise_multiplier: float) -> Event:
        """`steps` Gaussian mechanisms, each on a random batch; the sampler that draws the batches states its part."""
        return Repeated(self._sampler(rows).event(Gaussian(noise_multiplier)), self.steps)

    def fit(
        self,
        problem: Problem,
        clip: Clip,
        step: Step,
        noise_multiplier: float,
        streams: Streams,
        on_step: Callable[[int], None] | None = None,
        *,
        share: float = 1.0,
    ) -> tuple[Tensor, Mapping[str, Any]]:
        """(params_P, sealed diagnostics) after exactly `steps` steps. `on_step` hears the number of steps done, nothing else.

        share: the public share of the rows that the problem lets into a batch; sums are divided by share * batch_size.
        """
        sampler, draws, noise = self._sampler(problem.rows), streams.generator(seeds.SAMPLING), streams.torch_generator(seeds.NOISE)
        params_P = problem.start(streams)
        noise_P, velocity_P, average_P = params_P.new_empty(params_P.shape), params_P.new_zeros(params_P.shape), params_P.clone()
        divisor = share * self.batch_size
        tail = math.ceil(self.tail_fraction * self.steps) if self.average == "tail" else 1
        watch, records, nonfinite = _Watch(clip), 0, problem.nonfinite
        for t in range(self.steps):
            rows_B = sampler.draw(draws)
            records += len(rows_B)
            factors = watch.factors if t == self.steps - 1 else clip.factors
            gradient_P = problem.batch(rows_B).sum(params_P, factors)
            gradient_P.add_(gaussian_(noise_P, noise_multiplier * clip.sensitivity, noise)).div_(divisor)
            problem.add_penalty_(gradient_P, params_P)
            velocity_P.mul_(self.momentum).add_(gradient_P)
            params_P.add_(velocity_P, alpha=-step.learning_rate_at(clip, t, self.steps))
            if (counted := t + 1 - (self.steps - tail)) > 0:
                average_P.lerp_(params_P, 1 / counted)  # the running mean of the last `tail` iterates
            if on_step is not None:
                on_step(t + 1)
        return average_P, {
            "steps": self.steps,
            "mean_batch_size": records / self.steps,
            "nonfinite": problem.nonfinite - nonfinite,
            "clipped_fraction_last_step": watch.clipped / watch.seen if watch.seen else None,
        }

    def _sampler(self, rows: int) -> Sampler:
        return SAMPLERS[self.sampling](rows=rows, batch_size=self.batch_size)


class _Watch:
    """A clip policy's factors, counting the clipped."""

    def __init__(self, clip: Clip) -> None:
        self.clip, self.seen, self.clipped = clip, 0, 0

    def factors(self, squared_norms_BL: Tensor) -> Tensor:
        factors_B = self.clip.factors(squared_norms_BL)
        self.seen += len(factors_B)
        self.clipped += int((factors_B < 1.0).sum())
        return factors_B
