"""The layered backend beyond the contract of a batch: the papers' shapes, chunks, ties, storage, tiny numbers, whole runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from oracles import AIM
from small import blobs, spoilt, table, without
from torch import nn

from sweeper.backends import layered
from sweeper.backends.closed_form import evaluate
from sweeper.backends.layered import LayeredProblem, chunk_of
from sweeper.checks import FieldError
from sweeper.clip.fixed import FixedClip
from sweeper.clip.per_layer import PerLayerClip
from sweeper.launch.part import PartProblem
from sweeper.models.convnet import ConvNet
from sweeper.models.mlp import Mlp
from sweeper.seeds import Streams, secret_from_seed
from sweeper.spec.protocols import Description
from sweeper.step.fixed import FixedStep
from sweeper.trainers.dp_sgd import DpSgd

SECRET = secret_from_seed("layered")
STREAMS = Streams(SECRET, 0)
CLIP, STEP = FixedClip(clip_norm=0.5), FixedStep(learning_rate=0.5)
COLOURS = ConvNet(layers=(32, 64, "pool", 128, 128, "pool", 256, 256, "pool", 1024, 512), kernel=3, padded=True)
SMALL = {
    "mlp": Mlp(hidden=(9, 7)),
    "convnet": ConvNet(layers=(5, 6, "pool", 8), kernel=3, padded=True),
    "convnet-mean": ConvNet(layers=(12, "pool", 16), kernel=3, pool="average", activation="tanh"),
}
every_small = pytest.mark.parametrize("model", SMALL.values(), ids=SMALL)


def problem(model, full, description, **options) -> LayeredProblem:
    return LayeredProblem(model=model, description=description, table=full, rows=np.arange(description.rows), **options)


def some_params(built: LayeredProblem, scale: float = 0.1) -> torch.Tensor:
    """The random start, and biases that are not 0."""
    start_P = built.start(STREAMS)
    return start_P + scale * torch.from_numpy(np.random.default_rng(0).standard_normal(len(start_P)).astype(np.float32))


def by_autograd(net: nn.Module, features: np.ndarray, labels: np.ndarray) -> torch.Tensor:
    """Per-record gradients [B, P] in float64, one record at a time."""
    net, rows = net.double(), []
    for x_d, label in zip(torch.from_numpy(features).double(), torch.from_numpy(labels), strict=True):
        loss = nn.functional.cross_entropy(net(x_d[None]), label[None])
        rows.append(torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(net.parameters()))]))
    return torch.stack(rows)


def small_cnn() -> nn.Module:
    first, second = (nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2)), (nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)), *first, *second, nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def large_cnn() -> nn.Module:
    parts, before = [], 3
    for one, two in ((32, 64), (128, 128), (256, 256)):
        parts += [nn.Conv2d(before, one, 3, padding=1), nn.ReLU(), nn.Conv2d(one, two, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        before = two
    dense = nn.Linear(4096, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10)
    return nn.Sequential(nn.Unflatten(1, (3, 32, 32)), *parts, nn.Flatten(), *dense)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


@pytest.mark.parametrize(
    ("model", "net", "features", "rows"),
    [(Mlp(), mlp, 784, 30), (ConvNet(), small_cnn, 784, 30), (COLOURS, large_cnn, 3 * 32 * 32, 3)],
    ids=["mlp", "6-16", "32-64-128-128-256-256"],
)
def test_the_papers_networks_against_autograd_one_record_at_a_time(model, net, features, rows):
    full, description = blobs(rows, features, 10)
    built, plain, seen = problem(model, full, description), net(), []
    params_P = some_params(built, 0.001)
    nn.utils.vector_to_parameters(params_P.clone(), plain.parameters())
    expected = by_autograd(plain, full.features, full.labels)
    weights = torch.from_numpy(np.random.default_rng(1).random(rows).astype(np.float32))
    found = built.batch(np.arange(rows)).sum(params_P, lambda squares_BL: seen.append(squares_BL) or weights)
    assert torch.linalg.norm(found - weights.double() @ expected) < 3e-6 * torch.linalg.norm(found)
    assert seen[0].squeeze(1).numpy() == pytest.approx(expected.square().sum(dim=1).numpy(), rel=1e-5)
    clipped = built.batch(np.arange(rows)).sum(params_P, CLIP.factors)
    wanted = (expected * (AIM * 0.5 / expected.norm(dim=1, keepdim=True)).clamp(max=1.0)).sum(dim=0)
    assert torch.linalg.norm(clipped - wanted) < 6e-6 * torch.linalg.norm(wanted)


@every_small
def test_one_chunk_or_many_give_the_same_sum(model, monkeypatch):
    full, description = blobs(500, 48, 4)
    params_P = some_params(problem(model, full, description))
    direction_P, rows = params_P.flip(0), np.random.default_rng(0).permutation(500)

    def asked(chunk: int) -> list[torch.Tensor]:
        monkeypatch.setattr(layered, "chunk_of", lambda layers: chunk)
        batch = problem(model, full, description).batch(rows)
        along_J = batch.losses_along(params_P, direction_P, [0.1, 2.0], lambda here, there: (here - there).clamp(-1, 1))
        layers_P = batch.sum(params_P, lambda squares_BL: (0.1 / squares_BL.sqrt()).clamp(max=1.0), by_layer=True)
        return [batch.sum(params_P, CLIP.factors), layers_P, along_J]

    whole = asked(500)
    for chunk in (1, 64, 499):
        for one, parts in zip(whole, asked(chunk), strict=True):
            assert torch.linalg.norm(one - parts) < 1e-5 * torch.linalg.norm(one)


@every_small
def test_the_same_bits_whatever_was_asked_before(model):
    full, description = blobs(300, 48, 4)
    first, second = problem(model, full, description), problem(model, full, description)
    params_P, rows = some_params(first), np.random.default_rng(0).permutation(300)
    expected = first.batch(rows[:200]).sum(params_P, CLIP.factors)
    second.batch(rows[50:]).sum(params_P * 3, CLIP.factors)
    second.batch(rows[:7]).losses_along(params_P, params_P, [1.0], lambda here, there: there)
    assert torch.equal(second.batch(rows[:200]).sum(params_P, CLIP.factors), expected)


def test_the_size_of_a_chunk_is_a_power_of_two_that_shapes_decide():
    assert chunk_of(Mlp().stack(784, 10)) == 128
    assert chunk_of(ConvNet().stack(784, 10)) == 128
    assert chunk_of(COLOURS.stack(3 * 32 * 32, 100)) == 16


def test_ties_in_a_pool_go_where_torch_sends_them():
    """Features of two values and filters of whole numbers: most windows hold their largest value more than once."""
    generator = np.random.default_rng(0)
    full = table(generator.integers(0, 2, (40, 64)), generator.integers(0, 3, 40))
    description = Description(rows=40, features=64, classes=3)
    built = problem(ConvNet(layers=(4, "pool"), kernel=3), full, description)
    params_P = torch.from_numpy(generator.integers(-1, 2, sum(built.layers)).astype(np.float32))
    params_P[36:40] = 5.0  # every ReLU lets through
    net = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
    nn.utils.vector_to_parameters(params_P.clone(), net.parameters())
    windows = nn.functional.unfold(net[:2].float()(torch.from_numpy(full.features)).flatten(0, 1)[:, None], 2, stride=2)
    assert (windows.sort(dim=1).values.diff(dim=1)[:, -1] == 0).float().mean() > 0.2
    expected = by_autograd(net, full.features, full.labels).sum(dim=0)
    found = built.batch(np.arange(40)).sum(params_P, lambda squares_BL: torch.ones(len(squares_BL)))
    assert torch.linalg.norm(found - expected) < 1e-5 * torch.linalg.norm(expected)


def test_a_convolution_kept_or_computed_twice_gives_the_same_norms_and_sums():
    """One small enough to be kept is made to be computed twice."""
    full, description = blobs(50, 75, 4)
    kept, twice = (problem(ConvNet(layers=(3, "pool", 6), kernel=3, padded=True), full, description) for _ in range(2))
    assert kept._passes[0]._kept
    twice._passes[0]._kept = False
    twice._passes[0]._scratch.reserve(0, twice.chunk * 27 * 3)
    seen = []
    for built in (kept, twice):
        found = built.batch(np.arange(50)).sum(
            some_params(built), lambda squares_BL: seen.append(squares_BL) or CLIP.factors(squares_BL)
        )
        seen.append(found)
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[1], seen[3])


@pytest.mark.parametrize("bias", [40.0, 50.0, 52.0, 55.0, 60.0])
@pytest.mark.parametrize("model", [Mlp(hidden=(3,)), ConvNet(layers=(2, "pool"), kernel=1)])
def test_a_huge_input_cannot_hide_a_tiny_delta(model, bias):
    """Deltas of 1e-23 have a square of 0 in float32; times inputs of 1e18 they are far longer than the clip norm."""
    description = Description(rows=4, features=4, classes=2)
    built = problem(model, table(np.full((4, 4), 4e18), np.zeros(4)), description)
    params_P, tiny = torch.zeros(sum(built.layers)), FixedClip(clip_norm=1e-9)
    params_P[: built.layers[0]] = 1.0
    params_P[-2] = bias  # class 0 is all but certain, and right
    for row in range(4):
        term_P = built.batch(np.array([row])).sum(params_P, tiny.factors)
        assert term_P.double().norm() <= tiny.sensitivity


def test_norms_over_thousands_of_equal_numbers_are_not_too_short():
    """Added up one after the other in float32 they would fall short by 5.5e-6, more than a policy's margin."""
    description = Description(rows=8, features=4096, classes=2)
    built, seen = problem(Mlp(hidden=(4096,)), table(np.full((8, 4096), 0.3337), np.arange(8) % 2), description), []
    params_P = torch.zeros(sum(built.layers))
    params_P[4096 * 4096 : 4096 * 4097] = 0.3337  # biases: every hidden output
    built.batch(np.arange(8)).sum(
        params_P, lambda squares_BL: seen.append(squares_BL) or torch.ones_like(squares_BL), by_layer=True
    )
    value = float(np.float32(0.3337))
    assert seen[0][:, 2].numpy() == pytest.approx(0.5 * 4096 * value**2, rel=1e-6)  # last weights: residuals of +-1/2


