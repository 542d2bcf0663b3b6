"""What each kind of event is priced by: a title, the theorem in words and its source. Numbers are explain.py's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from sweeper.privacy.bounds import RenyiBound, ZeroConcentrated
from sweeper.privacy.combined import Composed, Disjoint, Repeated, ReplaceOne, SelectBest
from sweeper.privacy.event import Event
from sweeper.privacy.mechanisms import (
    AboveThresholdGaussian,
    AboveThresholdLaplace,
    AdaptiveQuantileStep,
    ApproximateDp,
    DiscreteLaplace,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    NoisyMin,
    PrivateQuantile,
)
from sweeper.privacy.sampled import FixedSizeSampled, PoissonSubsampled, RandomPart


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What happens, why its price holds, and who proved it."""

    title: str
    theorem: str
    source: str


Refer = Callable[[Event], str]  # an event inside -> "step 3"


@singledispatch
def rule(event: Event, refer: Refer) -> Rule:
    """The rule of a kind that has none of its own here: what its class says of itself."""
    words = " ".join((type(event).__doc__ or "").split())
    guarantee = words[words.find("Guarantee:") :] if "Guarantee:" in words else words
    return Rule(title=event.kind.replace("-", " "), theorem=guarantee[:400], source=f"event {event.kind}")


@rule.register
def _(event: Gaussian, refer: Refer) -> Rule:
    return Rule(
        title=f"Gaussian sum, noise {_n(event.noise_multiplier)} times its sensitivity",
        theorem="Gaussian mechanism: N(1, s^2) against N(0, s^2) dominates it",
        source="Balle and Wang 2018, Theorem 8",
    )


@rule.register
def _(event: AdaptiveQuantileStep, refer: Refer) -> Rule:
    return Rule(
        title=f"Gaussian sum and count of clipped records, together noise {_n(event.noise_multiplier)}",
        theorem=f"one Gaussian in one dimension more (the sum itself carries {_n(event.gradient_noise_multiplier)})",
        source="Andrew, Thakkar, McMahan, Ramaswamy 2021, Theorem 1",
    )


@rule.register
def _(event: Laplace, refer: Refer) -> Rule:
    return Rule(
        title=f"Laplace noise of scale {_n(event.noise_multiplier)} times the sensitivity",
        theorem=f"Laplace mechanism: {_n(1 / event.noise_multiplier)}-DP; its exact loss law is used",
        source="Dwork, McSherry, Nissim, Smith 2006",
    )


@rule.register
def _(event: DiscreteLaplace, refer: Refer) -> Rule:
    return Rule(
        title=f"count with discrete Laplace noise, epsilon {_n(event.epsilon)}",
        theorem="geometric mechanism: the loss is +epsilon or -epsilon",
        source="Ghosh, Roughgarden, Sundararajan 2009",
    )


@rule.register
def _(event: ApproximateDp, refer: Refer) -> Rule:
    return Rule(
        title=f"mechanism that is ({_n(event.epsilon)}, {event.delta:g})-DP, nothing else known",
        theorem="randomised response dominates every such mechanism",
        source="Kairouz, Oh, Viswanath 2015",
    )


@rule.register
def _(event: ExponentialMechanism, refer: Refer) -> Rule:
    return Rule(
        title=f"choice by the exponential mechanism, epsilon {_n(event.epsilon)}, any number of candidates",
        theorem="bounded range: the losses lie in one stretch of length epsilon, wherever it lies",
        source="McSherry and Talwar 2007; Dong, Durfee, Rogers 2020",
    )


@rule.register
def _(event: PrivateQuantile, refer: Refer) -> Rule:
    return Rule(
        title=f"quantile of per-record numbers, epsilon {_n(event.epsilon)}, asked once before training",
        theorem="exponential mechanism on ranks: bounded range, its place fixed by the table",
        source="Dong, Durfee, Rogers 2020",
    )


@rule.register
def _(event: NoisyMin, refer: Refer) -> Rule:
    kinds = {"gumbel": "bounded range, as the exponential mechanism", "laplace": "report-noisy-max: pure DP"}
    return Rule(
        title=f"smallest noisy sum of losses, {event.noise} noise, epsilon {_n(event.epsilon)}",
        theorem=f"scores that a record can only raise: {kinds[event.noise]}",
        source="Dwork and Roth 2014, section 3.3; Dong, Durfee, Rogers 2020",
    )


@rule.register
def _(event: AboveThresholdLaplace, refer: Refer) -> Rule:
    return Rule(
        title=f"search against a threshold, Laplace scales {_n(event.threshold_noise)} and {_n(event.query_noise)}",
        theorem=f"AboveThreshold: 1/threshold + 2/query = {_n(event.epsilon)}-DP, however many queries",
        source="Lyu, Su, Li 2017, Theorem 2",
    )


