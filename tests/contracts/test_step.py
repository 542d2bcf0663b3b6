"""What every step policy must keep. A new policy is one row of POLICIES."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest

from sweeper.checks import FieldError
from sweeper.clip.fixed import FixedClip
from sweeper.step.coupled import CoupledStep
from sweeper.step.fixed import FixedStep

SCHEDULES = ("constant", "cosine", "linear")
POLICIES = [
    *(FixedStep(learning_rate=0.5, schedule=s, warmup=w) for s, w in itertools.product(SCHEDULES, (0.0, 0.1, 0.99))),
    *(CoupledStep(c=2.0, schedule=s, warmup=w) for s, w in itertools.product(SCHEDULES, (0.0, 0.1, 0.99))),
]
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=repr)
CLIP = FixedClip(clip_norm=0.25)


@every_policy
@pytest.mark.parametrize("steps", [1, 2, 3, 10, 1000])
def test_every_step_has_a_positive_size_and_the_peak_is_reached(policy, steps):
    sizes = [policy.learning_rate_at(CLIP, t, steps) for t in range(steps)]
    assert all(math.isfinite(s) and s > 0 for s in sizes)
    peak = dataclasses.replace(policy, schedule="constant", warmup=0.0).learning_rate_at(CLIP, 0, steps)
    assert max(sizes) == pytest.approx(peak, rel=1e-12)


@every_policy
def test_a_policy_is_a_frozen_noun_with_a_searched_field(policy):
    assert policy.searched in {f.name for f in dataclasses.fields(policy)}
    for wrong in (0.0, -1.0, math.nan, math.inf, "1", True):
        with pytest.raises(FieldError, match=policy.searched):
            dataclasses.replace(policy, **{policy.searched: wrong})
    with pytest.raises(FieldError, match="did you mean cosine"):
        dataclasses.replace(policy, schedule="cosin")
    for wrong in (-0.1, 1.0, "0.1"):
        with pytest.raises(FieldError, match="warmup"):
            dataclasses.replace(policy, warmup=wrong)


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0.0, [1, 1, 1, 1, 1, 1, 1, 1]),
        ("constant", 0.5, [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]),
        ("linear", 0.0, [1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
        ("linear", 0.5, [0.25, 0.5, 0.75, 1, 1, 0.75, 0.5, 0.25]),
        ("cosine", 0.0, [1, 0.96194, 0.85355, 0.69134, 0.5, 0.30866, 0.14645, 0.03806]),
        ("cosine", 0.25, [0.5, 1, 1, 0.93301, 0.75, 0.5, 0.25, 0.06699]),
    ],
)
def test_schedules_by_hand(schedule, warmup, expected):
    policy = FixedStep(learning_rate=3.0, schedule=schedule, warmup=warmup)
    assert [policy.learning_rate_at(CLIP, t, 8) / 3 for t in range(8)] == pytest.approx(expected, abs=5e-6)


@pytest.mark.parametrize("clip_norm", [0.01, 0.25, 30.0])
def test_coupled_keeps_the_product_with_the_sensitivity(clip_norm):
    clip = FixedClip(clip_norm=clip_norm)
    assert CoupledStep(c=2.0).learning_rate_at(clip, 5, 10) * clip.sensitivity == pytest.approx(2.0, rel=1e-15)
    assert FixedStep(learning_rate=0.5).learning_rate_at(clip, 5, 10) == 0.5
