"""What every clip policy is: a frozen noun that turns norms into factors and states the sensitivity that they guarantee.

A policy never changes. Where a run finds a clip norm (before the first step, or on the way), it gives the next policy. What a
policy asks of data it states as an event, so that the price can be known before any data is opened.
Shapes: B records of a chunk, L layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from sweeper import checks
from sweeper.privacy.events import Event, Gaussian
from sweeper.spec.protocols import Facts, Problem

if TYPE_CHECKING:
    from torch import Tensor

    from sweeper.seeds import Streams

# Norms reach a policy in float32, off by up to about 1e-6 of themselves (sums over 10 to 1,000 logits, roots, products). And a
# float32 sum moves by more than the term that joins it, because every later addition may round another way: over B terms of norm
# at most t, a sum in any order is off by at most (B - 1) B 2^-24 t, and so is the sum without the term. Backends therefore add at
# most BLOCK terms in float32, the blocks in float64, and noise before anything is rounded to float32 again. Aiming MARGIN lower
# keeps what a record moves a sum by at or below what is stated; the noise is still scaled to what is stated.
BLOCK = 128
MARGIN = 2 * BLOCK**2 * 2.0**-24 + 2.0**-19
SHORTEST = 1e-12  # length that a float32 sum of squares tells from 0, however many coordinates fall below float32's range
LONGEST = 1e30  # beyond, float32 loses the noise


@dataclass(frozen=True, kw_only=True)
class ClipPolicy(ABC):
    """Base of the clip policies. Sensitivity is that of ONE record's term appearing or vanishing (zero-out)."""

    kind: ClassVar[str]
    searched: ClassVar[str]
    example: ClassVar[str]
    costs: ClassVar[Mapping[str, int]] = {}  # see spec.protocols.Clip
    removes: ClassVar[str] = ""  # what need not be searched any more, for people
    known: ClassVar[bool] = True  # the sensitivity, before data is opened
    public_only: ClassVar[bool] = False  # reads data without noise
    lipschitz: ClassVar[bool] = False  # needs the records' Lipschitz constants
    by_layer: ClassVar[bool] = False
    counts: ClassVar[bool] = False
    absent: ClassVar[bool] = False  # stands for no policy: of trainers that clip no gradient
    raises: ClassVar[bool] = False  # moves when a trainer raises its gradient budget

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """Largest norm of one record's term. Of a policy that finds its norm on data: after `prepare` only."""

    @abstractmethod
    def factors(self, squared_norms_BL: Tensor) -> Tensor:
        """Factors [B], or [B, L] where by_layer; 0 where a norm is not finite."""

    def sum_event(self, noise_multiplier: float) -> Event:
        """The event of one noisy sum, with all that the policy asks beside it, at this multiplier of the whole."""
        return Gaussian(noise_multiplier)

    def sum_noise(self, noise_multiplier: float) -> float:
        """The multiplier of the sum's own noise, in units of `sensitivity`, when the whole has this multiplier."""
        return noise_multiplier

    def asks(self, rows: int, relation: str) -> Event | None:
        """What `prepare` asks of the training rows, once; None: nothing."""
        return None

    def prepare(self, facts: Facts, problem: Problem, streams: Streams) -> ClipPolicy:
        """The policy to start with."""
        return self

    def at(self, step: int, steps: int) -> ClipPolicy:
        """The policy at step 0, ..., steps - 1."""
        return self

    def counted(self, squared_norms_BL: Tensor) -> Tensor:
        """Where `counts`: a number [B] in [-1/2, 1/2] per record, summed with noise of standard deviation `count_std`."""
        raise NotImplementedError(self.kind)

    def count_std(self, noise_multiplier: float) -> float:
        raise NotImplementedError(self.kind)

    def moved(self, mean_count: float) -> Self:
        """The policy after a noisy count, divided by the public batch size."""
        return self

    def raised(self) -> Self:
        """The policy after a trainer raised its gradient budget."""
        return self


def check_norm(**fields: Any) -> None:
    """A clip norm that float32 can keep: from SHORTEST to LONGEST."""
    checks.positive(**fields)
    checks.real(SHORTEST, LONGEST, **fields)
