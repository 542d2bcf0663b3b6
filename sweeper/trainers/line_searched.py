"""What the trainers of Chen and Lee 2020 share: noisy gradient, private line search, budgets that move, a filter that ends the run.

An iteration looks at a noisy gradient, and searches along it. Where the search finds a step, it is taken. Where it finds none, the
budget rule says what comes next: a new iteration, more gradient (a fresh one of the budget's difference, averaged with the one
there is by inverse variance) and another search, or another search alone. Each of these is a round, on a minibatch of its own;
with `retries` a round has that many attempts on one minibatch. All rounds are paid from one allowance, in advance.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from sweeper import checks, seeds
from sweeper.checks import FieldError
from sweeper.clip.fixed import FixedClip
from sweeper.privacy.bounds import LARGEST_RHO
from sweeper.privacy.cache import cached
from sweeper.privacy.event import LEAST_NOISE
from sweeper.privacy.events import ZERO_OUT, Composed, Event, RenyiBound, ZeroConcentrated
from sweeper.seeds import Streams
from sweeper.spec.protocols import Clip, Fitted, Problem, Step
from sweeper.step.search import MOST_EPSILON
from sweeper.trainers import round_price
from sweeper.trainers.averaging import AVERAGES, Reservoir
from sweeper.trainers.budget_rule import ANEW, BudgetRule, Budgets
from sweeper.trainers.checkpoint import Keep, keep_now, kept
from sweeper.trainers.minibatch import both_wanted, chosen, prepared
from sweeper.trainers.round_price import LEAST_COST, LEAST_SHARE, Allowance, Round

if TYPE_CHECKING:
    import numpy


class Terms(NamedTuple):
    """What a run is governed by; public, and the same for all that may be asked of it."""

    order: int | None  # of the Renyi costs; None: costs are values of rho, for all orders at once
    capacity: float
    start: float  # cost of a round at the starting budgets


@dataclass(frozen=True, kw_only=True)
class LineSearched(BudgetRule, ABC):
    """Base of the trainers whose steps are found by a private line search and whose budgets move.

    Guarantee: that of `event`, for the parameters returned, every iterate, step size and budget on the way, and the run's length.
    The run is over when the next round does not fit; stopping early refunds nothing.
    Relation: zero-out. Method: a privacy filter at one order fixed before the run (round_price.py), or on rho for the whole table.
    Units: the whole step's noise multiplier z is divided by the step policy between gradient and search, as in step/search.py.
    """

    steps: int  # rounds at the starting budgets that the whole budget pays for
    average: str = "last"  # last iterate; tail: their mean from half the budget on; random: one drawn uniformly
    radius: float | None = None  # of the ball around 0 that iterates are projected on; None: no ball
    normalises: ClassVar[bool] = False  # steps are taken along the noisy gradient at length 1
    raises_clip: ClassVar[bool] = False  # clip norm and loss bound come down when the gradient's budget goes up
    attempts: ClassVar[int | None] = None
    resumable: ClassVar[bool] = True  # `fit` takes `keep`
    kind: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole(1, steps=self.steps)
        checks.one_of(AVERAGES, average=self.average)
        if self.radius is not None:
            checks.positive(radius=self.radius)

    @abstractmethod
    def expected_batch(self, rows: int) -> int:
        """The public expected number of records in a batch."""

    @abstractmethod
    def draw(self, rows: int, generator: numpy.random.Generator) -> Any:
        """Row positions of one batch."""

    @property
    def relation(self) -> str:
        return ZERO_OUT

    def event(self, rows: int, noise_multiplier: float, clip: Clip, step: Step) -> Event:
        """What the clip policy asks beforehand, and all that the allowance pays for."""
        asked, terms = clip.asks(rows, self.relation), self.terms(rows, noise_multiplier, clip, step)
        if noise_multiplier < LEAST_NOISE:  # nothing is promised of next to no noise
            terms = terms._replace(capacity=LARGEST_RHO)
        run: Event = ZeroConcentrated(terms.capacity) if terms.order is None else RenyiBound(terms.order, terms.capacity)
        return run if asked is None else Composed((asked, run))

    def faults(self, clip: Clip, step: Any) -> Iterator[FieldError]:
        """Why it does not run with these policies."""
        yield from both_wanted(self.kind, clip, step)
        if not step.searches or not step.may_fail:
            lacks = "always takes a step" if step.searches else "searches nothing"
            yield FieldError(
                "space.step.policy",
                step.kind,
                f"{lacks}, and trainer {self.kind} moves its budgets by searches that find no step",
                "Use policy: backtracking, or noisy-min; or trainer dp-sgd.",
            )
        elif step.epsilon is not None:
            yield FieldError(
                "space.step.epsilon",
                step.epsilon,
                f"fixes the search's budget, and trainer {self.kind} starts both budgets from the noise of the whole step",
                "Use share, the part of a step's budget that is the search's.",
            )
        if clip.raises and not self.raises_clip:
            yield FieldError(
                "space.clip.policy",
                clip.kind,
                f"moves when a trainer raises its gradient budget, and under trainer {self.kind} clip norms stay where they are",
                "Use trainer dp-blsgd-ac, or a decay with another schedule.",
            )
        if self.raises_clip and not clip.raises:
            yield FieldError(
                "space.clip.policy",
                clip.kind,
                f"stays where it is when the gradient's budget goes up, and its coming down is all that makes {self.kind}",
                "Use clip: {policy: decay, schedule: raise}, or trainer dp-blsgd.",
            )
        if getattr(clip, "count_noise", None) is not None:
            yield FieldError(
                "space.clip.count_noise",
                clip.count_noise,  # type: ignore[attr-defined]
                f"is one for all steps, and the gradient's noise of trainer {self.kind} moves",
                "Leave it out: then it keeps its ratio to that noise.",
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
        """Rounds until one does not fit. `on_step` hears the number of rounds done, nothing else.

        share: the public share of the rows that the problem lets into a batch; sums are divided by share * the expected batch.
        keep: where the run's state is kept from time to time, and what it goes on from; the result is the same, bit for bit.
        """
        from sweeper.trainers.line_searched_run import Rounds, Run

        divisor, sum_noise = share * self.expected_batch(problem.rows), clip.sum_noise(step.gradient_noise(noise_multiplier))
        terms, nonfinite = self.terms(problem.rows, noise_multiplier, clip, step), problem.nonfinite
        found = kept(keep, problem, Rounds)
        if found is None:
            ready = prepared(self, problem, clip, step, sum_noise, streams, share)
            allowance = Allowance(terms.capacity, max(LEAST_COST, LEAST_SHARE * terms.start))
            run = Run(self, problem, *ready, noise_multiplier, streams, divisor)
            answer = Reservoir(self.average, run.params_P, streams)
            found = Rounds(run, ready, allowance, answer, streams.generator(seeds.SAMPLING))
        run, allowance, answer = found.run, found.allowance, found.answer
        run.problem, run.nonfinite_before = problem, nonfinite
        while allowance.admits(self.cost(problem.rows, noise_multiplier, clip, step, run.budgets, run.due, terms.order)):
            run.round(found.done, self.draw(problem.rows, found.draws), allowance.left)
            found.done += 1
            answer.hear(1.0 - allowance.left, run.params_P)
            if keep is not None and keep.due():
                keep_now(keep, found, problem, problem.nonfinite - nonfinite)
            if on_step is not None:
                on_step(found.done)
        return Fitted(answer.params_P, run.diagnostics(), chosen(clip, step, *found.ready, self.steps), run.watch.trace)

    def terms(self, rows: int, noise_multiplier: float, clip: Clip, step: Any) -> Terms:
        """Order and capacity, from public numbers alone.

        The capacity is what `steps` rounds at the starting budgets cost, and as much more as rounding up their sum may take.
        The order is that of a plain clip and of the step policy with what a sweep may search of its price at the defaults: so all
        candidates of a sweep run at one order, at which the dearest of them bounds the others.
        """
        priced, q = _priced(noise_multiplier), self.expected_batch(rows) / rows
        defaults = {f.name: f.default for f in fields(step) if step.costs.get(f.name, 0) != 0}
        nominal = self._asked(priced, FixedClip(clip_norm=1.0), replace(step, **defaults), Budgets(), ANEW)
        first = self._asked(priced, clip, step, Budgets(), ANEW)
        by_order = q < 1 or round_price.zcdp_cost(nominal) is None
        question = {"what": "line-searched round", "q": q, "rounds": self.steps, "attempts": first.attempts, "moves": first.moves}
        for name, events in (("nominal", nominal), ("first", first)):
            question[name] = [[event.to_dict() for event in part] for part in (events.gradients, events.searches)]

        def answer() -> tuple[int | None, float]:
            order = round_price.order_for(nominal, q, self.steps) if by_order else None
            return order, min(_cost(first, q, order), LARGEST_RHO)

        order, start = cached(question, answer)
        return Terms(order, min(self.steps * start * (1 + self.steps * 2.0**-50), LARGEST_RHO), start)

    def cost(
        self, rows: int, noise_multiplier: float, clip: Clip, step: Step, budgets: Budgets, due: str, order: int | None
    ) -> float:
        """What the next round is charged: `due` is what it begins with, at these budgets."""
        asked = self._asked(_priced(noise_multiplier), clip, step, budgets, due)
        return _cost(asked, self.expected_batch(rows) / rows, order)

    def gradient_noise(self, noise_multiplier: float, step: Step, multiple: float) -> float:
        """The multiplier of a look at the gradient that costs this multiple of the starting rho."""
        return step.gradient_noise(noise_multiplier) / math.sqrt(multiple)

    def search_epsilon(self, noise_multiplier: float, step: Any, budgets: Budgets) -> float:
        return float(min(step.budget(noise_multiplier) * budgets.search, MOST_EPSILON))

    def _asked(self, noise_multiplier: float, clip: Clip, step: Any, budgets: Budgets, due: str) -> Round:
        """A round that begins with `due`, and whatever its further attempts may ask."""
        more = (self.attempts or 1) - 1
        multiple, raised = self.asked(budgets, due), budgets
        gradients, searches = [] if multiple is None else [multiple], [self.search_epsilon(noise_multiplier, step, budgets)]
        for _ in range(more):
            gradients.append(raised.gradient * self.gradient_raise)
            raised = Budgets(raised.gradient * (1 + self.gradient_raise), raised.search * self.search_raise)
            searches.append(self.search_epsilon(noise_multiplier, step, raised))
        return Round(
            gradients=tuple(clip.sum_event(self.gradient_noise(noise_multiplier, step, multiple)) for multiple in gradients),
            searches=tuple(step.event_of(epsilon) for epsilon in searches),
            attempts=more + 1,
            moves=self.moves if more else (),
        )


def _priced(noise_multiplier: float) -> float:
    """With next to no noise no cost is finite and nothing is promised: such a run is as long as one of multiplier 1."""
    return noise_multiplier if noise_multiplier >= LEAST_NOISE else 1.0


def _cost(asked: Round, sampling_probability: float, order: int | None) -> float:
    if order is not None:
        return round_price.renyi_cost(asked, sampling_probability, order)
    rho = round_price.zcdp_cost(asked)
    return math.inf if rho is None else rho
