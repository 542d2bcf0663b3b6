"""A clip norm read off public rows: a percentile of the records' Lipschitz constants."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.clip.fixed import FixedClip
from sweeper.clip.found import FoundClip, counts_at_most
from sweeper.spec.protocols import Facts, Problem

if TYPE_CHECKING:
    from sweeper.seeds import Streams

_CUTS = 256  # numbers that are counted against in one pass over the rows: 8 bits of the answer


@dataclass(frozen=True, kw_only=True)
class PercentileClip(FoundClip):
    """Clip to a percentile of the records' Lipschitz constants, read off public rows without noise.

    Guarantee: none for the rows it reads; refused on private data. The norm is the smallest constant that at least `percentile`
    percent of the records do not exceed (no interpolation): 0 is the least constant, 100 the largest, at which nothing is clipped.
    Source: Das et al. 2023, section 5.2.
    """

    percentile: float
    kind: ClassVar[str] = "percentile"
    searched: ClassVar[str] = "percentile"
    example: ClassVar[str] = "{policy: percentile, range: [10, 90]}"
    public_only: ClassVar[bool] = True
    lipschitz: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.real(0.0, 100.0, percentile=self.percentile)

    def prepare(self, facts: Facts, problem: Problem, streams: Streams) -> FixedClip:
        """The percentile by counting. A record without a finite constant is not counted, nor is a null record."""
        records = counts_at_most(problem, [math.inf])[0]
        if records == 0:
            raise FieldError("percentile", self.percentile, "is of the training rows, and none of them has a Lipschitz constant")
        return FixedClip(clip_norm=order_statistic(problem, max(1, math.ceil(self.percentile * records / 100))))


def order_statistic(problem: Problem, rank: int) -> float:
    """The rank-th smallest Lipschitz constant, 1 the smallest, to the last bit of float64; only counts leave the problem.

    Bisection over the bits of a float64, which are ordered as the numbers are.
    """
    low, high = 0, _bits(math.inf)  # the answer's bits lie in [low, high]
    while low < high:
        cuts = sorted({low + (high - low) * cut // _CUTS for cut in range(_CUTS)})
        counts = counts_at_most(problem, [_value(cut) for cut in cuts])
        enough = next((place for place, count in enumerate(counts) if count >= rank), len(cuts))
        if enough < len(cuts):
            high = cuts[enough]
        if enough > 0:
            low = cuts[enough - 1] + 1
    return _value(low)


def _bits(value: float) -> int:
    found: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return found


def _value(bits: int) -> float:
    found: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return found
