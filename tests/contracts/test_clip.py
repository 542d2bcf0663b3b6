"""What every clip policy must keep. A new policy is one row of POLICIES."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from oracles import AIM, FALSE_ALARM, REJECTED, scale_p_value
from small import blobs, without

from sweeper.backends.closed_form import LinearProblem
from sweeper.catalog import KINDS
from sweeper.checks import FieldError
from sweeper.clip.adaptive_quantile import AdaptiveQuantileClip
from sweeper.clip.decay import Decay
from sweeper.clip.fixed import FixedClip
from sweeper.clip.heavy_tail import HeavyTailClip
from sweeper.clip.none import NoClip
from sweeper.clip.normalise import Normalise
from sweeper.clip.per_layer import PerLayerClip
from sweeper.clip.percentile import PercentileClip
from sweeper.clip.private_quantile import PrivateQuantileClip
from sweeper.models.linear import Softmax
from sweeper.privacy.events import REPLACE_ONE, ZERO_OUT, AdaptiveQuantileStep, Gaussian
from sweeper.seeds import Streams, secret_from_seed
from sweeper.spec.protocols import Facts
from sweeper.step.fixed import FixedStep
from sweeper.trainers.dp_sgd import DpSgd

POLICIES = [
    FixedClip(clip_norm=1.0),
    FixedClip(clip_norm=0.1),
    FixedClip(clip_norm=37.3),
    FixedClip(clip_norm=1e-6),
    FixedClip(clip_norm=1e-12),
    PercentileClip(percentile=0.0),
    PercentileClip(percentile=50.0),
    PrivateQuantileClip(quantile=0.3),
    PrivateQuantileClip(quantile="g-min", epsilon=2.0),
    AdaptiveQuantileClip(clip_norm=0.7),
    AdaptiveQuantileClip(clip_norm=2.0, quantile=0.9, rate=0.5, count_noise=4.0),
    Normalise(),
    Normalise(r=1e-6),
    Normalise(r=50.0),
    Normalise(rule="auto-s"),
    Normalise(rule="auto-v"),
    Decay(clip_norm=0.9),
    Decay(clip_norm=3.0, schedule="linear", final=0.01),
    Decay(clip_norm=3.0, schedule="step", stages=3),
    Decay(clip_norm=1.2, schedule="raise"),
    PerLayerClip(clip_norm=0.6),
    PerLayerClip(clip_norm=5.0, split="by-size"),
    PerLayerClip(clip_norms=(0.3, 1.1)),
    HeavyTailClip(moment=2.0, gamma=0.1),
    HeavyTailClip(theorem="6.5", cap=4.0),
    HeavyTailClip(theorem="N.1", moment_order=4.0, cap=4.0, gamma=0.3, distance=2.0, smoothness=0.5),
]
FACTS = Facts(rows=60, batch_size=12.0, steps=40, parameters=35, noise_multiplier=1.3)
STREAMS = Streams(secret_from_seed("clip policies"), 0)
TABLE, DESCRIPTION = blobs(60, 6, 5)
PROBLEM = LinearProblem(model=Softmax(), description=DESCRIPTION, table=TABLE, rows=np.arange(60))
READY = {repr(policy): policy.prepare(FACTS, PROBLEM, STREAMS) for policy in POLICIES}
MULTIPLIERS = [0.0, *np.geomspace(1e-2, 1e7, 60).tolist(), 1e9]
WRONG = (-1.0, math.nan, math.inf, "1", True)
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=repr)
every_ready = pytest.mark.parametrize("ready", READY.values(), ids=READY.keys())


def gradients(width: int, scales: np.ndarray, seed: int = 0) -> torch.Tensor:
    """Gradients [B, width] in float32 whose norms spread around the given scales."""
    directions = np.random.default_rng(seed).standard_normal((len(scales), width)) / math.sqrt(width)
    return torch.from_numpy((directions * scales[:, None]).astype(np.float32))


def layers_of(policy, grads_BP: torch.Tensor) -> list[torch.Tensor]:
    return list(grads_BP.tensor_split(2, dim=1)) if policy.by_layer else [grads_BP]


def squares(policy, grads_BP: torch.Tensor) -> torch.Tensor:
    return torch.stack([part.square().sum(dim=1) for part in layers_of(policy, grads_BP)], dim=1)


def term_norms(policy, grads_BP: torch.Tensor) -> torch.Tensor:
    """The norm of each record's term in float64, from the policy's float32 factors."""
    factors_BL = policy.factors(squares(policy, grads_BP)).view(len(grads_BP), -1)
    norms_BL = torch.stack([part.double().norm(dim=1) for part in layers_of(policy, grads_BP)], dim=1)
    return (factors_BL.double() * norms_BL).norm(dim=1)


def test_every_kind_has_a_row():
    assert {policy.kind for policy in POLICIES} == set(KINDS["clip"]) - {"none"}  # that one is at the end


@every_ready
@pytest.mark.parametrize("width", [1, 10, 7850])
def test_no_term_is_longer_than_the_sensitivity(ready, width):
    """The factor comes from a float32 norm; the term's norm is checked in float64, from outliers down past what float32 squares."""
    near = np.concatenate([np.linspace(0.99999, 1.00001, 300), np.geomspace(1e-6, 1e12, 200)])
    scales = np.concatenate([ready.sensitivity * near, np.geomspace(1e-24, 1e-6, 100)])
    if width == 1:  # norms known to the last bit
        grads_BP = torch.from_numpy(scales.astype(np.float32))[:, None]
    else:
        grads_BP = gradients(width, scales)
    terms_B = term_norms(ready, grads_BP)
    assert terms_B.isfinite().all()
    assert (terms_B <= ready.sensitivity).all()
    reached = ready.clip_norms[0] if ready.by_layer and width == 1 else ready.sensitivity
    assert terms_B.max() > 0.9999 * AIM * reached  # no tighter than it says, or noise is wasted


