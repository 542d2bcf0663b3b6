"""The majority label: counts that one record moves by 1, noise of the law that is priced, and the model that says it."""

from __future__ import annotations

import numpy as np
import pytest
from oracles import FALSE_ALARM, REJECTED, frequency_p_value
from small import blobs, spoilt, without

from sweeper.backends.closed_form import LinearProblem, evaluate
from sweeper.backends.layered import LayeredProblem
from sweeper.clip.none import NoClip
from sweeper.launch.part import PartProblem
from sweeper.models.convnet import ConvNet
from sweeper.models.linear import Logistic, Softmax, Squared, Svm
from sweeper.models.mlp import Mlp
from sweeper.privacy.events import DiscreteLaplace
from sweeper.seeds import Streams, secret_from_seed
from sweeper.step.none import NoStep
from sweeper.trainers.majority import Majority

SECRET, ROWS = secret_from_seed("majority"), 50
MODELS = {
    "logistic": (Logistic(), 2),
    "svm": (Svm(scale=None), 2),
    "squared": (Squared(), 2),
    "softmax": (Softmax(), 5),
    "mlp": (Mlp(hidden=(3,)), 5),
    "mlp-tanh": (Mlp(hidden=(3, 2), activation="tanh"), 5),
    "convnet": (ConvNet(layers=(2, "pool", 3), kernel=3, padded=True), 5),
}
every_model = pytest.mark.parametrize("name", MODELS)


def problem(name: str, full, description):
    build = LayeredProblem if MODELS[name][0].kind in ("mlp", "convnet") else LinearProblem
    return build(model=MODELS[name][0], description=description, table=full, rows=np.arange(ROWS))


@every_model
def test_one_record_moves_one_count_by_one(name):
    """Every record is taken out; a null record, a broken one and one outside a part count nowhere."""
    full, description = blobs(ROWS, 16, MODELS[name][1])
    whole = problem(name, full, description).label_counts().numpy()
    assert whole.tolist() == np.bincount(full.labels, minlength=MODELS[name][1]).tolist()
    for row in range(ROWS):
        for other in (without(full, row), spoilt(full, row, np.nan)):
            built = problem(name, other, description)
            moved = whole - built.label_counts().numpy()
            assert moved.sum() == 1
            assert moved[full.labels[row]] == 1
            assert built.nonfinite == int(other.valid[row])
    inside = np.arange(ROWS) % 3 == 0
    part = PartProblem(problem(name, full, description), inside).label_counts().numpy()
    assert part.tolist() == np.bincount(full.labels[inside], minlength=MODELS[name][1]).tolist()


@every_model
def test_the_parameters_give_every_row_the_label(name):
    full, description = blobs(ROWS, 16, MODELS[name][1])
    model = MODELS[name][0]
    for label in range(MODELS[name][1]):
        params_P = problem(name, full, description).constant(label)
        assert evaluate(model, params_P, full, np.arange(ROWS)) == (full.labels == label).sum()


@pytest.mark.parametrize("noise", [0.3, 4.0])
def test_the_answer_has_the_law_of_the_noisy_counts(noise):
    """Against the exact law of a comparison of two counts with two-sided geometric noise; noise 1.5 times off is rejected."""
    full, description = blobs(9, 3, 2)
    labels = np.r_[np.zeros(4, np.int64), np.ones(5, np.int64)]
    table = type(full)(features=full.features, labels=labels, valid=full.valid)
    built = LinearProblem(model=Logistic(), description=description, table=table, rows=np.arange(9))
    trainer = Majority()
    answers = [float(trainer.fit(built, NoClip(), NoStep(), noise, Streams(SECRET, t)).params_P[-1]) > 0 for t in range(6_000)]
    counts = np.bincount(np.array(answers, int), minlength=2)

    def law(scale: float) -> np.ndarray:
        at = np.arange(-400, 401)
        mass = np.exp(-np.abs(at) / scale)
        mass /= mass.sum()
        zero_wins = sum(m * mass[at <= (4 + x) - 5].sum() for x, m in zip(at, mass, strict=True))  # ties go to label 0
        return np.array([zero_wins, 1 - zero_wins])

    assert frequency_p_value(counts, law(noise)) > FALSE_ALARM
    if noise < 1:  # where the counts are lost in noise, every noise gives one label or the other about as often
        for wrong in (2 / 3, 3 / 2):
            assert frequency_p_value(counts, law(noise * wrong)) < REJECTED


def test_its_event_is_one_query():
    assert Majority().event(10, 4.0, NoClip(), NoStep()) == DiscreteLaplace(0.25)
    assert Majority().event(10, 1e-3, NoClip(), NoStep()).unprotected
