"""A crash in the middle of a ghost-clipped CNN run: of the worker, then of the driver. It goes on from its last state, exactly."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from program import House, ended, patched, table, until

from sweeper.launch.checkpoints import SECONDS
from sweeper.seeds import secret_from_seed

pytestmark = pytest.mark.timeout(240)

NETS = """
import numpy as np
from torch import nn

def build():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Dropout(0.2), nn.Linear(72, 32), nn.Tanh(), nn.Linear(32, 3),
    )

def load():
    draws = np.random.default_rng(0)
    return draws.random((600, 64)), draws.integers(0, 3, 600)
"""
SWEEP: dict[str, Any] = {
    "data": {"source": {"module": "crashnets:load", "rows": 600, "features": 64, "classes": 3}, "holdout": 0.2},
    "model": {"module": "crashnets:build", "shape": [1, 8, 8]},
    "trainer": {"kind": "dp-adam", "batch_size": 60, "steps": 2500, "average": "tail"},
    "privacy": {"noise_multiplier": 4.0, "delta": 1e-4, "budget_of": "pictures"},
    "protocol": {"kind": "no-tuning"},
    "space": {"clip": {"policy": "adaptive-quantile", "clip_norm": 0.5}, "step": {"policy": "fixed", "value": 0.002}},
}
SECRET = secret_from_seed("crash")


@pytest.fixture(scope="module")
def house(build: Callable[..., House]) -> House:
    found = build("crash")
    (found.place / "crashnets.py").write_text(NETS)
    found.env[SECONDS] = "0.3"
    assert found.run("ledger", "set-budget", "pictures", "--epsilon", "40", "--delta", "1e-2").code == 0
    return found


def test_a_run_that_lost_its_worker_and_its_driver_is_the_undisturbed_one(house: House) -> None:
    calm = house.run("run", house.write(SWEEP | {"name": "calm"}), patch=patched(SECRET))
    assert calm.code == 0, calm
    assert "ghost in 2 layers, hooks in 1 layer" in calm.err

    process = house.start("run", house.write(SWEEP | {"name": "lost"}), patch=patched(SECRET))
    vault = house.home / "vault" / "lost"
    first = kept(vault)
    worker(house).kill()
    until(lambda: rows(vault)[0]["attempts"] == 2, 60)
    second = kept(vault, other_than=first)
    os.killpg(process.pid, signal.SIGKILL)
    ended(process)
    house.wait_until_alone()
    assert rows(vault)[0]["state"] != "settled"
    assert len(second) > 72 * 32 * 4  # with the parameters, and Adam's moments

    said = house.run("resume", "lost")
    assert said.code == 0, said
    calm_row, lost_row = rows(house.home / "vault" / "calm")[0], rows(vault)[0]
    assert lost_row["params"] == calm_row["params"]
    assert (lost_row["score"], lost_row["trace"]) == (calm_row["score"], calm_row["trace"])
    sealed, before = (json.loads(row["sealed"]) for row in (lost_row, calm_row))
    assert before["resumed_from"] == 0
    assert 0 < sealed["resumed_from"] < 2500
    assert sealed["by_step"] == before["by_step"]
    assert lost_row["attempts"] == 3
    assert not list((vault / "checkpoints").iterdir())
    charges = {charge["sweep"]: charge["guarantee"]["epsilon"] for charge in house.run("ledger", "--json").json["charges"]}
    assert charges["lost"] == charges["calm"]


def rows(vault: Path) -> dict[int, dict[str, Any]]:
    return table(vault, ["state", "attempts", "score", "params", "trace", "sealed"])


def kept(vault: Path, other_than: bytes = b"") -> bytes:
    """The state that is kept, once there is one."""

    def found() -> bytes:
        path = vault / "checkpoints" / "0"
        content = path.read_bytes() if path.exists() else b""
        return b"" if content == other_than else content

    return bytes(until(found, 60))


def worker(house: House) -> psutil.Process:
    return next(p for p in house.processes() if " ".join(p.cmdline()).startswith("ray::ResourceTrainable.train"))
