"""DP-NSGD: the loop of DP-SGD on normalised gradients, steps over the noise, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles import AIM, gradients
from small import blobs

from sweeper.backends.closed_form import LinearProblem
from sweeper.checks import FieldError
from sweeper.clip.fixed import FixedClip
from sweeper.clip.normalise import Normalise
from sweeper.data.sampling import PoissonSampler
from sweeper.models.linear import Softmax
from sweeper.seeds import NOISE, SAMPLING, Streams, secret_from_seed
from sweeper.step.fixed import FixedStep
from sweeper.trainers.dp_nsgd import DpNsgd
from sweeper.trainers.noise import gaussian_

STREAMS = Streams(secret_from_seed("dp-nsgd"), 2)
R, SIZE = 0.1, 0.5


def reference(trainer: DpNsgd, sigma: float, full, description) -> np.ndarray:
    sampler = PoissonSampler(rows=description.rows, batch_size=trainer.batch_size)
    draws, noise = STREAMS.generator(SAMPLING), STREAMS.torch_generator(NOISE)
    size = Softmax().parameters(description)
    weights, velocity = np.zeros(size), np.zeros(size)
    for _ in range(trainer.steps):
        rows = sampler.draw(draws)
        total = gaussian_(torch.empty(size), sigma, noise).double().numpy()
        if len(rows):
            per_record = gradients("softmax", weights, full.features[rows], full.labels[rows])
            total += AIM * (per_record / (R + np.linalg.norm(per_record, axis=1, keepdims=True))).sum(axis=0)
        scale = sigma if trainer.step_over_noise and sigma else 1.0
        velocity = trainer.momentum * velocity + total / trainer.batch_size / scale
        weights = weights - SIZE * velocity
    return weights


@pytest.mark.parametrize("sigma", [0.0, 0.4, 2.5])
@pytest.mark.parametrize("changes", [{}, {"step_over_noise": True}, {"step_over_noise": True, "momentum": 0.9}], ids=str)
def test_fit_is_the_textbook_loop(changes, sigma):
    full, description = blobs(60, 7, 5)
    trainer = DpNsgd(batch_size=12, steps=30, **changes)
    built = LinearProblem(model=Softmax(), description=description, table=full, rows=np.arange(60))
    found = trainer.fit(built, Normalise(r=R), FixedStep(learning_rate=SIZE), sigma, STREAMS).params_P.numpy()
    expected = reference(trainer, sigma, full, description)
    assert np.linalg.norm(found - expected) < 2e-5 * np.linalg.norm(expected)


def test_only_normalised_gradients_go_with_it():
    trainer = DpNsgd(batch_size=12, steps=30)
    (fault,) = trainer.faults(FixedClip(clip_norm=1.0), FixedStep(learning_rate=1.0))
    assert str(fault) == (
        "space.clip.policy = 'fixed' does not go with trainer dp-nsgd, which is DP-SGD on normalised gradients. "
        "Use clip: {policy: normalise}, or trainer dp-sgd."
    )
    assert list(trainer.faults(Normalise(), FixedStep(learning_rate=1.0))) == []
    with pytest.raises(FieldError, match="step_over_noise"):
        DpNsgd(batch_size=12, steps=30, step_over_noise=1)
