"""Clip each layer's part of a record's gradient to a norm of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.clip.base import MARGIN, ClipPolicy, check_norm
from sweeper.spec.protocols import Facts, Problem

if TYPE_CHECKING:
    from torch import Tensor

    from sweeper.seeds import Streams


@dataclass(frozen=True, kw_only=True)
class PerLayerClip(ClipPolicy):
    """Clip each layer's part of a record's gradient to its own norm; clip_norm is that of all layers together.

    split equal: layer l gets clip_norm / sqrt(L); by-size: clip_norm * sqrt(P_l / P), P_l its number of parameters. Or give
    clip_norms, one for each layer (weights, biases, ... in the order of the problem), instead of clip_norm.
    Guarantee: one record's term has norm at most sqrt(sum of clip_norms^2), rounding of the factors included; every coordinate of
    every layer gets noise scaled to that whole.
    Relation: zero-out.  A record with a norm that is not finite gets factor 0 in every layer.
    Source: McMahan et al. 2018, "Learning differentially private recurrent language models".
    """

    clip_norm: float | None = None
    split: str = "equal"
    clip_norms: tuple[float, ...] | None = None
    kind: ClassVar[str] = "per-layer"
    searched: ClassVar[str] = "clip_norm"
    example: ClassVar[str] = "{policy: per-layer, range: [0.05, 2.0], scale: log, split: by-size}"
    by_layer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.one_of(("equal", "by-size"), split=self.split)
        if self.clip_norms is None:
            if self.clip_norm is None:
                raise FieldError("clip_norm", checks.MISSING, "is missing", f"Give value: or range:, as in {self.example}.")
            check_norm(clip_norm=self.clip_norm)
            return
        if self.clip_norm is not None:
            rule = "and clip_norms are both given: the norm of all layers together follows from those of the layers"
            raise FieldError("clip_norm", self.clip_norm, rule, "Keep one of them.")
        if not isinstance(self.clip_norms, tuple) or not self.clip_norms:
            raise FieldError("clip_norms", self.clip_norms, "must be a list of numbers, one for each layer")
        for norm in self.clip_norms:
            check_norm(clip_norms=norm)

    @property
    def sensitivity(self) -> float:
        if self.clip_norms is not None:
            return math.hypot(*self.clip_norms)
        assert self.clip_norm is not None
        return self.clip_norm

    def prepare(self, facts: Facts, problem: Problem, streams: Streams) -> PerLayerClip:
        """The policy with a norm for each layer of the problem. The layers' sizes are public."""
        sizes = problem.layers
        if self.clip_norms is None:
            assert self.clip_norm is not None
            shares = [1 / len(sizes) if self.split == "equal" else size / sum(sizes) for size in sizes]
            return replace(self, clip_norm=None, clip_norms=tuple(self.clip_norm * math.sqrt(share) for share in shares))
        if len(self.clip_norms) != len(sizes):
            raise FieldError(
                "clip_norms",
                list(self.clip_norms),
                f"must be one for each of the {len(sizes)} layers, of {_listed(sizes)} parameters",
            )
        return self

    def factors(self, squared_norms_BL: Tensor) -> Tensor:
        """Factors [B, L] in [0, 1]."""
        if self.clip_norms is None:
            raise RuntimeError("clip policy per-layer knows no layers before prepare(); use what prepare() returns")
        aims_L = squared_norms_BL.new_tensor(self.clip_norms).mul_(1.0 - MARGIN)
        finite_B1 = squared_norms_BL.sum(dim=1, keepdim=True).isfinite()
        factors_BL = squared_norms_BL.sqrt().reciprocal_().mul_(aims_L).clamp_(max=1.0)
        return factors_BL.masked_fill_(~finite_B1, 0.0)


def _listed(sizes: tuple[int, ...]) -> str:
    return ", ".join(f"{size:,}" for size in sizes[:8]) + (", ..." if len(sizes) > 8 else "")
