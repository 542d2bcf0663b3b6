"""Ranges, choices and spaces: the public law of candidates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from oracles import FALSE_ALARM, REJECTED, frequency_p_value
from scipy import stats

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.clip.fixed import FixedClip
from sweeper.spec.space import Choices, PolicySpace, Range, Space
from sweeper.step.coupled import CoupledStep

RANGE = Range(low=0.05, high=2.0, scale="log")


def uniforms(seed: int = 1) -> Iterator[float]:
    rng = np.random.default_rng(seed)
    while True:
        yield float(rng.random())


def test_a_range_maps_the_unit_interval_onto_itself():
    linear = Range(low=-1.0, high=3.0)
    assert [linear.at(u) for u in (0.0, 0.25, 0.5)] == [-1.0, 0.0, 1.0]
    assert RANGE.at(0.0) == pytest.approx(0.05)
    assert RANGE.at(0.5) == pytest.approx(math.sqrt(0.05 * 2.0))
    assert RANGE.at(1 - 2**-53) == pytest.approx(2.0)
    assert [RANGE.at(u) for u in (0.1, 0.2, 0.9)] == sorted(RANGE.at(u) for u in (0.9, 0.2, 0.1))


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_draws_are_uniform_on_the_scale(scale):
    domain, stream = Range(low=0.1, high=10.0, scale=scale), uniforms()
    draws = np.array([domain.at(next(stream)) for _ in range(20_000)])
    assert draws.min() >= 0.1 * (1 - 1e-12)
    assert draws.max() <= 10.0 * (1 + 1e-12)
    laws = {"linear": stats.uniform(0.1, 9.9), "log": stats.loguniform(0.1, 10.0)}
    wrong = {"linear": stats.uniform(0.1, 9.9 * 1.5), "log": stats.loguniform(0.1, 100.0)}
    assert stats.kstest(draws, laws[scale].cdf).pvalue > FALSE_ALARM
    assert stats.kstest(draws, wrong[scale].cdf).pvalue < REJECTED
    other = laws["log" if scale == "linear" else "linear"]
    assert stats.kstest(draws, other.cdf).pvalue < REJECTED


def test_choices_are_equally_likely():
    domain, stream = Choices(values=(0.1, 1.0, 10.0)), uniforms()
    draws = [domain.at(next(stream)) for _ in range(30_000)]
    counts = np.array([draws.count(value) for value in domain.values])
    assert frequency_p_value(counts, np.full(3, 1 / 3)) > FALSE_ALARM
    assert frequency_p_value(counts, np.array([0.5, 0.25, 0.25])) < REJECTED
    assert domain.at(0.0) == 0.1
    assert domain.at(1 - 2**-53) == 10.0


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Range(low=2.0, high=1.0), "has its low end above its high end. Try [1, 2]."),
        (lambda: Range(low=1.0, high=1.0), "is empty"),
        (lambda: Range(low=0.0, high=1.0, scale="log"), "must be above 0 on a log scale"),
        (lambda: Range(low=-1.0, high=1.0, scale="log"), "must be above 0 on a log scale"),
        (lambda: Range(low=math.nan, high=1.0), "must be two finite numbers"),
        (lambda: Range(low=0.0, high=math.inf), "must be two finite numbers"),
        (lambda: Range(low=False, high=True), "must be two finite numbers"),
        (lambda: Range(low=1.0, high=2.0, scale="lin"), "did you mean linear?"),
        (lambda: Choices(values=()), "at least one value"),
        (lambda: Choices(values=[1.0]), "must be a list"),
        (lambda: Choices(values=(1.0, 2.0, 1.0)), "must not repeat"),
    ],
)
def test_domains_that_are_none_are_refused(build, words):
    with pytest.raises(FieldError) as caught:
        build()
    assert words in str(caught.value)


@dataclass(frozen=True, kw_only=True)
class Window:
    """A policy whose two fields must agree."""

    low: float = 0.0
    high: float = 1.0
    kind: ClassVar[str] = "window"
    searched: ClassVar[str] = "high"

    def __post_init__(self) -> None:
        checks.positive(width=self.high - self.low)


def test_every_end_of_every_domain_is_tried_on_construction():
    PolicySpace(policy=Window, settings={"low": 0.5, "high": Range(low=0.6, high=2.0)})
    with pytest.raises(FieldError, match="width"):
        PolicySpace(policy=Window, settings={"low": 0.5, "high": Range(low=0.4, high=2.0)})
    with pytest.raises(FieldError, match="width"):
        PolicySpace(policy=Window, settings={"low": Choices(values=(0.1, 3.0)), "high": 1.0})
    with pytest.raises(FieldError, match="width"):  # each end is good while the other field is in its middle
        PolicySpace(policy=Window, settings={"low": Range(low=0.0, high=0.9), "high": Range(low=0.8, high=2.0)})
    with pytest.raises(FieldError, match=r"hgh is not a field of window; did you mean high\?"):
        PolicySpace(policy=Window, settings={"hgh": 1.0})


def space() -> Space:
    step = PolicySpace(
        policy=CoupledStep,
        settings={"warmup": Range(low=0.0, high=0.1), "c": Range(low=0.3, high=10.0, scale="log"), "schedule": "cosine"},
    )
    return Space(clip=PolicySpace(policy=FixedClip, settings={"clip_norm": RANGE}), step=step)


def test_the_order_of_searched_names_is_fixed_whatever_the_order_given():
    assert [name for name, _ in space().searched()] == ["clip.clip_norm", "step.c", "step.warmup"]
    drawn = space().draw(iter([0.5, 0.0, 0.999]))
    assert list(drawn) == ["clip.clip_norm", "step.c", "step.warmup"]
    assert drawn["clip.clip_norm"] == pytest.approx(0.3162, abs=1e-4)
    assert drawn["step.c"] == pytest.approx(0.3)
    assert drawn["step.warmup"] == pytest.approx(0.0999)


def test_a_candidate_builds_its_policies_and_only_a_complete_one_does():
    candidate = space().draw(uniforms())
    clip, step = space().build(candidate)
    assert (clip.clip_norm, step.c, step.schedule) == (candidate["clip.clip_norm"], candidate["step.c"], "cosine")
    for broken in ({**candidate, "step.schedule": "linear"}, {k: v for k, v in candidate.items() if k != "step.c"}, {}):
        with pytest.raises(ValueError, match="do not match the searched fields"):
            space().build(broken)


def test_candidates_are_independent():
    stream = uniforms(5)
    draws = [space().draw(stream) for _ in range(4_000)]
    clip, c = (np.log([d[name] for d in draws]) for name in ("clip.clip_norm", "step.c"))
    assert stats.pearsonr(clip, c).pvalue > FALSE_ALARM
    assert stats.pearsonr(clip[1:], clip[:-1]).pvalue > FALSE_ALARM
    assert stats.pearsonr(clip, c + 0.3 * clip).pvalue < REJECTED


def test_equal_spaces_are_equal_and_hash_alike():
    assert space() == space()
    assert hash(space()) == hash(space())
    other = Space(clip=space().clip, step=PolicySpace(policy=CoupledStep, settings={"c": Range(low=0.3, high=9.0)}))
    assert other != space()


def test_domains_print_for_a_table():
    assert str(RANGE) == "log 0.05 .. 2"
    assert str(Range(low=1.0, high=2.5)) == "1 .. 2.5"
    assert str(Choices(values=(0.5, "cosine", 3))) == "0.5 | cosine | 3"
