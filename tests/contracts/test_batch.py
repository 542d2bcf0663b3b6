"""What the batches of every backend must keep. A new backend or model is one row of PROBLEMS."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import pytest
import torch
from networks import LINEAR, WIDEST, gradients, losses, module, parts
from oracles import AIM, clipped
from small import blobs, spoilt, table, without
from torch.utils._python_dispatch import TorchDispatchMode

from sweeper.backends.closed_form import CHUNK, LinearProblem
from sweeper.backends.layered import LayeredProblem
from sweeper.backends.opacus import ModuleProblem
from sweeper.clip.fixed import FixedClip
from sweeper.data.table import Table
from sweeper.models.convnet import ConvNet
from sweeper.models.linear import Logistic, Softmax, Svm
from sweeper.models.mlp import Mlp
from sweeper.models.module import ModuleModel
from sweeper.spec.protocols import Description


def own(kind: str, classes: int = 10, **more) -> ModuleModel:
    return ModuleModel(module="user_nets:network", args={"kind": kind, "classes": classes}, **more)


# (how to build the problem, model kind for the oracle, classes)
PROBLEMS = {
    "logistic": (functools.partial(LinearProblem, model=Logistic()), "logistic", 2),
    "logistic-pixels": (functools.partial(LinearProblem, model=Logistic(), pixels=True), "logistic", 2),
    "svm": (functools.partial(LinearProblem, model=Svm()), "svm", 2),
    "svm-pixels": (functools.partial(LinearProblem, model=Svm(), pixels=True), "svm", 2),
    "softmax-2": (functools.partial(LinearProblem, model=Softmax()), "softmax", 2),
    "softmax-10": (functools.partial(LinearProblem, model=Softmax()), "softmax", 10),
    "softmax-10-pixels": (functools.partial(LinearProblem, model=Softmax(), pixels=True), "softmax", 10),
    "softmax-17": (functools.partial(LinearProblem, model=Softmax()), "softmax", 17),
    "mlp-relu": (functools.partial(LayeredProblem, model=Mlp(hidden=(9, 7))), "mlp-relu", 10),
    "mlp-relu-pixels": (functools.partial(LayeredProblem, model=Mlp(hidden=(9, 7)), pixels=True), "mlp-relu", 10),
    "mlp-tanh": (functools.partial(LayeredProblem, model=Mlp(hidden=(6,), activation="tanh")), "mlp-tanh", 2),
    "convnet": (functools.partial(LayeredProblem, model=ConvNet(layers=(5, "pool", 4), kernel=3, padded=True)), "convnet", 10),
    "convnet-mean-pixels": (
        functools.partial(
            LayeredProblem,
            model=ConvNet(layers=(3, "pool"), kernel=2, pool="average", activation="tanh", picture=(1, 3, 4)),
            pixels=True,
        ),
        "convnet-mean",
        3,
    ),
    "module-mlp": (functools.partial(ModuleProblem, model=own("mlp-relu")), "mlp-relu", 10),
    "module-mlp-pixels": (functools.partial(ModuleProblem, model=own("mlp-tanh", 2), pixels=True), "mlp-tanh", 2),
    "module-mlp-hooks": (functools.partial(ModuleProblem, model=own("mlp-relu", per_record="hooks")), "mlp-relu", 10),
    "module-convnet": (functools.partial(ModuleProblem, model=own("convnet")), "convnet", 10),
    "module-convnet-mean": (functools.partial(ModuleProblem, model=own("convnet-mean", 3, microbatch=16)), "convnet-mean", 3),
}
every_problem = pytest.mark.parametrize(("build", "kind", "classes"), PROBLEMS.values(), ids=PROBLEMS)
BOUNDED = {name: row for name, row in PROBLEMS.items() if row[1] in LINEAR}  # something bounds a record's gradient at every point
every_bounded = pytest.mark.parametrize(("build", "kind", "classes"), BOUNDED.values(), ids=BOUNDED)
LEAN = {name: row for name, row in PROBLEMS.items() if "hooks" not in name}  # hooks build every record's gradient
CLIP = FixedClip(clip_norm=0.5)
FEATURES = 12


def chunks(problem, rows: int) -> list[int]:
    """How many rows each call of a callback sees: of a linear problem CHUNK, of a network what its shapes allow."""
    size = getattr(problem, "chunk", CHUNK)
    return [min(size, rows - start) for start in range(0, rows, size)]


def some_params(kind: str, classes: int, scale: float = 1.0) -> torch.Tensor:
    size = sum(map(len, parts(kind, classes)))
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
    params_P = some_params(kind, classes, scale=0.5)  # larger ones make a residual p - 1 that float32 has few digits of
    for row in range(20):
        if kind not in LINEAR:
            net = module(kind, classes, params_P.numpy())
            loss = torch.nn.functional.cross_entropy(
                net(torch.from_numpy(full.features[row : row + 1]).double()), torch.tensor(full.labels[row : row + 1])
            )
            loss.backward()
            check_record(build, full, description, params_P, row, torch.cat([p.grad.flatten() for p in net.parameters()]))
            continue
        weights_P = params_P.double().requires_grad_()
        extended_D = torch.cat([torch.from_numpy(full.features[row]).double(), torch.ones(1).double()])
        logits_K, label = weights_P.view(-1, FEATURES + 1) @ extended_D, torch.tensor(full.labels[row])
        if kind == "logistic":
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits_K[0], label.double())
        elif kind == "svm":  # a Huber loss of how far the margin falls short of 1.5, its bend where the margin is 0.5
            short = 1.5 - logits_K[0] * (2 * label - 1)
            loss = torch.nn.functional.huber_loss(short.clamp(min=0), torch.zeros(()).double(), delta=1.0)
        else:
            loss = torch.nn.functional.cross_entropy(logits_K[None], label[None])
        check_record(build, full, description, params_P, row, torch.autograd.grad(loss, weights_P)[0])


def check_record(build, full, description, params_P, row, expected):
    problem, seen = build(description=description, table=full, rows=np.arange(20)), []
    found = problem.batch(np.array([row])).sum(params_P, lambda s: seen.append(s) or torch.ones(len(s)))
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
    assert shapes == chunks(problem, rows)


@pytest.mark.parametrize(("build", "kind", "classes"), LEAN.values(), ids=LEAN)
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
    assert 0 < largest.size <= CHUNK * WIDEST.get(kind, max(FEATURES + 1, math.ceil(classes / 16) * 16))


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
    assert max(alone) > 0.999 * AIM * CLIP.sensitivity


@every_problem
def test_neighbours_differ_by_at_most_the_sensitivity(build, kind, classes):
    full, description = blobs(64, FEATURES, classes)
    params_P = some_params(kind, classes, scale=0.1)  # an svm's record with a large margin has no gradient
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


# ---- counts ----


def no_longer_than(norm: float):
    """What a clip norm that moves counts: records no longer than it, less a half each."""
    return lambda squares_BL: (squares_BL.sum(dim=1) <= norm**2).float() - 0.5


@every_problem
def test_the_count_is_over_the_records_that_are_there(build, kind, classes):
    """Null records and broken ones add nothing, not even the half; several chunks; rows out of order."""
    rows = 2 * CHUNK + 77
    full, description = blobs(rows, FEATURES, classes)
    full = without(full, *range(5, rows, 9))
    params_P = some_params(kind, classes, scale=0.2)
    problem = build(description=description, table=spoilt(full, 4, math.nan), rows=np.arange(rows))
    drawn = np.random.default_rng(0).permutation(rows)[: rows - 30]
    there = [row for row in drawn if full.valid[row] and row != 4]
    norms = np.sort(np.linalg.norm(gradients(kind, params_P.numpy(), full.features[there], full.labels[there]), axis=1))
    middle = slice(len(norms) // 3, len(norms) // 2)
    shorter = middle.start + int(np.argmax(np.diff(norms[middle]))) + 1  # the widest gap: float32 decides for no record
    counted = no_longer_than((norms[shorter - 1] + norms[shorter]) / 2)
    found_P, count = problem.batch(drawn).sum_and_count(params_P, CLIP.factors, counted)
    assert count == shorter - 0.5 * len(there)
    assert torch.equal(found_P, problem.batch(drawn).sum(params_P, CLIP.factors))
    nulls = np.arange(5, rows, 9)
    for empty in (nulls, nulls[:0], np.array([4])):
        found_P, count = problem.batch(empty).sum_and_count(params_P, CLIP.factors, counted)
        assert count == 0.0
        assert not found_P.any()


@every_problem
def test_one_record_moves_the_count_by_at_most_a_half(build, kind, classes):
    full, description = blobs(40, FEATURES, classes)
    params_P = some_params(kind, classes, scale=0.05)

    def count(one: Table) -> float:
        problem = build(description=description, table=spoilt(one, 0, math.inf), rows=np.arange(40))
        return problem.batch(np.arange(40)).sum_and_count(params_P, CLIP.factors, no_longer_than(1.0))[1]

    for changed in (full, table(full.features * 1e4, full.labels)):
        moves = [abs(count(changed) - count(without(changed, row))) for row in range(40)]
        assert moves == [0.0] + [0.5] * 39


# ---- layers ----


def by_layers(kind: str, classes: int, params_P: torch.Tensor, full: Table, norms: tuple[float, float]) -> np.ndarray:
    """The sum of gradients whose weights and biases are clipped each to its own norm, one record at a time."""
    gradients_BP = gradients(kind, params_P.numpy(), full.features, full.labels)
    for at, part in enumerate(parts(kind, classes)):
        gradients_BP[:, part] = clipped(gradients_BP[:, part], norms[at % 2])
    return gradients_BP.sum(axis=0)


@every_problem
@pytest.mark.parametrize("norms", [(0.5, 0.1), (1e-3, 1e9), (1e9, 1e-3), (1e9, 1e9)])
def test_every_layer_is_clipped_by_its_own_factor(build, kind, classes, norms):
    rows, shapes = CHUNK + 33, []
    full, description = blobs(rows, FEATURES, classes)
    full = without(full, *range(0, rows, 7))
    params_P = some_params(kind, classes)
    problem = build(description=description, table=spoilt(full, 0, math.inf), rows=np.arange(rows))

    def factors(squares_BL):
        shapes.append(tuple(squares_BL.shape))
        return (AIM * torch.tensor(norms * layers) / squares_BL.sqrt()).clamp(max=1.0)

    layers = len(parts(kind, classes)) // 2
    found = problem.batch(np.arange(rows)).sum(params_P, factors, by_layer=True).numpy()
    there = Table(features=full.features[full.valid], labels=full.labels[full.valid], valid=full.valid[full.valid])
    expected = by_layers(kind, classes, params_P, there, norms)
    assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)
    assert shapes == [(size, 2 * layers) for size in chunks(problem, rows)]
    assert list(problem.layers) == [len(part) for part in parts(kind, classes)]


@every_problem
@pytest.mark.parametrize("wild", [1.0, 1e4, 1e18])
def test_one_record_moves_every_layer_by_at_most_its_norm(build, kind, classes, wild):
    full, description = blobs(20, FEATURES, classes)
    changed, params_P = table(full.features * np.float32(wild), full.labels), some_params(kind, classes)
    problem = build(description=description, table=changed, rows=np.arange(20))
    layers = parts(kind, classes)
    norms = torch.tensor([0.5, 0.1] * (len(layers) // 2))
    for row in range(20):
        summed = problem.batch(np.array([row])).sum(
            params_P, lambda squares_BL: (norms / squares_BL.sqrt()).clamp(max=1.0), by_layer=True
        )
        for layer, norm in zip(layers, norms.tolist(), strict=True):
            assert summed.double()[layer].norm() <= norm * (1 + 1e-6)


@every_problem
def test_null_and_broken_records_add_nothing_to_any_layer(build, kind, classes):
    full, description = blobs(30, FEATURES, classes)
    nulls = spoilt(without(full, *range(10, 30)), 4, math.nan)
    problem = build(description=description, table=nulls, rows=np.arange(30))
    for drawn in ([], [4], list(range(10, 30))):
        summed = problem.batch(np.array(drawn, np.int64)).sum(
            some_params(kind, classes), lambda squares_BL: torch.ones_like(squares_BL), by_layer=True
        )
        assert not summed.any()


# ---- losses along a line ----


def fall(here_B1: torch.Tensor, there_BJ: torch.Tensor) -> torch.Tensor:
    return (here_B1 - there_BJ).double().clamp(-1.0, 1.0).nan_to_num(nan=-1.0)


@every_problem
def test_losses_along_a_line_are_those_of_a_plain_loop(build, kind, classes):
    rows, sizes = CHUNK + 40, [0.0, 0.3, 1e-3, 7.0, -2.0]
    full, description = blobs(rows, FEATURES, classes)
    full = without(full, *range(3, rows, 10))
    problem = build(description=description, table=spoilt(full, 4, math.nan), rows=np.arange(rows))
    params_P, direction_P = some_params(kind, classes), some_params(kind, classes, 0.5).flip(0)
    drawn, shapes = np.random.default_rng(0).permutation(rows)[:-9], []

    def terms(here_B1, there_BJ):
        shapes.append((tuple(here_B1.shape), tuple(there_BJ.shape)))
        return fall(here_B1, there_BJ)

    found_J = problem.batch(drawn).losses_along(params_P, direction_P, sizes, terms)
    there = [row for row in drawn if full.valid[row] and row != 4]
    at = [losses(kind, (params_P - s * direction_P).numpy(), full.features[there], full.labels[there]) for s in [0.0, *sizes]]
    expected = [np.clip(at[0] - loss, -1, 1).sum() for loss in at[1:]]
    assert found_J.numpy() == pytest.approx(np.array(expected), rel=1e-5, abs=2e-6 * len(there))
    assert abs(expected[3]) > 10
    assert found_J.dtype == torch.float64
    assert found_J[0] == 0.0  # at size 0 nothing changes, to the last bit
    assert shapes == [((size, 1), (size, 5)) for size in chunks(problem, rows - 9)]
    again = problem.batch(drawn).sum(params_P, CLIP.factors).numpy()  # the line left nothing behind
    assert np.array_equal(again, total(build, spoilt(full, 4, math.nan), description, drawn, params_P))


@every_problem
def test_no_records_and_no_sizes(build, kind, classes):
    full, description = blobs(30, FEATURES, classes)
    nulls = spoilt(without(full, *range(10, 30)), 4, math.nan)
    problem, params_P = build(description=description, table=nulls, rows=np.arange(30)), some_params(kind, classes)
    for drawn in ([], [4], list(range(10, 30))):  # a term that ignores its losses still counts nobody who is not there
        batch = problem.batch(np.array(drawn, np.int64))
        assert batch.losses_along(params_P, params_P, [0.1, 2.0], lambda here, there: torch.ones_like(there)).tolist() == [0, 0]
    assert problem.batch(np.arange(10)).losses_along(params_P, params_P, [0.1], lambda _, there: there**0).tolist() == [9.0]
    assert problem.batch(np.arange(10)).losses_along(params_P, params_P, [], fall).shape == (0,)


@every_problem
@pytest.mark.parametrize(("scale", "along"), [(2e38, 1.0), (3e38, 3e38), (1.0, 3e38), (math.inf, 1.0), (1.0, math.nan)])
def test_losses_that_are_not_finite_reach_the_terms(build, kind, classes, scale, along):
    """What they count as is for the policy to say; the losses at hand are finite whatever the direction is."""
    full, description = blobs(30, FEATURES, classes)
    nulls = without(full, *range(10))
    problem, seen = build(description=description, table=nulls, rows=np.arange(30)), []
    start_P, seed_P = some_params(kind, classes).sign(), some_params(kind, classes, 1.0).flip(0).sign()

    def terms(here_B1, there_BJ):
        seen.append((here_B1.clone(), there_BJ.clone()))
        return fall(here_B1, there_BJ)

    found_J = problem.batch(np.arange(30)).losses_along(start_P * scale, seed_P * along, [1.0, 1e6, 0.5], terms)
    assert found_J.isfinite().all()
    assert found_J.abs().max() <= 20
    here_B1, there_BJ = seen[0]
    assert not there_BJ.isfinite().all()
    assert here_B1[10:].isfinite().all() or scale != 1.0


@every_problem
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
def test_a_record_that_is_not_finite_is_a_null_record_to_every_sum(build, kind, classes, value):
    full, description = blobs(30, FEATURES, classes)
    spoiled, nulled = spoilt(full, 4, value), without(full, 4)
    if "pixels" in repr(build) and math.isfinite(value):  # stored as the nearest pixel value, 1
        nulled = spoilt(full, 4, 1.0)
    one, other = (build(description=description, table=t, rows=np.arange(30)) for t in (spoiled, nulled))
    params_P = some_params(kind, classes)
    for ask in (
        lambda p: p.batch(np.arange(30)).losses_along(params_P, params_P, [0.1, 1.0], fall),
        lambda p: p.batch(np.arange(30)).sum(params_P, lambda squares_BL: torch.ones_like(squares_BL), by_layer=True),
        lambda p: torch.tensor(p.batch(np.arange(30)).sum_and_count(params_P, CLIP.factors, no_longer_than(1.0))[1]),
        lambda p: p.lipschitz_sum(lambda constants_B: constants_B[:, None]) if kind in LINEAR else torch.zeros(1),
    ):
        assert torch.equal(ask(one), ask(other))


# ---- what is known of every gradient ----


@every_bounded
def test_lipschitz_constants_bound_every_gradient(build, kind, classes):
    full, description = blobs(64, FEATURES, classes)
    problem = build(description=description, table=full, rows=np.arange(64))
    bounds = [float(problem.lipschitz_sum(lambda c: c[:, None], np.array([row]))) for row in range(64)]
    extended = np.sqrt(np.square(full.features, dtype=np.float64).sum(axis=1) + 1)
    assert bounds == pytest.approx((math.sqrt(2) if kind == "softmax" else 1.0) * extended, rel=1e-6)
    largest = np.zeros(64)
    for scale in (0.0, 1.0, 30.0, 1e3):
        norms = np.linalg.norm(gradients(kind, some_params(kind, classes, scale).numpy(), full.features, full.labels), axis=1)
        assert (norms <= np.array(bounds) * (1 + 1e-6)).all()
        largest = np.maximum(largest, norms)
    assert (largest / bounds).max() > 0.999  # and some record reaches it


@every_bounded
def test_sums_of_lipschitz_constants_are_over_the_records_that_are_there(build, kind, classes):
    rows, grid = 5000, torch.tensor([1.5, 2.0, 2.5, 3.0])
    full, description = blobs(rows, FEATURES, classes, spread=1.5)
    full = without(full, *range(0, rows, 3))
    trained = np.random.default_rng(0).permutation(rows)[:4700]
    problem = build(description=description, table=spoilt(full, 4, math.nan), rows=trained)
    constants = np.sqrt(np.square(full.features, dtype=np.float64).sum(axis=1) + 1) * (math.sqrt(2) if kind == "softmax" else 1.0)

    def terms(constants_B):
        return (constants_B[:, None] <= grid).float()

    for positions in (None, np.arange(0, 4700, 2), np.array([], np.int64)):
        asked = trained if positions is None else trained[positions]
        there = [row for row in asked if full.valid[row] and row != 4]
        found = problem.lipschitz_sum(terms, positions)
        assert found.dtype == torch.float64
        assert found.tolist() == [(constants[there] <= g).sum() for g in grid.tolist()]
    assert problem.lipschitz_sum(lambda c: torch.ones(len(c), 1)).tolist() == [sum(full.valid[trained]) - (4 in trained)]


@every_problem
@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_the_penalty_is_what_its_gradient_says(build, kind, classes, l2):
    full, description = blobs(20, FEATURES, classes)
    model = dataclasses.replace(build.keywords["model"], l2=l2)
    problem = build(model=model, description=description, table=full, rows=np.arange(20))
    params_P = some_params(kind, classes)
    weights = np.concatenate(parts(kind, classes)[0::2])
    expected = sum(l2 / 2 * w * w for w in params_P.double().numpy()[weights])
    assert problem.penalty(params_P) == pytest.approx(expected, rel=1e-6)
    gradient_P, along_P = torch.zeros_like(params_P), some_params(kind, classes).flip(0)
    problem.add_penalty_(gradient_P, params_P)
    slope = (problem.penalty(params_P + 0.01 * along_P) - problem.penalty(params_P - 0.01 * along_P)) / 0.02
    assert float(gradient_P.double() @ along_P.double()) == pytest.approx(slope, rel=1e-4, abs=1e-9)
