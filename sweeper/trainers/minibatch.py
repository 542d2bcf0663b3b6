"""What the trainers that take a fixed number of noisy minibatch steps share: the loop, its event, and what it refuses.

One step: draw a batch; clip, sum, add noise, divide by the public batch_size; add the penalty; let the optimiser's rule turn the
noisy gradient into a direction; let the step policy give a size; move. All after the noise is post-processing, but for a line
search, which looks at the same batch and is priced inside the same subsample.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from sweeper import checks, seeds
from sweeper.checks import FieldError
from sweeper.data.sampling import SAMPLERS, Sampler
from sweeper.privacy.events import REPLACE_ONE, Composed, Event, Repeated
from sweeper.seeds import Streams
from sweeper.spec.protocols import Clip, Facts, Fitted, Look, Problem, Step, Trainer
from sweeper.trainers.averaging import AVERAGES, Answer
from sweeper.trainers.checkpoint import Keep, keep_now, kept
from sweeper.trainers.noise import gaussian_, noisy_
from sweeper.trainers.watch import Watch

if TYPE_CHECKING:
    from torch import Tensor


class Rule(Protocol):
    """An optimiser's state. It sees noisy gradients only."""

    def direction(self, gradient_P: Tensor, noise_std: float) -> Tensor:
        """What is subtracted, times the step size. noise_std: of each coordinate of the gradient. May overwrite the gradient."""
        ...


@dataclass(kw_only=True)
class Running:
    """A run in progress: all that a step changes, and the generators where they stand. The sampler's place is that of `draws`."""

    params_P: Tensor
    rule: Rule
    ready: tuple[Clip, Step]  # the policies as prepared on the data
    policy: Clip
    answer: Answer
    watch: Watch
    draws: Any
    noise: Any
    searching: Any
    counting: Any
    done: int = 0  # steps


@dataclass(frozen=True, kw_only=True)
class MinibatchTrainer(ABC):
    """Base of the trainers with a fixed number of steps.

    Guarantee: that of `event`, for the parameters returned and for every iterate on the way, when `clip` keeps its sensitivity.
    Relation: `relation`, that of the sampler: zero-out for poisson, replace-one for without-replacement. The noise is
    noise_multiplier times the sensitivity in both; the event of the second counts that a replaced record moves a sum by twice that.
    batch_size is the EXPECTED batch (poisson) or the exact one, and the divisor; realised sizes stay sealed. A batch of no
    records takes its pure-noise step.
    """

    batch_size: int
    steps: int
    sampling: str = "poisson"  # or without-replacement: exactly batch_size rows, priced for replace-one
    average: str = "last"  # last iterate; tail: the mean of the last ones; random: one drawn uniformly
    tail_fraction: float = 0.5  # of the steps, for average: tail
    radius: float | None = None  # of the ball around 0 that iterates are projected on; None: no ball
    kind: ClassVar[str]
    resumable: ClassVar[bool] = True  # `fit` takes `keep`

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
        checks.one_of(AVERAGES, average=self.average)
        checks.real(0.0, 1.0, open_low=True, tail_fraction=self.tail_fraction)
        if self.radius is not None:
            checks.positive(radius=self.radius)

    @abstractmethod
    def rule(self, params_P: Tensor, sum_noise: float) -> Rule:
        """The optimiser's state at the start. sum_noise: multiplier of the noise on the gradients' sum."""

    @property
    def relation(self) -> str:
        return SAMPLERS[self.sampling].relation

    def expected_batch(self, rows: int) -> int:
        return self.batch_size

    def event(self, rows: int, noise_multiplier: float, clip: Clip, step: Step) -> Event:
        """What the clip policy asks beforehand, then `steps` noisy sums, each with its search inside the same random batch."""
        asked = clip.asks(rows, self.relation)
        each = Repeated(self._sampler(rows).event(minibatch_event(clip, step, noise_multiplier)), self.steps)
        return each if asked is None else Composed((asked, each))

    def faults(self, clip: Clip, step: Step) -> Iterator[FieldError]:
        """Why it does not run with these policies."""
        yield from both_wanted(self.kind, clip, step)
        if step.searches and self.relation == REPLACE_ONE:
            yield FieldError(
                "trainer.sampling",
                self.sampling,
                f"does not go with step policy {step.kind}: of what runs on a batch drawn without replacement only sums are priced",
                "Use sampling: poisson.",
            )
        if clip.raises:
            yield FieldError(
                "space.clip.policy",
                clip.kind,
                f"moves when a trainer raises its gradient budget, and trainer {self.kind} never does",
                "Use trainer dp-blsgd-ac, or a decay with a schedule.",
            )

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
        keep: Keep | None = None,
    ) -> Fitted:
        """What comes of exactly `steps` steps. `on_step` hears the number of steps done, nothing else.

        share: the public share of the rows that the problem lets into a batch; sums are divided by share * batch_size.
        keep: where the run's state is kept from time to time, and what it goes on from; the result is the same, bit for bit.
        """
        sampler, divisor = self._sampler(problem.rows), share * self.batch_size
        whole_noise = step.gradient_noise(noise_multiplier)
        sum_noise, nonfinite = clip.sum_noise(whole_noise), problem.nonfinite
        run = kept(keep, problem, Running) or self._begun(problem, clip, step, sum_noise, streams, share)
        params_P, rule, answer, watch, noise = run.params_P, run.rule, run.answer, run.watch, run.noise
        policy, stepper, noise_P = run.policy, run.ready[1], params_P.new_empty(params_P.shape)
        for t in range(run.done, self.steps):
            now, due = policy.at(t, self.steps), watch.due(t)
            rows_B = sampler.draw(run.draws)
            watch.drew(len(rows_B))
            batch = problem.batch(rows_B)
            factors = watch.factors(now.factors) if due else now.factors
            if now.counts:
                gradient_P, count = batch.sum_and_count(params_P, factors, now.counted)
                policy = policy.moved((count + run.counting.normal(0.0, now.count_std(whole_noise))) / divisor)
            else:
                gradient_P = batch.sum(params_P, factors, by_layer=now.by_layer)
            std = sum_noise * now.sensitivity
            gradient_P = noisy_(gaussian_(noise_P, std, noise), gradient_P).div_(divisor)
            problem.add_penalty_(gradient_P, params_P)
            kept_P = gradient_P.clone() if stepper.searches else gradient_P
            direction_P = rule.direction(gradient_P, std / divisor)
            size = stepper.size(
                Look(
                    clip=now,
                    step=t,
                    steps=self.steps,
                    noise_multiplier=noise_multiplier,
                    divisor=divisor,
                    params_P=params_P,
                    gradient_P=kept_P,
                    direction_P=direction_P,
                    batch=batch,
                    problem=problem,
                    draws=run.searching,
                )
            )
            params_P.add_(direction_P, alpha=-size)
            if self.radius is not None:
                project_(params_P, self.radius)
            answer.hear(t, params_P)
            if due:
                watch.seal(t, len(rows_B))
                watch.release(t, step_size=size, clip_norm=now.sensitivity)
            if keep is not None and keep.due():
                run.policy, run.done = policy, t + 1
                keep_now(keep, run, problem, problem.nonfinite - nonfinite)
            if on_step is not None:
                on_step(t + 1)
        sealed = watch.diagnostics() | {"nonfinite": problem.nonfinite - nonfinite}
        return Fitted(answer.params_P, sealed, chosen(clip, step, *run.ready, self.steps), watch.trace)

    def _begun(self, problem: Problem, clip: Clip, step: Step, sum_noise: float, streams: Streams, share: float) -> Running:
        draws, noise = streams.generator(seeds.SAMPLING), streams.torch_generator(seeds.NOISE)
        params_P = problem.start(streams)
        ready = prepared(self, problem, clip, step, sum_noise, streams, share)
        policy, stepper = ready
        return Running(
            params_P=params_P,
            rule=self.rule(params_P, sum_noise),
            ready=ready,
            policy=policy,
            answer=Answer(self.average, self.tail_fraction, self.steps, params_P, streams),
            watch=Watch(self.steps),
            draws=draws,
            noise=noise,
            searching=streams.generator(seeds.SEARCH) if stepper.searches else draws,
            counting=streams.generator(seeds.COUNT_NOISE) if policy.counts else draws,
        )

    def _sampler(self, rows: int) -> Sampler:
        return SAMPLERS[self.sampling](rows=rows, batch_size=self.batch_size)


