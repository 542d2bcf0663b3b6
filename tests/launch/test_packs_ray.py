"""Packs of trials through a real Ray Tune: chosen once, the same bits in any company, a lost pack costs what it had not settled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
from bad_trainers import Failing, Slow
from tiny_sweeps import armed, spec_of, tiny

from sweeper import catalog
from sweeper.checks import FieldError
from sweeper.launch import packing
from sweeper.launch.open_data import OpenData
from sweeper.launch.packing import Packing, packing_of
from sweeper.launch.tune import Stage, run_stage
from sweeper.seeds import secret_from_seed
from sweeper.spec.sweep import SweepSpec
from sweeper.store.home import Home
from sweeper.store.vault import Vault
from sweeper.store.vault_rows import CLAIMED, FAILED, SETTLED

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("ray_session")]

SECRET, SIGMA = secret_from_seed("packs"), 0.9
CANDIDATES = [{"clip.clip_norm": 0.1 * (row + 1), "step.c": 2.0} for row in range(7)]


@pytest.fixture
def vaults(home: Home) -> Iterator[Any]:
    made: list[Vault] = []

    def vault(name: str, spec: Any = None, **more: Any) -> Vault:
        given: dict[str, Any] = {"candidates": CANDIDATES} | more
        made.append(
            Vault.create(home.path, name, spec=spec or tiny(), plan={}, fingerprint="f", secret=SECRET, reservation=None, **given)
        )
        return made[-1]

    yield vault
    for one in made:
        one.close()


def run(vault: Vault, home: Home, adult: OpenData, spec: SweepSpec, indices: Any = None) -> bool:
    rows = tuple(vault.unsettled()) if indices is None else indices
    stage = Stage(spec=spec, noises=dict.fromkeys(spec.by_arm(), SIGMA), data=spec.data, open_data=adult, indices=rows)
    return run_stage(vault, home.path, stage)


def packed(pack: Any, trainer: Any = None, **resources: Any) -> SweepSpec:
    import dataclasses

    spec = spec_of(resources={"cpu": 1, "pack": pack, **resources})
    return spec if trainer is None else dataclasses.replace(spec, trainer=trainer)


def bits(vault: Vault) -> dict[int, Any]:
    return {row.index: (row.state, row.score, row.settings, row.trace, row.params) for row in vault.rows()}


def test_rows_of_a_sweep_in_packs_are_the_same_bits_in_any_company(vaults: Any, home: Home, adult: OpenData) -> None:
    single, whole, parted = (vaults(name) for name in ("single", "whole", "parted"))
    assert run(single, home, adult, packed(1))
    assert run(whole, home, adult, packed(4))
    assert run(parted, home, adult, packed(4), (0, 5))
    assert run(parted, home, adult, packed(2))  # resumed with another file of resources: it goes on with the packs it began with
    assert [(row.state, row.attempts) for row in whole.rows()] == [(SETTLED, 1)] * 7
    assert bits(whole) == bits(parted)
    assert parted.meta(packing.META) == whole.meta(packing.META)
    assert whole.meta(packing.META) == {"device": "cpu", "seats": 4, "lengths": {"": whole.meta(packing.META)["lengths"][""]}}
    assert single.meta(packing.META) == {}
    for one, other in zip(whole.rows(), single.rows(), strict=True):
        near, far = (np.frombuffer(row.params, np.float32) for row in (one, other))
        assert np.abs(near - far).max() <= 1e-5 * np.abs(far).max()
        assert one.settings == other.settings


def test_arms_have_packs_of_their_own(vaults: Any, home: Home, adult: OpenData) -> None:
    spec = catalog.sweep_from_dict(armed(resources={"cpu": 1, "pack": 3}))
    candidates = [{"clip.clip_norm": 0.1, "step.c": 2.0}, {"step.c": 2.0}, {"clip.clip_norm": 0.2, "step.c": 1.0}]
    vault = vaults("arms", spec=armed(), candidates=candidates, arms=["low", "slow", "wide"])
    assert run(vault, home, adult, spec)
    assert [row.state for row in vault.rows()] == [SETTLED] * 3
    lengths = vault.meta(packing.META)["lengths"]
    assert set(lengths) == {"wide", "low", "slow"}
    assert lengths["slow"] > lengths["low"] == lengths["wide"]  # twice the batch


def test_a_trial_that_fails_costs_nobody_else(vaults: Any, home: Home, adult: OpenData) -> None:
    vault = vaults("failing")
    assert run(vault, home, adult, packed(4, Failing(batch_size=64, steps=20, how="raise", below=0.25)))
    assert [row.state for row in vault.rows()] == [FAILED] * 2 + [SETTLED] * 5


def test_a_killed_worker_costs_what_its_pack_had_not_settled(vaults: Any, home: Home, adult: OpenData) -> None:
    import threading
    import time

    vault, calm = vaults("killed"), vaults("calm")
    slow = Slow(batch_size=64, steps=20, seconds=0.4)
    killed: list[int] = []

    def kill() -> None:
        for _ in range(600):
            workers = [p for p in psutil.Process().children(recursive=True) if _name(p).startswith("ray::ResourceTrainable.train")]
            states = [row.state for row in vault.rows(params=False)]
            if workers and SETTLED in states and states.count(CLAIMED) == 2:
                killed.append(workers[0].pid)
                workers[0].kill()
                return
            time.sleep(0.05)

    killer = threading.Thread(target=kill)
    killer.start()
    assert run(vault, home, adult, packed(2, slow, max_concurrent=1))
    killer.join()
    assert len(killed) == 1
    assert [row.state for row in vault.rows()] == [SETTLED] * 7
    assert 8 <= sum(row.attempts for row in vault.rows()) <= 9  # of a pack of two, one or both again
    assert run(calm, home, adult, packed(2, slow))
    assert bits(vault) == bits(calm)


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def chosen(spec: SweepSpec, vault: Vault, on_worker: Any = None) -> Any:
    return packing_of(vault, spec, dict.fromkeys(spec.by_arm(), SIGMA), spec.data, 39_000, on_worker)


@pytest.mark.parametrize("pack", [None, "auto", 1])
def test_a_cpu_runs_one_trial_at_a_time(vaults: Any, pack: Any) -> None:
    assert chosen(packed(pack), vaults("cpu")) is None


def test_on_a_gpu_the_size_is_measured_where_trials_run_and_kept(vaults: Any) -> None:
    asked: list[Any] = []

    def on_worker(function: Any, arguments: Any) -> Any:
        asked.append((function.__name__, arguments["device"], arguments["share"], arguments["trials"]))
        return 16, arguments["rows"]

    spec, vault = packed("auto", gpu=0.5), vaults("gpu")
    found = chosen(spec, vault, on_worker)
    assert found == Packing(device="cuda", seats=16, lengths=found.lengths)
    assert asked == [("chosen", "cuda", 0.5, 40)]
    assert chosen(spec, vault, on_worker) == found
    assert len(asked) == 1


@pytest.mark.parametrize(
    "section",
    [
        {"model": {"module": "user_nets:network", "args": {"kind": "mlp-relu"}}},
        {
            "trainer": {"kind": "majority"},
            "space": {"clip": {"policy": "none"}, "step": {"policy": "none"}},
            "protocol": {"kind": "no-tuning"},
        },
        {"protocol": {"kind": "subsample-tune", "law": "tnb", "eta": 2, "mean_trials": 12, "max_trials": 64}},
    ],
    ids=["a module", "a trainer on all rows", "parts of the table"],
)
def test_what_has_no_packs_is_refused_where_they_are_asked_for_and_goes_alone_otherwise(vaults: Any, section: Any) -> None:
    try:
        asked, auto = (spec_of(resources={"gpu": gpu, "pack": pack}, **section) for gpu, pack in ((0.0, 4), (1.0, "auto")))
    except FieldError as error:
        pytest.fail(f"the section of this test is wrong: {error}")
    with pytest.raises(FieldError, match=r"resources.pack = 4 has no packs"):
        chosen(asked, vaults("asked"))
    assert chosen(auto, vaults("auto")) is None


@pytest.mark.parametrize("value", [0, 129, 2.5, "many", True])
def test_a_wrong_number_is_refused(value: Any) -> None:
    with pytest.raises(FieldError, match="pack"):
        packed(value)
