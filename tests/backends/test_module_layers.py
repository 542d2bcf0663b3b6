"""Every kind of layer in a user's module, against a loop of this file's own: autograd in float64, one record at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import user_nets
from small import blobs, table, without
from torch import nn

from sweeper.backends.examine import examined
from sweeper.backends.opacus import ModuleProblem
from sweeper.backends.user_module import bind, trained_of, user_module
from sweeper.clip.base import MARGIN
from sweeper.clip.fixed import FixedClip
from sweeper.models.module import ModuleModel
from sweeper.seeds import Streams, secret_from_seed
from sweeper.spec.protocols import Description

WAYS = {  # layer under test -> how its gradients are made, layer by layer
    "rows": "gg",
    "no-bias": "gg",
    "bias-only": "gg",
    "sequence": "gg",
    "short-sequence": "gg",
    "flat-sequence": "gg",
    "conv1d": "hg",
    "conv1d-dilated": "hg",
    "conv1d-reflected": "fg",
    "conv2d": "hg",
    "conv2d-dilated": "hg",
    "conv2d-groups": "hg",
    "conv2d-same": "hg",
    "conv2d-circular": "fg",
    "conv3d": "hg",
    "conv3d-same": "hg",
    "transposed": "fg",
    "group-norm": "hhg",
    "instance-norm": "hhg",
    "layer-norm": "hgg",
    "rms-norm": "hgg",
    "prelu": "gfg",
    "weight-norm": "fg",
    "in-place": "gg",
    "tied": "hhg",
    "twice": "hg",
    "shared": "hg",
    "rooted": "f",
    "listed": "f",
    "pair": "fg",
    "pruned": "fg",
    "changed-in-place": "ggg",
    "half": "gg",
    "frozen": "g",
    "unused": "gg",
}
LETTERS = {"g": "ghost", "h": "hooks", "f": "functional"}
ROWS, CLASSES = 13, 3
FULL, DESCRIPTION = blobs(ROWS, 12, CLASSES, spread=2.0)
TOKENS = table(np.random.default_rng(5).integers(0, 7, (ROWS, 6)).astype(np.float32), np.arange(ROWS) % 3)
TOKENS_DESCRIPTION = Description(rows=ROWS, features=6, classes=3)


def own(function: str, **more) -> ModuleModel:
    return ModuleModel(module=f"user_nets:{function}", **more)


MODELS = {name: own("layer", args={"name": name}) for name in WAYS} | {
    "tokens": own("Tokens", integers=True),
    "padded-tokens": own("Tokens", args={"padding_idx": 2}, integers=True),
    "tokens-hooks": own("Tokens", args={"padding_idx": 2}, integers=True, per_record="hooks"),
    "sparse-tokens": own("Tokens", args={"sparse": True}, integers=True),
    "tied-tokens": own("TiedTokens", integers=True),
    "bag": own("Bag", integers=True),
    "lstm": own("Recurrent", replace=True),
    "gru-both-ways": own("Recurrent", args={"kind": "GRU", "bidirectional": True}, replace=True),
    "attention": own("Attending", replace=True),
    "sequence-hooks": own("layer", args={"name": "sequence"}, per_record="hooks"),
    "batch-norm": own("batch_norm", replace=True),
    "smoothed": own("layer", args={"name": "rows"}, loss="user_nets:smoothed"),
    "small-micro-batch": own("layer", args={"name": "conv2d"}, microbatch=5),
}
MODELS |= {
    f"{kind}-{name}-alone": own("half_frozen", args={"kind": kind, "name": name})
    for kind in ("conv", "group", "layer", "instance", "dense")
    for name in ("weight", "bias")
}
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")  # of vmap, in the bag
every_model = pytest.mark.parametrize("name", MODELS)


def built(name: str, full=None) -> ModuleProblem:
    full = full or (TOKENS if MODELS[name].integers else FULL)
    description = TOKENS_DESCRIPTION if MODELS[name].integers else DESCRIPTION
    return ModuleProblem(model=MODELS[name], description=description, table=full, rows=np.arange(ROWS))


def some_params(problem: ModuleProblem) -> torch.Tensor:
    start_P = problem.start(Streams(secret_from_seed("layers"), 0))
    return start_P + 0.1 * torch.randn(start_P.shape, generator=torch.Generator().manual_seed(2))


def alone(name: str, problem: ModuleProblem, params_P: torch.Tensor, full=None) -> list[list[torch.Tensor]]:
    """Each record's gradient by each trained parameter, in float64."""
    model, full = MODELS[name], full or (TOKENS if MODELS[name].integers else FULL)
    module = user_module(model).built()
    bind(trained_of(module), params_P.clone())
    module, found = module.double(), []
    for features_d, label in zip(full.features, full.labels, strict=True):
        inputs = torch.from_numpy(features_d[None])
        outputs = module(inputs.long() if model.integers else inputs.double())
        smoothing = 0.2 if name == "smoothed" else 0.0
        loss = nn.functional.cross_entropy(outputs, torch.tensor([label]), label_smoothing=smoothing)
        grads = torch.autograd.grad(loss, trained_of(module), allow_unused=True)
        found.append(
            [torch.zeros(p.shape).double() if g is None else g.to_dense() for p, g in zip(trained_of(module), grads, strict=True)]
        )
    return found


