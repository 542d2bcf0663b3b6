"""Step policies that keep what they were shown: noisy gradients, parameters and budgets of every step of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch

from sweeper.privacy.events import ExponentialMechanism
from sweeper.spec.protocols import Look
from sweeper.step.fixed import FixedStep
from sweeper.step.search import LineSearch


@dataclass
class Heard:
    """What one run showed."""

    gradients: list[torch.Tensor] = field(default_factory=list)
    params: list[torch.Tensor] = field(default_factory=list)
    epsilons: list[float] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)

    def hear(self, look: Look) -> None:
        self.gradients.append(look.gradient_P.clone())
        self.params.append(look.params_P.clone())


@dataclass(frozen=True, kw_only=True)
class HeardStep(FixedStep):
    """A fixed step that listens."""

    heard: Heard = field(default_factory=Heard, compare=False, repr=False)

    def size(self, look: Look) -> float:
        self.heard.hear(look)
        return super().size(look)


@dataclass(frozen=True, kw_only=True)
class HeardSearch(LineSearch):
    """A search with an epsilon-bounded-range price whose answers are written beforehand: all of them `size`, or one by one."""

    step: float = 0.5
    answers: Iterator[float] | None = field(default=None, compare=False, repr=False)
    heard: Heard = field(default_factory=Heard, compare=False, repr=False)
    kind: ClassVar[str] = "heard-search"
    may_fail: ClassVar[bool] = True

    def event_of(self, epsilon: float) -> ExponentialMechanism:
        return ExponentialMechanism(epsilon)

    def scores(self, look: Look, bound: float) -> np.ndarray:
        return np.zeros(self.candidates)

    def search(self, look: Look, epsilon: float, bound: float) -> float:
        self.heard.hear(look)
        self.heard.epsilons.append(epsilon)
        self.heard.bounds.append(bound)
        return self.step if self.answers is None else next(self.answers)
