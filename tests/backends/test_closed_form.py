"""The closed-form backend beyond the contract of a batch: storage, start, penalty, evaluation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small import blobs, spoilt, table, without

from sweeper.backends import closed_form
from sweeper.backends.closed_form import LinearProblem, evaluate
from sweeper.clip.fixed import FixedClip
from sweeper.models.linear import Logistic, Softmax, Svm
from sweeper.seeds import Streams, secret_from_seed
from sweeper.spec.protocols import Description

STREAMS = Streams(secret_from_seed("closed form"), 0)
CLIP = FixedClip(clip_norm=0.5)


def problem(model, full, description, **options) -> LinearProblem:
    return LinearProblem(model=model, description=description, table=full, rows=np.arange(description.rows), **options)


def test_start_is_zero_and_asks_for_no_randomness():
    full, description = blobs(20, 5, 10)
    assert torch.equal(problem(Softmax(), full, description).start(STREAMS), torch.zeros(60))
    assert torch.equal(problem(Logistic(), full, description).start(STREAMS), torch.zeros(6))
    assert torch.equal(problem(Svm(), full, description).start(STREAMS), torch.zeros(6))


def test_penalty_is_on_the_weights_and_not_on_the_bias():
    full, description = blobs(20, 3, 4)
    params_P, gradient_P = torch.arange(16.0), torch.ones(16)
    problem(Softmax(l2=0.1), full, description).add_penalty_(gradient_P, params_P)
    expected = 1 + 0.1 * np.arange(16.0).reshape(4, 4) * [1, 1, 1, 0]
    assert gradient_P.numpy().reshape(4, 4) == pytest.approx(expected, rel=1e-6)
    untouched = torch.ones(16)
    problem(Softmax(), full, description).add_penalty_(untouched, params_P)
    assert torch.equal(untouched, torch.ones(16))


def test_pixel_storage_rounds_each_record_by_itself():
    """A feature off the lattice, or outside [0, 1], moves to the nearest k/255; nobody else's term changes."""
    full, description = blobs(20, 5, 10)
    changed = full.features.copy()
    changed[7] = [0.1, 3.0, -2.0, 0.5, 1.0]
    rounded = full.features.copy()
    rounded[7] = np.array([26, 255, 0, 128, 255]) / 255  # 0.1 * 255 = 25.5 and 0.5 * 255 = 127.5 go to the even number
    params_P = torch.linspace(-1, 1, 60)
    sums = [
        problem(Softmax(), table(f, full.labels), description, pixels=True).batch(np.arange(20)).sum(params_P, CLIP.factors)
        for f in (changed, rounded)
    ]
    assert torch.equal(*sums)


def test_pixel_storage_equals_float_storage_on_pixels():
    full, description = blobs(600, 50, 10)
    params_P, rows = torch.linspace(-1, 1, 510), np.arange(600)
    floats, bytes_ = (
        problem(Softmax(), full, description, pixels=p).batch(rows).sum(params_P, CLIP.factors) for p in (False, True)
    )
    assert torch.linalg.norm(floats - bytes_) < 1e-6 * torch.linalg.norm(floats)


def test_one_chunk_or_many_give_the_same_sum(monkeypatch):
    full, description = blobs(3000, 6, 10)
    params_P, rows = torch.linspace(-1, 1, 70), np.random.default_rng(0).permutation(3000)

    def asked() -> list[torch.Tensor]:
        batch = problem(Softmax(), full, description).batch(rows)
        along_J = batch.losses_along(params_P, params_P.flip(0), [0.1, 2.0], lambda here, there: (here - there).clamp(-1, 1))
        layers_P = batch.sum(params_P, lambda squares_BL: (0.1 / squares_BL.sqrt()).clamp(max=1.0), by_layer=True)
        return [batch.sum(params_P, CLIP.factors), layers_P, along_J]

    many = asked()
    monkeypatch.setattr(closed_form, "CHUNK", 3000)
    for one, parts in zip(asked(), many, strict=True):
        assert torch.linalg.norm(one - parts) < 1e-5 * torch.linalg.norm(one)


@pytest.mark.parametrize("value", [2e19, 1.8e19])  # finite, and its square is not; or is, but for the order of a sum
def test_a_norm_beyond_float32_counts_as_not_finite(value):
    full, description = blobs(20, 5, 2)
    huge = spoilt(full, 3, value)
    built = problem(Logistic(), huge, description)
    found = built.batch(np.arange(20)).sum(torch.ones(6), CLIP.factors)
    assert torch.equal(
        found, problem(Logistic(), without(full, 3), description).batch(np.arange(20)).sum(torch.ones(6), CLIP.factors)
    )
    assert built.nonfinite == 1


