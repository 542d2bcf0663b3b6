"""Training without noise or clipping, on public data: what privacy costs is measured against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sweeper import checks, seeds
from sweeper.checks import FieldError
from sweeper.data.sampling import PoissonSampler
from sweeper.privacy.events import Event, Gaussian
from sweeper.spec.protocols import Batch, Clip, Fitted, Problem, Step
from sweeper.trainers.unclipped import Unclipped

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from sweeper.seeds import Streams

METHODS = ("lbfgs", "sgd", "adam")


@dataclass(frozen=True, kw_only=True)
class NonPrivate(Unclipped):
    """L-BFGS, SGD or Adam without clipping or noise, on public data alone: what privacy costs is measured against it.

    Guarantee: none; its event has an infinite price, whatever the noise multiplier. lbfgs: full batch, `steps` iterations at most.
    sgd, adam: Poisson minibatches, step policy fixed.
    """

    steps: int = 200
    method: str = "lbfgs"
    batch_size: int | None = None  # of sgd and adam
    momentum: float = 0.9  # of sgd
    unprotected: ClassVar[bool] = True
    kind: ClassVar[str] = "non-private"
    example: ClassVar[str] = "{kind: non-private, method: lbfgs}"
    no_clip: ClassVar[str] = "it bounds nothing"

    def __post_init__(self) -> None:
        checks.whole(1, steps=self.steps)
        checks.one_of(METHODS, method=self.method)
        checks.real(0.0, 1.0, open_high=True, momentum=self.momentum)
        if self.batch_size is not None:
            checks.whole(1, batch_size=self.batch_size)
        if (self.batch_size is None) != (self.method == "lbfgs"):
            rule = (
                "is not of method lbfgs, which reads all rows" if self.method == "lbfgs" else f"is missing in method {self.method}"
            )
            value = checks.MISSING if self.batch_size is None else self.batch_size
            raise FieldError("batch_size", value, rule, "Give it with sgd and adam alone.")

    @property
    def no_step(self) -> str:  # type: ignore[override]
        return "lbfgs finds its own steps" if self.method == "lbfgs" else f"{self.method} takes steps of a fixed size"

    @property
    def step_kinds(self) -> tuple[str, ...]:
        return ("none",) if self.method == "lbfgs" else ("fixed",)

    def expected_batch(self, rows: int) -> int:
        return rows if self.batch_size is None else self.batch_size

    def event(self, rows: int, noise_multiplier: float, clip: Clip, step: Step) -> Event:
        return Gaussian(0.0)

    def assumes(self, spec: Any) -> Iterator[FieldError]:
        if not spec.data.public:
            rule = "protects nothing, and the table is not declared public"
            yield FieldError("trainer.kind", self.kind, rule, "Use data.public: true for a benchmark, or another trainer.")

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
    ) -> Fitted:
        nonfinite, params_P = problem.nonfinite, problem.start(streams)
        if self.method == "lbfgs":
            self._lbfgs(problem, params_P, share, clip)
        else:
            self._minibatches(problem, params_P, step, streams, share, clip, on_step)
        return Fitted(params_P, {"steps": self.steps, "nonfinite": problem.nonfinite - nonfinite}, {}, {})

    def _lbfgs(self, problem: Problem, params_P: Tensor, share: float, clip: Clip) -> None:
        import numpy as np
        import torch

        size, everybody = share * problem.rows, problem.batch(np.arange(problem.rows))
        optimiser = torch.optim.LBFGS(
            [params_P], max_iter=self.steps, tolerance_grad=1e-7, tolerance_change=1e-12, line_search_fn="strong_wolfe"
        )

        def closure() -> float:
            params_P.grad = _gradient(everybody, problem, params_P, size, clip)
            sums = everybody.losses_along(params_P, torch.zeros_like(params_P), (0.0,), lambda here, there: here.double())
            return float(sums[0]) / size + problem.penalty(params_P)

        optimiser.step(closure)  # type: ignore[arg-type]
        params_P.grad = None

    def _minibatches(
        self,
        problem: Problem,
        params_P: Tensor,
        step: Any,
        streams: Streams,
        share: float,
        clip: Clip,
        on_step: Callable[[int], None] | None,
    ) -> None:
        import torch

        batch_size = self.expected_batch(problem.rows)
        sampler, draws = PoissonSampler(rows=problem.rows, batch_size=batch_size), streams.generator(seeds.SAMPLING)
        optimiser: torch.optim.Optimizer = (
            torch.optim.Adam([params_P]) if self.method == "adam" else torch.optim.SGD([params_P], lr=1.0, momentum=self.momentum)
        )
        for t in range(self.steps):
            optimiser.param_groups[0]["lr"] = step.learning_rate_at(clip, t, self.steps)
            batch = problem.batch(sampler.draw(draws))
            params_P.grad = _gradient(batch, problem, params_P, share * batch_size, clip)
            optimiser.step()
            if on_step is not None:
                on_step(t + 1)
        params_P.grad = None


def _gradient(batch: Batch, problem: Problem, params_P: Tensor, size: float, clip: Clip) -> Tensor:
    gradient_P = batch.sum(params_P, clip.factors).div_(size).to(params_P.dtype)
    problem.add_penalty_(gradient_P, params_P)
    return gradient_P
