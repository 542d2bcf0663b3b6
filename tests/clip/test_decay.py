"""Falling clip norms: schedules by hand, noise that falls with them, and the rule of DP-BLSGD-AC."""

from __future__ import annotations

import numpy as np
import pytest
from oracles import FALSE_ALARM, REJECTED, scale_p_value
from small import blobs, without

from sweeper.backends.closed_form import LinearProblem
from sweeper.checks import FieldError
from sweeper.clip.decay import Decay
from sweeper.clip.fixed import FixedClip
from sweeper.models.linear import Softmax
from sweeper.seeds import Streams, secret_from_seed
from sweeper.step.coupled import CoupledStep
from sweeper.step.fixed import FixedStep
from sweeper.trainers.dp_sgd import DpSgd

STREAMS = Streams(secret_from_seed("decay"), 0)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("exponential", [2.0, 1.1246827, 0.6324555, 0.3556559, 0.2]),
        ("linear", [2.0, 1.55, 1.1, 0.65, 0.2]),
        ("step", [2.0, 2.0, 0.9283178, 0.4308869, 0.2]),  # stages 0, 0, 1, 2, 3 of 4
        ("raise", [2.0, 2.0, 2.0, 2.0, 2.0]),
    ],
)
def test_schedules_by_hand(schedule, expected):
    policy = Decay(clip_norm=2.0, schedule=schedule, final=0.1)
    assert [policy.at(t, 5).sensitivity for t in range(5)] == pytest.approx(expected, rel=1e-6)
    assert policy.at(0, 1).sensitivity == 2.0
    if schedule != "raise":
        assert policy.at(3, 5) == FixedClip(clip_norm=policy.at(3, 5).sensitivity)


def test_noise_falls_with_the_norm():
    """On null records, the noise of the last step is the multiplier times the last norm; times the first it is rejected."""
    full, description = blobs(10, 300, 10)
    nothing = LinearProblem(model=Softmax(), description=description, table=without(full, *range(10)), rows=np.arange(10))
    policy, step = Decay(clip_norm=2.0, final=0.5), FixedStep(learning_rate=0.5)
    ends = [
        DpSgd(batch_size=5, steps=3, average="tail", tail_fraction=fraction)
        .fit(nothing, policy, step, 1.3, STREAMS)
        .params_P.double()
        for fraction in (1 / 3, 2 / 3)
    ]
    last = (2 * (ends[0] - ends[1])).numpy() * 5 / 0.5  # tail of one less tail of two: half the last move
    assert scale_p_value(last, 1.3 * 1.0) > FALSE_ALARM
    for wrong in (2 / 3, 3 / 2, 2.0):
        assert scale_p_value(last, 1.3 * wrong) < REJECTED
    trace = DpSgd(batch_size=5, steps=3).fit(nothing, policy, step, 1.3, STREAMS).trace
    assert trace["clip_norm"] == pytest.approx([2.0, 2**0.5, 1.0])


def test_a_coupled_step_grows_as_the_norm_falls():
    policy, step = Decay(clip_norm=2.0, final=0.1), CoupledStep(c=1.0)
    assert step.learning_rate_at(policy.at(4, 5), 4, 5) * policy.at(4, 5).sensitivity == pytest.approx(1.0)


def test_the_rule_of_dp_blsgd_ac():
    policy = Decay(clip_norm=3.0, schedule="raise")
    assert policy.raises
    assert policy.raised().clip_norm == pytest.approx(3.0 / 1.05)
    assert policy.raised().raised() == Decay(clip_norm=3.0 / 1.05 / 1.05, schedule="raise")
    assert Decay(clip_norm=3.0, schedule="raise", zeta=0.5).raised().clip_norm == 2.0
    assert Decay(clip_norm=1.5e-12, schedule="raise", zeta=1.0).raised().clip_norm == 1e-12  # never a norm that float32 loses
    scheduled = Decay(clip_norm=3.0)
    assert not scheduled.raises
    assert scheduled.raised() == scheduled


def test_a_trainer_that_raises_no_budget_refuses_it():
    (fault,) = DpSgd(batch_size=5, steps=3).faults(Decay(clip_norm=1.0, schedule="raise"), FixedStep(learning_rate=1.0))
    assert "decay" in str(fault)
    assert not list(DpSgd(batch_size=5, steps=3).faults(Decay(clip_norm=1.0), FixedStep(learning_rate=1.0)))


@pytest.mark.parametrize(
    "changes", [{"clip_norm": 1e-13}, {"schedule": "cosine"}, {"final": 0.0}, {"final": 1.1}, {"stages": 1}, {"zeta": 0.0}]
)
def test_fields(changes):
    with pytest.raises(FieldError, match=next(iter(changes))):
        Decay(**{"clip_norm": 1.0} | changes)
