"""Clip every record's gradient to one fixed norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper.clip.base import MARGIN, ClipPolicy, check_norm

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class FixedClip(ClipPolicy):
    """Flat clipping: g * min(1, clip_norm / ||g||), the norm taken over all layers together.

    Guarantee: one record's term has norm at most clip_norm, floating-point rounding of the factor included.
    Relation: zero-out (a null record's term is 0).  A record whose norm is not finite gets factor 0; a zero gradient gets 1.
    Source: Abadi et al. 2016, Algorithm 1.
    """

    clip_norm: float
    kind: ClassVar[str] = "fixed"
    searched: ClassVar[str] = "clip_norm"
    example: ClassVar[str] = "{policy: fixed, range: [0.05, 2.0], scale: log}"

    def __post_init__(self) -> None:
        check_norm(clip_norm=self.clip_norm)

    @property
    def sensitivity(self) -> float:
        return self.clip_norm

    def factors(self, squared_norms_BL: Tensor) -> Tensor:
        """Factors [B] in [0, 1]."""
        return flat_factors(squared_norms_BL, self.clip_norm)


def flat_factors(squared_norms_BL: Tensor, clip_norm: float) -> Tensor:
    """min(1, clip_norm / ||g||) for each record, 0 where the norm is not finite."""
    norms_B = squared_norms_BL.sum(dim=1).sqrt_()
    return norms_B.reciprocal_().mul_(clip_norm * (1.0 - MARGIN)).clamp_(max=1.0).nan_to_num_(nan=0.0)
