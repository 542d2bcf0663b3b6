"""What every step policy is: a frozen noun that gives the step size of an iteration, and states what it asks of the minibatch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sweeper.privacy.events import Event
from sweeper.spec.protocols import Clip, Facts, Look


@dataclass(frozen=True, kw_only=True)
class StepPolicy(ABC):
    """Base of the step policies. One that asks nothing of data costs nothing: its sizes depend on public numbers alone."""

    kind: ClassVar[str]
    searched: ClassVar[str]
    example: ClassVar[str]
    costs: ClassVar[Mapping[str, int]] = {}  # see spec.protocols.Clip
    removes: ClassVar[str] = ""  # what need not be searched any more, for people
    absent: ClassVar[bool] = False  # stands for no policy: of trainers that find their own step sizes, or take no steps
    searches: ClassVar[bool] = False  # asks each minibatch something: a line search
    may_fail: ClassVar[bool] = False  # may say that no candidate helps, by a size of 0
    scaled: ClassVar[bool] = False  # its sizes are in units of the gradient's scale, which an optimiser may take out

    def event(self, noise_multiplier: float) -> Event | None:
        """What it asks of each minibatch, beside the gradient, when the whole step has this multiplier; None: nothing.

        Gradient and search look at ONE minibatch, so the two are composed inside its subsample.
        """
        return None

    def gradient_noise(self, noise_multiplier: float) -> float:
        """The multiplier that is left for the gradient when the whole step has this one."""
        return noise_multiplier

    def prepare(self, facts: Facts, clip: Clip) -> StepPolicy:
        """The policy to run with, once the clip policy has been prepared."""
        return self

    @abstractmethod
    def size(self, look: Look) -> float:
        """The step size of this iteration."""