@every_ready
def test_the_sensitivity_holds_at_every_step_and_after_every_move(ready):
    grads_BP = gradients(10, np.geomspace(1e-6, 1e12, 200))
    moved = [ready.at(t, 9) for t in range(9)] + [ready.raised(), ready.raised().raised()]
    if ready.counts:
        moved += [ready.moved(count) for count in (-1e12, -3.0, -0.5, 0.0, 0.5, 3.0, 1e12)]
    for policy in moved:
        assert type(policy.sensitivity) is float
        assert policy.sensitivity > 0
        assert 0.9999 * AIM * policy.sensitivity < term_norms(policy, grads_BP).max() <= policy.sensitivity


@every_ready
def test_zero_gradients_are_finite_and_broken_ones_vanish(ready):
    values = torch.tensor([[0.0], [math.nan], [math.inf], [1e-45], [3e38]])
    factors = ready.factors(values.expand(-1, 2 if ready.by_layer else 1))
    assert factors.isfinite().all()
    assert (factors >= 0).all()
    assert not factors[1].any()
    assert not factors[2].any()


@every_ready
def test_a_batch_of_none_is_served(ready):
    assert ready.factors(torch.zeros((0, 2))).numel() == 0


@every_ready
def test_layers_count_together_or_each_for_itself(ready):
    squares_BL = torch.rand((64, 2), generator=torch.Generator().manual_seed(0)) * 10 * ready.sensitivity**2
    found = ready.factors(squares_BL)
    if not ready.by_layer:
        assert found.shape == (64,)
        assert torch.allclose(found, ready.factors(squares_BL.sum(dim=1, keepdim=True)), rtol=1e-6)
        return
    assert found.shape == (64, 2)
    other = ready.factors(squares_BL * torch.tensor([1.0, 100.0]))
    assert torch.equal(found[:, 0], other[:, 0])
    broken_BL = squares_BL.clone()
    broken_BL[::2, 0], broken_BL[1::2, 1] = math.nan, math.inf
    assert not ready.factors(broken_BL).any()  # the whole record


@every_ready
def test_the_norms_handed_in_are_left_alone(ready):
    squares_BL = torch.rand((8, 2), generator=torch.Generator().manual_seed(0))
    before = squares_BL.clone()
    ready.factors(squares_BL)
    if ready.counts:
        ready.counted(squares_BL)
    assert torch.equal(squares_BL, before)


@every_policy
def test_a_policy_is_a_frozen_noun_with_a_searched_field(policy):
    assert policy.searched in {f.name for f in dataclasses.fields(policy)}
    assert set(policy.costs) <= {f.name for f in dataclasses.fields(policy)}
    assert policy == dataclasses.replace(policy)
    assert hash(policy) == hash(dataclasses.replace(policy))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(policy, policy.searched, 1.0)
    for wrong in WRONG if policy.searched == "percentile" else (0.0, *WRONG):
        with pytest.raises(FieldError, match=policy.searched):
            dataclasses.replace(policy, **{policy.searched: wrong})


@every_policy
def test_what_is_not_known_before_preparing_says_so(policy):
    assert READY[repr(policy)] == policy.prepare(FACTS, PROBLEM, STREAMS)  # a retry finds the same
    assert READY[repr(policy)].known
    if policy.known:
        assert policy.sensitivity == pytest.approx(READY[repr(policy)].sensitivity, rel=1e-12)
        return
    for ask in (lambda: policy.sensitivity, lambda: policy.factors(torch.ones((1, 1)))):
        with pytest.raises(RuntimeError, match=rf"{policy.kind} has no norm before prepare"):
            ask()


