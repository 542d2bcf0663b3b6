"""Clipping per layer: how a norm is split, what a record can add, and the noise of every layer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from constants import facts
from oracles import AIM, FALSE_ALARM, REJECTED, gradients, scale_p_value
from small import blobs, without
from tiny_sweeps import FIXED, spec_of

from sweeper.backends.closed_form import LinearProblem
from sweeper.catalog import dump_spec, load_spec
from sweeper.checks import FieldError
from sweeper.clip.per_layer import PerLayerClip
from sweeper.models.linear import Softmax
from sweeper.seeds import Streams, secret_from_seed
from sweeper.spec.codec import fingerprint
from sweeper.step.fixed import FixedStep
from sweeper.trainers.dp_sgd import DpSgd

STREAMS = Streams(secret_from_seed("per layer"), 0)
FULL, DESCRIPTION = blobs(40, 6, 4)
PROBLEM = LinearProblem(model=Softmax(), description=DESCRIPTION, table=FULL, rows=np.arange(40))  # layers of 24 and 4


def prepared(**fields) -> PerLayerClip:
    return PerLayerClip(**fields).prepare(facts(), PROBLEM, STREAMS)


def test_a_norm_is_split_over_the_layers():
    assert prepared(clip_norm=2.0).clip_norms == pytest.approx((math.sqrt(2), math.sqrt(2)))
    assert prepared(clip_norm=2.0, split="by-size").clip_norms == pytest.approx((2 * math.sqrt(24 / 28), 2 * math.sqrt(4 / 28)))
    for split in ("equal", "by-size"):
        assert prepared(clip_norm=2.0, split=split).sensitivity == pytest.approx(2.0, rel=1e-15)
    assert prepared(clip_norms=(3.0, 4.0)).sensitivity == 5.0
    assert PerLayerClip(clip_norm=2.0).sensitivity == 2.0
    with pytest.raises(RuntimeError, match="per-layer knows no layers before prepare"):
        PerLayerClip(clip_norm=2.0).factors(torch.ones((1, 2)))


def test_factors_by_hand():
    factors_BL = prepared(clip_norms=(1.0, 2.0)).factors(torch.tensor([[0.25, 0.25], [4.0, 4.1], [100.0, 1.0], [0.0, 16.0]]))
    expected = [1.0, 1.0, AIM * 0.5, AIM * 2 / math.sqrt(4.1), AIM * 0.1, 1.0, 1.0, AIM * 0.5]
    assert factors_BL.view(-1).tolist() == pytest.approx(expected, rel=3e-6)


@pytest.mark.parametrize("scale", [0.01, 1.0, 1e4])
def test_the_sum_of_a_batch_against_a_loop(scale):
    """And of each layer: at most its norm times the records."""
    policy = prepared(clip_norms=(0.5, 0.2))
    params_P = torch.from_numpy((scale * np.random.default_rng(0).standard_normal(28)).astype(np.float32))
    expected = np.zeros((4, 7))
    for gradient_P in gradients("softmax", params_P.numpy(), FULL.features, FULL.labels):
        term_KD = gradient_P.reshape(4, 7).copy()
        term_KD[:, :6] *= min(1.0, AIM * 0.5 / max(np.linalg.norm(term_KD[:, :6]), 1e-300))
        term_KD[:, 6] *= min(1.0, AIM * 0.2 / max(np.linalg.norm(term_KD[:, 6]), 1e-300))
        expected += term_KD
    found = PROBLEM.batch(np.arange(40)).sum(params_P, policy.factors, by_layer=True).double().numpy().reshape(4, 7)
    assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)
    assert np.linalg.norm(found[:, :6]) <= 40 * 0.5
    assert np.linalg.norm(found[:, 6]) <= 40 * 0.2


def test_every_layer_has_the_noise_of_the_whole():
    """Weights and biases both get multiplier * sqrt(0.3^2 + 1.1^2), not that of their own norm (Opacus 202)."""
    full, description = blobs(10, 30, 400)
    nothing = LinearProblem(model=Softmax(), description=description, table=without(full, *range(10)), rows=np.arange(10))
    policy, step = PerLayerClip(clip_norms=(0.3, 1.1)), FixedStep(learning_rate=0.5)
    noise = DpSgd(batch_size=5, steps=1).fit(nothing, policy, step, 1.3, STREAMS).params_P.double().view(400, 31).numpy() * 10
    for part in (noise[:, :30], noise[:, 30]):
        assert scale_p_value(part, 1.3 * math.hypot(0.3, 1.1)) > FALSE_ALARM
        for wrong in (1.3 * math.hypot(0.3, 1.1) * 1.5, 1.3 * math.hypot(0.3, 1.1) / 1.5):
            assert scale_p_value(part, wrong) < REJECTED
    assert scale_p_value(noise[:, :30], 1.3 * 0.3) < REJECTED


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "clip_norm is missing. Give value: or range:"),
        ({"clip_norm": 1.0, "clip_norms": (1.0,)}, "clip_norm = 1 and clip_norms are both given"),
        ({"clip_norms": ()}, "clip_norms = .* must be a list of numbers, one for each layer"),
        ({"clip_norms": [1.0, 2.0]}, "must be a list"),
        ({"clip_norms": (1.0, 0.0)}, "clip_norms = 0 must be above 0"),
        ({"clip_norms": (1.0, math.nan)}, "clip_norms"),
        ({"clip_norm": 1.0, "split": "by-depth"}, "split = 'by-depth' must be one of equal, by-size"),
    ],
)
def test_fields(fields, said):
    with pytest.raises(FieldError, match=said):
        PerLayerClip(**fields)


def test_as_many_norms_as_layers():
    with pytest.raises(FieldError, match="must be one for each of the 2 layers, of 24, 4 parameters"):
        prepared(clip_norms=(1.0, 2.0, 3.0))


def test_a_list_of_norms_in_a_sweep_file(tmp_path):
    step = {"policy": "fixed", "range": [0.1, 1.0]}
    spec = spec_of(space={"clip": {"policy": "per-layer", "clip_norms": [1, 2.5]}, "step": step})
    assert spec.space.clip.middle() == PerLayerClip(clip_norms=(1.0, 2.5))
    (tmp_path / "sweep.yaml").write_text(dump_spec(spec))
    again = load_spec(tmp_path / "sweep.yaml")
    assert again == spec
    assert fingerprint(again) == fingerprint(spec)
    for wrong, words in ((3.0, "must be a list of numbers"), (["a"], "must be a number"), ([True], "not true or false")):
        with pytest.raises(FieldError, match=rf"space.clip.clip_norms = .*{words}"):
            spec_of(space=FIXED | {"clip": {"policy": "per-layer", "clip_norms": wrong}})