def both_wanted(trainer: str, clip: Clip, step: Step) -> Iterator[FieldError]:
    """Policy `none` is for trainers that clip no gradient, or need no step size."""
    if clip.absent:
        rule = f"clips nothing, and trainer {trainer} scales its noise to a clip norm"
        yield FieldError("space.clip.policy", clip.kind, rule, "See: sweeper kinds clip.")
    if step.absent:
        rule = f"gives no step size, and trainer {trainer} takes steps of a size that is given or searched"
        yield FieldError("space.step.policy", step.kind, rule, "See: sweeper kinds step.")


def minibatch_event(clip: Clip, step: Step, noise_multiplier: float) -> Event:
    """All that one step asks of its batch: the noisy sum, and the search that reads it."""
    gradient = clip.sum_event(step.gradient_noise(noise_multiplier))
    search = step.event(noise_multiplier)
    return gradient if search is None else Composed((gradient, search))


def prepared(
    trainer: Trainer, problem: Problem, clip: Clip, step: Step, sum_noise: float, streams: Streams, share: float
) -> tuple[Clip, Step]:
    """The policies to run with. share: of the rows that the problem lets into a batch; sums are divided by that of a batch."""
    facts = Facts(
        rows=max(1, round(share * problem.rows)),
        batch_size=share * trainer.expected_batch(problem.rows),
        steps=trainer.steps,
        parameters=sum(problem.layers),
        noise_multiplier=sum_noise,
        relation=trainer.relation,
    )
    policy = clip.prepare(facts, problem, streams)
    return policy, step.prepare(facts, policy)


def chosen(clip: Clip, step: Step, ready_clip: Clip, ready_step: Any, steps: int) -> dict[str, float]:
    """Settings that the policies found before the first step; all of them are inside the price."""
    found = {}
    if ready_clip != clip:
        found["clip_norm"] = ready_clip.sensitivity
    if ready_step != step and hasattr(ready_step, "learning_rate_at"):
        found["learning_rate"] = ready_step.learning_rate_at(ready_clip, 0, steps)
    return found


def project_(params_P: Tensor, radius: float) -> None:
    """Onto the ball of this radius around 0, in place."""
    length = float(params_P.norm())
    if length > radius:
        params_P.mul_(radius / length)
