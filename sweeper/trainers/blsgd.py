"""DP-BLSGD, DP-BLSGD-AC and DP-BLGD: gradient descent by private backtracking line search (Chen and Lee 2020, Alg. 2 and 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.data.sampling import PoissonSampler
from sweeper.trainers.line_searched import LineSearched

if TYPE_CHECKING:
    import numpy


@dataclass(frozen=True, kw_only=True)
class DpBlsgd(LineSearched):
    """Noisy minibatch gradients, a private line search along each, budgets raised where it finds no step (Chen and Lee 2020).

    Guarantee and relation: those of `LineSearched`, by a Renyi filter whose round is one Poisson minibatch. `steps` is how many
    rounds the budget pays for at the starting budgets; raised ones end the run sooner. retries: R attempts on one minibatch,
    charged in full before the first; by default each retry draws a minibatch of its own.
    """

    batch_size: int
    sampling: str = "poisson"
    retries: int | None = None
    kind: ClassVar[str] = "dp-blsgd"
    example: ClassVar[str] = "{kind: dp-blsgd, batch_size: 256, steps: 200, budget: angle}"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole(1, batch_size=self.batch_size)
        if self.sampling != "poisson":
            raise FieldError(
                "sampling",
                self.sampling,
                f"is refused: trainer {self.kind} is priced for Poisson minibatches only",
                "Use sampling: poisson.",
            )
        if self.retries is not None:
            checks.whole(2, 20, retries=self.retries)
            if self.budget == "never":
                raise FieldError("retries", self.retries, "has no use: budget: never tries nothing again", "Leave it out.")

    @property
    def attempts(self) -> int | None:  # type: ignore[override]
        """On one minibatch; None: one, and a retry is a round of its own."""
        return self.retries

    def expected_batch(self, rows: int) -> int:
        return self.batch_size

    def draw(self, rows: int, generator: numpy.random.Generator) -> Any:
        return PoissonSampler(rows=rows, batch_size=self.batch_size).draw(generator)


@dataclass(frozen=True, kw_only=True)
class DpBlsgdAc(DpBlsgd):
    """DP-BLSGD whose clip norm and loss bound come down together whenever the gradient's budget goes up, once per update."""

    kind: ClassVar[str] = "dp-blsgd-ac"
    example: ClassVar[str] = "{kind: dp-blsgd-ac, batch_size: 256, steps: 200}"
    raises_clip: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class DpBlgd(LineSearched):
    """DP-BLSGD on the whole table at every step; each search without a step raises the gradient's budget.

    Guarantee and relation: those of `LineSearched`. Nothing is subsampled, so that the filter is on zCDP, at all orders at once.
    """

    budget: str = "always"
    kind: ClassVar[str] = "dp-blgd"
    example: ClassVar[str] = "{kind: dp-blgd, steps: 50}"

    def expected_batch(self, rows: int) -> int:
        return rows

    def draw(self, rows: int, generator: numpy.random.Generator) -> Any:
        import numpy as np

        return np.arange(rows)