@pytest.mark.parametrize("model", [SMALL["mlp"], SMALL["convnet"]])  # tanh saturates instead
def test_a_record_whose_gradient_overflows_is_left_out_and_counted(model):
    full, description = blobs(30, 48, 4)
    huge = full.features.copy()
    huge[4] = 1e17  # its features are in float32's range, its gradient is not
    built, clean = problem(model, table(huge, full.labels), description), problem(model, without(full, 4), description)
    params_P = some_params(built) * 1e3
    assert torch.equal(
        built.batch(np.arange(30)).sum(params_P, CLIP.factors), clean.batch(np.arange(30)).sum(params_P, CLIP.factors)
    )
    assert (built.nonfinite, clean.nonfinite) == (1, 0)


@every_small
def test_pixel_storage_equals_float_storage_on_pixels(model):
    full, description = blobs(100, 48, 4)
    floats, bytes_ = (problem(model, full, description, pixels=pixels) for pixels in (False, True))
    params_P = some_params(floats)
    sums = [built.batch(np.arange(100)).sum(params_P, CLIP.factors) for built in (floats, bytes_)]
    assert torch.linalg.norm(sums[0] - sums[1]) < 1e-6 * torch.linalg.norm(sums[0])


def test_a_label_outside_the_public_classes_is_a_null_record():
    full, description = blobs(20, 12, 3)
    odd = full.labels.copy()
    odd[4] = 3
    built, clean = problem(Mlp(), table(full.features, odd), description), problem(Mlp(), without(full, 4), description)
    params_P = some_params(built)
    assert torch.equal(
        built.batch(np.arange(20)).sum(params_P, CLIP.factors), clean.batch(np.arange(20)).sum(params_P, CLIP.factors)
    )


