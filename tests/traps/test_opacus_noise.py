"""Noise that Opacus 1.6.0 loses or rounds, and what 1e6 times the noise does to a module of the user's own here.

What concerns Opacus documents the peer, so that we notice when it changes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from opacus import GradSampleModule, PrivacyEngine
from opacus.optimizers import DPPerLayerOptimizer
from oracles import FALSE_ALARM, REJECTED, scale_p_value
from small import blobs
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trap_nets import wide
from trap_runs import ROWS, clipped_sum, hooked, problem

from sweeper import catalog
from sweeper.backends.user_module import user_module
from sweeper.models.module import ModuleModel
from sweeper.seeds import Streams, secret_from_seed

pytestmark = pytest.mark.filterwarnings("ignore")
SECRET = secret_from_seed("traps of noise")
TRAINERS: dict[str, tuple[dict[str, Any], str, str]] = {
    "dp-sgd": ({"batch_size": 20, "steps": 40}, "fixed", "fixed"),
    "dp-adam": ({"batch_size": 20, "steps": 40}, "fixed", "fixed"),
    "dp-nsgd": ({"batch_size": 20, "steps": 40}, "normalise", "fixed"),
    "dp-blsgd": ({"batch_size": 20, "steps": 40}, "fixed", "backtracking"),
}
POLICIES: dict[str, dict[str, Any]] = {
    "fixed clip": {"clip_norm": 1.0},
    "normalise clip": {"r": 0.01},
    "fixed step": {"learning_rate": 0.5},
    "backtracking step": {"initial": 8.0, "candidates": 10, "alpha": 0.01},
}


def test_noise_of_per_layer_clipping() -> None:
    """202 is mended in 1.6.0: every layer has the noise of the whole. Kept, so that we notice if that changes back."""
    norms = [1.0, 1.0, 3.0, 0.5]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100))
    module = GradSampleModule(net)
    sgd = torch.optim.SGD(net.parameters(), lr=1.0)
    optimizer = DPPerLayerOptimizer(sgd, noise_multiplier=1.0, max_grad_norm=norms, expected_batch_size=1)
    module(torch.zeros(1, 100)).mul(0).sum().backward()
    optimizer.clip_and_accumulate()
    optimizer.add_noise()
    for weight in (net[0].weight, net[1].weight):
        noise = weight.grad.double().numpy().ravel()
        assert scale_p_value(noise, math.hypot(*norms)) > FALSE_ALARM
        for wrong in (2 / 3, 3 / 2):
            assert scale_p_value(noise, wrong * math.hypot(*norms)) < REJECTED
    # ours: tests/clip/test_per_layer.py::test_every_layer_has_the_noise_of_the_whole


def test_precision_of_opacus_in_bfloat16() -> None:
    """A clipped record is 0.4% beyond its bound, and noise has 3,000 values."""
    torch.manual_seed(0)
    net = nn.Linear(400, 500, bias=False, dtype=torch.bfloat16)
    module, optimizer = hooked(net, 1.0, 1)
    module(torch.zeros(1, 400, dtype=torch.bfloat16)).sum().backward()
    optimizer.pre_step()
    assert len(net.weight.grad.unique()) < 3_100  # of 200,000
    longest = 0.0
    for _ in range(30):
        net = nn.Linear(50, 20, dtype=torch.bfloat16)
        rows = 10 * torch.randn(1, 50, dtype=torch.bfloat16)
        longest = max(longest, float(clipped_sum(net, rows, torch.tensor([0])).norm()))
    assert longest > 1.003
    # ours: tests/backends/test_module_refusals.py::test_sums_are_float32_or_better_whatever_the_precision


def test_the_wrong_optimiser_trains_without_noise() -> None:
    """313: at noise 1e6 Opacus lets the optimiser that it was given go on by itself, learn without noise, and show epsilon 0."""
    full, _ = blobs(ROWS, 12, 3, spread=0.1)
    rows, labels = torch.from_numpy(full.features), torch.from_numpy(full.labels)
    torch.manual_seed(0)
    net, engine = wide(20), PrivacyEngine(accountant="rdp")
    plain = torch.optim.SGD(net.parameters(), lr=0.5)
    module, _, loader = engine.make_private(
        module=net,
        optimizer=plain,
        data_loader=DataLoader(TensorDataset(rows, labels), batch_size=20, shuffle=True),
        noise_multiplier=1e6,
        max_grad_norm=1.0,
        poisson_sampling=False,
    )
    for _ in range(20):
        for some, of_some in loader:
            plain.zero_grad()
            nn.functional.cross_entropy(module(some), of_some).backward()
            plain.step()
    assert (net(rows).argmax(dim=1) == labels).float().mean() > 0.9  # 1/3 would be right
    assert engine.get_epsilon(1e-5) == 0


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_million_times_the_noise_destroys_a_module_of_ones_own(trainer: str) -> None:
    fields, clip, step = TRAINERS[trainer]
    run = catalog.resolve("trainer", trainer)(**fields)
    policies = [catalog.resolve(family, name)(**POLICIES[f"{name} {family}"]) for family, name in (("clip", clip), ("step", step))]
    full, _ = blobs(ROWS, 12, 3, spread=0.1)
    built, network = problem("wide", full, width=20), user_module(ModuleModel(module="trap_nets:wide", args={"width": 20}))

    def right(noise_multiplier: float, trial: int) -> float:
        fitted = run.fit(built, *policies, noise_multiplier, Streams(SECRET, trial))
        found = np.asarray(network.predict(fitted.params_P, torch.from_numpy(full.features)))
        return float((found == full.labels).mean())

    assert np.mean([right(1e6, trial) for trial in range(6)]) < 0.6
    assert right(0.05, 0) > 0.8
