"""The doctor's own check of per-record gradients: right on right backends, and it sees wrong ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sweeper.backends.choice import problem_of
from sweeper.doctor import gradients, made_up
from sweeper.models.convnet import ConvNet
from sweeper.models.linear import Logistic, Softmax, Squared, Svm
from sweeper.models.mlp import Mlp
from sweeper.spec.protocols import Description
from tests import networks, oracles
from tests.small import blobs

MODELS = {
    "logistic": (Logistic(), 2),
    "squared": (Squared(), 2),
    "svm": (Svm(), 2),
    "softmax": (Softmax(), 10),
    "mlp-relu": (Mlp(hidden=(9, 7)), 10),
    "mlp-tanh": (Mlp(hidden=(6,), activation="tanh"), 2),
    "convnet": (ConvNet(layers=(5, "pool", 4), kernel=3, padded=True), 10),
}
every_model = pytest.mark.parametrize(("kind", "model", "classes"), [(k, *row) for k, row in MODELS.items()], ids=MODELS)


def problem_and_table(model, classes):
    table, description = blobs(gradients.RECORDS, networks.FEATURES, classes)
    return problem_of(model, description=description, table=table, rows=np.arange(table.rows)), table, description


@every_model
def test_its_oracle_is_the_gradient_of_plain_loops(kind, model, classes):
    """Against modules and chain rules that share nothing with the package, in float64."""
    problem, table, description = problem_and_table(model, classes)
    size = model.parameters(description)
    params_P = torch.from_numpy(np.random.default_rng(1).standard_normal(size).astype(np.float32))
    found = gradients.oracle(problem, model, description, table, params_P).numpy()
    plain = oracles if kind == "squared" else networks
    expected = plain.gradients(kind, params_P.numpy(), table.features, table.labels)
    assert np.abs(found - expected).max() < 1e-12 * max(1.0, np.abs(expected).max())


@every_model
@pytest.mark.parametrize("pixels", [False, True])
def test_backends_that_are_right_pass(kind, model, classes, pixels):
    made = gradients.compared(model, Description(rows=1000, features=networks.FEATURES, classes=classes), pixels=pixels)
    assert 0 < made.worst < 1e-5 < gradients.TOLERANCE
    assert made.records == gradients.RECORDS


def test_rows_that_are_scaled_are_compared_through_what_is_released():
    made = gradients.compared(Logistic(scale="unit-norm"), Description(rows=1000, features=12, classes=2, norm_bound=3.0))
    assert 0 < made.worst < 1e-5


class Wrong:
    """A problem whose batches are wrong in one way."""

    def __init__(self, problem, batch):
        self._problem, self._batch = problem, batch

    def __getattr__(self, name):
        return getattr(self._problem, name)

    def batch(self, rows_B):
        batch, wrong = self._problem.batch(rows_B), self._batch

        class Batch:
            def sum(self, params_P, factors, *, by_layer=False):
                return wrong(batch, params_P, factors, len(rows_B))

        return Batch()


WAYS = {
    "too-long": lambda batch, at, factors, _: 1.5 * batch.sum(at, factors),
    "too-short": lambda batch, at, factors, _: batch.sum(at, factors) / 1.5,
    "norms-too-short": lambda batch, at, factors, _: batch.sum(at, lambda squares: factors(squares / 1.5**2)),
    "norms-too-long": lambda batch, at, factors, _: batch.sum(at, lambda squares: factors(squares * 1.5**2)),
    "a-mean": lambda batch, at, factors, rows: batch.sum(at, factors) / rows,
    "clips-nothing": lambda batch, at, factors, _: batch.sum(at, lambda squares: (factors(squares), torch.ones(len(squares)))[1]),
    "nothing": lambda batch, at, factors, _: 0 * batch.sum(at, factors),
    "no-number": lambda batch, at, factors, _: math.nan * batch.sum(at, factors),
}


@every_model
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_backend_that_is_wrong_is_seen(kind, model, classes, way):
    problem, table, description = problem_and_table(model, classes)
    made = gradients.against_autograd(Wrong(problem, way), model, description, table)
    assert not made.worst <= 50 * gradients.TOLERANCE


def test_what_is_no_number_is_worse_than_any():
    assert math.isnan(gradients.worse(1.0, math.nan))
    assert math.isnan(gradients.worse(math.nan, 1.0))
    assert gradients.worse(1.0, 2.0) == gradients.worse(2.0, 1.0) == 2.0


@pytest.mark.parametrize("bound", [None, 1.5, 8.0])
def test_made_up_records_keep_the_public_promises(bound):
    description = Description(rows=10**6, features=40, classes=3, norm_bound=bound)
    table = made_up.table(description, 50)
    lengths = np.sqrt(1.0 + np.square(table.features.astype(np.float64)).sum(axis=1))
    assert table.features.shape == (50, 40)
    assert set(table.labels) == {0, 1, 2}
    assert np.isin(np.rint(table.features * 255), np.arange(256)).all()
    assert lengths.max() <= (bound or math.inf)
    assert table.features.any(axis=1).all()
    assert set(np.unique(made_up.table(description, 50, tokens=True).features)) == {0.0, 1.0}
