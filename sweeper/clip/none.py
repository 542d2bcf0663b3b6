"""No clipping, for trainers whose sensitivity comes from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper.clip.base import ClipPolicy

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class NoClip(ClipPolicy):
    """No clip norm: for trainers that bound what a record does by the model and the data, or that promise nothing.

    It guarantees nothing and has no sensitivity; trainers that scale noise to one refuse it.
    """

    kind: ClassVar[str] = "none"
    searched: ClassVar[str] = ""
    example: ClassVar[str] = "{policy: none}"
    absent: ClassVar[bool] = True

    @property
    def sensitivity(self) -> float:
        raise RuntimeError("clip policy none bounds nothing")

    def factors(self, squared_norms_BL: Tensor) -> Tensor:
        """1 for every record, 0 where a norm is not finite."""
        norms_B = squared_norms_BL.sum(dim=1)
        return norms_B.isfinite().to(norms_B.dtype)