@every_policy
def test_the_event_of_a_sum_is_the_noise_that_is_used(policy):
    """Calibration asks for events at any multiplier. Where a run is possible, its noise is what the event says."""
    for noise_multiplier in MULTIPLIERS:
        event = policy.sum_event(noise_multiplier)
        if getattr(policy, "count_noise", None) is not None and noise_multiplier > 2 * policy.count_noise * (1 - 1e-6):
            with pytest.raises(FieldError, match="count_noise = 4 must be above half the step's noise multiplier"):
                policy.sum_noise(noise_multiplier)
            assert event == Gaussian(min(noise_multiplier, 2 * policy.count_noise))  # not cheaper than the count alone
            continue
        used = policy.sum_noise(noise_multiplier)
        assert READY[repr(policy)].sum_noise(noise_multiplier) == used
        if isinstance(event, AdaptiveQuantileStep):
            assert event.count_noise == policy.count_std(noise_multiplier)
            together = math.hypot(1 / used, 0.5 / event.count_noise)  # shifts over noise, of the sum and of the count
            assert together == pytest.approx(1 / noise_multiplier, rel=1e-9)
            assert event.noise_multiplier == noise_multiplier
        else:
            assert event == Gaussian(used)
            assert used == noise_multiplier


@every_policy
@pytest.mark.parametrize("sampling", ["poisson", "without-replacement"])
def test_what_it_asks_beforehand_is_stated_for_the_samplers_relation(policy, sampling):
    trainer = DpSgd(batch_size=12, steps=40, sampling=sampling)
    event = trainer.event(60, 1.0, policy, FixedStep(learning_rate=0.5))
    assert event.relation == trainer.relation == {"poisson": ZERO_OUT, "without-replacement": REPLACE_ONE}[sampling]
    asked = policy.asks(60, trainer.relation)
    assert (asked is not None) == (policy.kind == "private-quantile" or getattr(policy, "cap", None) is not None)
    assert policy.lipschitz == (asked is not None or policy.public_only)


@every_policy
def test_the_noise_of_a_step_is_its_multiplier_times_the_sensitivity(policy):
    """One step on null records alone: params = -(step size / batch_size) noise. Sizes 2/3 and 3/2 of it are rejected."""
    full, description = blobs(10, 500, 10)
    nothing = LinearProblem(model=Softmax(), description=description, table=without(full, *range(10)), rows=np.arange(10))
    ready = READY[repr(policy)]
    trainer, step = DpSgd(batch_size=5, steps=1), FixedStep(learning_rate=0.5)
    noise = trainer.fit(nothing, ready, step, 1.3, STREAMS).params_P.double().numpy() * (-5 / 0.5)
    std = policy.sum_noise(1.3) * ready.at(0, 1).sensitivity
    assert scale_p_value(noise, std) > FALSE_ALARM
    for wrong in (2 / 3, 3 / 2):
        assert scale_p_value(noise, std * wrong) < REJECTED


@every_policy
def test_a_run_prepares_it_and_says_what_was_found(policy):
    trainer, step = DpSgd(batch_size=12, steps=40), FixedStep(learning_rate=0.5)
    found = [trainer.fit(PROBLEM, policy, step, 1.3, STREAMS) for _ in range(2)]
    assert [fault.field for fault in trainer.faults(policy, step)] == (["space.clip.policy"] if policy.raises else [])
    assert torch.equal(found[0].params_P, found[1].params_P)
    assert found[0].params_P.isfinite().all()
    ready = READY[repr(policy)]
    if ready != policy and policy.kind != "heavy-tail":  # that one depends on the noise
        assert found[0].chosen["clip_norm"] == ready.sensitivity
    assert ("clip_norm" in found[0].chosen) == (ready != policy)


def test_fixed_scales_to_its_norm():
    factors_B = FixedClip(clip_norm=2.0).factors(torch.tensor([[1.0], [4.1], [16.0], [1e4]]))
    assert factors_B.tolist() == pytest.approx([1.0, AIM * 2 / math.sqrt(4.1), AIM * 0.5, AIM * 0.02], rel=3e-6)
    assert FixedClip(clip_norm=2.0).sensitivity == 2.0


def test_no_policy_has_no_norm_and_costs_nothing():
    """For trainers that clip nothing. What it cannot promise it does not state."""
    policy = NoClip()
    assert policy == NoClip()
    assert policy.absent
    assert not FixedClip(clip_norm=1.0).absent
    assert policy.asks(60, ZERO_OUT) is None
    assert policy.prepare(FACTS, PROBLEM, STREAMS) == policy.at(3, 5) == policy
    with pytest.raises(RuntimeError, match="bounds nothing"):
        _ = policy.sensitivity
    factors_B = policy.factors(torch.tensor([[0.0], [1e30], [math.nan], [math.inf]]))
    assert factors_B.tolist() == [1.0, 1.0, 0.0, 0.0]
