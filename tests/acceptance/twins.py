"""Every policy beside a broken twin of itself: the policy off, or with 1.5 times its noise. The twin must do worse.

Policy and twin are paired: same seeds, same noise multiplier, same everything but what is named as broken. A pair passes when
the policy wins on average by at least LEAST points, and on so many seeds that a fair coin would do as well with a chance of at most
CHANCE: accuracies of broken runs have heavy tails. Twins that are sometimes lucky get more seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from runs import Table, clip, step, trainer

from sweeper.spec.protocols import Look
from sweeper.step.backtracking import Backtracking
from sweeper.step.exponential_search import ExponentialSearch
from sweeper.step.noisy_min import NoisyMinSearch

SEEDS = 8
LEAST = 0.3  # percentage points
CHANCE = 0.005  # 8 of 8, 11 of 12, 14 of 16
OFF = 100.0  # a clip norm that clips nothing: gradients are below 4 on Adult, 40 on Fashion-MNIST
LOUD = 1.5
SEARCHED = 1.0  # epsilon of the runs with a line search


class RandomCandidate:
    """A search that does not look."""

    sizes: tuple[float, ...]

    def search(self, look: Look, epsilon: float, bound: float) -> float:
        return self.sizes[int(look.draws.integers(len(self.sizes)))]


class WorstCandidate:
    """A search that takes what it should take last: candidates of the largest loss, or of the smallest fall."""

    sizes: tuple[float, ...]
    scores: Any
    falls = False  # scores are falls in loss, not losses

    def search(self, look: Look, epsilon: float, bound: float) -> float:
        scores_J = self.scores(look, bound)[-len(self.sizes) :]
        return self.sizes[int((scores_J if not self.falls else -scores_J).argmax())]


class RandomExponential(RandomCandidate, ExponentialSearch): ...


class WorstExponential(WorstCandidate, ExponentialSearch): ...


class RandomBacktracking(RandomCandidate, Backtracking): ...


class WorstBacktracking(WorstCandidate, Backtracking):
    falls = True


class RandomMin(RandomCandidate, NoisyMinSearch): ...


class WorstMin(WorstCandidate, NoisyMinSearch): ...


TWINS: dict[type, dict[str, type]] = {
    ExponentialSearch: {"a random candidate": RandomExponential, "the worst candidate": WorstExponential},
    NoisyMinSearch: {"a random candidate": RandomMin, "the worst candidate": WorstMin},
    Backtracking: {"a random candidate": RandomBacktracking, "the worst candidate": WorstBacktracking},
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a run is made of."""

    trainer: Any
    clip: Any
    step: Any


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A policy, its twin, and in what the twin is broken."""

    policy: str
    broken: str
    good: Setting
    twin: Setting
    epsilon: float
    noise: float = 1.0  # of the twin, as a multiple
    seeds: int = SEEDS


@dataclass(frozen=True, kw_only=True)
class Measured:
    good: float  # percent, mean over seeds
    twin: float
    difference: float
    error: float  # standard error of the difference
    wins: int
    seeds: int

    @property
    def passes(self) -> bool:
        by_chance = sum(math.comb(self.seeds, wins) for wins in range(self.wins, self.seeds + 1)) / 2**self.seeds
        return self.difference >= LEAST and by_chance <= CHANCE


def measure(table: Table, pair: Pair) -> Measured:
    """Both settings on the same seeds, at the noise at which the good one costs its epsilon."""
    z = table.noise(pair.epsilon, pair.good.trainer, pair.good.clip, pair.good.step)
    good = [table.accuracy(pair.good.trainer, pair.good.clip, pair.good.step, z, seed) for seed in range(pair.seeds)]
    twin = [table.accuracy(pair.twin.trainer, pair.twin.clip, pair.twin.step, z * pair.noise, seed) for seed in range(pair.seeds)]
    differences = [one - other for one, other in zip(good, twin, strict=True)]
    return Measured(
        good=statistics.fmean(good),
        twin=statistics.fmean(twin),
        difference=statistics.fmean(differences),
        error=statistics.stdev(differences) / math.sqrt(pair.seeds),
        wins=sum(difference > 0 for difference in differences),
        seeds=pair.seeds,
    )


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What differs between the tables. `rate` suits gradients of norm 1."""

    sgd: Any
    blsgd: Any
    norm: float
    rate: float
    epsilon: float
    quantile: float  # of the gradients' norms
    high: float  # above every record's Lipschitz constant
    grid: dict[str, Any]  # of a private quantile: wide, and with a point among the constants, which on Adult lie in [2.83, 3.36]
    many: int  # seeds, where a twin is sometimes lucky


