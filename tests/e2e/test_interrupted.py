"""Ctrl-C and SIGTERM while a sweep runs, and two drivers that want the same sweep."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from program import House, ended, patched, table, until
from sweep_pairs import SWEEP
from tiny_sweeps import secret_drawing

from sweeper import catalog

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def house(build: Callable[..., House]) -> House:
    return build("interrupted")


def test_interrupts_are_clean_and_a_running_sweep_is_not_run_twice(house: House) -> None:
    """One sweep of slow trials: Ctrl-C while trials run, SIGTERM to its resume, then a resume to the end."""
    spec = SWEEP | {"name": "stopped", "trainer": {"kind": "dp-sgd", "batch_size": 256, "steps": 3000}}
    file, secret = house.write(spec), secret_drawing(8, catalog.sweep_from_dict(spec))
    vault = house.home / "vault" / "stopped"

    process = house.start("run", file, patch=patched(secret))
    until(lambda: (vault / "vault.db").exists() or process.poll() is not None, 60)
    again, resume = house.run("run", file), house.run("resume", "stopped")
    assert (again.code, resume.code) == (2, 2), (again, resume)
    assert again.err == "sweep stopped exists: sweeper resume stopped, or choose another name\n"
    assert resume.err == "sweep stopped is being run by another process; wait for it, or stop it first\n"
    assert again.out == resume.out == ""
    until(lambda: any(row["state"] == "claimed" for row in rows(vault).values()) or process.poll() is not None, 90)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal sends: to every process of the group
    assert_clean(house, process)

    process = house.start("resume", "stopped")
    until(lambda: (vault / "ray").is_symlink() or process.poll() is not None, 60)
    time.sleep(0.5)  # in the middle of Ray's start
    process.send_signal(signal.SIGTERM)
    before = rows(vault)
    assert_clean(house, process)

    said = house.run("resume", "stopped", "--json")
    assert said.code == 0, said
    after = rows(vault)
    assert {row["state"] for row in after.values()} == {"settled"}
    for index, old in before.items():
        assert old["state"] != "settled" or after[index] == old
    (charge,) = house.run("ledger", "--json").json["charges"]
    assert charge["state"] == "committed"
    assert not (vault / "ray").is_symlink()


def rows(vault: Any) -> dict[int, dict[str, Any]]:
    return table(vault, ("state", "attempts", "settled_at", "score"))


def assert_clean(house: House, process: Any) -> None:
    """Exit code 130 within 15 s, one line, no traceback, no process and no folder left."""
    assert process.poll() is None, process.communicate()
    said = ended(process, timeout=30)
    assert said.code == 130, said
    assert said.seconds < 15
    assert said.out == ""
    assert said.err.splitlines()[-1] == "interrupted. Nothing is lost: sweeper resume stopped"
    assert "Traceback" not in said.err
    assert "Error" not in said.err
    house.wait_until_alone(5, agents=True)
    assert [p.name for p in house.temporary.iterdir() if p.name.startswith("swp")] == []
    assert not (house.home / "vault" / "stopped" / "tune").exists()
