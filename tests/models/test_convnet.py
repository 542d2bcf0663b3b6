"""Convolutional networks: the papers' shapes, the module that is released, and pictures that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.signal import correlate2d
from small import blobs
from torch import nn

from sweeper.checks import FieldError
from sweeper.models.convnet import ConvNet
from sweeper.models.layers import Conv, Dense
from sweeper.seeds import Streams, secret_from_seed
from sweeper.spec.protocols import Description

COLOURS = ConvNet(layers=(32, 64, "pool", 128, 128, "pool", 256, 256, "pool", 1024, 512), kernel=3, padded=True)


def test_the_papers_small_network_flattens_to_256():
    """5 x 5 filters without padding on 28 x 28: 24, pooled 12, 8, pooled 4, and 4 * 4 * 16 = 256."""
    stack = ConvNet().stack(784, 10)
    assert [layer.out for layer in stack if isinstance(layer, Conv)] == [(6, 24, 24), (16, 8, 8)]
    assert [(layer.inputs, layer.outputs) for layer in stack if isinstance(layer, Dense)] == [(256, 128), (128, 10)]
    expected = 6 * 25 + 6 + 16 * 6 * 25 + 16 + 257 * 128 + 129 * 10
    assert ConvNet().parameters(Description(rows=10, features=784, classes=10)) == expected


def test_the_papers_large_network_flattens_to_4096():
    stack = COLOURS.stack(3 * 32 * 32, 100)
    sides = [(32, 32, 32), (64, 32, 32), (128, 16, 16), (128, 16, 16), (256, 8, 8), (256, 8, 8)]
    assert [layer.out for layer in stack if isinstance(layer, Conv)] == sides
    assert [(layer.inputs, layer.outputs) for layer in stack if isinstance(layer, Dense)] == [(4096, 1024), (1024, 512), (512, 100)]


@pytest.mark.parametrize("pool", ["max", "average"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_released_module_computes_the_formula(pool, activation):
    """One convolution with padding, one pool, one dense layer, with scipy in float64, one record and one filter at a time."""
    full, description = blobs(20, 3 * 4 * 6, 3)
    model = ConvNet(layers=(2, "pool"), kernel=3, padded=True, pool=pool, activation=activation, picture=(3, 4, 6))
    params = np.random.default_rng(0).standard_normal(model.parameters(description)).astype(np.float32)
    filters, biases, dense, dense_b = np.split(params.astype(np.float64), np.cumsum([2 * 27, 2, 12 * 3]))
    act = (lambda x: np.maximum(x, 0)) if activation == "relu" else np.tanh
    expected = []
    for row in full.features.astype(np.float64):
        maps = []
        for f, b in zip(filters.reshape(2, 3, 3, 3), biases, strict=True):
            raw = sum(correlate2d(x, w, mode="same") for x, w in zip(row.reshape(3, 4, 6), f, strict=True)) + b
            windows = act(raw).reshape(2, 2, 3, 2).swapaxes(1, 2).reshape(2, 3, 4)
            maps.append(windows.max(axis=2) if pool == "max" else windows.mean(axis=2))
        expected.append(dense.reshape(3, 12) @ np.ravel(maps) + dense_b)
    module = model.torch_module(torch.from_numpy(params), description)
    found = module(torch.from_numpy(full.features)).detach().numpy()
    assert found == pytest.approx(np.array(expected), rel=1e-4, abs=1e-5)
    chosen = model.predict(torch.from_numpy(params), torch.from_numpy(full.features)).numpy()
    assert np.array_equal(chosen, np.argmax(expected, axis=1))


def test_the_released_module_is_torchs_own():
    description = Description(rows=10, features=784, classes=10)
    module = ConvNet().torch_module(ConvNet().start(description, Streams(secret_from_seed("c"), 0)), description)
    kinds = [type(part) for part in module]
    assert kinds == [nn.Unflatten, *[nn.Conv2d, nn.MaxPool2d, nn.ReLU] * 2, nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]
    assert module(torch.zeros(5, 784)).shape == (5, 10)


@pytest.mark.parametrize(
    ("fields", "features", "message"),
    [
        ({}, 105, "picture is not given, and 105 features are no square picture of 1 or 3 channels"),
        ({"picture": [1, 28, 27]}, 784, "holds 756 numbers, and a row has 784 features"),
        ({"layers": [6, "pool", 16, "pool", 32, "pool"]}, 784, "leaves nothing of a picture of 1 x 28 x 28 after 5 of them"),
        ({"kernel": 29}, 784, "leaves nothing"),
    ],
)
def test_rows_that_are_no_such_picture_are_refused(fields, features, message):
    with pytest.raises(FieldError, match=message):
        ConvNet(**fields).stack(features, 10)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layers": [6, 16]}, "must be a list of numbers of filters, `pool` and widths"),
        ({"layers": ["pool", 6, "pool"]}, "must be a list of numbers"),
        ({"layers": [6, "poll", "pool"]}, "layers = 'poll' must be a whole number"),
        ({"layers": []}, "must be a list"),
        ({"kernel": 4, "padded": True}, "kernel = 4 must be odd"),
        ({"kernel": 0}, "kernel = 0"),
        ({"padded": 1}, "padded = 1 must be true or false"),
        ({"pool": "maxx"}, "did you mean max"),
        ({"picture": [28, 28]}, "picture = .28, 28. must be channels, height, width"),
    ],
)
def test_wrong_fields_are_named(fields, message):
    with pytest.raises(FieldError, match=message):
        ConvNet(**fields)
