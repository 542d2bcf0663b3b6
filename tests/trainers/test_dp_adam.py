"""DP-Adam against a float64 loop of its definition; what the noise correction does; what it refuses."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from heard import HeardStep
from oracles import clipped, gradients
from small import blobs, without

from sweeper.backends.closed_form import LinearProblem
from sweeper.checks import FieldError
from sweeper.clip.decay import Decay
from sweeper.clip.fixed import FixedClip
from sweeper.data.sampling import PoissonSampler
from sweeper.models.linear import Softmax
from sweeper.seeds import NOISE, SAMPLING, Streams, secret_from_seed
from sweeper.step.coupled import CoupledStep
from sweeper.step.fixed import FixedStep
from sweeper.trainers.dp_adam import Adam, DpAdam
from sweeper.trainers.noise import gaussian_

STREAMS = Streams(secret_from_seed("dp-adam"), 1)
ADAM = DpAdam(batch_size=12, steps=30, beta1=0.8, beta2=0.95)
CHANGES = [{}, {"bias_correct_noise": True, "noise_floor": 1e-3}, {"beta1": 0.0}, {"stability": 0.1}]
SIGMA, SIZE = 0.8, 0.1


def reference(trainer: DpAdam, clip_norms: np.ndarray, model, full, description, wrong: float = 1.0) -> np.ndarray:
    """The last iterate [P] in float64, given the streams' own batches and noise; moments are weighted means.

    wrong: what the variance that is subtracted is multiplied by.
    """
    sampler = PoissonSampler(rows=description.rows, batch_size=trainer.batch_size)
    draws, noise = STREAMS.generator(SAMPLING), STREAMS.torch_generator(NOISE)
    size = model.parameters(description)
    weights, seen, variances = np.zeros(size), [], []
    for t in range(trainer.steps):
        rows = sampler.draw(draws)
        total = gaussian_(torch.empty(size), SIGMA * clip_norms[t], noise).double().numpy()
        if len(rows):
            total += clipped(gradients(model.kind, weights, full.features[rows], full.labels[rows]), clip_norms[t]).sum(axis=0)
        penalty = model.l2 * weights.reshape(-1, description.features + 1)
        penalty[:, -1] = 0
        seen.append(total / trainer.batch_size + penalty.ravel())
        variances.append((SIGMA * clip_norms[t] / trainer.batch_size) ** 2)

        def mean(values, beta):
            ages = np.array([beta ** (len(values) - 1 - s) for s in range(len(values))])
            return np.tensordot(ages, np.array(values), axes=1) * (1 - beta) / (1 - beta ** len(values))

        first, second = mean(seen, trainer.beta1), mean(np.square(seen), trainer.beta2)
        if trainer.bias_correct_noise:
            root = np.sqrt(np.maximum(second - wrong * mean(variances, trainer.beta2), trainer.noise_floor))
        else:
            root = np.sqrt(second) + trainer.stability
        weights = weights - SIZE * first / root
    return weights


@pytest.mark.parametrize("falls", [False, True])
@pytest.mark.parametrize(
    "changes", [{}, {"bias_correct_noise": True, "noise_floor": 1e-3}, {"beta1": 0.0}, {"stability": 0.1}], ids=str
)
def test_fit_is_the_textbook_loop(changes, falls):
    full, description = blobs(60, 7, 5)
    trainer, model = dataclasses.replace(ADAM, **changes), Softmax(l2=0.3)
    clip = Decay(clip_norm=0.4, schedule="linear", final=0.25) if falls else FixedClip(clip_norm=0.4)
    norms = np.linspace(0.4, 0.1, 30) if falls else np.full(30, 0.4)
    built = LinearProblem(model=model, description=description, table=full, rows=np.arange(60))
    found = trainer.fit(built, clip, FixedStep(learning_rate=SIZE), SIGMA, STREAMS).params_P.numpy()
    expected = reference(trainer, norms, model, full, description)
    assert np.linalg.norm(found - expected) < 2e-4 * np.linalg.norm(expected)
    for wrong in (2 / 3, 3 / 2):
        other = reference(trainer, norms, model, full, description, wrong)
        assert (np.linalg.norm(found - other) > 1e-2 * np.linalg.norm(expected)) == trainer.bias_correct_noise


def test_what_is_subtracted_is_the_variance_of_the_noise():
    """On noise alone the corrected second moment is around 0, within 6 deviations of its mean; with 2/3 or 3/2 of it, it is not."""
    full, description = blobs(10, 2000, 10)
    nothing = LinearProblem(model=Softmax(), description=description, table=without(full, *range(10)), rows=np.arange(10))
    step = HeardStep(learning_rate=1e-3)
    DpAdam(batch_size=4, steps=40).fit(nothing, FixedClip(clip_norm=0.5), step, 1.3, STREAMS)
    std = 1.3 * 0.5 / 4
    settings = DpAdam(batch_size=4, steps=40, bias_correct_noise=True, noise_floor=1e-12)
    for scale, centred in ((1.0, True), (2 / 3, False), (3 / 2, False)):
        rule = Adam(settings, step.heard.gradients[0])
        for gradient_P in step.heard.gradients:
            rule.direction(gradient_P.clone(), std * math.sqrt(scale))
        second_P = rule._second_P.double() / rule._weight2 - rule._noise / rule._weight2
        deviation = std**2 * math.sqrt(2 / (40 * second_P.numel()))
        assert (abs(float(second_P.mean())) < 6 * deviation) == centred


def test_one_step_is_a_sign_step_without_the_correction():
    """Both moments of one gradient are its own: the direction is g / (|g| + stability), of size 1."""
    gradient_P = torch.tensor([3.0, -0.2, 1e-3])
    rule = DpAdam(batch_size=1, steps=1).rule(gradient_P, 1.0)
    assert rule.direction(gradient_P, 0.5).tolist() == pytest.approx([1.0, -1.0, 1.0], abs=2e-5)


def test_a_coupled_step_is_refused_with_the_reason():
    (fault,) = ADAM.faults(FixedClip(clip_norm=1.0), CoupledStep(c=1.0))
    assert str(fault).startswith(
        "space.step.policy = 'coupled' does not go with trainer dp-adam: Adam takes the gradient's scale out"
    )
    assert "search the step size alone" in str(fault)
    assert list(ADAM.faults(FixedClip(clip_norm=1.0), FixedStep(learning_rate=1.0))) == []


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("beta1", 1.0),
        ("beta1", -0.1),
        ("beta2", 1.0),
        ("stability", 0.0),
        ("noise_floor", 0.0),
        ("bias_correct_noise", 1),
        ("steps", 0),
    ],
)
def test_fields_are_checked(field, wrong):
    with pytest.raises(FieldError, match=field):
        DpAdam(**{"batch_size": 10, "steps": 10, field: wrong})
