"""What the batches of every backend must keep. A new backend or model is one row of PROBLEMS."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from oracles import clipped, gradients
from small import blobs, spoilt, table, without
from torch.utils._python_dispatch import TorchDispatchMode

from sweeper.backends.closed_form import CHUNK, LinearProblem
from sweeper.clip.fixed import FixedClip
from sweeper.data.table import Table
from sweeper.models.linear import Logistic, Softmax
from sweeper.spec.protocols import Description

# (how to build the problem, model kind for the oracle, classes)
PROBLEMS = {
    "logistic": (functools.partial(LinearProblem, model=Logistic()), "logistic", 2),
    "logistic-pixels": (functools.partial(LinearProblem, model=Logistic(), pixels=True), "logistic", 2),
    "softmax-2": (functools.partial(LinearProblem, model=Softmax()), "softmax", 2),
    "softmax-10": (functools.partial(LinearProblem, model=Softmax()), "softmax", 10),
    "softmax-10-pixels": (functools.partial(LinearProblem, model=Softmax(), pixels=True), "softmax", 10),
    "softmax-17": (functools.partial(LinearProblem, model=Softmax()), "softmax", 17),
}
every_problem = pytest.mark.parametrize(("build", "kind", "classes"), PROBLEMS.values(), ids=PROBLEMS)
CLIP = FixedClip(clip_norm=0.5)
FEATURES = 12


def some_params(kind: str, classes: int, scale: float = 1.0) -> torch.Tensor:
    size = (1 if kind == "logistic" else classes) * (FEATURES + 1)
    return torch.from_numpy((scale * np.random.default_rng(1).standard_normal(size)).astype(np.float32))


def total(build, full: Table, description: Description, rows, params_P, clip=CLIP) -> np.ndarray:
    problem = build(description=description, table=full, rows=np.arange(description.rows))
    return problem.batch(np.asarray(rows, np.int64)).sum(params_P, clip.factors).numpy()


@every_problem
@pytest.mark.parametrize("clip_norm", [1e-3, 0.5, 1e9])
def test_the_sum_is_the_clipped_sum_in_double_precision(build, kind, classes, clip_norm):
    full, description = blobs(64, FEATURES, classes)
    rows, params_P = np.arange(3, 60), some_params(kind, classes)
    expected = clipped(gradients(kind, params_P.numpy(), full.features[rows], full.labels[rows]), clip_norm).sum(axis=0)
    found = total(build, full, description, rows, params_P, FixedClip(clip_norm=clip_norm))
    assert np.linalg.norm(found - expected) < 4e-6 * np.linalg.norm(expected)  # 2e-6 of it is the policy's margin


@every_problem
def test_unclipped_gradients_match_double_precision(build, kind, classes):
    full, description = blobs(64, FEATURES, classes)
    params_P = some_params(kind, classes)
    problem = build(description=description, table=full, rows=np.arange(64))
    found = problem.batch(np.arange(64)).sum(params_P, lambda squares_BL: torch.ones(len(squares_BL))).numpy()
    expected = gradients(kind, params_P.numpy(), full.features, full.labels).sum(axis=0)
    assert np.linalg.norm(found - expected) < 1e-6 * np.linalg.norm(expected)


@every_problem
def test_every_record_against_autograd(build, kind, classes):
    """One record at a time through torch's own loss and autograd: gradients, and the norms the policy is shown."""
    full, description = blobs(20, FEATURES, classes)
    params_P = some_params(kind, classes)
    problem = build(description=description, table=full, rows=np.arange(20))
    for row in range(20):
        weights_P = params_P.double().requires_grad_()
        extended_D = torch.cat([torch.from_numpy(full.features[row]).double(), torch.ones(1).double()])
        logits_K, label = weights_P.view(-1, FEATURES + 1) @ extended_D, torch.tensor(full.labels[row])
        if kind == "logistic":
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits_K[0], label.double())
        else:
            loss = torch.nn.functional.cross_entropy(logits_K[None], label[None])
        (expected,) = torch.autograd.grad(loss, weights_P)
        seen = []
        found = problem.batch(np.array([row])).sum(params_P, lambda s, seen=seen: seen.append(s) or torch.ones(len(s)))
        assert torch.linalg.norm(found.double() - expected) <= 1e-5 * torch.linalg.norm(expected) + 1e-7
        assert seen[0].shape == (1, 1)
        assert seen[0].item() == pytest.approx(expected.square().sum().item(), rel=1e-5, abs=1e-12)


@every_problem
def test_a_huge_batch_is_processed_in_chunks_and_equals_one_big_sum(build, kind, classes):
    rows = 2 * CHUNK + 77
    full, description = blobs(rows, FEATURES, classes)
    params_P, shapes = some_params(kind, classes), []
    problem = build(description=description, table=full, rows=np.arange(rows))

    def factors(squares_BL):
        shapes.append(len(squares_BL))
        return CLIP.factors(squares_BL)

    found = problem.batch(np.arange(rows)).sum(params_P, factors).numpy()
    expected = clipped(gradients(kind, params_P.numpy(), full.features, full.labels), 0.5).sum(axis=0)
    assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)
    assert shapes == [CHUNK, CHUNK, 77]


