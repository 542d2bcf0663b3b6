"""A table of the user's own, from its file to its best setting: a csv with ids, its draft filled in; a function of a package."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program import House
from ruamel.yaml import YAML

pytestmark = pytest.mark.timeout(180)

ROWS, OLD = 3_000, 53
SECRET = "Zaphod-7310"
AGES = [random.Random(11 * row).randint(17, 90) for row in range(ROWS)]
MAJORITY = max(sum(age > OLD for age in AGES), sum(age <= OLD for age in AGES)) / ROWS
REST = {
    "model": {"kind": "logistic"},
    "trainer": {"kind": "dp-sgd", "batch_size": 300, "steps": 40},
    "privacy": {"epsilon": 2.0, "delta": 1e-5},
    "space": {"clip": {"policy": "fixed", "value": 1.0}, "step": {"policy": "fixed", "range": [2.0, 8.0]}},
}
SELECT = {"kind": "select-best", "law": "geometric", "mean_trials": 3, "max_trials": 10}
FILLED = {  # what the draft leaves to the user -> what the user writes
    "rows:": f"rows: {ROWS}",
    "classes:": "classes: [young, old]",
    "# id:": "id: key",
    '"key":': "",
    '"age":': "age: {low: 17, high: 90}",
    '"sex":': "sex: [Female, Male]",
    '"remark":': "remark: ignored",
}
PACKAGE = {
    "__init__.py": "",
    "bounds.py": "LOW, HIGH = 17, 90\n",
    "people.py": f"""
import numpy as np

def load(path, calls):
    import helper_beside_it
    from .bounds import HIGH, LOW
    print("{SECRET}")
    with open(calls, "a") as file:
        file.write("called\\n")
    rows = [line.split(",") for line in open(path).read().splitlines()[1:]]
    features = np.array([[(float(row[1]) - LOW) / (HIGH - LOW), row[2] == "Male"] for row in rows])
    return features, np.array([row[4] == "old" for row in rows])
""",
}


@pytest.fixture
def house(build: Callable[..., House], request: pytest.FixtureRequest) -> House:
    """With people.csv in the folder that the program is started from."""
    house = build(request.node.name.split("_")[1])
    lines = ["key,age,sex,remark,group"]
    for row, age in enumerate(AGES):
        lines.append(f"p{row},{age},{('Female', 'Male')[row % 2]},{SECRET},{'old' if age > OLD else 'young'}")
    (house.place / "people.csv").write_text("\n".join(lines) + "\n")
    return house


def test_csv_drafted_filled_in_and_run(house: House) -> None:
    draft = house.run("data", "describe", "people.csv", "--label", "group")
    assert draft.code == 0, draft
    assert SECRET not in draft.out
    section = YAML(typ="safe", pure=True).load("\n".join(map(filled, draft.out.splitlines())))["data"]
    sweep = {"name": "own", "data": section, "protocol": SELECT, **REST}

    refused = house.run("plan", house.write(sweep))
    assert (refused.code, refused.out) == (2, "")
    assert "sweeper data split FILE" in refused.err
    held = house.run("data", "split", "own.yaml", "--json").json["n_holdout"]
    assert abs(held - 0.2 * ROWS) < 6 * (ROWS * 0.2 * 0.8) ** 0.5  # the split is fixed by ids and key: it cannot fail by chance
    section["n_holdout"] = held

    said = house.run("plan", house.write(sweep), "--json")
    assert said.code == 0, said
    refused = house.run("run", "own.yaml")
    assert (refused.code, refused.out) == (2, "")
    assert "sweeper ledger set-budget people --epsilon" in refused.err
    assert house.run("ledger", "set-budget", "people", "--epsilon", "8", "--delta", "1e-4").code == 0
    assert_runs(house, "people", said.json["epsilon"])
    everything = [path for path in house.home.rglob("*") if path.is_file()]
    assert house.home / "vault" / "own" / "vault.db" in everything
    assert not [path for path in everything if SECRET.encode() in path.read_bytes()]  # an ignored column is nowhere


def test_module_of_a_package_elsewhere_is_called_once(house: House, tmp_path: Path) -> None:
    """Under subsample-tune, whose two stages open the table twice. The package is neither in the current folder nor installed."""
    (tmp_path / "ownpkg").mkdir()
    for name, text in PACKAGE.items():
        (tmp_path / "ownpkg" / name).write_text(text)
    (house.place / "helper_beside_it.py").write_text("")  # in the current folder, and imported only when the function runs
    source = {"module": "ownpkg.people:load", "args": {"path": "people.csv", "calls": "calls.txt"}}
    data = {"source": source | {"rows": ROWS, "features": 2, "classes": 2}, "holdout": 0.2}
    sweep = {"name": "own", "data": data, "protocol": SELECT | {"kind": "subsample-tune", "tune_fraction": 0.25}, **REST}

    said = house.run("plan", house.write(sweep), "--json")  # imports nothing of the user's
    assert said.code == 0, said
    budget = "ownpkg.people-load"
    assert house.run("ledger", "set-budget", budget, "--epsilon", "8", "--delta", "1e-4").code == 0
    refused = house.run("run", "own.yaml")
    assert (refused.code, refused.out) == (2, "")
    assert "cannot be imported (ModuleNotFoundError). Install its package" in refused.err

    house.env["PYTHONPATH"] = str(tmp_path)
    assert_runs(house, budget, said.json["epsilon"])
    assert [charge["state"] for charge in charges(house)] == ["released", "committed"]
    assert (house.place / "calls.txt").read_text() == "called\n"


def assert_runs(house: House, budget: str, planned: float) -> None:
    """Better than guessing, at the price that was planned, and charged that."""
    said = house.run("run", "own.yaml", "--json")
    assert said.code == 0, said
    best = house.run("best", "own", "--json").json
    assert said.json == best  # whatever the user's own code prints
    assert 1.9 < best["epsilon"] <= 2
    assert best["epsilon"] == planned
    assert best["score"] > (1 + MAJORITY) / 2
    assert 2 <= best["settings"]["learning_rate"] <= 8
    charge = charges(house)[-1]
    assert (charge["state"], charge["data_set"], charge["guarantee"]["epsilon"]) == ("committed", budget, planned)


def charges(house: House) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = house.run("ledger", "--json").json["charges"]
    return found


def filled(line: str) -> str:
    """A line of the draft with what the user writes in its place."""
    for start, text in FILLED.items():
        if line.strip().startswith(start):
            return line[: len(line) - len(line.lstrip())] + text
    return line
