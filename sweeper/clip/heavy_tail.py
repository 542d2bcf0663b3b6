"""A clip norm computed from a moment of the records' Lipschitz constants, by the theorems of Das et al. 2023."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper import checks, seeds
from sweeper.checks import FieldError
from sweeper.clip.base import check_norm
from sweeper.clip.fixed import FixedClip
from sweeper.clip.found import FoundClip
from sweeper.privacy.discrete_laplace import discrete_laplace
from sweeper.privacy.events import REPLACE_ONE, Event, Laplace, ReplaceOne
from sweeper.spec.protocols import Facts, Problem
from sweeper.spec.theory_numbers import s_of

if TYPE_CHECKING:
    from torch import Tensor

    from sweeper.seeds import BitSource, Streams

NEEDS = {"6.2": ("gamma",), "6.5": (), "N.1": ("gamma", "distance", "smoothness")}
_UNITS = 2**20  # a record's largest term, cap^k, in the sum


@dataclass(frozen=True, kw_only=True)
class HeavyTailClip(FoundClip):
    """Clip to the norm that a theorem on heavy tails gives for G, the k-th moment (E G_i^k)^(1/k) of the Lipschitz constants.

    With S = 1/T + phi^2 (sweeper/spec/theory_numbers.py). theorem 6.2 (convex): G gamma^(-1/k) S^(-1/(k+1)); 6.5 (convex, their
    Assumption 6.4): G S^(-1/(2k)), for T >= 1/phi^2, a shorter run leaves the theorem; N.1 (smooth):
    G (G / (gamma^2 C sqrt(L)))^(1/(2k-1)) S^(-1/(2(2k-1))). All theorems bound the uniformly random iterate.
    Guarantee: with `moment` (G, public) nothing is asked. Without it, mean of min(G_i, cap)^k over the public number of rows, with
    Laplace noise of scale cap^k / epsilon on the sum: epsilon-DP, and G is the k-th root of that, at least the noise's own scale.
    Relation: a record that appears, vanishes or is replaced moves the sum by at most cap^k, as each term lies in [0, cap^k]: one
    noise serves zero-out and replace-one.
    Source: Das et al. 2023, section 6 and appendix N; ALGORITHMS section 3.
    """

    theorem: str | float = "6.2"
    moment_order: float = 2.0  # k
    moment: float | None = None  # G, public; None: estimated from the rows
    epsilon: float = 0.1  # of the estimate
    cap: float | None = None  # of one record's constant in the estimate
    gamma: float | None = None
    distance: float | None = None  # C
    smoothness: float | None = None  # L
    kind: ClassVar[str] = "heavy-tail"
    searched: ClassVar[str] = "moment_order"
    example: ClassVar[str] = "{policy: heavy-tail, values: [2, 4], theorem: '6.2', gamma: 0.1, cap: 20.0, epsilon: 0.1}"
    costs: ClassVar[Mapping[str, int]] = {"epsilon": 1, "moment": 0}
    removes: ClassVar[str] = "the clip norm follows from a moment of the records' bounds"

    def __post_init__(self) -> None:
        if isinstance(self.theorem, float):  # how YAML reads 6.2 without quotes
            object.__setattr__(self, "theorem", str(self.theorem))
        checks.one_of(NEEDS, theorem=self.theorem)
        checks.real(1.0, 100.0, moment_order=self.moment_order)
        checks.real(1e-6, 500.0, epsilon=self.epsilon)
        for field in NEEDS[self.theorem]:
            if getattr(self, field) is None:
                raise FieldError(field, checks.MISSING, f"is missing: theorem {self.theorem} needs it", "Give it a public value.")
        for field in ("gamma", "distance", "smoothness"):
            if getattr(self, field) is not None and field not in NEEDS[self.theorem]:
                raise FieldError(field, getattr(self, field), f"has no part in theorem {self.theorem}", "Leave it out.")
            if getattr(self, field) is not None:
                checks.real(1e-12, 1e12, **{field: getattr(self, field)})
        if self.moment is not None:
            check_norm(moment=self.moment)
            if self.cap is not None:
                raise FieldError("cap", self.cap, "is of a moment estimated from the rows, and moment is given", "Leave one out.")
        elif self.cap is None:
            rule = "is missing: a moment estimated from the rows needs a bound on what one record adds"
            raise FieldError("cap", checks.MISSING, rule, "Give a public cap, or a public moment.")
        if self.cap is not None:
            check_norm(cap=self.cap)

    @property
    def lipschitz(self) -> bool:  # type: ignore[override]
        """Whether it needs the records' Lipschitz constants."""
        return self.moment is None

    def asks(self, rows: int, relation: str) -> Event | None:
        """The noisy sum of clipped powers, where no moment is given."""
        if self.moment is not None:
            return None
        asked = Laplace(1 / self.epsilon)
        return ReplaceOne(asked) if relation == REPLACE_ONE else asked

    def prepare(self, facts: Facts, problem: Problem, streams: Streams) -> FixedClip:
        moment = self.moment if self.moment is not None else self._estimated(facts, problem, streams.bits(seeds.PREPARE))
        return FixedClip(clip_norm=self.norm(moment, s_of(facts)))

    def norm(self, moment: float, s: float) -> float:
        """tau of G and S."""
        k = self.moment_order
        if self.theorem == "6.5":
            return float(moment * s ** (-1 / (2 * k)))
        assert self.gamma is not None
        if self.theorem == "6.2":
            return float(moment * self.gamma ** (-1 / k) * s ** (-1 / (k + 1)))
        assert self.distance is not None
        assert self.smoothness is not None
        ratio = moment / (self.gamma**2 * self.distance * math.sqrt(self.smoothness))
        return float(moment * ratio ** (1 / (2 * k - 1)) * s ** (-1 / (2 * (2 * k - 1))))

    def _estimated(self, facts: Facts, problem: Problem, bits: BitSource) -> float:
        """G. A record's term is rounded down to a whole number of cap^k / 2^20, so that sum and noise add up exactly.

        It counts the points of a public grid that its constant reaches, so that rounding cannot depend on other rows.
        """
        import torch

        assert self.cap is not None
        cap, k = self.cap, self.moment_order
        grid_J = torch.arange(1, _UNITS + 1, dtype=torch.float64).div_(_UNITS).pow_(1 / k).mul_(cap)

        def terms(constants_B: Tensor) -> Tensor:
            return torch.bucketize(constants_B, grid_J, right=True).unsqueeze(1)  # points at most the constant

        noisy = int(problem.lipschitz_sum(terms)[0]) + floored_laplace(bits, self.epsilon / _UNITS)
        mean = max(noisy / _UNITS, 1 / self.epsilon) / facts.rows
        return float(cap * mean ** (1 / k))


def floored_laplace(bits: BitSource, rate: float) -> int:
    """The largest whole number below a draw of density proportional to exp(-rate |x|): Laplace noise, drawn exactly.

    Guarantee: a whole-number sum plus this is the floor of the sum plus Laplace noise, so event `Laplace` covers it.
    Method: the floor of an exponential draw is geometric, and so is `discrete_laplace` where it is not negative.
    """
    while (size := discrete_laplace(bits, rate)) < 0:
        pass
    return -size - 1 if bits.randbits(1) else size
