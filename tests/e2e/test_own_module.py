"""A user's own module, loss and table, in a package of the user's own that lies in the folder where sweeper is run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program import House, table

pytestmark = pytest.mark.timeout(240)

DATA = """
import numpy as np

def load():
    draws = np.random.default_rng(0)
    labels = draws.integers(0, 3, 900)
    pictures = draws.normal(0.0, 0.3, (900, 8, 8))
    for label in range(3):
        pictures[labels == label, 2 * label : 2 * label + 3] += 1.0
    return pictures.reshape(900, 64), labels
"""
NETS = """
import torch
from torch import nn

from ourpackage.layers import Centred

def build(width=6, norm="group"):
    normal = nn.GroupNorm(2, width) if norm == "group" else nn.BatchNorm2d(width)
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), normal, nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(),
        Centred(16 * width), nn.Linear(16 * width, 3),
    )

def smoothed(outputs, labels):
    return nn.functional.cross_entropy(outputs, labels, label_smoothing=0.1, reduction="none")
"""
LAYERS = '''
import torch
from torch import nn

class Centred(nn.Module):
    """A layer that Opacus has no rule for."""

    def __init__(self, width):
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(width))

    def forward(self, rows):
        return rows - self.centre
'''
SWEEP: dict[str, Any] = {
    "name": "own",
    "data": {"source": {"module": "ourpackage.data:load", "rows": 900, "features": 64, "classes": 3}, "holdout": 0.2},
    "model": {"module": "ourpackage.nets:build", "args": {"width": 6}, "loss": "ourpackage.nets:smoothed", "shape": [1, 8, 8]},
    "trainer": {"kind": "dp-sgd", "batch_size": 90, "steps": 60},
    "privacy": {"epsilon": 6.0, "delta": 1e-4, "budget_of": "ours"},
    "protocol": {"kind": "select-best", "mean_trials": 3, "max_trials": 6},
    "score": {"epsilon": 1.0},
    "space": {"clip": {"policy": "fixed", "value": 1.0}, "step": {"policy": "fixed", "range": [0.5, 2.0], "scale": "log"}},
}


@pytest.fixture(scope="module")
def house(build: Callable[..., House]) -> House:
    found = build("ownmodule")
    package = found.place / "ourpackage"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name, text in (("data", DATA), ("nets", NETS), ("layers", LAYERS)):
        (package / f"{name}.py").write_text(text)
    assert found.run("ledger", "set-budget", "ours", "--epsilon", "10", "--delta", "1e-3").code == 0
    return found


def test_a_sweep_of_a_users_own_module_on_a_users_own_table(house: House) -> None:
    file = house.write(SWEEP)
    planned = house.run("plan", file, "--json")
    assert planned.code == 0, planned
    said = house.run("run", file)
    assert said.code == 0, said
    assert "ourpackage.nets:build: 459 trained parameters" in said.err  # 54 + 6, 6 + 6, 96, 288 + 3
    assert "ghost in 1 layer, hooks in 2 layers, functional in 1 layer" in said.err
    best = house.run("best", "own", "--json").json
    assert best["score"] > 0.8  # a third is chance
    loaded = subprocess.run(
        [sys.executable, "-c", "import sweeper, torch; print(sweeper.load('own')(torch.zeros(2, 64)).shape)"],
        cwd=house.place,
        env=house.env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "torch.Size([2, 3])" in loaded.stdout
    vault = house.home / "vault" / "own"
    assert {row["state"] for row in table(vault, ["state"]).values()} == {"settled"}


def test_a_module_that_mixes_records_is_refused_before_anything_is_charged(house: House) -> None:
    before = house.run("ledger", "--json").json
    wrong = SWEEP | {"name": "mixing", "model": SWEEP["model"] | {"args": {"norm": "batch"}}}
    said = house.run("run", house.write(wrong))
    assert said.code == 2
    assert "has 1, a BatchNorm2d with parameter 1.weight, which mixes the records of a batch" in said.err
    assert "torch.nn.GroupNorm(1, 6)" in said.err
    assert house.run("ledger", "--json").json == before
    assert not (house.home / "vault" / "mixing").exists()


def test_it_is_replaced_where_the_file_says_so_and_the_run_says_it_too(house: House) -> None:
    model = SWEEP["model"] | {"args": {"norm": "batch"}, "replace": True}
    one = SWEEP | {
        "name": "replaced",
        "model": model,
        "privacy": {"epsilon": 2.0, "delta": 1e-4, "budget_of": "ours"},
        "protocol": {"kind": "no-tuning"},
        "space": {"clip": {"policy": "fixed", "value": 1.0}, "step": {"policy": "fixed", "value": 1.0}},
    }
    said = house.run("run", house.write(one))
    assert said.code == 0, said
    assert "1: BatchNorm2d by GroupNorm(1, 6" in said.err


def test_a_package_that_is_not_there_is_named(house: House, tmp_path: Path) -> None:
    gone = SWEEP | {"name": "gone", "model": {"module": "nopackage.nets:build", "shape": [1, 8, 8]}}
    said = house.run("run", house.write(gone), "--json")
    assert said.code == 2
    assert "model.module = 'nopackage.nets:build' cannot be imported" in said.err
    assert json.loads(house.run("status", "--json").out) is not None
