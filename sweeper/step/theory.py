"""Step sizes that a theorem gives, from public numbers (Das et al. 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from sweeper import checks
from sweeper.checks import MISSING, FieldError
from sweeper.spec.protocols import Clip, Facts, Look
from sweeper.spec.theory_numbers import phi_squared, s_of
from sweeper.step.base import StepPolicy
from sweeper.step.fixed import FixedStep

THEOREMS = ("5.4", "6.2", "6.5", "N.1")


@dataclass(frozen=True, kw_only=True)
class TheoryStep(StepPolicy):
    """Step size C S^(-1/2) / (T tau) of a theorem of Das et al. 2023, with S = 1/T + phi^2 for the T steps that are run.

    C is the public distance (of the start from a best point; for N.1, the root of how far the loss may fall), tau the clip norm,
    phi^2 = sigma^2 d / (b^2 T) with the run's own noise. N.1 divides by sqrt(L) too. The theorems bound the loss of an iterate
    drawn uniformly (average: random), each at a clip norm of its own: 5.4 at one no larger than every gradient's bound, the others
    at that of policy heavy-tail. Theorem 6.5 needs T >= phi^-2: fewer steps leave it (`leaves_theorem`).
    No data is asked, so that it costs nothing.
    """

    theorem: str | float = "5.4"
    distance: float  # C
    smoothness: float | None = None  # L, of theorem N.1 alone
    kind: ClassVar[str] = "theory"
    removes: ClassVar[str] = "the step size follows from the clip norm, the noise and the number of steps"
    scaled: ClassVar[bool] = True
    searched: ClassVar[str] = "distance"
    example: ClassVar[str] = "{policy: theory, theorem: '5.4', range: [0.5, 8.0], scale: log}"

    def __post_init__(self) -> None:
        if isinstance(self.theorem, float):  # how YAML reads 5.4 without quotes
            object.__setattr__(self, "theorem", str(self.theorem))
        checks.one_of(THEOREMS, theorem=self.theorem)
        checks.positive(distance=self.distance)
        checks.real(1e-30, 1e30, distance=self.distance)
        if self.smoothness is not None:
            checks.positive(smoothness=self.smoothness)
            checks.real(1e-30, 1e30, smoothness=self.smoothness)
        if (self.smoothness is None) == (self.theorem == "N.1"):
            rule = "is missing: theorem N.1 divides by its root" if self.smoothness is None else "is of theorem N.1 alone"
            value = MISSING if self.smoothness is None else self.smoothness
            raise FieldError("smoothness", value, rule, "Give L, a public bound on the loss's curvature, with theorem: N.1 only.")

    def prepare(self, facts: Facts, clip: Clip) -> FixedStep:
        """The step size at this clip norm, number of steps and noise."""
        smoothness = 1.0 if self.smoothness is None else self.smoothness
        size = self.distance / math.sqrt(s_of(facts) * smoothness) / (facts.steps * clip.sensitivity)
        return FixedStep(learning_rate=size)

    def size(self, look: Look) -> float:
        raise RuntimeError("a step policy of kind theory has a size once it is prepared")


def leaves_theorem(facts: Facts) -> bool:
    """Whether T < phi^-2, as a cap on T may make it: theorem 6.5 does not speak of such a run."""
    return facts.steps * phi_squared(facts) < 1 - 1e-9  # T = phi^-2 itself stays, whichever way it was rounded
