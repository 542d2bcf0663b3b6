"""A run in progress of a trainer whose steps are found by line searches: its state, and one round of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweeper import seeds
from sweeper.seeds import Streams
from sweeper.spec.protocols import Batch, Clip, Look, Problem
from sweeper.trainers.budget_rule import AGAIN, ANEW, REFINE, Angles, Budgets
from sweeper.trainers.minibatch import project_
from sweeper.trainers.noise import gaussian_, noisy_
from sweeper.trainers.watch import Watch

if TYPE_CHECKING:
    from torch import Tensor

    from sweeper.trainers.averaging import Reservoir
    from sweeper.trainers.line_searched import LineSearched
    from sweeper.trainers.round_price import Allowance


@dataclass
class Rounds:
    """A run with what stands around it: the policies as prepared, what is left to spend, the answer so far, the sampler's place."""

    run: Run
    ready: tuple[Clip, Any]
    allowance: Allowance
    answer: Reservoir
    draws: Any
    done: int = 0  # rounds


class Run:
    """Parameters, gradient estimate, budgets, what the next round begins with (`due`): released all, or made of what is."""

    def __init__(
        self,
        trainer: LineSearched,
        problem: Problem,
        clip: Clip,
        step: Any,
        noise_multiplier: float,
        streams: Streams,
        divisor: float,
    ) -> None:
        self.trainer, self.problem, self.step, self.divisor = trainer, problem, step, divisor
        self.noise_multiplier, self.clip, self.bound = noise_multiplier, clip, float(step.bound)
        self.params_P = problem.start(streams)
        self.budgets, self.due, self.watch = Budgets(), ANEW, Watch()
        self._gradient_P, self._variance = self.params_P.new_zeros(self.params_P.shape), 0.0
        self._noise_P, self._noise = self.params_P.new_empty(self.params_P.shape), streams.torch_generator(seeds.NOISE)
        self._searching, self._counting = streams.generator(seeds.SEARCH), streams.generator(seeds.COUNT_NOISE)
        self._angles, self._iteration, self._lowered = Angles(trainer.window), 0, False
        self._clip_norm = 0.0  # of the last look at the gradient
        self._made = dict.fromkeys((ANEW, REFINE, AGAIN), 0)
        self._updates, self.nonfinite_before = 0, problem.nonfinite

    def __getstate__(self) -> dict[str, Any]:
        """Without the problem, which whoever goes on has."""
        return {name: value for name, value in vars(self).items() if name != "problem"}

    def round(self, number: int, rows_B: Any, budget_left: float) -> None:
        """All attempts on one batch, which has been paid for."""
        batch, size, due = self.problem.batch(rows_B), 0.0, self.watch.due(number)
        self.watch.drew(len(rows_B))
        for left in reversed(range(self.trainer.attempts or 1)):
            self._made[self.due] += 1
            if self.due != AGAIN:
                self._look(batch, due)
            epsilon = self.trainer.search_epsilon(self.noise_multiplier, self.step, self.budgets)
            used, size = self.budgets, self._search(batch, epsilon)
            self._settle(size, last=self.trainer.attempts is not None and left == 0)
            if self.due == ANEW:
                break
        if due:
            self.watch.seal(number, len(rows_B))
        least = max(self.trainer.gradient_noise(self.noise_multiplier, self.step, used.gradient), 1e-9)
        self.watch.release(
            number,
            step_size=size,
            clip_norm=self._clip_norm,
            budget_left=budget_left,
            rho_gradient=1 / (2 * least**2),
            search_epsilon=epsilon,
        )

    @property
    def _clip_now(self) -> Clip:
        """Schedules go by iterations, and stay where they end."""
        return self.clip.at(min(self._iteration, self.trainer.steps - 1), self.trainer.steps)

    def _look(self, batch: Batch, due: bool) -> None:
        """A noisy gradient of the budget that is due; averaged by inverse variance with the one there is, if that is refined."""
        now, multiple = self._clip_now, self.trainer.asked(self.budgets, self.due)
        assert multiple is not None
        noise = self.trainer.gradient_noise(self.noise_multiplier, self.step, multiple)
        factors = self.watch.factors(now.factors) if due else now.factors
        if now.counts:
            fresh_P, count = batch.sum_and_count(self.params_P, factors, now.counted)
            self.clip = self.clip.moved((count + self._counting.normal(0.0, now.count_std(noise))) / self.divisor)
        else:
            fresh_P = batch.sum(self.params_P, factors, by_layer=now.by_layer)
        self._clip_norm = now.sensitivity
        std = now.sum_noise(noise) * now.sensitivity
        fresh_P = noisy_(gaussian_(self._noise_P, std, self._noise), fresh_P).div(self.divisor)
        self.problem.add_penalty_(fresh_P, self.params_P)
        variance = max(std / self.divisor, 1e-30) ** 2
        if self.due == ANEW:
            self._gradient_P, self._variance = fresh_P, variance
        else:
            weight = self._variance / (self._variance + variance)  # of the fresh one
            self._gradient_P = self._gradient_P.lerp(fresh_P, weight)
            self._variance *= 1 - weight

    @property
    def _direction_P(self) -> Tensor:
        return self._gradient_P / self._gradient_P.norm().clamp(min=1e-30) if self.trainer.normalises else self._gradient_P

    def _search(self, batch: Batch, epsilon: float) -> float:
        look = Look(
            clip=self._clip_now,
            step=min(self._iteration, self.trainer.steps - 1),
            steps=self.trainer.steps,
            noise_multiplier=self.noise_multiplier,
            divisor=self.divisor,
            params_P=self.params_P,
            gradient_P=self._gradient_P,
            direction_P=self._direction_P,
            batch=batch,
            problem=self.problem,
            draws=self._searching,
        )
        return float(self.step.search(look, epsilon, self.bound))

    def _settle(self, size: float, last: bool) -> None:
        """Move, or say what comes next; `last`: no attempt is left on this batch, so that the iteration ends."""
        if size > 0:
            self.params_P.add_(self._direction_P, alpha=-size)
            if self.trainer.radius is not None:
                project_(self.params_P, self.trainer.radius)
            self.budgets, self._lowered = self.trainer.relaxed(self.budgets), False
            self._updates += 1
            self._end_iteration()
            return
        move = ANEW if last else self.trainer.after_failure(self._angles.mean(self._gradient_P))
        if move == ANEW:
            self._end_iteration()
            return
        self.budgets, self.due = self.trainer.raised(self.budgets, move), move
        if move == REFINE and self.trainer.raises_clip and not self._lowered:
            before = self.clip.sensitivity
            self.clip = self.clip.raised()
            self.bound *= self.clip.sensitivity / before
            self._lowered = True

    def _end_iteration(self) -> None:
        self._angles.hear(self._gradient_P)
        self._iteration += 1
        self.due = ANEW

    def diagnostics(self) -> dict[str, Any]:
        """Sealed. The trace is closed."""
        self.watch.end()
        counts = {"iterations": self._iteration, "updates": self._updates, **{f"attempts_{k}": v for k, v in self._made.items()}}
        return self.watch.diagnostics() | counts | {"nonfinite": self.problem.nonfinite - self.nonfinite_before}
