"""Objective perturbation: noise in the objective, which is then minimised (Kifer et al. 2012; Iyengar et al. 2019)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from sweeper import checks, seeds
from sweeper.checks import FieldError
from sweeper.privacy.event import LEAST_NOISE
from sweeper.privacy.events import ApproximateDp, Composed, Event, Gaussian
from sweeper.privacy.mechanisms import LARGEST_EPSILON
from sweeper.seeds import Streams
from sweeper.spec.curvature import Curvature
from sweeper.spec.protocols import Clip, Fitted, Problem, Step
from sweeper.trainers.unclipped import Unclipped, bounded, curvature_of, needed, released_

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCE_NOISE = 10.0  # multiplier of the noise that hides what the solver left over, in units of that of the objective


class Objective(NamedTuple):
    """(1/N) sum_i f_i + penalty + (ridge / 2N) ||w||^2 + <b, w> / N: its public numbers."""

    size: float  # N: share of the rows
    ridge: float
    strong: float  # least second derivative
    smooth: float  # largest


@dataclass(frozen=True, kw_only=True)
class ObjectivePerturbation(Unclipped):
    """Minimise the loss plus a random linear term, to a tolerance fixed beforehand (Kifer et al. 2012; Iyengar et al. 2019).

    Objective: (1/n) sum f_i + penalty + (Lambda/2n) ||w||^2 + <b, w>/n, b ~ N(0, s^2 I), s = z L. Its minimiser is (e0, d0)-DP, d0
    the field `delta`, e0 the one for which s = L sqrt(8 log(2/d0) + 4 e0) / e0, so e0 = (2 + sqrt(4 + 8 z^2 log(2/d0))) / z^2, and
    n gamma + Lambda >= 2 beta / e0 (gamma: of the penalty).
    Proof, zero-out: w is the minimiser for b = -(sum grad f_i + n grad penalty + Lambda w), one for each b. A record adds a matrix
    of rank one and size at most beta to the Jacobian, which is at least (n gamma + Lambda) I: the determinants' ratio is in
    [1, 1 + e0/2]. It moves b by c [x, 1] / ||[x, 1]||, |c| <= L: but for a set of mass d0, where b along [x, 1] is beyond t s with
    t = sqrt(2 log(2/d0)), densities of b change by at most L t / s + L^2 / (2 s^2) <= e0/2 in log. QED
    Hence one logit alone: softmax has Jacobians of higher rank, and no fixed direction. (Where a Huber hinge bends, second
    derivatives are missing on a set of measure 0 only, and the map is Lipschitz both ways.)
    Solver: accelerated gradient descent from 0 in float64, as many steps as its theorem wants for ||grad|| <= g = tolerance L / n.
    What is left lies within g / (gamma + Lambda/n) of the minimiser, so that Gaussian noise of TOLERANCE_NOISE z times twice that
    pays for it.
    Guarantee: ApproximateDp(e0, d0) and Gaussian(TOLERANCE_NOISE z), for the vector returned and nothing else. Relation: zero-out
    (the papers': a replaced record, for which L is to be doubled).
    """

    delta: float = 1e-7  # d0
    tolerance: float = 1e-4
    steps: ClassVar[int] = 1
    kind: ClassVar[str] = "objective-perturbation"
    example: ClassVar[str] = "{kind: objective-perturbation}"
    no_clip: ClassVar[str] = "its noise is scaled to what the model bounds"
    no_step: ClassVar[str] = "how it solves its objective follows from public numbers"

    def __post_init__(self) -> None:
        checks.real(1e-15, 1e-3, delta=self.delta)
        checks.real(1e-8, 1e-1, tolerance=self.tolerance)

    def epsilon(self, noise_multiplier: float) -> float:
        """e0."""
        square = max(noise_multiplier, LEAST_NOISE) ** 2
        return (2.0 + math.sqrt(4.0 + 8.0 * square * math.log(2.0 / self.delta))) / square

    def event(self, rows: int, noise_multiplier: float, clip: Clip, step: Step) -> Event:
        epsilon = self.epsilon(noise_multiplier)
        if noise_multiplier < LEAST_NOISE or epsilon > LARGEST_EPSILON:
            return Gaussian(0.0)  # nothing is promised
        return Composed((ApproximateDp(epsilon, self.delta), Gaussian(TOLERANCE_NOISE * noise_multiplier)))

    def objective(self, rows: int, curvature: Curvature, noise_multiplier: float, share: float = 1.0) -> Objective:
        size = share * rows
        ridge = max(0.0, 2.0 * curvature.smoothness / self.epsilon(noise_multiplier) - size * curvature.strong)
        strong = curvature.strong + ridge / size
        return Objective(size, ridge, strong, curvature.smoothness / share + curvature.penalty + ridge / size)

    def left_over(self, curvature: Curvature, objective: Objective) -> float:
        """Twice how far from the minimiser the solver may stop: what one record moves the difference by (zero-out)."""
        return 2.0 * self.tolerance * curvature.lipschitz / objective.size / objective.strong

    def assumes(self, spec: Any) -> Iterator[FieldError]:
        faults = list(bounded(self.kind, spec))
        yield from faults
        if not faults and not curvature_of(spec).rank_one:
            rule = f"is refused in trainer {self.kind}: its proof needs a loss of one logit, whose curvature is of rank one"
            yield FieldError("model.kind", spec.model.kind, rule, "Use logistic or svm, or another trainer.")
        if self.delta >= spec.privacy.delta:
            rule = f"must be well below privacy.delta = {spec.privacy.delta:g}, of which it is a part"
            yield FieldError("trainer.delta", self.delta, rule, f"Try {spec.privacy.delta / 10:.0e}.")

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
        """share: of the rows that the problem lets into a batch; the loss is divided by share * rows."""
        import numpy as np

        curvature, nonfinite = needed(self.kind, problem), problem.nonfinite
        if not curvature.rank_one:
            raise FieldError("model.kind", None, f"has more than one logit, which trainer {self.kind} has no proof for", "Use svm.")
        objective = self.objective(problem.rows, curvature, noise_multiplier, share)
        start_P = problem.start(streams).double().zero_()
        draws = streams.torch_generator(seeds.PREPARE)
        pull_P = start_P.new_empty(start_P.shape).normal_(generator=draws).mul_(noise_multiplier * curvature.lipschitz)
        everybody = problem.batch(np.arange(problem.rows))

        def gradient(params_P: Tensor) -> Tensor:
            found_P = everybody.exact_sum(params_P).add_(pull_P).add_(params_P, alpha=objective.ridge).div_(objective.size)
            problem.add_penalty_(found_P, params_P)
            return found_P

        first = curvature.lipschitz / share + float(pull_P.norm()) / objective.size  # bound on the gradient at 0
        passes = passes_for(objective, first, self.tolerance * curvature.lipschitz / objective.size)
        params_P = minimised(gradient, start_P, objective, passes)
        if on_step is not None:
            on_step(1)
        std = TOLERANCE_NOISE * noise_multiplier * self.left_over(curvature, objective)
        sealed = {"steps": passes, "nonfinite": problem.nonfinite - nonfinite}
        return Fitted(released_(params_P, std, streams), sealed, {}, {})


def passes_for(objective: Objective, first: float, wanted: float) -> int:
    """Steps after which accelerated descent from a gradient of norm `first` has one of at most `wanted`.

    Nesterov 2004, Theorem 2.2.3 (constant step): F(w_k) - F* <= (1 - 1/sqrt(kappa))^k (F(0) - F* + strong/2 ||w*||^2), which is at
    most first^2 / strong; and ||grad||^2 <= 2 smooth (F - F*).
    """
    kappa = objective.smooth / objective.strong
    gap = math.log(2.0 * kappa) + 2.0 * math.log(first / wanted)
    return max(1, math.ceil(gap / -math.log1p(-1.0 / math.sqrt(kappa)))) if kappa > 1.0 + 1e-9 else 1


def minimised(gradient: Callable[[Tensor], Tensor], start_P: Tensor, objective: Objective, passes: int) -> Tensor:
    """Accelerated gradient descent at constant momentum, for strongly convex functions."""
    root = math.sqrt(objective.strong / objective.smooth)
    momentum = (1.0 - root) / (1.0 + root)
    params_P, ahead_P = start_P.clone(), start_P.clone()
    for _ in range(passes):
        next_P = ahead_P - gradient(ahead_P) / objective.smooth
        ahead_P = next_P + momentum * (next_P - params_P)
        params_P = next_P
    return params_P
