"""subsample-tune killed in its search, between its two stages and in its last run: `resume` gives the undisturbed answer."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program import House, dies_in, ended, patched, table, until
from sweep_pairs import TUNED

pytestmark = pytest.mark.timeout(300)

COLUMNS = ("stage", "candidate", "state", "attempts", "settled_at", "score", "params")
KEPT = ("stage", "candidate", "state", "score", "params")


@pytest.fixture(scope="module")
def house(build: Callable[..., House]) -> House:
    return build("part")


def test_killed_in_every_stage_it_comes_to_the_same_answer(
    house: House, tuned: dict[int, House], secrets: dict[int, bytes]
) -> None:
    """30 tuning runs and the final one. The part of the rows is drawn again from the secret at every start: it must be the same."""
    file = house.write(TUNED | {"name": "part"})
    vault = house.home / "vault" / "part"

    process = house.start("run", file, patch=patched(secrets[30]))  # killed while it searches
    until(lambda: (vault / "vault.db").exists() or process.poll() is not None, 60)
    until(lambda: settled(vault) >= 5 or process.poll() is not None, 120)
    assert process.poll() is None, process.communicate()
    os.kill(process.pid, signal.SIGKILL)
    ended(process)
    house.wait_until_alone()
    first = table(vault, COLUMNS)
    assert 5 <= settled(vault) < 30
    assert {row["stage"] for row in first.values()} == {"search"}

    said = house.run("resume", "part", patch=dies_in("sweeper.store.vault:Vault.add"))  # killed when the winner is known
    assert said.code == -signal.SIGKILL, said
    house.wait_until_alone()
    searched = table(vault, COLUMNS)
    assert [row["state"] for row in searched.values()] == ["settled"] * 30
    assert charge(house) == "reserved"

    said = house.run("resume", "part", patch=dies_in("sweeper.launch.driver:Driver._wait_for_release"))  # after the last run
    assert said.code == -signal.SIGKILL, said
    house.wait_until_alone()
    last = table(vault, COLUMNS)
    assert {index: row for index, row in last.items() if index < 30} == searched
    assert (last[30]["stage"], last[30]["state"], len(last)) == ("final", "settled", 31)
    best = max(searched.values(), key=lambda row: row["score"])
    assert last[30]["candidate"] == best["candidate"]
    assert charge(house) == "reserved"

    said = house.run("resume", "part", "--json")
    assert said.code == 0, said
    assert table(vault, COLUMNS) == last
    assert charge(house) == "committed"
    theirs = tuned[30].run("best", "pair", "--json").json
    for field in ("settings", "score", "epsilon", "delta", "guarantee", "statement"):
        assert said.json[field] == theirs[field]
    assert said.json["score"] == last[30]["score"]
    assert table(vault, KEPT) == table(tuned[30].home / "vault" / "pair", KEPT)
    assert house.run("best", "part", "--json").json == said.json


def test_the_plan_says_what_becomes_visible_and_that_tuning_on_a_part_is_cheaper(house: House) -> None:
    said = house.run("plan", house.write(TUNED | {"name": "planned"}), "--json")
    assert said.code == 0, said
    assert said.json["visible"] == "the winning setting, and its final run: its noisy score, its model"
    other = {row["name"]: row["epsilon"] for row in said.json["alternatives"]}
    assert said.json["epsilon_one_trial"] < said.json["epsilon"] < other["select-best"]
    assert json.loads(Path(house.place / "planned.yaml").read_text())["protocol"]["tune_fraction"] == 0.25


def settled(vault: Path) -> int:
    return [row["state"] for row in table(vault, ("state",)).values()].count("settled")


def charge(house: House) -> Any:
    (found,) = house.run("ledger", "--json").json["charges"]
    return found["state"]
