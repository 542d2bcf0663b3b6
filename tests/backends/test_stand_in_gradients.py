"""Every record's gradient through the stand-ins, against the original layers: autograd in float64, one record at a time."""

from __future__ import annotations

import numpy as np
import pytest
import stand_in_nets
import torch
from small import blobs
from torch import nn

from sweeper.backends.examine import examined
from sweeper.backends.opacus import ModuleProblem
from sweeper.backends.user_module import bind, trained_of, user_module
from sweeper.models.module import ModuleModel
from sweeper.seeds import Streams, secret_from_seed

ROWS = 7
FULL, DESCRIPTION = blobs(ROWS, 12, 3, spread=2.0)
pytestmark = pytest.mark.filterwarnings(
    "ignore:There is a performance drop"
)  # of vmap, through a module with a parameter of its own
every_net = pytest.mark.parametrize("name", [name for name in stand_in_nets.NETS if "dropout" not in name])


def problem_of(name: str, **more) -> ModuleProblem:
    model = ModuleModel(module="stand_in_nets:net", args={"name": name}, **more)
    return ModuleProblem(model=model, description=DESCRIPTION, table=FULL, rows=np.arange(ROWS))


def some_params(problem: ModuleProblem) -> torch.Tensor:
    start_P = problem.start(Streams(secret_from_seed("stand-ins"), 0))
    return start_P + 0.1 * torch.randn(start_P.shape, generator=torch.Generator().manual_seed(2))


def original(name: str, ours: nn.Module) -> nn.Module:
    """The net with torch's own layers, and the parameters of ours."""
    module = stand_in_nets.net(name, replace=False)
    whole, parts = dict(module.named_parameters()), dict(ours.named_parameters())
    for key, value in whole.items():
        value.data = torch.cat([parts[place] for place in places(module, key)]).reshape(value.shape).double()
    return module


def places(module: nn.Module, key: str) -> list[str]:
    """Where our net holds a parameter of the original, in parts if it is packed."""
    owner, _, own = key.rpartition(".")
    layer = module.get_submodule(owner)
    dot = f"{owner}." if owner else ""
    if isinstance(layer, nn.MultiheadAttention):
        if own.startswith("in_proj"):
            return [f"{dot}{part}.{own.removeprefix('in_proj_')}" for part in "qkv"]
        return [f"{dot}last_{own[-1]}.weight" if own.startswith("bias_") else f"{dot}{own[0]}.weight"]
    if isinstance(layer, nn.RNNBase):
        what, matrix, suffix = own.split("_", 2)
        return [f"{dot}steps.{suffix}.{matrix}.{what}"]
    if isinstance(layer, nn.RNNCellBase):
        what, matrix = own.split("_")
        return [f"{dot}{matrix}.{what}"]
    return [key]


def alone(name: str, problem: ModuleProblem, params_P: torch.Tensor) -> list[torch.Tensor]:
    """Each record's gradient [P], in float64, in the order of our parameters."""
    ours = user_module(problem.model).built()
    bind(trained_of(ours), params_P.clone())
    exact = original(name, ours) if "norm-of" not in name else ours.double()
    found = []
    for features_d, label in zip(FULL.features, FULL.labels, strict=True):
        exact.zero_grad()
        outputs = exact.double()(torch.from_numpy(features_d[None]).double())
        nn.functional.cross_entropy(outputs, torch.tensor([label])).backward()
        by_name = {}
        for key, value in exact.named_parameters():
            at = [key] if exact is ours else places(exact, key)
            grad = value.grad if value.grad is not None else torch.zeros_like(value)
            by_name |= dict(zip(at, grad.chunk(len(at)), strict=True))
        wanted = [by_name[key].flatten() for key, value in ours.named_parameters() if value.requires_grad]
        found.append(torch.cat(wanted))
    return found


@every_net
def test_every_records_gradient_and_norm(name: str) -> None:
    problem = problem_of(name)
    params_P, shown = some_params(problem), []

    def all_of_it(squares_B1):
        shown.append(squares_B1.clone())
        return torch.ones(len(squares_B1))

    for row, expected_P in enumerate(alone(name, problem, params_P)):
        shown.clear()
        found_P = problem.batch(np.array([row])).sum(params_P, all_of_it)
        assert (found_P - expected_P).norm() <= 2e-5 * expected_P.norm() + 1e-6
        assert float(shown[0][0].sqrt()) == pytest.approx(float(expected_P.norm()), rel=1e-4)


@every_net
def test_a_batch_is_the_sum_of_its_records_by_their_factors(name: str) -> None:
    problem = problem_of(name)
    params_P = some_params(problem)
    expected = sum(part / (0.1 + part.square().sum()) for part in alone(name, problem, params_P))
    found = problem.batch(np.arange(ROWS)).sum(params_P, lambda squares_B1: 1 / (0.1 + squares_B1[:, 0]))
    assert (found - expected).norm() <= 1e-4 * expected.norm()


def test_dense_parts_get_ghost_norms_and_steps_are_added_up() -> None:
    ways = {name: way for name, _, way in examined(problem_of("attention").model, DESCRIPTION).layers}
    assert ways == dict.fromkeys(("inner.q", "inner.k", "inner.v", "inner.out_proj", "out"), "ghost")
    ways = {name: way for name, _, way in examined(problem_of("gru").model, DESCRIPTION).layers}
    assert ways == {"inner.steps.l0.ih": "ghost", "inner.steps.l0.hh": "hooks", "out": "ghost"}


@pytest.mark.parametrize("name", ["attention", "encoder", "lstm", "gru-cell", "rooted"])
def test_in_bfloat16_too(name: str) -> None:
    assert examined(problem_of(name, precision="bfloat16").model, DESCRIPTION).error < 0.2


@pytest.mark.parametrize("name", ["encoder-dropout", "lstm-dropout"])
def test_dropout_inside_is_known_and_rests_while_rules_are_compared(name: str) -> None:
    problem = problem_of(name)
    assert problem.examination.error < 1e-3
    params_P, rows = some_params(problem), np.arange(ROWS)
    one, two = (problem.batch(rows).sum(params_P, lambda squares: torch.ones(len(squares))) for _ in range(2))
    assert (one - two).norm() > 1e-3 * one.norm()


@pytest.mark.parametrize("name", ["encoder", "decoder-layer", "rooted"])
def test_predictions_are_those_of_the_original(name: str) -> None:
    problem = problem_of(name)
    params_P = some_params(problem)
    ours = user_module(problem.model).module_of(params_P)
    torch.backends.mha.set_fastpath_enabled(False)
    rows = torch.from_numpy(FULL.features)
    try:
        with torch.no_grad():
            assert torch.allclose(ours(rows), original(name, ours).eval().float()(rows), atol=1e-5)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