SCALES = {
    "adult": Scale(
        sgd=trainer("dp-sgd", batch_size=256, steps=300, average="tail"),
        blsgd=trainer("dp-blsgd", batch_size=2613, steps=50, budget="angle"),
        norm=0.5,
        rate=2.0,
        epsilon=0.05,
        quantile=0.8,  # at 0.5 the norm follows the easy records of the larger class down to nothing
        high=10.0,
        grid={"low": 2.5, "high": 1e4, "points": 256},
        many=16,
    ),
    "fashion-mnist": Scale(
        sgd=trainer("dp-sgd", batch_size=500, steps=150, average="tail"),
        blsgd=trainer("dp-blsgd", batch_size=2000, steps=40, budget="angle"),
        norm=1.0,
        rate=2.0,
        epsilon=0.05,
        quantile=0.5,
        high=100.0,
        grid={"high": 100.0},
        many=12,
    ),
}


def pairs(name: str) -> Iterator[Pair]:
    """Every clip and step policy on one table."""
    scale = SCALES[name]

    def pair(policy: str, broken: str, run: tuple[Any, Any, Any], more: dict[str, Any] | None = None, **twin: Any) -> Pair:
        good = Setting(trainer=run[0], clip=run[1], step=run[2])
        return Pair(
            policy=policy, broken=broken, good=good, twin=replace(good, **twin), **{"epsilon": scale.epsilon} | (more or {})
        )

    sgd = scale.sgd
    fixed, off = clip("fixed", clip_norm=scale.norm), clip("fixed", clip_norm=OFF)
    rate, coupled = step("fixed", learning_rate=scale.rate / scale.norm), step("coupled", c=scale.rate)

    yield pair("clip fixed", "clipping off", (sgd, fixed, rate), clip=off)
    yield pair("clip percentile", "clipping off", (sgd, clip("percentile", percentile=10.0), coupled), clip=off)
    asked = clip("private-quantile", quantile=0.5, epsilon=0.02, **scale.grid)
    slow = step("fixed", learning_rate=2 * scale.rate / scale.high)
    yield pair(
        "clip private-quantile",
        "a norm drawn blindly",
        (sgd, asked, slow),
        {"seeds": scale.many},
        clip=replace(asked, epsilon=1e-6),
    )
    moving = clip("adaptive-quantile", clip_norm=0.001, quantile=scale.quantile)
    unit = step("fixed", learning_rate=scale.rate)
    yield pair("clip adaptive-quantile", "never moves from a bad start", (sgd, moving, unit), clip=replace(moving, rate=1e-12))
    nsgd = trainer("dp-nsgd", batch_size=sgd.batch_size, steps=sgd.steps, average=sgd.average)
    yield pair("clip normalise", "not normalised", (nsgd, clip("normalise"), unit), clip=clip("percentile", percentile=100.0))
    high = clip("fixed", clip_norm=8 * scale.norm)
    yield pair("clip decay", "no decay", (sgd, clip("decay", clip_norm=8 * scale.norm, final=0.02), rate), clip=high)
    yield pair("clip per-layer", "clipping off", (sgd, clip("per-layer", clip_norm=scale.norm), rate), clip=off)
    tails = clip("heavy-tail", moment_order=2.0, gamma=100.0, cap=scale.high, epsilon=0.02)
    yield pair("clip heavy-tail", "clipping off", (sgd, tails, step("theory", theorem="6.2", distance=20.0)), clip=off)

    yield pair("step fixed", "noise x 1.5", (sgd, fixed, rate), {"noise": LOUD})
    wild = step("fixed", learning_rate=8 * scale.rate / scale.norm)
    cosine = replace(sgd, average="last"), fixed, replace(wild, schedule="cosine")
    yield pair("step fixed, cosine", "no schedule", cosine, {"seeds": scale.many}, step=wild)
    yield pair("step coupled", "not coupled", (sgd, clip("fixed", clip_norm=scale.norm / 50), coupled), step=rate)
    yield pair("step theory", "noise x 1.5", (sgd, fixed, step("theory", theorem="5.4", distance=20.0)), {"noise": LOUD})
    wide: dict[str, Any] = {"initial": 200.0, "ratio": 0.6, "share": 0.3}
    for kind, fields, loop in (
        (ExponentialSearch, wide, replace(sgd, average="last")),
        (NoisyMinSearch, wide | {"share": 0.5}, sgd),
        (Backtracking, wide | {"alpha": 0.01}, scale.blsgd),
    ):
        for broken, twin in TWINS[kind].items():
            more = {"epsilon": SEARCHED, "seeds": scale.many}
            yield pair(f"step {kind.kind}", broken, (loop, fixed, kind(**fields)), more, step=twin(**fields))
