"""What linear models promise of a record's loss: bounds on gradient and curvature, that nothing passes and something reaches."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import oracles
import pytest
import torch
from small import blobs, spoilt, without

from sweeper import catalog
from sweeper.backends.closed_form import LinearProblem
from sweeper.checks import FieldError
from sweeper.clip.fixed import FixedClip
from sweeper.data.adult import COLUMNS
from sweeper.data.columns import Categorical, Ignored, Numeric, norm_bound
from sweeper.launch.part import PartProblem
from sweeper.models.linear import Logistic, Softmax, Squared, Svm

MODELS = [Logistic(), Svm(), Svm(smoothing=0.1), Softmax()]
every_model = pytest.mark.parametrize("model", MODELS, ids=repr)
REACH = 3.0


def problem(model, full, description) -> LinearProblem:
    return LinearProblem(model=model, description=description, table=full, rows=np.arange(description.rows))


def longest(rows: int, features: int, classes: int):
    """Rows with ||[x, 1]|| = REACH."""
    draws = np.random.default_rng(0)
    x = draws.standard_normal((rows, features))
    return x / np.linalg.norm(x, axis=1, keepdims=True) * np.sqrt(REACH**2 - 1), draws.integers(0, classes, rows)


def gradients(model, params_P, x, y) -> np.ndarray:
    """By autograd of the model's own losses in float64, one record at a time."""
    found = []
    for row, label in zip(torch.from_numpy(np.c_[x, np.ones(len(x))]), torch.from_numpy(y), strict=True):
        at = torch.from_numpy(params_P).requires_grad_()
        loss = model.losses((at.view(-1, len(row)) @ row)[None, None, :], label[None]).sum()
        found.append(torch.autograd.grad(loss, at)[0].numpy())
    return np.array(found)


@every_model
def test_gradients_and_their_changes_stay_within_the_bounds_and_reach_them(model):
    """Largest gradient, and largest change of a gradient over change of parameters, for rows at the bound; 1.5 times less fails."""
    curvature = model.curvature(REACH)
    classes = 3 if model.kind == "softmax" else 2
    outputs = classes if model.kind == "softmax" else 1
    x, y = longest(40, 2, classes)
    draws, norms, slopes = np.random.default_rng(1), [], []
    for size in (0.0, 0.1, 1.0, 30.0):
        for _ in range(15):
            here = size * draws.standard_normal(3 * outputs)
            if model.kind == "svm":  # to where its hinge bends: margin 1 of the first record
                row = np.r_[x[0], 1.0]
                here = here + (2.0 * y[0] - 1 - here @ row) / (row @ row) * row
            step = np.zeros(3 * outputs)
            move = 1e-4 * (np.outer([1, -1, 0], np.r_[x[0], 1]).ravel() if outputs == 3 else np.r_[x[0], 1.0])
            step += move
            now, there = gradients(model, here, x, y), gradients(model, here + step, x, y)
            norms.append(np.linalg.norm(now, axis=1).max())
            slopes.append((np.linalg.norm(there - now, axis=1) / np.linalg.norm(step)).max())
    two = model.kind == "softmax"  # two classes at even odds against a third that has none attain 1/2; three give 1/3
    assert curvature.lipschitz / 1.5 < max(norms) <= curvature.lipschitz
    assert curvature.smoothness / (1.6 if two else 1.5) < max(slopes) <= curvature.smoothness * (1 + 1e-6)


def test_what_has_no_bound_promises_nothing():
    assert Squared().curvature(2.0) is None
    assert not hasattr(Squared(), "lipschitz")
    assert all(model.curvature(None) is None for model in MODELS)


@every_model
def test_the_penalty_bends_everything_only_if_it_is_on_the_bias(model):
    assert dataclasses.replace(model, l2=0.3).curvature(2.0).strong == 0.0
    strong = dataclasses.replace(model, l2=0.3, penalise_bias=True).curvature(2.0)
    assert (strong.strong, strong.penalty) == (0.3, 0.3)
    assert strong.rank_one == (model.kind != "softmax")


