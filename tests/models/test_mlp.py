"""Multi-layer perceptrons: shapes, start, predictions, and the module that is released."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from oracles import FALSE_ALARM, REJECTED, scale_p_value
from small import blobs

from sweeper.checks import FieldError
from sweeper.models.layers import Activation, Dense
from sweeper.models.mlp import Mlp
from sweeper.seeds import INIT, NOISE, Streams, secret_from_seed
from sweeper.spec.protocols import Description

STREAMS = Streams(secret_from_seed("mlp"), 0)


def test_the_papers_shapes_have_the_parameters_that_they_state():
    wide = Description(rows=10, features=784, classes=10)
    assert Mlp(hidden=(1000,)).parameters(wide) == 784 * 1000 + 1000 + 1000 * 10 + 10
    assert Mlp(hidden=(256, 256)).parameters(wide) == 785 * 256 + 257 * 256 + 257 * 10
    assert Mlp(hidden=(256, 256), activation="tanh").stack(784, 2) == (
        Dense(inputs=784, outputs=256),
        Activation(how="tanh"),
        Dense(inputs=256, outputs=256),
        Activation(how="tanh"),
        Dense(inputs=256, outputs=2),
    )


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_released_module_computes_the_formula(activation):
    """By hand in float64: two layers with their activation, and a label from the larger logit."""
    full, description = blobs(700, 6, 3)  # more than one pass of a prediction
    model = Mlp(hidden=(5,), activation=activation)
    params = np.random.default_rng(0).standard_normal(6 * 5 + 5 + 5 * 3 + 3).astype(np.float32)
    first, first_b, second, second_b = np.split(params.astype(np.float64), [30, 35, 50])
    hidden = full.features @ first.reshape(5, 6).T + first_b
    hidden = np.maximum(hidden, 0) if activation == "relu" else np.tanh(hidden)
    expected = hidden @ second.reshape(3, 5).T + second_b
    module, features = model.torch_module(torch.from_numpy(params), description), torch.from_numpy(full.features)
    assert module(features).detach().numpy() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert np.array_equal(model.predict(torch.from_numpy(params), features).numpy(), expected.argmax(axis=1))
    assert model.predict(torch.from_numpy(params), features[:0]).shape == (0,)


def test_the_released_module_holds_its_own_copy_and_loads_without_sweeper():
    _, description = blobs(5, 6, 4)
    params_P = torch.ones(Mlp(hidden=(5,)).parameters(description))
    module = Mlp(hidden=(5,)).torch_module(params_P, description)
    assert {type(part).__module__.split(".")[0] for part in module.modules()} == {"torch"}
    params_P.zero_()
    assert all(parameter.eq(1).all() for parameter in module.parameters())
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    assert sorted(torch.load(file, weights_only=True)) == ["0.bias", "0.weight", "2.bias", "2.weight"]


@pytest.mark.parametrize(("activation", "first"), [("relu", 2 / 300), ("tanh", 2 / 500)])
def test_the_start_has_the_stated_spread_and_no_bias(activation, first):
    """He's variance 2 / inputs under a ReLU, Glorot's 2 / (inputs + outputs) else; 2/3 and 3/2 of it are rejected."""
    _, description = blobs(5, 300, 10)
    start_P = Mlp(hidden=(200,), activation=activation).start(description, STREAMS).numpy()
    weights, biases, last, last_biases = np.split(start_P, np.cumsum([300 * 200, 200, 2000]))
    assert not biases.any()
    assert not last_biases.any()
    for draws, variance in ((weights, first), (last, 2 / 210)):
        assert scale_p_value(draws, math.sqrt(variance)) > FALSE_ALARM
        for wrong in (2 / 3, 3 / 2):
            assert scale_p_value(draws, math.sqrt(variance) * wrong) < REJECTED


def test_the_start_depends_on_the_trials_own_stream_alone():
    _, description = blobs(5, 12, 3)
    start_P = Mlp().start(description, STREAMS)
    torch.manual_seed(1)
    assert torch.equal(start_P, Mlp().start(description, STREAMS))
    other_P = Mlp().start(description, Streams(secret_from_seed("mlp"), 1))
    weights = start_P != 0
    assert not torch.isclose(start_P[weights], other_P[weights], rtol=1e-6).any()
    used = [torch.empty(3072).normal_(generator=STREAMS.torch_generator(purpose)) for purpose in (INIT, NOISE)]
    ours = start_P[:3072] / math.sqrt(2 / 12)
    assert torch.allclose(ours, used[0], rtol=1e-5)
    assert not torch.isclose(ours, used[1], rtol=1e-6).any()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden": []}, "hidden"),
        ({"hidden": 256}, "hidden = 256 must be a list of widths"),
        ({"hidden": [256, 0]}, "hidden = 0 must be a whole number of at least 1"),
        ({"hidden": [256.0]}, "hidden = 256 must be a whole number"),
        ({"activation": "rel"}, "did you mean relu"),
        ({"l2": -1.0}, "l2 = -1 must be at least 0"),
    ],
)
def test_wrong_fields_are_named(fields, message):
    with pytest.raises(FieldError, match=message):
        Mlp(**fields)


def test_a_list_and_a_tuple_are_the_same_model():
    assert Mlp(hidden=[3, 4]) == Mlp(hidden=(3, 4))
    assert hash(Mlp(hidden=[3, 4])) == hash(Mlp(hidden=(3, 4)))
    assert not hasattr(Mlp(), "lipschitz")
