"""What protocols that draw their number of runs in secret share: the fields that name its law, checked and filled in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy.laws import LAWS, PARAMETERS, RunCountLaw, run_count_law

AUTO = "auto"
MEAN_TRIALS = 12.0
TOP = 0.1
OF_AUTO = ("chance", "top", "max_epsilon")
OF_OTHERS = ("eta", "mean_trials", "trials", "probability")


@dataclass(frozen=True, kw_only=True)
class DrawnRuns:
    """The law of the secret number K of runs. Candidates are drawn i.i.d. with replacement, which its price counts on."""

    law: str = "tnb"  # tnb, logarithmic (eta 0), geometric (eta 1), binomial, fixed, poisson, or auto: chosen while planning
    eta: float | None = None  # shape of tnb; default 1
    mean_trials: float | None = None  # mean of K before conditioning on K <= max_trials; default 12
    max_trials: int | None = None  # default: five times the mean; of auto: no law that may make more
    trials: int | None = None  # of binomial: the most runs; of fixed: the number of runs
    probability: float | None = None  # of binomial, instead of mean_trials
    may_return_nothing: bool | None = None  # of poisson: true says that no run and no answer is accepted as a result
    chance: float | None = None  # of auto: the smallest chance to see a candidate of the best `top` of the space
    top: float | None = None  # of auto; default 0.1
    max_epsilon: float | None = None  # of auto, instead of chance: the largest bill at the given noise
    release_every: float | None = None  # seconds: release at the next multiple of this after the start, so that time hides K

    def __post_init__(self) -> None:
        checks.one_of((*LAWS, AUTO), law=self.law)
        if self.release_every is not None:
            checks.positive(release_every=self.release_every)
        self._check_nothing()
        if self.law == AUTO:
            self._check_auto()
            return
        for field in OF_AUTO:
            if getattr(self, field) is not None:
                raise FieldError(field, getattr(self, field), f"belongs to law auto, not {self.law}", "Leave it out.")
        if self.mean_trials is not None:
            checks.real(0.0 if self.law == "poisson" else 1.0, 10_000.0, open_low=True, mean_trials=self.mean_trials)
        self._fill_in()
        law = self.run_counts()
        object.__setattr__(self, "max_trials", law.max_trials)

    def _check_nothing(self) -> None:
        if self.may_return_nothing is not None:
            checks.flag(may_return_nothing=self.may_return_nothing)
            if not self.may_return_nothing:
                object.__setattr__(self, "may_return_nothing", None)
        if self.may_return_nothing and self.law != "poisson":
            rule = f"belongs to law poisson: law {self.law} always makes a run"
            raise FieldError("may_return_nothing", True, rule, "Leave it out.")
        if self.law == "poisson" and not self.may_return_nothing:
            rule = "is refused: it may draw no run at all, and then there is no answer, although the bill is paid"
            raise FieldError("law", "poisson", rule, "Use law: tnb, or accept that with may_return_nothing: true.")

    def _check_auto(self) -> None:
        for field in OF_OTHERS:
            if getattr(self, field) is not None:
                raise FieldError(field, getattr(self, field), "is chosen by law auto", "Leave it out, or name a law.")
        if (self.chance is None) == (self.max_epsilon is None):
            rule = (
                "is missing, and so is max_epsilon: law auto needs one" if self.chance is None else "and max_epsilon are both given"
            )
            value = checks.MISSING if self.chance is None else self.chance
            raise FieldError("chance", value, rule, "Try chance: 0.6, for the cheapest law that has it.")
        if self.top is None:
            object.__setattr__(self, "top", TOP)
        checks.real(0.0, 1.0, open_low=True, open_high=True, top=self.top)
        if self.chance is not None:
            checks.real(0.0, 1.0, open_low=True, open_high=True, chance=self.chance)
        if self.max_epsilon is not None:
            checks.positive(max_epsilon=self.max_epsilon)
        if self.max_trials is not None:
            checks.whole(1, 100_000, max_trials=self.max_trials)

    def _fill_in(self) -> None:
        takes = PARAMETERS[self.law]
        if self.eta is None and "eta" in takes:
            object.__setattr__(self, "eta", {"logarithmic": 0.0}.get(self.law, 1.0))
        if self.mean_trials is None and self.law not in ("binomial", "fixed"):
            object.__setattr__(self, "mean_trials", MEAN_TRIALS)
        if self.max_trials is None and self.law not in ("binomial", "fixed"):
            assert self.mean_trials is not None
            object.__setattr__(self, "max_trials", max(1, round(5 * self.mean_trials)))

    def run_counts(self) -> RunCountLaw:
        """The law of K.

        Raises:
          ValueError: law auto, which planning decides first.
        """
        if self.law == AUTO:
            raise ValueError("law auto is decided by planning.plan")
        return run_count_law(
            self.law,
            eta=self.eta,
            mean=self.mean_trials,
            max_trials=self.max_trials,
            trials=self.trials,
            probability=self.probability,
            may_be_empty=bool(self.may_return_nothing),
        )

    def with_law(self, chosen: Mapping[str, Any]) -> Self:
        """This protocol with a law named by `chosen` (fields of this class) in the place of auto."""
        return replace(self, **{**dict.fromkeys((*OF_AUTO, "max_trials")), **chosen})

    def draw_count(self, uniforms: Iterator[float]) -> int:
        return self.run_counts().draw(uniforms)

    def faults(self, spec: Any) -> Iterator[FieldError]:
        if self.max_epsilon is not None and spec.privacy.noise_multiplier is None:
            yield FieldError(
                "protocol.max_epsilon",
                self.max_epsilon,
                "is a limit for a given noise, and privacy.epsilon has the noise calibrated to a bill of its own",
                "Give privacy.noise_multiplier instead of privacy.epsilon, or protocol.chance instead of this.",
            )
