"""An event in words, from its JSON, for people who read a bill. Pure functions; unknown kinds are named, never guessed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sweeper.report.tables import sig

Json = Mapping[str, Any]


def in_words(event: Json) -> str:
    """One line: what was released and with which noise."""
    describe = _WORDS.get(event["kind"])
    return describe(event) if describe else str(event["kind"])


def protocol_of(event: Json) -> str:
    """What kind of selection, if any, an event is priced as."""
    kinds = set(_kinds(event))
    if "random-part" in kinds:
        return "subsample-tune"
    if "select-best" in kinds:
        return "select-best"
    return "every run listed is a release"


def _kinds(event: Json) -> list[str]:
    return [event["kind"], *(kind for part in _parts(event) for kind in _kinds(part))]


def _parts(event: Json) -> list[Json]:
    values = [v for value in event.values() for v in (value if isinstance(value, list) else [value])]
    return [value for value in values if isinstance(value, Mapping) and "kind" in value]


def _gaussian(event: Json) -> str:
    return f"Gaussian sum, noise multiplier {sig(event['noise_multiplier'], 5)}"


def _composed(event: Json) -> str:
    return " and ".join(in_words(part) for part in event["events"]) or "nothing"


def _disjoint(event: Json) -> str:
    if len(event["parts"]) == 2:
        training, score = map(in_words, event["parts"])
        return f"on training rows: {training}; on held-out rows: {score}"
    return "; on other rows: ".join(in_words(part) for part in event["parts"])


def _select_best(event: Json) -> str:
    return f"the best of a secret number of runs ({law_in_words(event['law'])}), each: {in_words(event['trial'])}"


def law_in_words(law: Json) -> str:
    """The law of the number of runs."""
    values = ", ".join(f"{key} {value:g}" for key, value in law.items() if key != "law" and isinstance(value, (int, float)))
    return f"{law['law']}: {values.replace('max_trials', 'at most')}"


def _random_part(event: Json) -> str:
    share = sig(100 * event["fraction"], 3)
    return f"on a random {share}% of the rows: {in_words(event['first'])}; on the other rows: {in_words(event['second'])}"


def _epsilon_of(name: str) -> Callable[[Json], str]:
    return lambda event: f"{name}, epsilon {sig(event['epsilon'], 4)}"


_WORDS: dict[str, Callable[[Json], str]] = {
    "gaussian": _gaussian,
    "laplace": lambda e: f"one number with Laplace noise of {sig(e['noise_multiplier'], 4)} times its sensitivity",
    "discrete-laplace": _epsilon_of("a count with discrete Laplace noise"),
    "approximate-dp": lambda e: f"a mechanism of epsilon {sig(e['epsilon'], 4)}, delta {e['delta']:g}",
    "renyi-bound": lambda e: f"a run held to a Renyi divergence of {sig(e['rho'], 4)} at order {sig(e['order'], 4)}",
    "zcdp": lambda e: f"a run held to a zCDP cost of rho {sig(e['rho'], 4)}",
    "exponential-mechanism": _epsilon_of("a choice by the exponential mechanism"),
    "private-quantile": _epsilon_of("a quantile by the exponential mechanism"),
    "noisy-min": _epsilon_of("the smallest noisy loss"),
    "above-threshold-laplace": lambda e: (
        f"a search against a threshold, Laplace noise {sig(e['threshold_noise'], 4)} and {sig(e['query_noise'], 4)}"
    ),
    "above-threshold-gaussian": lambda e: (
        f"at most {e['searches']} searches against a threshold, Gaussian noise {sig(e['threshold_noise'], 4)} and "
        f"{sig(e['query_noise'], 4)}"
    ),
    "adaptive-quantile-step": lambda e: (
        f"a Gaussian sum with its clip norm adapted, together noise multiplier {sig(e['noise_multiplier'], 5)}"
    ),
    "poisson-subsampled": lambda e: (
        f"{in_words(e['event'])}, on Poisson batches of probability {sig(e['sampling_probability'], 4)}"
    ),
    "fixed-size-sampled": lambda e: f"{in_words(e['event'])}, on {e['sample_size']:,} of {e['rows']:,} rows without replacement",
    "repeated": lambda e: f"{e['count']:,} x [{in_words(e['event'])}]",
    "composed": _composed,
    "disjoint": _disjoint,
    "select-best": _select_best,
    "random-part": _random_part,
    "replace-one": lambda e: f"{in_words(e['event'])} (sensitivity stated for a replaced record)",
}
