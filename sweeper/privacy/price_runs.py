"""The law of the secret number of runs in `sweeper price`, from the flags that describe it."""

from __future__ import annotations

from dataclasses import dataclass

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy.laws import LAWS, RunCountLaw, run_count_law

CHOICES = (*LAWS, "auto")
TAKES = {  # flags of each law; the first group must be given
    "tnb": (("mean",), ("eta", "max_trials")),
    "logarithmic": (("mean",), ("eta", "max_trials")),
    "geometric": (("mean",), ("eta", "max_trials")),
    "binomial": (("trials",), ("mean", "run_probability", "max_trials")),
    "fixed": (("trials",), ()),
    "poisson": (("mean",), ("max_trials", "may_return_nothing")),
    "auto": ((), ("chance", "top", "max_epsilon", "max_trials")),
}
FLAGS = ("eta", "mean", "max_trials", "trials", "run_probability", "may_return_nothing", "chance", "top", "max_epsilon")
THEIRS = {"mean_trials": "mean", "probability": "run_probability", "may_be_empty": "may_return_nothing"}  # names of laws.py
EXAMPLES = {"mean": "10", "trials": "20", "run_probability": "0.5"}


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Flags of the law. `auto` is chosen for a trial: by `chance` (the smallest bill) or by `max_epsilon` (the largest chance)."""

    law: str = "tnb"
    eta: float | None = None
    mean: float | None = None
    max_trials: int | None = None
    trials: int | None = None
    run_probability: float | None = None
    may_return_nothing: bool = False
    chance: float | None = None
    top: float | None = None
    max_epsilon: float | None = None

    def __post_init__(self) -> None:
        checks.one_of(CHOICES, law=self.law)
        needed, allowed = TAKES[self.law]
        for name in FLAGS:
            value = getattr(self, name)
            if value is not None and value is not False and name not in needed + allowed:
                owners = [law for law, (musts, mays) in TAKES.items() if name in musts + mays]
                raise FieldError(name, value, f"belongs to law {' or '.join(owners)}, not {self.law}", "Leave it out.")
        for name in needed:
            if getattr(self, name) is None:
                what = "mean number of runs" if name == "mean" else "number of runs"
                rule = f"is missing: law {self.law} needs the {what}"
                raise FieldError(name, checks.MISSING, rule, f"Try --{name} {EXAMPLES[name]}.")
        if self.law == "auto":
            self._check_auto()
        else:
            self.run_counts()

    def _check_auto(self) -> None:
        if (self.chance is None) == (self.max_epsilon is None):
            rule = "or max_epsilon must be given to law auto, and not both"
            raise FieldError("chance", checks.MISSING, rule, "Try --chance 0.5: the smallest bill at that chance.")
        if self.chance is not None:
            checks.probability(chance=self.chance)
        if self.max_epsilon is not None:
            checks.positive(max_epsilon=self.max_epsilon)
        checks.probability(top=self.best_share)
        if self.max_trials is not None:
            checks.whole(1, 100_000, max_trials=self.max_trials)

    @property
    def best_share(self) -> float:
        """The share of the space whose settings count as good."""
        return 0.1 if self.top is None else self.top

    def run_counts(self) -> RunCountLaw:
        """The law; tnb without eta is the geometric one. Not for auto, which needs a trial."""
        if self.law == "binomial" and self.mean is None and self.run_probability is None:
            rule = "is missing: law binomial needs the chance of each run, or --mean"
            raise FieldError("run_probability", checks.MISSING, rule, "Try --run-probability 0.5.")
        if self.law == "poisson" and not self.may_return_nothing:
            rule = "may make no run at all, and then releases nothing"
            hint = "Use --law tnb, or add --may-return-nothing if no answer is a result you accept."
            raise FieldError("law", self.law, rule, hint)
        try:
            return run_count_law(
                self.law,
                eta=1.0 if self.law == "tnb" and self.eta is None else self.eta,
                mean=self.mean,
                max_trials=self.max_trials,
                trials=self.trials,
                probability=self.run_probability,
                may_be_empty=self.may_return_nothing,
            )
        except FieldError as error:
            raise FieldError(THEIRS.get(error.field, error.field), error.value, error.rule, error.hint) from None
