"""Scale every record's gradient to about length 1, so that no clip norm is left to tune."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.clip.base import MARGIN, SHORTEST, ClipPolicy

if TYPE_CHECKING:
    from torch import Tensor

RULES = ("dp-nsgd", "auto-s", "auto-v")
_AUTO_S = 0.01


@dataclass(frozen=True, kw_only=True)
class Normalise(ClipPolicy):
    """Scale every record's gradient g to g / (r + ||g||), or by another rule that leaves no clip norm to tune.

    rule dp-nsgd: factor 1 / (r + ||g||). auto-s: the same with r = 0.01. auto-v: 1 / ||g||, and 0 for g = 0 (for ||g|| below
    1e-12, whose length float32 does not tell).
    Guarantee: one record's term has norm at most 1, floating-point rounding of the factor included.
    Relation: zero-out (a null record's term is 0).  A record whose norm is not finite gets factor 0.
    Source: Yang, Zhang, Chen, Liu 2022, Algorithm 1 (dp-nsgd); Bu, Wang, Zha, Karypis 2023 (auto-s, auto-v).
    """

    r: float = _AUTO_S  # regulariser, same unit as a gradient's norm
    rule: str = "dp-nsgd"
    kind: ClassVar[str] = "normalise"
    searched: ClassVar[str] = "r"
    example: ClassVar[str] = "{policy: normalise, range: [0.0001, 1.0], scale: log}"
    removes: ClassVar[str] = "no clip norm is left to search"

    def __post_init__(self) -> None:
        checks.positive(r=self.r)
        checks.real(SHORTEST, 1e12, r=self.r)
        checks.one_of(RULES, rule=self.rule)
        if self.rule != "dp-nsgd" and self.r != _AUTO_S:
            what = f"is {_AUTO_S} in rule auto-s" if self.rule == "auto-s" else "has no part in rule auto-v"
            raise FieldError("r", self.r, f"is not free: it {what}", "Leave it out, or use rule: dp-nsgd.")

    @property
    def sensitivity(self) -> float:
        return 1.0

    def factors(self, squared_norms_BL: Tensor) -> Tensor:
        """Factors [B], at most 1 / r (auto-v: at most 1e12)."""
        norms_B = squared_norms_BL.sum(dim=1).sqrt_()
        if self.rule != "auto-v":
            return norms_B.add_(self.r).reciprocal_().mul_(1.0 - MARGIN).nan_to_num_(nan=0.0)
        short_B = norms_B < SHORTEST
        return norms_B.reciprocal_().mul_(1.0 - MARGIN).masked_fill_(short_B, 0.0).nan_to_num_(nan=0.0)
