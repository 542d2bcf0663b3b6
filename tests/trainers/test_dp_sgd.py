"""DP-SGD's own options, against a float64 loop: momentum, penalty, averaging, schedule; and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from oracles import clipped, gradients
from small import blobs

from sweeper.backends.closed_form import LinearProblem
from sweeper.checks import FieldError
from sweeper.clip.fixed import FixedClip
from sweeper.data.sampling import PoissonSampler
from sweeper.models.linear import Logistic, Softmax
from sweeper.privacy.events import event_from_dict
from sweeper.seeds import NOISE, SAMPLING, Streams, secret_from_seed
from sweeper.step.coupled import CoupledStep
from sweeper.trainers.dp_sgd import DpSgd
from sweeper.trainers.noise import gaussian_

STREAMS = Streams(secret_from_seed("dp-sgd"), 3)
AVERAGES = [("last", 0.5, 1), ("tail", 0.5, 15), ("tail", 0.01, 1), ("tail", 1.0, 30)]  # of 30 steps
CLIP, STEP, SIGMA = FixedClip(clip_norm=0.4), CoupledStep(c=0.5, schedule="linear", warmup=0.2), 0.8


def reference(trainer: DpSgd, model, full, description) -> np.ndarray:
    """The iterates [steps, P] in float64, given the streams' own batches and noise."""
    sampler = PoissonSampler(rows=description.rows, batch_size=trainer.batch_size)
    draws, noise = STREAMS.generator(SAMPLING), STREAMS.torch_generator(NOISE)
    size = model.parameters(description)
    weights, velocity, iterates = np.zeros(size), np.zeros(size), []
    for t in range(trainer.steps):
        rows = sampler.draw(draws)
        total = np.zeros(size)
        if len(rows):
            total += clipped(gradients(model.kind, weights, full.features[rows], full.labels[rows]), 0.4).sum(axis=0)
        total += gaussian_(torch.empty(size), 0.8 * 0.4, noise).double().numpy()
        penalty = model.l2 * weights.reshape(-1, description.features + 1)
        penalty[:, -1] = 0
        velocity = trainer.momentum * velocity + total / trainer.batch_size + penalty.ravel()
        warm = math.ceil(0.2 * trainer.steps)
        scale = (t + 1) / warm if t < warm else 1 - (t - warm) / (trainer.steps - warm)
        weights = weights - 0.5 / 0.4 * scale * velocity
        iterates.append(weights)
    return np.array(iterates)


@pytest.mark.parametrize(("model", "classes"), [(Logistic(l2=0.3), 2), (Softmax(), 5), (Softmax(l2=0.3), 5)])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    ("average", "fraction", "kept"), [("last", 0.5, 1), ("tail", 0.5, 15), ("tail", 0.01, 1), ("tail", 1.0, 30)]
)
def test_fit_is_the_textbook_loop(model, classes, momentum, average, fraction, kept):
    full, description = blobs(60, 7, classes)
    trainer = DpSgd(batch_size=12, steps=30, momentum=momentum, average=average, tail_fraction=fraction)
    built = LinearProblem(model=model, description=description, table=full, rows=np.arange(60))
    found, sealed, _, _ = trainer.fit(built, CLIP, STEP, SIGMA, STREAMS)
    expected = reference(trainer, model, full, description)[-kept:].mean(axis=0)
    assert np.linalg.norm(found.numpy() - expected) < 2e-5 * np.linalg.norm(expected)
    assert sealed["steps"] == 30


def test_the_sealed_fraction_of_clipped_records():
    full, description = blobs(60, 7, 5)
    built = LinearProblem(model=Softmax(), description=description, table=full, rows=np.arange(60))
    trainer = DpSgd(batch_size=60, steps=1)
    tight, loose = (trainer.fit(built, FixedClip(clip_norm=c), STEP, 0.0, STREAMS).sealed for c in (1e-3, 1e3))
    assert tight["clipped_fraction_last_step"] == 1.0
    assert loose["clipped_fraction_last_step"] == 0.0


def test_the_event_survives_the_ledger():
    event = DpSgd(batch_size=7, steps=11).event(1001, 1.3, CLIP, STEP)
    assert event_from_dict(event.to_dict()) == event


@pytest.mark.parametrize("sampling", ["fixed-size", "shuffle", "weighted", None, 3])
def test_other_sampling_is_refused_with_the_reason(sampling):
    with pytest.raises(FieldError, match=r"sampling = .* is refused: the bill counts on every record having the same chance"):
        DpSgd(batch_size=10, steps=10, sampling=sampling)
    with pytest.raises(FieldError, match=r"did you mean without-replacement\? Use sampling: poisson, or"):
        DpSgd(batch_size=10, steps=10, sampling="without_replacement")


def test_the_relation_is_the_samplers():
    assert DpSgd(batch_size=10, steps=10).relation == "zero-out"
    assert DpSgd(batch_size=10, steps=10, sampling="without-replacement").relation == "replace-one"


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("batch_size", 0), ("batch_size", 2.5), ("steps", 0), ("steps", True), ("momentum", 1.0), ("momentum", -0.1),
        ("momentum", math.nan), ("average", "mean"), ("tail_fraction", 0.0), ("tail_fraction", 1.1),
    ],
)  # fmt: skip
def test_fields_are_checked(field, wrong):
    with pytest.raises(FieldError, match=field):
        DpSgd(**{"batch_size": 10, "steps": 10, field: wrong})


def test_a_batch_larger_than_the_table_is_refused_before_training():
    with pytest.raises(FieldError, match="batch_size"):
        DpSgd(batch_size=10, steps=10).event(9, 1.0, CLIP, STEP)