@rule.register
def _(event: AboveThresholdGaussian, refer: Refer) -> Rule:
    noises = f"{_n(event.threshold_noise)} and {_n(event.query_noise)}"
    return Rule(
        title=f"search against a threshold, Gaussian noise {noises}, at most {event.searches} queries",
        theorem="AboveThreshold as a game: one Gaussian for the threshold times the pair whose profile is W_k",
        source="sweeper/privacy/sparse_vector.py (the formula of Chen and Lee 2020 is too small for long searches)",
    )


@rule.register
def _(event: PoissonSubsampled, refer: Refer) -> Rule:
    q = event.sampling_probability
    return Rule(
        title=f"{refer(event.event)} on a batch that holds each record with probability {_n(q)}",
        theorem="amplification by Poisson sampling: qP + (1-q)Q against Q, and P against (1-q)P + qQ",
        source="Zhu, Dong, Wang 2022, Theorem 11",
    )


@rule.register
def _(event: FixedSizeSampled, refer: Refer) -> Rule:
    return Rule(
        title=f"{refer(event.event)} on {event.sample_size:,} of {event.rows:,} records, without replacement",
        theorem="amplification by sampling without replacement; a replaced record moves a sum by 2, so half the noise multiplier",
        source="Balle, Barthe, Gaboardi 2018, Theorem 9",
    )


@rule.register
def _(event: RandomPart, refer: Refer) -> Rule:
    share = _n(event.fraction)
    return Rule(
        title=f"{refer(event.first)} on a random part of share {share}, {refer(event.second)} on the rest",
        theorem=f"joint convexity: delta(e) <= {share} delta_first(e) + {_n(1 - event.fraction)} delta_second(e)",
        source="Balle, Barthe, Gaboardi 2018",
    )


@rule.register
def _(event: Repeated, refer: Refer) -> Rule:
    return Rule(
        title=f"{refer(event.event)}, {event.count:,} times",
        theorem="adaptive composition: losses add, so their law is convolved with itself",
        source="Dwork, Rothblum, Vadhan 2010; Koskela, Jalko, Honkela 2020",
    )


@rule.register
def _(event: Composed, refer: Refer) -> Rule:
    return Rule(
        title=" and ".join(refer(part) for part in event.events) + ", on the same records",
        theorem="adaptive composition: losses add, so their laws are convolved",
        source="Dwork, Rothblum, Vadhan 2010; Koskela, Jalko, Honkela 2020",
    )


@rule.register
def _(event: Disjoint, refer: Refer) -> Rule:
    return Rule(
        title=", ".join(refer(part) for part in event.parts) + " on disjoint rows",
        theorem="parallel composition: a record is in one part, so the dearest part counts",
        source="McSherry 2009",
    )


@rule.register
def _(event: SelectBest, refer: Refer) -> Rule:
    return Rule(
        title=f"the best of K runs of {refer(event.trial)}; K secret, {_law(event.law.to_dict())}",
        theorem="selection: delta(e) <= integral of max over a of [h(a) L - e^e h(B(a))]_+ dQ + m P(L infinite)",
        source="sweeper/privacy/README.md, Selection (theorem and proof)",
    )


@rule.register
def _(event: ReplaceOne, refer: Refer) -> Rule:
    return Rule(
        title=f"{refer(event.event)}, sensitivities stated for a replaced record",
        theorem="the same loss law, now for replace-one",
        source="definition: sweeper/privacy/combined.py, ReplaceOne",
    )


def _n(value: float) -> str:
    return f"{value:.5g}"


def _law(law: dict[str, Any]) -> str:
    values = ", ".join(f"{key.replace('_', ' ')} {_n(value)}" for key, value in law.items() if isinstance(value, (int, float)))
    return f"{law['law']} ({values})"


@rule.register
def _(event: RenyiBound, refer: Refer) -> Rule:
    return Rule(
        title=f"a run held to a Renyi divergence of {_n(event.rho)} at order {_n(event.order)}",
        theorem="the largest profile of pairs whose divergence of that order is at most rho in both directions",
        source="sweeper/privacy/bounds.py; Canonne, Kamath, Steinke 2020, Proposition 12; Asoodeh et al. 2021",
    )


@rule.register
def _(event: ZeroConcentrated, refer: Refer) -> Rule:
    return Rule(
        title=f"a run held to a zCDP cost of rho {_n(event.rho)}",
        theorem="Renyi divergence at most a rho at every order a: the largest convex profile below those of many orders",
        source="sweeper/privacy/bounds.py; Bun and Steinke 2016",
    )
