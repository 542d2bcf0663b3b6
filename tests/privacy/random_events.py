"""Events of the kinds that trainers and protocols build, drawn at random, as functions of the noise multiplier."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from sweeper.privacy.bounds import LARGEST_RHO
from sweeper.privacy.events import (
    AboveThresholdGaussian,
    AboveThresholdLaplace,
    AdaptiveQuantileStep,
    Composed,
    DiscreteLaplace,
    Disjoint,
    Event,
    ExponentialMechanism,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    NoisyMin,
    PoissonSubsampled,
    PrivateQuantile,
    RandomPart,
    RenyiBound,
    Repeated,
    ReplaceOne,
    SelectBest,
    ZeroConcentrated,
)
from sweeper.privacy.laws import BinomialAtLeastOne, FixedCount, RunCountLaw, TruncatedNegativeBinomial

Make = Callable[[float], Event]


def random_make(rng: random.Random) -> tuple[str, Make]:
    """(words, noise multiplier -> event): a run, what it asks beforehand, its score, and a protocol around it."""
    sampling = rng.choice(["poisson"] * 6 + ["without replacement", "governed"])
    run, run_words = {"poisson": _poisson, "without replacement": _fixed_size, "governed": _governed}[sampling](rng)
    zero_out = sampling != "without replacement"
    asked = rng.choice([None, PrivateQuantile(_small(rng)), Laplace(1 / _small(rng))]) if zero_out else None
    score: Event = DiscreteLaplace(_small(rng))
    scored = rng.choice(["no score", "held-out score", "score on the rows"])
    protocol = rng.choice(["one", "one", "best", "best", "all", *(["part", "part and all"] if zero_out else [])])
    law, shown, share = _law(rng), rng.choice([2, 12]), rng.choice([0.1, 0.5])

    def seen(s: float) -> Event:
        rows = run(s) if asked is None else Composed((asked, run(s)))
        return Composed((rows, score if zero_out else ReplaceOne(score))) if scored == "score on the rows" else rows

    def around(one: Event, kind: str) -> Event:
        if kind == "best":
            return SelectBest(one, law)
        return Repeated(one, shown) if kind == "all" else one

    def make(s: float) -> Event:
        rows = seen(s)
        if protocol == "part":
            return RandomPart(share, SelectBest(rows, law), rows)
        if protocol == "part and all":
            return Composed((PoissonSubsampled(share, SelectBest(rows, law)), rows))
        held = score if zero_out else ReplaceOne(score)
        return around(Disjoint((rows, held)) if scored == "held-out score" else rows, protocol)

    many = {"all": f"all of {shown}"}.get(protocol, protocol)
    before = "nothing" if asked is None else asked.kind
    return f"{run_words}, {before} before, {scored}, {many} ({law.to_dict()['law']}, {law.max_trials})", make


def _small(rng: random.Random) -> float:
    return 10 ** rng.uniform(-2.0, 0.0)


def _law(rng: random.Random) -> RunCountLaw:
    return rng.choice(
        [
            TruncatedNegativeBinomial(eta=0.0, mean=1.5),
            TruncatedNegativeBinomial(eta=1.0, mean=10.0),
            TruncatedNegativeBinomial(eta=2.0, mean=12.0, max_trials=64),
            TruncatedNegativeBinomial(eta=1.0, mean=5.0, max_trials=8),
            BinomialAtLeastOne(trials=8, probability=0.5),
            FixedCount(trials=2),
            FixedCount(trials=9),
        ]
    )


def _poisson(rng: random.Random) -> tuple[Make, str]:
    q, steps, adapts = rng.choice([1.0, 0.3, 0.01, 1e-4]), rng.choice([1, 10, 1000]), rng.random() < 0.3
    search, share = rng.choice(["no search", "exponential", "laplace", "gaussian", "min", "min-laplace"]), rng.choice([0.1, 0.5])
    own = rng.choice([None, 10 ** rng.uniform(-2.0, -0.5)])  # an epsilon of its own, or a share of the step's

    def inner(s: float) -> Event:
        z = s if search == "no search" or own is not None else s / math.sqrt(1 - share)
        gradient = AdaptiveQuantileStep(z, 5 * z) if adapts else Gaussian(z)
        if search == "no search":
            return gradient
        epsilon = own if own is not None else min(max(2 * math.sqrt(share) / s, 1e-6), 200.0)
        return Composed((gradient, _search(search, epsilon)))

    words = f"{steps} batches of {q:g} with {search}{'' if own is None else ' of its own'}{', adaptive clip' if adapts else ''}"
    return lambda s: Repeated(PoissonSubsampled(q, inner(s)), steps), words


def _search(kind: str, epsilon: float) -> Event:
    if kind == "exponential":
        return ExponentialMechanism(epsilon)
    if kind == "laplace":
        return AboveThresholdLaplace(3 / epsilon, 3 / epsilon)
    if kind == "gaussian":
        return AboveThresholdGaussian(max(2 / epsilon, 0.01), max(3 / epsilon, 0.2), 8)
    return NoisyMin(epsilon, "gumbel" if kind == "min" else "laplace")


def _fixed_size(rng: random.Random) -> tuple[Make, str]:
    size, steps = rng.choice([10, 100, 1000]), rng.choice([1, 10, 1000])
    return lambda s: Repeated(FixedSizeSampled(1000, size, Gaussian(s)), steps), f"{steps} batches of {size} in 1000"


def _governed(rng: random.Random) -> tuple[Make, str]:
    order, scale = rng.choice([1.5, 4.0, 12.0, 40.0]), 10 ** rng.uniform(-2.0, 1.0)
    if rng.random() < 0.5:
        return lambda s: RenyiBound(order, min(order * scale / s**2, LARGEST_RHO)), f"Renyi bound at {order:g}"
    return lambda s: ZeroConcentrated(min(scale / s**2, LARGEST_RHO)), "zCDP bound"
