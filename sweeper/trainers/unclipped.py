"""What the trainers share that clip no gradient: which policies they refuse, and what they ask of model and data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sweeper.checks import FieldError
from sweeper.privacy.events import ZERO_OUT, Event
from sweeper.spec.curvature import Curvature
from sweeper.spec.protocols import Clip, Fitted, Problem, Step

if TYPE_CHECKING:
    from torch import Tensor

    from sweeper.seeds import Streams


@dataclass(frozen=True, kw_only=True)
class Unclipped(ABC):
    """Base of the trainers that clip no gradient. Clip policy `none` alone goes with them.

    Relation: zero-out. The published sensitivities are those of a replaced record, who takes one term out and puts another in;
    a record that appears or vanishes moves half as much.
    """

    kind: ClassVar[str]
    example: ClassVar[str]
    no_clip: ClassVar[str]  # why no clip norm is used
    no_step: ClassVar[str]  # why another step policy is not

    @property
    def step_kinds(self) -> tuple[str, ...]:
        """Step policies that go with it."""
        return ("none",)

    @property
    def relation(self) -> str:
        return ZERO_OUT

    def expected_batch(self, rows: int) -> int:
        return rows

    @abstractmethod
    def event(self, rows: int, noise_multiplier: float, clip: Clip, step: Step) -> Event:
        """All that `fit` asks of the rows."""

    @abstractmethod
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
        """The answer. `on_step` hears the number of steps done, nothing else."""

    def faults(self, clip: Clip, step: Step) -> Iterator[FieldError]:
        """Why it does not run with these policies."""
        if not clip.absent:
            rule = f"has no part in trainer {self.kind}: {self.no_clip}"
            yield FieldError("space.clip.policy", clip.kind, rule, "Use policy: none.")
        if step.kind not in self.step_kinds:
            rule = f"has no part in trainer {self.kind}: {self.no_step}"
            yield FieldError("space.step.policy", step.kind, rule, f"Use policy: {' or '.join(self.step_kinds)}.")

    def assumes(self, spec: Any) -> Iterator[FieldError]:
        """What it needs of model and data that the spec does not promise."""
        yield from ()


def bounded(trainer: str, spec: Any) -> Iterator[FieldError]:
    """A convex loss whose gradients and curvature are bounded for every record there could be."""
    model, source = spec.model, spec.data.source
    if not hasattr(model, "curvature"):
        rule = f"does not go with trainer {trainer}, whose noise is scaled to what a record can do to a convex loss"
        yield FieldError("model.kind", model.kind, rule, "Use logistic, svm or softmax; or trainer dp-sgd.")
    elif not hasattr(model, "lipschitz"):
        rule = f"does not go with trainer {trainer}: its gradients grow with the parameters, and noise is scaled to a bound on them"
        yield FieldError("model.kind", model.kind, rule, "Use logistic, svm or softmax; or trainer dp-sgd, which clips.")
    elif source.description.norm_bound is None:
        rule = f"states no bound on the length of a row, to which trainer {trainer} scales its noise"
        yield FieldError("data.source", source.kind, rule, "Use a source with declared ranges; or trainer dp-sgd, which clips.")


def curvature_of(spec: Any) -> Curvature:
    """What model and source promise, once `bounded` found no fault."""
    found: Curvature = spec.model.curvature(spec.data.source.description.norm_bound)
    return found


def needed(trainer: str, problem: Problem) -> Curvature:
    """The same of a problem.

    Raises:
      FieldError: it promises nothing.
    """
    found = problem.curvature
    if found is None:
        rule = f"does not go with trainer {trainer}: nothing bounds what a record can do to a convex loss"
        raise FieldError("model.kind", getattr(getattr(problem, "model", None), "kind", None), rule, "Use trainer dp-sgd.")
    return found


def released_(params_P: Tensor, std: float, streams: Streams) -> Tensor:
    """Parameters in float64 with Gaussian noise of this standard deviation on each, as float32."""
    import torch

    from sweeper import seeds
    from sweeper.trainers.noise import gaussian_

    noise_P = gaussian_(torch.empty(len(params_P), dtype=torch.float32), std, streams.torch_generator(seeds.NOISE))
    return params_P.add_(noise_P.double()).float()
