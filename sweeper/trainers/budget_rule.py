"""How DP-BLSGD's budgets move after a search that failed: what the noisy gradients say, what is raised, how it comes back down.

Budgets are multiples of the starting ones: of the gradient's rho (its noise multiplier is divided by the root), of the search's
epsilon. Everything here reads released values alone.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweeper import checks

if TYPE_CHECKING:
    from torch import Tensor

BUDGETS = ("never", "always", "angle")
ANEW, REFINE, AGAIN = "anew", "refine", "again"  # what comes next: a new iteration; more gradient, then a search; a search


@dataclass(frozen=True)
class Budgets:
    """Multiples of the starting budgets, at least 1."""

    gradient: float = 1.0
    search: float = 1.0


@dataclass(frozen=True, kw_only=True)
class BudgetRule:
    """Chen and Lee 2020, as ALGORITHMS.md section 4 states it.

    never: no budget moves, and a search that failed ends its iteration. always: each failure raises the gradient's.
    angle: by phi, the mean angle between consecutive noisy gradients over the last `window` iterations, this one included.
    phi > angle_high: directions disagree, so the gradient's is raised. phi < angle_low: the search is what is noisy, so its own
    is raised. Between the two, and where there is no angle yet: a new iteration.
    """

    budget: str = "angle"
    gradient_raise: float = 0.3  # xi: a raise multiplies rho_grad by 1 + xi
    search_raise: float = 1.2  # varsigma: a raise multiplies eps_BT by it
    relax: float = 0.8  # psi: a success multiplies both by it, down to the start and no further
    window: int = 10  # tau, iterations
    angle_high: float = 1.1  # radians
    angle_low: float = 0.5

    def __post_init__(self) -> None:
        checks.one_of(BUDGETS, budget=self.budget)
        checks.real(0.0, 100.0, open_low=True, gradient_raise=self.gradient_raise)
        checks.real(1.0, 100.0, open_low=True, search_raise=self.search_raise)
        checks.real(0.0, 1.0, open_low=True, relax=self.relax)
        checks.whole(1, 10_000, window=self.window)
        checks.real(0.0, math.pi, angle_high=self.angle_high)
        checks.real(0.0, self.angle_high, angle_low=self.angle_low)

    @property
    def moves(self) -> tuple[str, ...]:
        """What may follow a failure but a new iteration."""
        return {"never": (), "always": (REFINE,), "angle": (REFINE, AGAIN)}[self.budget]

    def after_failure(self, angle: float | None) -> str:
        if self.budget == "angle":
            if angle is None or self.angle_low <= angle <= self.angle_high:
                return ANEW
            return REFINE if angle > self.angle_high else AGAIN
        return REFINE if self.budget == "always" else ANEW

    def raised(self, budgets: Budgets, move: str) -> Budgets:
        """The budgets with which a move is made."""
        if move == REFINE:
            return Budgets(budgets.gradient * (1 + self.gradient_raise), budgets.search)
        return Budgets(budgets.gradient, budgets.search * self.search_raise) if move == AGAIN else budgets

    def asked(self, budgets: Budgets, move: str) -> float | None:
        """Of the gradient, as a multiple of the starting rho, when `move` was made and led to these budgets; None: nothing."""
        if move == AGAIN:
            return None
        return budgets.gradient if move == ANEW else budgets.gradient * self.gradient_raise / (1 + self.gradient_raise)

    def relaxed(self, budgets: Budgets) -> Budgets:
        """After a success: b <- max(start, psi b)."""
        return Budgets(max(1.0, self.relax * budgets.gradient), max(1.0, self.relax * budgets.search))


class Angles:
    """Angles between the noisy gradients of consecutive iterations, in radians."""

    def __init__(self, window: int) -> None:
        self._found: deque[float] = deque(maxlen=window)
        self._last_P: Tensor | None = None

    def mean(self, gradient_P: Tensor) -> float | None:
        """phi over the last iterations, the one of this gradient included; None in the first."""
        if self._last_P is None:
            return None
        known = [*self._found, angle(self._last_P, gradient_P)][-(self._found.maxlen or 1) :]
        return sum(known) / len(known)

    def hear(self, gradient_P: Tensor) -> None:
        """The last gradient of an iteration that is over."""
        if self._last_P is not None:
            self._found.append(angle(self._last_P, gradient_P))
        self._last_P = gradient_P


def angle(one_P: Tensor, other_P: Tensor) -> float:
    """In [0, pi]; a right angle where it is not defined."""
    one_P, other_P = one_P.double(), other_P.double()
    cosine = float(one_P.dot(other_P) / (one_P.norm() * other_P.norm()))
    return math.acos(min(max(cosine, -1.0), 1.0)) if math.isfinite(cosine) else math.pi / 2
