"""The calculator behind `sweeper price`: one DP-SGD-like trial, one protocol, no sweep file."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy import accountant
from sweeper.privacy.events import Event, Gaussian, PoissonSubsampled, Repeated, SelectBest
from sweeper.privacy.guarantee import Guarantee
from sweeper.privacy.laws import RunCountLaw, run_count_law

PROTOCOLS = ("select-best", "release-all", "public-proxy", "no-tuning")


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked: give noise_multiplier to have it priced, or epsilon to have the multiplier found."""

    sampling_probability: float
    steps: int
    delta: float
    noise_multiplier: float | None = None
    epsilon: float | None = None
    protocol: str = "no-tuning"
    law: str = "tnb"
    eta: float | None = None
    mean: float | None = None
    max_trials: int | None = None
    trials: int | None = None

    def __post_init__(self) -> None:
        checks.real(0.0, 1.0, sampling_probability=self.sampling_probability)
        checks.whole(0, 1_000_000_000, steps=self.steps)
        checks.probability(delta=self.delta)
        checks.one_of(PROTOCOLS, protocol=self.protocol)
        if (self.noise_multiplier is None) == (self.epsilon is None):
            raise FieldError("noise_multiplier", checks.MISSING, "or epsilon must be given, and not both")
        if self.noise_multiplier is not None:
            checks.real(0.0, 1e9, noise_multiplier=self.noise_multiplier)
        if self.epsilon is not None:
            checks.positive(epsilon=self.epsilon)
            if self.steps == 0 or self.sampling_probability == 0:
                raise FieldError("steps", self.steps, "releases nothing, so no noise is needed for any epsilon")
        if self.protocol == "select-best" and self.mean is None:
            raise FieldError("mean", checks.MISSING, "is missing: select-best needs the mean number of runs")
        if self.protocol == "release-all":
            if self.trials is None:
                raise FieldError("trials", checks.MISSING, "is missing: release-all needs the number of runs")
            checks.whole(1, 1_000_000_000, trials=self.trials)
        for field, owner in (
            ("mean", "select-best"),
            ("max_trials", "select-best"),
            ("eta", "select-best"),
            ("trials", "release-all"),
        ):
            if getattr(self, field) is not None and self.protocol != owner:
                raise FieldError(field, getattr(self, field), f"belongs to protocol {owner}, not {self.protocol}")
        if self.protocol == "select-best":
            checks.real(1.0, 1e6, open_low=True, mean=self.mean)
            self.run_counts()
        elif self.law != "tnb":
            raise FieldError("law", self.law, f"belongs to protocol select-best, not {self.protocol}")

    def run_counts(self) -> RunCountLaw:
        assert self.mean is not None
        eta = self.eta if self.eta is not None or self.law != "tnb" else 1.0
        return run_count_law(self.law, eta=eta, mean=self.mean, max_trials=self.max_trials)

    def trial(self, noise_multiplier: float) -> Event:
        gaussian = Gaussian(noise_multiplier)
        sampled = PoissonSubsampled(self.sampling_probability, gaussian) if self.sampling_probability < 1 else gaussian
        return Repeated(sampled, self.steps)

    def total(self, noise_multiplier: float) -> Event:
        one = self.trial(noise_multiplier)
        if self.protocol == "select-best":
            return SelectBest(one, self.run_counts())
        if self.protocol == "release-all":
            assert self.trials is not None
            return Repeated(one, self.trials)
        return one


def answer(question: Question) -> dict[str, Any]:
    """The bill, in plain JSON. epsilon_renyi is null where no Renyi bound is known (a law with max_trials).

    Guarantee: epsilon is an upper bound for the whole protocol under zero-out, within 0.3% of the exact theorem's value.
    """
    total: Callable[[float], Event] = question.total
    multiplier = question.noise_multiplier
    if multiplier is None:
        assert question.epsilon is not None
        multiplier = accountant.calibrate(total, question.epsilon, question.delta)
    event = total(multiplier)
    epsilon = accountant.epsilon(event, question.delta)
    result: dict[str, Any] = {
        "epsilon": _finite(epsilon),
        "delta": question.delta,
        "noise_multiplier": multiplier,
        "epsilon_one_trial": _finite(accountant.epsilon(question.trial(multiplier), question.delta)),
        "epsilon_renyi": accountant.renyi_epsilon(event, question.delta),
        "protocol": question.protocol,
        "guarantee": Guarantee(epsilon=epsilon, delta=question.delta).to_dict(),
        "event": event.to_dict(),
    }
    if question.protocol == "select-best":
        law = question.run_counts()
        result |= {"law": law.to_dict(), "mean_trials": law.mean_trials(), "chance_of_top_10_percent": law.chance(0.1)}
    return result


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