@every_problem
def test_nothing_as_large_as_per_record_gradients_is_built(build, kind, classes):
    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                self.size = max(self.size, out.numel())
            return out

    full, description = blobs(CHUNK, FEATURES, classes)
    problem = build(description=description, table=full, rows=np.arange(CHUNK))
    with Largest() as largest:
        problem.batch(np.arange(CHUNK)).sum(some_params(kind, classes), CLIP.factors)
    assert 0 < largest.size <= CHUNK * max(FEATURES + 1, math.ceil(classes / 16) * 16)


@every_problem
def test_outliers_cannot_pass_the_sensitivity(build, kind, classes):
    """Without noise, ||sum|| <= records times sensitivity, and one record alone stays within the sensitivity."""
    full, description = blobs(64, FEATURES, classes)
    wild = table(full.features * 1e4, full.labels)
    params_P = some_params(kind, classes, scale=100.0)
    summed = np.linalg.norm(total(build, wild, description, np.arange(64), params_P).astype(np.float64))
    assert 0 < summed <= 64 * CLIP.sensitivity
    alone = [np.linalg.norm(total(build, wild, description, [r], params_P).astype(np.float64)) for r in range(64)]
    assert max(alone) <= CLIP.sensitivity
    assert max(alone) > 0.999 * CLIP.sensitivity


@every_problem
def test_neighbours_differ_by_at_most_the_sensitivity(build, kind, classes):
    full, description = blobs(64, FEATURES, classes)
    params_P = some_params(kind, classes)
    one = total(build, full, description, np.arange(64), params_P).astype(np.float64)
    for row in range(0, 64, 7):
        other = total(build, without(full, row), description, np.arange(64), params_P).astype(np.float64)
        assert 0 < np.linalg.norm(one - other) <= CLIP.sensitivity * (1 + 1e-5)  # 64 float32 terms were added up


@every_problem
def test_null_records_and_empty_batches_contribute_exactly_zero(build, kind, classes):
    full, description = blobs(30, FEATURES, classes)
    nulls = without(full, *range(10, 30))
    params_P = some_params(kind, classes)
    assert not total(build, nulls, description, np.arange(10, 30), params_P).any()
    assert not total(build, nulls, description, [], params_P).any()
    mixed = total(build, nulls, description, np.arange(30), params_P)
    assert mixed == pytest.approx(total(build, nulls, description, np.arange(10), params_P), rel=1e-5, abs=1e-6)


@every_problem
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_record_that_is_not_finite_contributes_zero_and_is_counted(build, kind, classes, value):
    full, description = blobs(30, FEATURES, classes)
    params_P = some_params(kind, classes)
    problem = build(description=description, table=spoilt(full, 4, value), rows=np.arange(30))
    found = problem.batch(np.arange(30)).sum(params_P, CLIP.factors).numpy()
    assert np.array_equal(found, total(build, without(full, 4), description, np.arange(30), params_P))
    assert problem.nonfinite == 1
    problem.batch(np.arange(5, 30)).sum(params_P, CLIP.factors)
    assert problem.nonfinite == 1  # only when drawn
    for careless in (lambda squares_BL: torch.ones(len(squares_BL)), lambda squares_BL: squares_BL.sum(dim=1)):
        assert not problem.batch(np.array([4])).sum(params_P, careless).any()  # whatever the policy says, NaN included
    assert problem.nonfinite == 3


@every_problem
@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
def test_broken_parameters_give_finite_sums(build, kind, classes, value):
    full, description = blobs(30, FEATURES, classes)
    problem = build(description=description, table=full, rows=np.arange(30))
    broken = some_params(kind, classes)
    broken[:3] = value
    summed = problem.batch(np.arange(30)).sum(broken, CLIP.factors)
    assert summed.isfinite().all()
    assert np.linalg.norm(summed.double().numpy()) <= 30 * CLIP.sensitivity
    again = problem.batch(np.arange(30)).sum(some_params(kind, classes), CLIP.factors).numpy()
    assert np.array_equal(again, total(build, full, description, np.arange(30), some_params(kind, classes)))


@every_problem
def test_only_the_given_rows_are_training_rows(build, kind, classes):
    full, description = blobs(40, FEATURES, classes)
    rows = np.arange(39, 0, -2)
    problem = build(description=description, table=full, rows=rows)
    params_P = some_params(kind, classes)
    assert problem.rows == 20
    found = problem.batch(np.array([0, 3])).sum(params_P, CLIP.factors).numpy()
    assert found == pytest.approx(total(build, full, description, [39, 33], params_P), rel=1e-6, abs=1e-7)
    with pytest.raises(IndexError):
        problem.batch(np.array([20])).sum(params_P, CLIP.factors)


@every_problem
def test_a_sum_is_the_callers_to_keep(build, kind, classes):
    full, description = blobs(30, FEATURES, classes)
    problem = build(description=description, table=full, rows=np.arange(30))
    params_P = some_params(kind, classes)
    first = problem.batch(np.arange(10)).sum(params_P, CLIP.factors)
    kept = first.clone()
    problem.batch(np.arange(10, 30)).sum(params_P, CLIP.factors)
    assert torch.equal(first, kept)
    assert first.shape == params_P.shape
    assert torch.equal(params_P, some_params(kind, classes))
