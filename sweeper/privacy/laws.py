"""Laws of K, the number of runs that select-best makes in secret, by name and from JSON. Each both draws K and prices it.

laws_base.py says what a law can do; laws_tnb.py, laws_finite.py and laws_poisson.py hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy.laws_base import RunCountLaw
from sweeper.privacy.laws_finite import BinomialAtLeastOne, FixedCount, binomial_of_mean
from sweeper.privacy.laws_poisson import PoissonCount
from sweeper.privacy.laws_tnb import TruncatedNegativeBinomial

__all__ = [
    "LAWS",
    "BinomialAtLeastOne",
    "FixedCount",
    "PoissonCount",
    "RunCountLaw",
    "TruncatedNegativeBinomial",
    "law_from_dict",
    "run_count_law",
]

PARAMETERS: dict[str, tuple[str, ...]] = {  # what each law is told; `eta` of the named cases is implied and may be repeated
    "tnb": ("eta", "mean_trials", "max_trials"),
    "logarithmic": ("eta", "mean_trials", "max_trials"),
    "geometric": ("eta", "mean_trials", "max_trials"),
    "binomial": ("mean_trials", "max_trials", "trials", "probability"),
    "fixed": ("mean_trials", "max_trials", "trials"),
    "poisson": ("mean_trials", "max_trials"),
}
LAWS = tuple(PARAMETERS)
IMPLIED = {"logarithmic": 0.0, "geometric": 1.0}
WRITTEN: dict[str, tuple[Callable[..., RunCountLaw], tuple[str, ...]]] = {  # `law` tag: class and fields of its dict
    "tnb": (TruncatedNegativeBinomial, ("eta", "mean", "max_trials")),
    "binomial": (BinomialAtLeastOne, ("trials", "probability", "max_trials")),
    "fixed": (FixedCount, ("trials",)),
    "poisson": (PoissonCount, ("mean", "max_trials")),
}


def run_count_law(
    law: str,
    *,
    eta: float | None = None,
    mean: float | None = None,
    max_trials: int | None = None,
    trials: int | None = None,
    probability: float | None = None,
    may_be_empty: bool = False,
) -> RunCountLaw:
    """The law by its name: tnb (eta, mean), logarithmic (eta 0), geometric (eta 1), binomial (trials and probability, or trials
    and mean), fixed (trials), poisson (mean; only with may_be_empty). max_trials conditions each on K <= max_trials.

    Raises:
      FieldError: unknown name, a parameter that is missing, contradicts another or belongs to another law, or a law that may
        release nothing without may_be_empty.
    """
    checks.one_of(LAWS, law=law)
    given = {"eta": eta, "mean_trials": mean, "max_trials": max_trials, "trials": trials, "probability": probability}
    for field, value in given.items():
        if value is not None and field not in PARAMETERS[law]:
            rule = f"is not a parameter of law {law}, which takes {', '.join(PARAMETERS[law])}"
            raise FieldError(field, value, rule, "Leave it out.")
    if law == "binomial":
        return _binomial(trials, probability, mean, max_trials)
    if law == "fixed":
        return _fixed(trials, mean, max_trials)
    if mean is None:
        raise FieldError("mean_trials", checks.MISSING, f"is missing: law {law} needs the mean number of runs", "Try 12.")
    if law == "poisson":
        if not may_be_empty:
            rule = "may make no run at all, and then releases nothing"
            hint = "Use law tnb with a large eta, or set may_be_empty if no answer is a result you accept."
            raise FieldError("law", law, rule, hint)
        return PoissonCount(mean=mean, max_trials=max_trials)
    implied = IMPLIED.get(law)
    if implied is None and eta is None:
        raise FieldError("eta", checks.MISSING, "is missing: law tnb needs it", "Try eta: 1, the geometric law.")
    if implied is not None and eta is not None and eta != implied:
        raise FieldError("eta", eta, f"contradicts law {law}, whose eta is {implied:g}", "Use law: tnb, or leave eta out.")
    shape = eta if implied is None else implied
    assert shape is not None
    return TruncatedNegativeBinomial(eta=shape, mean=mean, max_trials=max_trials)


def _binomial(trials: int | None, probability: float | None, mean: float | None, max_trials: int | None) -> RunCountLaw:
    if trials is None:
        hint = "Try trials: 20 with probability: 0.5."
        raise FieldError("trials", checks.MISSING, "is missing: law binomial needs the largest number of runs", hint)
    if probability is None and mean is None:
        hint = "Try probability: 0.5."
        raise FieldError("probability", checks.MISSING, "is missing: law binomial needs it, or mean_trials", hint)
    if probability is None:
        assert mean is not None
        return binomial_of_mean(trials, mean, max_trials)
    if mean is not None:
        rule = "cannot be given with mean_trials: each follows from the other"
        raise FieldError("probability", probability, rule, "Leave one of them out.")
    return BinomialAtLeastOne(trials=trials, probability=probability, max_trials=max_trials)


def _fixed(trials: int | None, mean: float | None, max_trials: int | None) -> RunCountLaw:
    if trials is None:
        raise FieldError("trials", checks.MISSING, "is missing: law fixed makes exactly this many runs", "Try trials: 10.")
    law = FixedCount(trials=trials)
    if mean is not None and mean != trials:
        raise FieldError("mean_trials", mean, f"contradicts trials = {trials} of law fixed", "Leave mean_trials out.")
    if max_trials is not None:
        checks.whole(1, max_trials=max_trials)
        if max_trials < trials:
            raise FieldError("max_trials", max_trials, f"is below trials = {trials} of law fixed", "Leave max_trials out.")
    return law


def law_from_dict(data: Mapping[str, Any]) -> RunCountLaw:
    """The law written by `to_dict`.

    Raises:
      FieldError: another law, an unknown or missing field, or a value that breaks a rule.
    """
    if "law" not in data:
        raise FieldError("law", checks.MISSING, "is missing in a law")
    checks.one_of(WRITTEN, law=data["law"])
    build, known = WRITTEN[data["law"]]
    for key in (*known, *data):
        if key != "law" and (key not in known or key not in data):
            raise FieldError(str(key), checks.MISSING, "is missing in a law" if key in known else "is not a field of a law")
    return build(**{key: data[key] for key in known})
