"""kill -9 at any moment: the charge stays, `resume` settles every candidate once, and the answer is the undisturbed one."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program import House, dies_in, ended, patched, table, until
from sweep_pairs import SWEEP

from sweeper.privacy.ledger import Ledger

pytestmark = pytest.mark.timeout(240)

COLUMNS = ("candidate", "state", "attempts", "settled_at", "score", "params")


@pytest.fixture(scope="module")
def house(build: Callable[..., House]) -> House:
    return build("killed")


def test_killed_before_any_trial_and_then_half_way(house: House, pair: dict[int, House], secrets: dict[int, bytes]) -> None:
    """One sweep of 30 candidates, its driver killed right after the sealing and again while trials run."""
    file = house.write(SWEEP | {"name": "twice"})
    vault = house.home / "vault" / "twice"

    process = house.start("run", file, patch=patched(secrets[30]))
    until(lambda: (vault / "vault.db").exists() or process.poll() is not None, 60)
    before = kill(house, process, vault)
    assert len(before) == 30
    assert charge(house, "twice") == "reserved"
    middle = kill(house, resuming(house, "twice", vault, lambda rows: states(rows).count("settled") >= 8), vault)
    assert_only_unsettled_ran(before, middle)
    assert 8 <= states(middle).count("settled") < 30
    assert charge(house, "twice") == "reserved"

    said = house.run("resume", "twice", "--json")
    assert said.code == 0, said
    after = table(vault, COLUMNS)
    assert states(after) == ["settled"] * 30
    assert_only_unsettled_ran(middle, after)
    assert charge(house, "twice") == "committed"
    assert_same_answer(house, "twice", pair[30])


def test_killed_between_the_last_trial_and_the_last_record(house: House, pair: dict[int, House], secrets: dict[int, bytes]) -> None:
    """One sweep of 2 candidates, killed at every step from commit to publication. Nothing runs again, nothing is doubled."""
    file = house.write(SWEEP | {"name": "late"})
    vault = house.home / "vault" / "late"
    moments = [
        ("sweeper.launch.driver:Driver._commit", "reserved", "running"),
        ("sweeper.launch.driver:Driver._fix_release", "committed", "running"),
        ("sweeper.store.mlflow:Store._write_trial", "committed", "released"),
        ("sweeper.store.mlflow:Store._write_bill", "committed", "released"),
    ]
    command, rows = ("run", file), {}
    for where, state, phase in moments:
        said = house.run(*command, patch=patched(secrets[2], dies_in(where)))
        assert said.code == -signal.SIGKILL, (where, said)
        house.wait_until_alone()
        assert charge(house, "late") == state
        assert house.run("status", "late", "--json").json[0]["phase"] == phase
        rows = rows or table(vault, COLUMNS)
        assert table(vault, COLUMNS) == rows
        assert states(rows) == ["settled"] * 2
        command = ("resume", "late")
    assert house.run(*command, "--json").json == house.run("best", "late", "--json").json
    assert table(vault, COLUMNS) == rows
    assert_same_answer(house, "late", pair[2])


def test_the_ledger_and_the_store_are_whole_after_all_that(house: House) -> None:
    assert Ledger(house.home / "ledger.db").verify() is None
    with sqlite3.connect(house.home / "mlflow.db") as db:
        assert db.execute("SELECT count(*) FROM runs WHERE status != 'FINISHED'").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM logged_models").fetchone() == (2,)
    assert [p.name for p in house.temporary.iterdir() if p.name.startswith("swp")] == []
    assert not list((house.home / "vault").glob("*/tune"))
    assert not list((house.home / "vault").glob("*/ray"))


def resuming(house: House, name: str, vault: Path, reached: Callable[[dict[int, Any]], bool]) -> Any:
    """A running `resume` whose vault has reached a state."""
    process = house.start("resume", name)
    until(lambda: reached(table(vault, COLUMNS)) or process.poll() is not None, 90)
    return process


def kill(house: House, process: Any, vault: Path) -> dict[int, Any]:
    """Kill -9 the driver alone; the rows once its Ray, which must end by itself, is gone."""
    assert process.poll() is None, process.communicate()
    os.kill(process.pid, signal.SIGKILL)
    ended(process)
    house.wait_until_alone()
    return table(vault, COLUMNS)


def states(rows: dict[int, Any]) -> list[str]:
    return [row["state"] for row in rows.values()]


def assert_only_unsettled_ran(before: dict[int, Any], after: dict[int, Any]) -> None:
    for index, old in before.items():
        new = after[index]
        assert new["candidate"] == old["candidate"]
        if old["state"] == "settled":
            assert new == old
        elif new["state"] == "settled":
            assert new["attempts"] == old["attempts"] + 1


def charge(house: House, sweep: str) -> str:
    (found,) = [c for c in house.run("ledger", "--json").json["charges"] if c["sweep"] == sweep]
    return str(found["state"])


def assert_same_answer(house: House, sweep: str, undisturbed: House) -> None:
    """The winner, its score, its model and every sealed row are those of the sweep that nobody killed; one run of each role."""
    ours, theirs = house.run("best", sweep, "--json").json, undisturbed.run("best", "pair", "--json").json
    for field in ("settings", "score", "epsilon", "delta", "statement"):
        assert ours[field] == theirs[field]
    kept = ("candidate", "state", "score", "params")
    assert table(house.home / "vault" / sweep, kept) == table(undisturbed.home / "vault" / "pair", kept)
    with sqlite3.connect(house.home / "mlflow.db") as db:
        roles = db.execute(
            "SELECT value FROM tags JOIN runs USING (run_uuid) JOIN experiments USING (experiment_id)"
            " WHERE key = 'sweeper.role' AND experiments.name = ? ORDER BY value",
            (sweep,),
        ).fetchall()
    assert roles == [("submission",), ("trial",)]
    assert json.loads(json.dumps(ours["guarantee"])) == theirs["guarantee"]