@every_model
def test_every_records_gradient_and_norm(name: str) -> None:
    problem = built(name)
    params_P, shown = some_params(problem), []
    loop = alone(name, problem, params_P)
    for by_layer in (False, True):
        for row in range(ROWS):
            shown.clear()

            def only(squares_BL, row=row, by_layer=by_layer):
                shown.append(squares_BL.clone())
                return torch.ones_like(squares_BL) if by_layer else torch.ones(len(squares_BL))

            found_P = problem.batch(np.array([row])).sum(params_P, only, by_layer=by_layer)
            expected = torch.cat([part.flatten() for part in loop[row]])
            assert (found_P - expected).norm() <= 2e-5 * expected.norm() + 1e-6
            squares = torch.stack([part.square().sum() for part in loop[row]])
            wanted = squares if by_layer else squares.sum()[None]
            assert torch.allclose(shown[0][0].double().sqrt(), wanted.sqrt(), rtol=1e-4, atol=1e-5)


@every_model
def test_a_batch_is_the_sum_of_its_clipped_records(name: str) -> None:
    problem, clip = built(name), FixedClip(clip_norm=0.3)
    params_P = some_params(problem)
    whole = [torch.cat([part.flatten() for part in parts]) for parts in alone(name, problem, params_P)]
    expected = sum(vector * min(1.0, 0.3 * (1 - MARGIN) / float(vector.norm())) for vector in whole)
    found = problem.batch(np.arange(ROWS)).sum(params_P, clip.factors)
    assert (found - expected).norm() < 1e-4 * expected.norm()


@every_model
def test_a_record_moves_the_sum_by_at_most_the_clip_norm(name: str) -> None:
    clip, full = FixedClip(clip_norm=0.3), TOKENS if MODELS[name].integers else FULL
    params_P = some_params(built(name))
    whole = built(name).batch(np.arange(ROWS)).sum(params_P, clip.factors)
    for row in (0, 7):
        other = built(name, without(full, row)).batch(np.arange(ROWS)).sum(params_P, clip.factors)
        assert 0 < (whole - other).norm() <= 0.3 * (1 + 1e-6)


@pytest.mark.parametrize("name", WAYS)
def test_the_way_is_the_leanest_that_serves_the_layer(name: str) -> None:
    found = examined(MODELS[name], DESCRIPTION)
    assert [way for _, _, way in found.layers] == [LETTERS[letter] for letter in WAYS[name]]
    assert found.error < 1e-3
    assert found.mode == ("ghost" if "g" in WAYS[name] else "hooks")
    assert found.parameters == sum(problem_layers(name))
    assert ("gets noise alone" in " ".join(found.notes)) == (name in ("unused", "half"))
    assert ("a frozen BatchNorm1d" in " ".join(found.notes)) == (name == "frozen")


def problem_layers(name: str) -> tuple[int, ...]:
    return tuple(p.numel() for p in user_nets.layer(name).parameters() if p.requires_grad)


def test_replacements_are_named() -> None:
    assert examined(MODELS["lstm"], DESCRIPTION).replaced == ("inner: LSTM by DenseRecurrent",)
    assert examined(MODELS["gru-both-ways"], DESCRIPTION).replaced == ("inner: GRU by DenseRecurrent",)
    assert examined(MODELS["attention"], DESCRIPTION).replaced == ("inner: MultiheadAttention by DenseAttention",)
    assert examined(MODELS["batch-norm"], DESCRIPTION).replaced[0].startswith("1: BatchNorm1d by GroupNorm(1, 6")


def test_cells_are_replaced_where_it_is_asked_for_and_can_do_without_where_they_are_given_states() -> None:
    assert examined(own("Celled", replace=True), DESCRIPTION).replaced == ("cell: GRUCell by DenseCell",)
    assert examined(own("Celled", args={"given": True}), DESCRIPTION).replaced == ()


def test_a_frozen_batch_norm_uses_its_own_statistics_and_keeps_them() -> None:
    problem = built("frozen")
    before = {name: value.clone() for name, value in problem._module.state_dict().items() if "running" in name}
    params_P = some_params(problem)
    problem.batch(np.arange(ROWS)).sum(params_P, FixedClip(clip_norm=1.0).factors)
    problem.batch(np.arange(ROWS)).losses_along(params_P, params_P, [0.1], lambda here, there: there)
    problem.batch(np.arange(ROWS)).sum(params_P, FixedClip(clip_norm=1.0).factors)
    after = problem._module.state_dict()
    assert before
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
def test_terms_of_a_sequence_that_cancel_cannot_hide(scale: float) -> None:
    """Two positions whose terms cancel but for rounding: in float32 the Gram sum would be noise, and may be 0."""
    model = own("layer", args={"name": "sequence"})
    features = np.zeros((ROWS, 12), np.float32)
    features[:, :3], features[:, 3:6] = scale, -scale * (1 + 1e-7)
    problem = ModuleProblem(model=model, description=DESCRIPTION, table=table(features, np.arange(ROWS) % 3), rows=np.arange(ROWS))
    params_P, clip = 1e-3 * some_params(problem), FixedClip(clip_norm=1e-3)
    one = problem.batch(np.array([0])).sum(params_P, clip.factors)
    assert one.norm() <= 1e-3
    many = problem.batch(np.arange(ROWS)).sum(params_P, clip.factors)
    assert many.norm() <= ROWS * 1e-3