@pytest.mark.parametrize("model", [Logistic(l2=0.3), Softmax(l2=0.3), Squared(l2=0.3)])
def test_a_penalty_on_the_bias_is_its_derivative(model):
    full, description = blobs(20, 4, 3 if model.kind == "softmax" else 2)
    params_P = torch.randn(model.parameters(description), generator=torch.Generator().manual_seed(0))
    weights = params_P.view(-1, 5)
    for changed, squares in ((model, weights[:, :-1]), (dataclasses.replace(model, penalise_bias=True), weights)):
        built = problem(changed, full, description)
        assert built.penalty(params_P) == pytest.approx(0.15 * float(squares.square().sum()), rel=1e-5)
        gradient_P = torch.zeros_like(params_P)
        built.add_penalty_(gradient_P, params_P)
        assert float(gradient_P @ params_P) == pytest.approx(0.3 * float(squares.square().sum()), rel=1e-5)
        assert (gradient_P.view(-1, 5)[:, -1] == 0).all() == (changed is model)


@pytest.mark.parametrize("model", [Logistic(), Svm(), Squared(), Softmax()])
@pytest.mark.parametrize("pixels", [False, True])
@pytest.mark.parametrize("scale", [None, "unit-norm"])
def test_a_scaled_problem_is_the_one_on_divided_rows(model, pixels, scale):
    """Sums, norms, losses and exact sums against float64 loops on [x, 1] / R; released parameters give the same logits."""
    model = dataclasses.replace(model, scale=scale)
    classes = 4 if model.kind == "softmax" else 2
    full, description = blobs(50, 6, classes)
    description, length = dataclasses.replace(description, norm_bound=REACH), REACH if scale else 1.0
    built = LinearProblem(model=model, description=description, table=full, rows=np.arange(50), pixels=pixels)
    params_P = torch.randn(model.parameters(description), generator=torch.Generator().manual_seed(1))
    w = params_P.double().numpy()
    each = oracles.gradients(model.kind, w / length, full.features, full.labels) / length
    rows = np.arange(50)
    assert built.batch(rows).exact_sum(params_P.double()).numpy() == pytest.approx(each.sum(axis=0), rel=1e-6, abs=1e-6)
    clip = FixedClip(clip_norm=0.2)
    clipped = oracles.clipped(each, 0.2).sum(axis=0)
    assert built.batch(rows).sum(params_P, clip.factors).numpy() == pytest.approx(clipped, rel=1e-4, abs=1e-4)
    squares: list[torch.Tensor] = []
    built.batch(rows).sum(params_P, lambda s: (squares.append(s.clone()), torch.ones_like(s))[1], by_layer=True)
    parts = each.reshape(50, -1, 7)
    by_layer = np.stack([(parts[:, :, :-1] ** 2).sum(axis=(1, 2)), (parts[:, :, -1] ** 2).sum(axis=1)], axis=1)
    assert torch.cat(squares).numpy() == pytest.approx(by_layer, rel=1e-4, abs=1e-6)
    losses = oracles.losses(model.kind, w / length, full.features, full.labels).sum()
    found = built.batch(rows).losses_along(params_P, params_P, (0.0,), lambda here, there: here.double())
    assert float(found[0]) == pytest.approx(losses, rel=1e-5)
    released = built.released(params_P)
    assert released.numpy() == pytest.approx(w / length, rel=1e-6)
    if model.kind not in ("squared",):
        constants = built.lipschitz_sum(lambda c: (c[:, None] <= model.curvature(REACH).lipschitz).double())
        assert float(constants[0]) == 50


