"""What the policies share that find their norm once, before the first step, on the records' Lipschitz constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper.clip.base import ClipPolicy
from sweeper.spec.protocols import Problem

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class FoundClip(ClipPolicy):
    """Base of the policies whose `prepare` gives a fixed clip to run with. Before that they have no norm."""

    known: ClassVar[bool] = False

    @property
    def sensitivity(self) -> float:
        raise self._unprepared()

    def factors(self, squared_norms_BL: Tensor) -> Tensor:
        raise self._unprepared()

    def _unprepared(self) -> RuntimeError:
        return RuntimeError(f"clip policy {self.kind} has no norm before prepare() has found one; use what prepare() returns")


def counts_at_most(problem: Problem, values: Sequence[float]) -> list[float]:
    """How many records have a Lipschitz constant of at most each value. Null records are not counted."""

    def terms(constants_B: Tensor) -> Tensor:
        return constants_B[:, None] <= constants_B.new_tensor(values)

    return [float(count) for count in problem.lipschitz_sum(terms).tolist()]
