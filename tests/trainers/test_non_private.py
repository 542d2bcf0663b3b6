"""Training without noise: it finds the best point, and says that nothing is protected."""

from __future__ import annotations

import numpy as np
import pytest
from oracles import losses
from scipy import optimize
from small import blobs

from sweeper.backends.closed_form import LinearProblem
from sweeper.checks import FieldError
from sweeper.clip.none import NoClip
from sweeper.models.linear import Logistic, Softmax, Squared, Svm
from sweeper.privacy import accountant
from sweeper.seeds import Streams, secret_from_seed
from sweeper.step.fixed import FixedStep
from sweeper.step.none import NoStep
from sweeper.trainers.non_private import NonPrivate

ROWS, STREAMS = 60, Streams(secret_from_seed("open"), 0)
MODELS = {
    "logistic": (Logistic(l2=0.05), 2),
    "svm": (Svm(l2=0.05), 2),
    "squared": (Squared(l2=0.05), 2),
    "softmax": (Softmax(l2=0.05), 4),
}


def objective(name: str, full, params_P: np.ndarray) -> float:
    model = MODELS[name][0]
    weights = params_P.reshape(-1, full.features.shape[1] + 1)[:, :-1]
    return losses(model.kind, params_P, full.features, full.labels).mean() + model.l2 / 2 * (weights**2).sum()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("trainer", "step", "within"),
    [
        (NonPrivate(steps=200), NoStep(), 1e-6),
        (NonPrivate(steps=1500, method="sgd", batch_size=60, momentum=0.9), FixedStep(learning_rate=0.1), 1e-4),
        (NonPrivate(steps=1500, method="adam", batch_size=60), FixedStep(learning_rate=0.02, schedule="linear"), 1e-4),
    ],
    ids=["lbfgs", "sgd", "adam"],
)
def test_it_finds_the_best_point(name, trainer, step, within):
    """How far its objective is above the least, by scipy in float64."""
    full, description = blobs(ROWS, 4, MODELS[name][1])
    built = LinearProblem(model=MODELS[name][0], description=description, table=full, rows=np.arange(ROWS))
    found = trainer.fit(built, NoClip(), step, 1.0, STREAMS).params_P.double().numpy()
    least = optimize.minimize(lambda w: objective(name, full, w), np.zeros(len(found)), tol=1e-10).fun
    assert least - 1e-9 <= objective(name, full, found) <= least + within


def test_nothing_is_protected_whatever_the_noise():
    for trainer, step in ((NonPrivate(), NoStep()), (NonPrivate(method="sgd", batch_size=5), FixedStep(learning_rate=1.0))):
        for noise in (0.01, 1.0, 1e7):
            event = trainer.event(100, noise, NoClip(), step)
            assert event.unprotected
            assert accountant.epsilon(event, 1e-5) == float("inf")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"method": "newton"}, "method = 'newton' must be one of lbfgs, sgd, adam"),
        ({"method": "sgd"}, "batch_size is missing in method sgd"),
        ({"batch_size": 5}, "batch_size = 5 is not of method lbfgs"),
        ({"steps": 0}, "steps"),
    ],
)
def test_fields_are_checked(fields, said):
    with pytest.raises(FieldError) as refused:
        NonPrivate(**fields)
    assert said in str(refused.value)