def test_a_model_that_is_not_scaled_is_left_to_the_bit():
    """A stated bound changes nothing but for rows beyond it."""
    full, description = blobs(50, 6, 2)
    bounded = dataclasses.replace(description, norm_bound=7**0.5)
    params_P = torch.randn(7, generator=torch.Generator().manual_seed(1))
    sums = [
        problem(Logistic(), full, d).batch(np.arange(50)).sum(params_P, FixedClip(clip_norm=0.2).factors)
        for d in (description, bounded)
    ]
    assert torch.equal(*sums)
    released = problem(Logistic(), full, bounded).released(params_P)
    assert released is params_P


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.8])
def test_exact_sums_leave_out_what_is_broken_or_too_long(value):
    full, description = blobs(50, 6, 2)
    bounded = dataclasses.replace(description, norm_bound=7**0.5)
    params_P = torch.ones(7, dtype=torch.float64)
    broken = problem(Logistic(), spoilt(full, 3, value), bounded)
    null = problem(Logistic(), without(full, 3), bounded)
    sums = [built.batch(np.arange(50)).exact_sum(params_P) for built in (broken, null)]
    assert torch.equal(*sums)
    assert (broken.nonfinite, null.nonfinite) == (1, 0)
    inside = np.arange(50) < 20
    part = PartProblem(problem(Logistic(), full, bounded), inside)
    hidden = problem(Logistic(), without(full, *range(20, 50)), bounded)
    assert torch.allclose(part.batch(np.arange(50)).exact_sum(params_P), hidden.batch(np.arange(50)).exact_sum(params_P))
    assert part.curvature == hidden.curvature
    assert torch.equal(part.constant(1), hidden.constant(1))
    assert torch.equal(part.released(params_P), params_P)


def test_the_bound_of_declared_columns():
    columns = (
        Numeric(name="a", low=-3, high=2),
        Numeric(name="b", low=-3, high=2, scaled=False, width=2),
        Categorical(name="c", categories=("x", "y", "z")),
        Ignored(name="d", why="the test"),
    )
    assert norm_bound(columns) == pytest.approx((1 + 1 + 2 * 9 + 1) ** 0.5, rel=1e-12)
    used = sum(column.width > 0 for column in COLUMNS)
    assert catalog.resolve("data", "adult")().description.norm_bound == pytest.approx((used + 1) ** 0.5, rel=1e-12)
    assert catalog.resolve("data", "fashion-mnist")().description.norm_bound == pytest.approx(785**0.5, rel=1e-12)


def test_no_encoded_record_passes_the_bound():
    """The longest encodings that the declarations of Adult allow."""
    longest_row = [
        max((column.encode(str(end)) for end in _ends(column)), key=lambda cells: np.square(cells).sum())
        for column in COLUMNS
        if column.width
    ]
    flat = np.r_[[value for cells in longest_row for value in cells], 1.0].astype(np.float32).astype(np.float64)
    assert np.linalg.norm(flat) <= norm_bound(COLUMNS) * (1 + 1e-7)
    assert np.linalg.norm(flat) > norm_bound(COLUMNS) / 1.01


def _ends(column):
    return column.categories if isinstance(column, Categorical) else (column.low - 5, column.high + 5)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"scale": "unit"}, "scale = 'unit' must be one of unit-norm"),
        ({"penalise_bias": 1}, "penalise_bias = 1 must be true or false"),
    ],
)
def test_fields_are_checked(fields, said):
    with pytest.raises(FieldError) as refused:
        Logistic(**fields)
    assert said in str(refused.value)


def test_a_field_at_its_default_leaves_no_trace_in_a_file():
    """So that sweeps sealed before have the fingerprint they had."""
    assert Logistic(penalise_bias=False) == Logistic()
    spec = catalog.sweep_from_dict(
        {
            "name": "old",
            "data": {"source": "adult"},
            "model": {"kind": "logistic"},
            "trainer": {"kind": "majority"},
            "privacy": {"epsilon": 1.0, "delta": 1e-5},
            "protocol": {"kind": "no-tuning"},
            "space": {"clip": {"policy": "none"}, "step": {"policy": "none"}},
        }
    )
    text = io.StringIO(catalog.dump_spec(spec)).getvalue()
    assert "scale" not in text
    assert "penalise" not in text