def test_the_table_is_left_alone_and_may_be_read_only():
    """Ray hands arrays out of its object store read-only."""
    full, description = blobs(20, 48, 3)
    nulls = without(full, 2)
    for array in (nulls.features, nulls.labels, nulls.valid):
        array.flags.writeable = False
    before = nulls.features.copy()
    built = problem(SMALL["convnet"], nulls, description)
    built.batch(np.arange(20)).sum(some_params(built), CLIP.factors)
    assert evaluate(SMALL["convnet"], some_params(built), nulls, np.arange(20)) >= 0
    assert np.array_equal(nulls.features, before)


@every_small
def test_evaluate_counts_what_the_plain_module_counts(model):
    full, description = blobs(600, 48, 4, spread=1.0)
    params_P = some_params(problem(model, full, description))
    logits = model.torch_module(params_P, description).double()(torch.from_numpy(full.features).double())
    right = logits.argmax(dim=1).numpy() == full.labels
    assert 100 < right.sum() < 600
    right[[0, 1]] = False
    broken = spoilt(without(full, 0), 1, math.nan)
    assert abs(evaluate(model, params_P, broken, np.arange(600)) - right.sum()) <= 1  # one tie at float32 precision


def test_there_are_no_lipschitz_constants():
    full, description = blobs(20, 12, 3)
    with pytest.raises(FieldError, match=r"model\.kind = 'mlp' bounds no record's gradient"):
        problem(Mlp(), full, description).lipschitz_sum(lambda constants_B: constants_B[:, None])