def test_a_label_outside_the_public_classes_is_a_null_record():
    full, description = blobs(20, 5, 3)
    odd = full.labels.copy()
    odd[4] = 3
    params_P, rows = torch.linspace(-1, 1, 18), np.arange(20)
    found = problem(Softmax(), table(full.features, odd), description).batch(rows).sum(params_P, CLIP.factors)
    assert torch.equal(found, problem(Softmax(), without(full, 4), description).batch(rows).sum(params_P, CLIP.factors))


def test_the_table_is_left_alone_and_may_be_read_only():
    """Ray hands arrays out of its object store read-only."""
    full, description = blobs(20, 5, 3)
    nulls = without(full, 2)
    for array in (nulls.features, nulls.labels, nulls.valid):
        array.flags.writeable = False
    before = nulls.features.copy()
    built = problem(Softmax(), nulls, description)
    built.batch(np.arange(20)).sum(torch.ones(18), CLIP.factors)
    assert evaluate(Softmax(), torch.ones(18), nulls, np.arange(20)) >= 0
    assert np.array_equal(nulls.features, before)


@pytest.mark.parametrize(("model", "classes"), [(Logistic(), 2), (Svm(), 2), (Softmax(), 2), (Softmax(), 10)])
def test_evaluate_counts_what_a_plain_loop_counts(model, classes):
    rows = 5000  # more than one chunk of the loader
    full, description = blobs(rows, 8, classes, spread=1.0)
    params = np.random.default_rng(3).standard_normal(model.parameters(description)).astype(np.float32)
    scores = full.features.astype(np.float64) @ params.reshape(-1, 9)[:, :8].T + params.reshape(-1, 9)[:, 8]
    chosen = (scores[:, 0] > 0) if model.outputs(description) == 1 else scores.argmax(axis=1)
    some = np.arange(1, rows, 2)
    expected = int((chosen == full.labels)[some].sum())
    assert 0 < expected < len(some)
    assert abs(evaluate(model, torch.from_numpy(params), full, some) - expected) <= 1  # one tie at float32 precision
    assert evaluate(model, torch.from_numpy(params), full, np.array([], np.int64)) == 0


@pytest.mark.parametrize(("model", "classes"), [(Logistic(), 2), (Svm(), 2), (Softmax(), 3)])
def test_null_and_broken_records_are_never_right(model, classes):
    full, description = blobs(50, 4, classes)
    zeros = torch.zeros(model.parameters(description))
    right = evaluate(model, zeros, full, np.arange(50))  # zero logits choose label 0
    assert right == int((full.labels == 0).sum())
    row = int(np.flatnonzero(full.labels == 0)[0])
    assert evaluate(model, zeros, without(full, row), np.arange(50)) == right - 1
    assert evaluate(model, zeros, spoilt(full, row, np.nan), np.arange(50)) == right - 1


def test_many_classes():
    full, description = blobs(300, 7, 257)
    built = problem(Softmax(), full, description)
    summed = built.batch(np.arange(300)).sum(built.start(STREAMS), CLIP.factors)
    assert summed.shape == (257 * 8,)
    assert summed.view(257, 8).sum(dim=0).abs().max() < 1e-4  # residuals of a softmax add up to 0 over classes
    assert isinstance(description, Description)


@pytest.mark.parametrize("by_layer", [False, True])
def test_a_huge_feature_cannot_hide_a_tiny_residual(by_layer):
    """A residual of 4e-24 squares to 0 in float32; times features of 1e19 its term is far longer than the clip norm."""
    _, description = blobs(4, 1, 2)
    huge = table(np.full((4, 1), 1e19, np.float32), np.zeros(4, np.int64))
    built, tiny = problem(Logistic(), huge, description), FixedClip(clip_norm=1e-6)
    params_P = torch.tensor([-54.0 / 1e19, 0.0])  # label 0 is all but certain, and right: the logit is -54 and the bias
    factors = tiny.factors if not by_layer else lambda squares_BL: tiny.factors(squares_BL)[:, None].expand_as(squares_BL)
    moved = 0.0
    for bias in (-10.0, 0.0, 4.0, 40.0):
        params_P[1] = bias
        term_P = built.batch(np.array([0])).sum(params_P, factors, by_layer=by_layer)
        assert term_P.double().norm() <= tiny.sensitivity
        moved = max(moved, float(term_P.double().norm()))
    assert moved > 0
