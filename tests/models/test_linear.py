"""Linear models: shapes, predictions, and the module that is released."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from small import blobs

from sweeper.checks import FieldError
from sweeper.models.linear import Logistic, Softmax, Squared, Svm

MODELS = [(Logistic(), 2, 1), (Svm(), 2, 1), (Squared(), 2, 1), (Softmax(), 2, 2), (Softmax(), 10, 10)]
every_model = pytest.mark.parametrize(("model", "classes", "outputs"), MODELS)


@every_model
def test_parameters_are_rows_of_weights_and_a_bias(model, classes, outputs):
    _, description = blobs(5, 6, classes)
    assert model.outputs(description) == outputs
    assert model.parameters(description) == outputs * 7


@every_model
def test_the_released_module_gives_the_logits_and_the_predictions(model, classes, outputs):
    full, description = blobs(40, 6, classes)
    params_P = torch.from_numpy(np.random.default_rng(0).standard_normal(outputs * 7).astype(np.float32))
    module = model.torch_module(params_P, description)
    features = torch.from_numpy(full.features)
    weights = params_P.double().numpy().reshape(outputs, 7)
    expected = full.features.astype(np.float64) @ weights[:, :6].T + weights[:, 6]
    logits = module(features).detach()
    assert logits.shape == (40, outputs)
    assert logits.numpy() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert torch.equal(model.predict(params_P, features), model.choose(logits))
    chosen = expected.argmax(axis=1) if outputs > 1 else expected[:, 0] > 0
    assert np.array_equal(model.predict(params_P, features).numpy(), chosen)


@every_model
def test_the_released_module_holds_its_own_copy_and_loads_without_sweeper(model, classes, outputs):
    _, description = blobs(5, 6, classes)
    params_P = torch.ones(outputs * 7)
    module = model.torch_module(params_P, description)
    assert type(module) is torch.nn.Linear
    params_P.zero_()
    assert module.weight.eq(1).all()
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    assert sorted(torch.load(file, weights_only=True)) == ["bias", "weight"]


def test_residuals_are_the_losses_derivatives_even_far_out():
    logits = torch.tensor([[-200.0], [0.0], [200.0]])
    assert Logistic().residual_(logits.clone(), torch.tensor([1, 1, 0])).squeeze(1).tolist() == [-1.0, -0.5, 1.0]
    wide = torch.tensor([[1000.0, 0.0, -1000.0], [0.0, 0.0, 0.0]])
    found = Softmax().residual_(wide, torch.tensor([2, 0]))
    assert found.numpy() == pytest.approx(np.array([[1, 0, -1], [-2 / 3, 1 / 3, 1 / 3]]), abs=1e-7)


@pytest.mark.parametrize("smoothing", [1e-3, 0.1, 0.5, 1.0])
def test_the_residual_of_the_svm_is_its_losses_derivative_and_at_most_1(smoothing):
    """By differences of the loss in float64, on both sides of both bends, and far out."""
    model = Svm(smoothing=smoothing)
    at = np.concatenate([np.linspace(-3, 3, 601), 1 + smoothing * np.linspace(-1.1, 1.1, 41), [-1e4, 1e4]])
    logits, labels = torch.from_numpy(np.concatenate([at, -at])), torch.from_numpy(np.repeat([1, 0], len(at)))
    found = model.residual_(logits.clone().unsqueeze(1), labels).squeeze(1)
    h = 1e-7 * smoothing
    low, high = (model.losses((logits + move)[:, None, None], labels).squeeze(1) for move in (-h, h))
    middle = logits.abs() < 100  # beyond, differences of float64 have too few digits
    assert found[middle].numpy() == pytest.approx(((high - low) / (2 * h))[middle].numpy(), abs=1e-5)
    assert found.abs().max() == 1
    assert torch.equal(found[~middle], torch.tensor([-1.0, 0.0, 1.0, 0.0], dtype=torch.float64))


def test_losses_of_the_svm_by_hand():
    """Huber hinge with h = 0.5: flat from margin 1.5 on, (1.5 - m)^2 / 2 down to 0.5, and 1 - m from there."""
    margins = torch.tensor([-2.0, 0.0, 0.5, 1.0, 1.25, 1.5, 9.0])
    for label, sign in ((1, 1), (0, -1)):
        found = Svm().losses((sign * margins)[:, None, None], torch.full((7,), label))
        assert found.squeeze(1).tolist() == [3.0, 1.0, 0.5, 0.125, 0.03125, 0.0, 0.0]
    many = Svm().losses(margins.view(1, 7, 1), torch.tensor([1]))
    assert many.tolist() == [[3.0, 1.0, 0.5, 0.125, 0.03125, 0.0, 0.0]]


def test_losses_and_residuals_of_least_squares_by_hand():
    """(z - s)^2 / 2 and z - s, s = 1 for label 1 and -1 for label 0."""
    logits, labels = torch.tensor([[3.0], [3.0], [-1.0], [0.0]]), torch.tensor([1, 0, 0, 1])
    assert Squared().losses(logits[:, :, None], labels).squeeze(1).tolist() == [2.0, 8.0, 0.0, 0.5]
    assert Squared().residual_(logits.clone(), labels).squeeze(1).tolist() == [2.0, 4.0, 0.0, -1.0]


@pytest.mark.parametrize("wrong", [0.0, -0.1, 1.5, math.nan, "0.1"])
def test_smoothing_of_the_svm_is_in_its_range(wrong):
    with pytest.raises(FieldError, match="smoothing"):
        Svm(smoothing=wrong)


@pytest.mark.parametrize("model", [Logistic, Svm, Softmax])
@pytest.mark.parametrize("wrong", [-0.1, math.nan, "0.1"])
def test_penalty_must_be_a_number_of_at_least_0(model, wrong):
    with pytest.raises(FieldError, match="l2"):
        model(l2=wrong)
