"""How likely a sweep is to draw a good setting, by a rule of thumb that is stated wherever its numbers are.

The rule: one third (GOOD) of every searched dimension is good, on the scale that it is drawn on, independently of the others.
Beside a step size that is coupled to the clip norm nearly all clip norms behave alike: then three quarters (GOOD_COUPLED) of them
are good, so that the clip norm counts as 0.26 of a dimension. A setting that is fixed by guess is good with the same chance. One
that a policy finds by itself (a quantile of the norms, a line search) or does not have (normalise) is no dimension.
No data enters, and no price either: a bill holds whatever is drawn.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from sweeper.privacy.release import DrawnRuns
from sweeper.spec.space import Choices, Domain, Space

GOOD = 1 / 3
GOOD_COUPLED = 3 / 4
HALVINGS = 40  # of a mean, on a logarithmic scale


def good_shares(space: Space) -> dict[str, float]:
    """Of every searched setting the share of its domain that is good."""
    return {name: _share(space, name, domain) for name, domain in space.searched()}


def good_guesses(space: Space) -> dict[str, float]:
    """Of the settings that are fixed by guess the chance that the guess is good."""
    found = {}
    clip, step = space.clip.policy, space.step.policy
    searched = dict(space.searched())
    found_on_data = bool(clip.removes) or clip.counts or not clip.known
    for part, policy, finds in (("clip", clip, found_on_data), ("step", step, step.searches)):
        name = f"{part}.{policy.searched}"
        if name not in searched and not finds:
            found[name] = _share(space, name, None)
    return found


def product(shares: dict[str, float]) -> float:
    return math.prod(shares.values())


def dimensions_in(share: float) -> float:
    """How many dimensions of the usual kind have so small a good part."""
    return abs(math.log(share) / math.log(GOOD))


def _share(space: Space, name: str, domain: Domain | None) -> float:
    coupled = space.step.policy.scaled and name == "clip.clip_norm"
    share = GOOD_COUPLED if coupled else GOOD
    return max(share, 1 / len(domain.values)) if isinstance(domain, Choices) else share


def with_fewer_runs(protocol: DrawnRuns, share: float, larger: float) -> DrawnRuns:
    """The protocol whose law, of the same family, draws from a good part `larger` with the chance this one has for `share`."""
    law = protocol.run_counts()
    told, wanted = law.to_dict(), law.chance(share) - 1e-12

    def enough(made: DrawnRuns) -> bool:
        return made.run_counts().chance(larger) >= wanted

    if "trials" in told:
        for trials in range(2 if told["law"] == "binomial" else 1, told["trials"]):
            most = {"max_trials": min(trials, told["max_trials"])} if "max_trials" in told else {}
            made = _told(protocol, **told | {"trials": trials} | most)
            if enough(made):
                return made
        return protocol
    most = told["max_trials"] / told["mean"]

    def of_mean(mean: float) -> DrawnRuns:
        return _told(protocol, **told | {"mean": mean, "max_trials": max(1, round(most * mean))})

    low, high = (1.001 if told["law"] == "tnb" else 1e-3), float(told["mean"])
    if low >= high:
        return protocol
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(of_mean(middle)) else (middle, high)
    rounded = of_mean(_three_digits_up(high))
    return rounded if rounded.run_counts().mean_trials() <= law.mean_trials() else protocol


def fewer_trials(trials: int, share: float, larger: float) -> int:
    """How many independent draws from a good part `larger` have the chance that `trials` draws have for `share`."""
    missed = trials * math.log1p(-share)  # of all of them, the logarithm
    return min(trials, max(1, math.ceil(missed / math.log1p(-larger) - 1e-9)))


def _told(protocol: DrawnRuns, **law: Any) -> DrawnRuns:
    """The protocol with the law of this JSON."""
    fields = {"eta": None, "mean_trials": law.pop("mean", None), "max_trials": None, "trials": None, "probability": None}
    return replace(protocol, **fields | law)


def _three_digits_up(value: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.10g}")
