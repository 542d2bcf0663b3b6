"""The adaptive clip norm: one Gaussian for sum and count together, and a norm that finds its quantile."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from small import blobs, without
from tiny_sweeps import FIXED, spec_of

from sweeper.backends.closed_form import LinearProblem
from sweeper.checks import FieldError
from sweeper.clip.adaptive_quantile import AdaptiveQuantileClip
from sweeper.models.linear import Softmax
from sweeper.privacy import accountant
from sweeper.privacy.events import AdaptiveQuantileStep, Composed, Gaussian, PoissonSubsampled, Repeated
from sweeper.seeds import COUNT_NOISE, Streams, secret_from_seed
from sweeper.step.exponential_search import ExponentialSearch
from sweeper.step.fixed import FixedStep
from sweeper.trainers.dp_sgd import DpSgd

STREAMS = Streams(secret_from_seed("adaptive"), 0)
STEP = FixedStep(learning_rate=0.5)


def together(sum_noise: float, count_noise: float, count_sensitivity: float) -> float:
    """The multiplier of two independent Gaussian answers about one record, as one."""
    return (sum_noise**-2 + (count_noise / count_sensitivity) ** -2) ** -0.5


@pytest.mark.parametrize(("z", "count_noise"), [(1.0, None), (1.0, 1.0), (0.6, 3.0), (5.0, None), (5.0, 2.6)])
def test_sum_and_count_are_one_gaussian_of_the_steps_multiplier(z, count_noise):
    policy = AdaptiveQuantileClip(clip_norm=1.0, count_noise=count_noise)
    assert policy.count_std(z) == (5 * z if count_noise is None else count_noise)
    assert policy.sum_noise(z) > z
    assert together(policy.sum_noise(z), policy.count_std(z), 0.5) == pytest.approx(z, rel=1e-12)
    apart = Composed((Gaussian(policy.sum_noise(z)), Gaussian(2 * policy.count_std(z))))
    assert accountant.epsilon(apart, 1e-5) == pytest.approx(accountant.epsilon(Gaussian(z), 1e-5), rel=1e-3)
    assert accountant.epsilon(policy.sum_event(z), 1e-5) == pytest.approx(accountant.epsilon(Gaussian(z), 1e-5), rel=1e-3)


def test_a_raw_count_would_cost_more_than_the_step_says():
    """Bits of 0 and 1 move the count by 1, not by 1/2: at z = 1 and a count noise of 1 the true multiplier is 0.756 (Opacus)."""
    policy = AdaptiveQuantileClip(clip_norm=1.0, count_noise=1.0)
    assert together(policy.sum_noise(1.0), 1.0, 1.0) == pytest.approx(0.756, abs=5e-4)
    counted = policy.counted(torch.tensor([[0.0], [0.5], [1.0], [1.1], [1e9], [math.inf], [math.nan]]))
    assert counted.tolist() == [0.5, 0.5, 0.5, -0.5, -0.5, -0.5, -0.5]
    assert together(policy.sum_noise(1.0), 1.0, float(counted.abs().max())) == pytest.approx(1.0, rel=1e-12)


def test_a_count_noise_too_small_for_the_step_is_priced_and_not_run():
    policy = AdaptiveQuantileClip(clip_norm=1.0, count_noise=0.5)
    assert policy.sum_event(0.999) == AdaptiveQuantileStep(0.999, 0.5)
    assert policy.sum_event(1.0) == policy.sum_event(1e7) == Gaussian(1.0)
    said = "count_noise = 0.5 must be above half the step's noise multiplier, 1: the count alone costs that much. Leave it out, "
    said += "or try 10."
    with pytest.raises(FieldError) as caught:
        policy.sum_noise(2.0)
    assert str(caught.value) == said
    full, description = blobs(20, 3, 2)
    problem = LinearProblem(model=Softmax(), description=description, table=full, rows=np.arange(20))
    with pytest.raises(FieldError, match="count_noise"):
        DpSgd(batch_size=5, steps=3).fit(problem, policy, STEP, 2.0, STREAMS)


def test_one_move_by_hand():
    policy = AdaptiveQuantileClip(clip_norm=2.0, quantile=0.3, rate=0.2)
    assert policy.moved(0.25).clip_norm == pytest.approx(2.0 * math.exp(-0.2 * (0.75 - 0.3)), rel=1e-12)
    assert policy.moved(-0.5).clip_norm == pytest.approx(2.0 * math.exp(0.2 * 0.3), rel=1e-12)  # nobody below: up
    assert policy.moved(-0.2).clip_norm == pytest.approx(2.0, rel=1e-12)  # 0.3 of them below: stay
    assert policy.moved(1e300).clip_norm == 1e-6
    assert policy.moved(-1e300).clip_norm == 1e6
    assert policy.moved(0.25).moved(0.25).clip_norm == pytest.approx(2.0 * math.exp(-0.4 * 0.45), rel=1e-12)


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("start", [0.01, 100.0])
def test_it_finds_the_quantile_of_the_norms(quantile, start):
    """400 steps of 500 norms drawn from exp(N(0, 1)); the mean of the last half is at the quantile asked for, not 1.5 times off."""
    rng, policy, kept = np.random.default_rng(0), AdaptiveQuantileClip(clip_norm=start, quantile=quantile), []
    for _ in range(400):
        squares_B1 = torch.from_numpy(np.exp(2 * rng.normal(0, 1, (500, 1))).astype(np.float32))
        count = float(policy.counted(squares_B1).sum()) + rng.normal(0, policy.count_std(1.0))
        policy = policy.moved(count / 500)
        kept.append(policy.clip_norm)
    share = float(np.mean(rng.normal(0, 1, 10**5) <= np.log(np.exp(np.mean(np.log(kept[200:]))))))
    assert share == pytest.approx(quantile, abs=0.02)
    assert abs(share - quantile * 1.5) > 0.05
    assert abs(share - quantile / 1.5) > 0.05


@pytest.mark.parametrize("batch_size", [10, 20])
def test_in_a_run_the_count_is_noisy_and_its_divisor_public(batch_size):
    """On null records alone the count is noise: share = noise / b + 1/2, from a stream of its own."""
    full, description = blobs(20, 3, 4)
    nothing = LinearProblem(model=Softmax(), description=description, table=without(full, *range(20)), rows=np.arange(20))
    policy = AdaptiveQuantileClip(clip_norm=1.0, quantile=0.5)
    trace = DpSgd(batch_size=batch_size, steps=30).fit(nothing, policy, STEP, 2.0, STREAMS).trace
    noise = STREAMS.generator(COUNT_NOISE).normal(0.0, 10.0, 30)
    expected = np.exp(-0.2 * np.concatenate([[0.0], np.cumsum(noise / batch_size)[:-1]]))
    assert trace["clip_norm"] == pytest.approx(expected.tolist(), rel=1e-9)


def test_beside_a_line_search_the_search_has_its_own_share():
    """The step's multiplier is the search's and the gradient's; the gradient's is the sum's and the count's."""
    trainer, policy = DpSgd(batch_size=10, steps=30), AdaptiveQuantileClip(clip_norm=1.0)
    search = ExponentialSearch(initial=1.0)
    event = trainer.event(100, 2.0, policy, search)
    left = search.gradient_noise(2.0)
    inner = Composed((AdaptiveQuantileStep(left, 5 * left), search.event(2.0)))
    assert event == Repeated(PoissonSubsampled(0.1, inner), 30)


@pytest.mark.parametrize(
    "changes",
    [{"clip_norm": 1e-7}, {"clip_norm": 1e7}, {"quantile": 1.1}, {"rate": 0.0}, {"count_noise": 0.0}, {"count_noise": "1"}],
)
def test_fields(changes):
    with pytest.raises(FieldError, match=next(iter(changes))):
        AdaptiveQuantileClip(**{"clip_norm": 1.0} | changes)


def test_in_a_sweep_file_on_private_rows():
    clip = {"policy": "adaptive-quantile", "value": 1.0, "quantile": {"range": [0.1, 0.9]}}
    assert spec_of(space=FIXED | {"clip": clip}).space.clip.middle() == AdaptiveQuantileClip(clip_norm=1.0)