# ---- whole runs ----


def fit(trainer, built, *, noise_multiplier=1.0, trial=0, clip=CLIP):
    return trainer.fit(built, clip, STEP, noise_multiplier, Streams(SECRET, trial))


@every_small
def test_a_run_again_is_the_same_bits_and_another_trial_shares_nothing(model):
    full, description = blobs(200, 48, 4)
    shared, trainer = problem(model, full, description), DpSgd(batch_size=40, steps=10)
    ends = [fit(trainer, b, trial=t).params_P for b, t in ((shared, 0), (shared, 1), (problem(model, full, description), 0))]
    assert torch.equal(ends[0], ends[2])
    assert torch.isclose(ends[0], ends[1], rtol=1e-6).float().mean() < 0.01


@every_small
def test_neighbours_take_steps_that_differ_by_the_sensitivity_at_most(model):
    """Without noise, one step: step size / batch size times the clip norm."""
    full, description = blobs(30, 48, 4)
    one_step = DpSgd(batch_size=30, steps=1)
    whole = fit(one_step, problem(model, full, description), noise_multiplier=0.0).params_P
    for row in range(0, 30, 5):
        other = fit(one_step, problem(model, without(full, row), description), noise_multiplier=0.0).params_P
        moved = float((whole.double() - other.double()).norm()) * 30 / STEP.learning_rate
        assert 0 < moved <= CLIP.sensitivity * (1 + 1e-4)  # parameters near 1 keep 7 digits of a small step


@every_small
def test_a_broken_record_and_a_part_train_as_without_those_rows(model):
    full, description = blobs(60, 48, 4)
    trainer = DpSgd(batch_size=20, steps=10)
    broken, clean = (fit(trainer, problem(model, t, description)) for t in (spoilt(full, 4, math.nan), without(full, 4)))
    assert torch.equal(broken.params_P, clean.params_P)
    assert broken.sealed["nonfinite"] > 0 == clean.sealed["nonfinite"]
    inside = np.arange(60) % 3 == 0
    part = fit(trainer, PartProblem(problem(model, full, description), inside)).params_P
    hidden = fit(trainer, problem(model, without(full, *np.flatnonzero(~inside)), description)).params_P
    assert torch.allclose(part, hidden, rtol=1e-4, atol=1e-5)


@every_small
def test_it_learns_and_a_million_times_the_noise_destroys_accuracy(model):
    full, description = blobs(1000, 48, 10)
    shared, trainer, rows = problem(model, full, description), DpSgd(batch_size=200, steps=150, momentum=0.5), np.arange(1000)

    def accuracy(noise_multiplier: float, trial: int) -> float:
        return evaluate(model, fit(trainer, shared, noise_multiplier=noise_multiplier, trial=trial).params_P, full, rows) / 1000

    assert accuracy(0.0, 0) > 0.9
    assert accuracy(0.3, 0) > 0.6
    assert np.mean([accuracy(1e6, trial) for trial in range(3)]) < 0.35  # guessing is right one time in ten


def test_every_layer_is_clipped_on_its_own_in_a_run():
    full, description = blobs(100, 48, 4)
    built = problem(SMALL["convnet"], full, description)
    fitted = fit(DpSgd(batch_size=30, steps=5), built, clip=PerLayerClip(clip_norm=0.5))
    assert fitted.params_P.isfinite().all()
    with pytest.raises(FieldError, match="must be one for each of the 8 layers"):
        fit(DpSgd(batch_size=30, steps=5), built, clip=PerLayerClip(clip_norms=(0.1, 0.2)))
