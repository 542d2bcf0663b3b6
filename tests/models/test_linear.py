"""Linear models: shapes, predictions, and the module that is released."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from small import blobs

from sweeper.checks import FieldError
from sweeper.models.linear import Logistic, Softmax

MODELS = [(Logistic(), 2, 1), (Softmax(), 2, 2), (Softmax(), 10, 10)]
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


@pytest.mark.parametrize("model", [Logistic, Softmax])
@pytest.mark.parametrize("wrong", [-0.1, math.nan, "0.1"])
def test_penalty_must_be_a_number_of_at_least_0(model, wrong):
    with pytest.raises(FieldError, match="l2"):
        model(l2=wrong)
