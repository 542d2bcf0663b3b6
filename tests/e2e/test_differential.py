"""A sweep that drew 2 runs and one that drew 30 must look the same from outside: same files, keys, counts and times."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from program import House, run_both, table
from sweep_pairs import ARM_COUNTS, ARMED
from tiny_sweeps import secret_drawing

from sweeper.catalog import sweep_from_dict

pytestmark = pytest.mark.timeout(240)

Pair = dict[int, House]
FREE = {"clip_norm", "learning_rate", "c", "candidate/clip.clip_norm", "candidate/step.c"}  # the winner's own: they may differ
FREE |= {"score/accuracy", "hp/clip_norm", "hp/learning_rate", "hp/c", "trace/step_size", "trace/clip_norm"}
FREE |= {"sweeper.settings", "sweeper.model_uri", "sweeper.submission", "sweeper.trial_id", "mlflow.parentRunId", "mlflow.runName"}
IDENTITY = re.compile(r"[0-9a-f]{64}|[0-9a-f]{32}|(?<!\.)\b[0-9a-f]{16}\b")
NUMBER = re.compile(r"(?<=clip_norm )\S+|(?<=learning_rate )\S+|(?<=accuracy )\d\S+")
COMMANDS = (("status",), ("ledger",), ("compare", "pair"), ("best", "pair"))
SIZE = 96  # bytes by which two files may differ: a number may take a few letters more


@pytest.fixture(scope="module", params=["select-best", "subsample-tune"])
def pair(request: pytest.FixtureRequest, pair: Pair) -> Pair:
    """Of each protocol that draws its number of runs in secret, the two sweeps of conftest."""
    return pair if request.param == "select-best" else request.getfixturevalue("tuned")


def test_the_two_sweeps_are_what_they_claim(pair: Pair) -> None:
    for count, house in pair.items():
        stages = [row["stage"] for row in table(vault(house), ["stage"]).values()]
        final = json.loads((house.place / "pair.yaml").read_text())["protocol"]["kind"] == "subsample-tune"
        assert stages == ["search"] * count + ["final"] * final


def test_the_terminal_says_the_same(pair: Pair) -> None:
    few, many = (NUMBER.sub("#", IDENTITY.sub("#", h.said.out + "\f" + h.said.err)) for h in pair.values())
    assert few == many
    assert "#" in few


@pytest.mark.parametrize("command", [("status",), ("status", "pair"), ("ledger",), ("compare", "pair"), ("best", "pair")])
def test_commands_say_the_same(pair: Pair, command: tuple[str, ...]) -> None:
    few, many = (house.run(*command, "--json").json for house in pair.values())
    assert masked(few) == masked(many)


def test_the_mlflow_database_holds_the_same_rows_keys_and_values(pair: Pair) -> None:
    few, many = (database(house) for house in pair.values())
    assert few == many
    assert len(few["runs"]) == 2
    assert few["latest_metrics"]


@pytest.mark.parametrize(
    "leak",
    [
        "UPDATE runs SET end_time = end_time + 1",
        "UPDATE metrics SET step = 29 WHERE key = 'score/accuracy'",
        "UPDATE tags SET value = '29' WHERE key = 'sweeper.position'",
        "UPDATE metrics SET value = value * 1.0000001 WHERE key = 'epsilon'",
        "INSERT INTO params (key, value, run_uuid) SELECT 'trial', '29', run_uuid FROM runs",
        "UPDATE runs SET name = 'trial 29'",
    ],
)
def test_the_comparison_sees_a_leak(pair: Pair, tmp_path: Path, leak: str) -> None:
    copy = tmp_path / "mlflow.db"
    shutil.copy(pair[30].home / "mlflow.db", copy)
    assert database(pair[30], copy) == database(pair[2])
    with sqlite3.connect(copy) as db:
        db.execute(leak)
    assert database(pair[30], copy) != database(pair[2])


def test_every_run_starts_and_ends_at_the_release(pair: Pair) -> None:
    for house in pair.values():
        at = round(released_at(house) * 1000)
        with sqlite3.connect(house.home / "mlflow.db") as db:
            assert set(db.execute("SELECT start_time, end_time, status FROM runs")) == {(at, at, "FINISHED")}
            assert set(db.execute("SELECT timestamp FROM metrics")) == {(at,)}
            assert set(db.execute("SELECT timestamp FROM latest_metrics")) == {(at,)}


def test_the_same_files_of_about_the_same_size_lie_around(pair: Pair) -> None:
    few, many = (files(house) for house in pair.values())
    assert {len(paths) for paths in few.values()} == {1}  # no masked name twice
    assert_like_files(few, many)


def assert_like_files(few: dict[str, list[Path]], many: dict[str, list[Path]]) -> None:
    assert {name: len(paths) for name, paths in few.items()} == {name: len(paths) for name, paths in many.items()}
    assert any("model" in name for name in few)
    for name in few:
        if name.endswith("trace.json"):  # a hundred times the winner's own step size: longer by a hundred letters, or not
            assert sorted(map(shape, few[name])) == sorted(map(shape, many[name]))
        elif not name.endswith(".db"):  # pages of 4 kB; its rows are compared above
            sizes = (sorted(path.stat().st_size for path in paths) for paths in (few[name], many[name]))
            assert all(abs(a - b) <= SIZE for a, b in zip(*sizes, strict=True)), name


def shape(path: Path) -> list[tuple[str, int]]:
    return [(name, len(values)) for name, values in json.loads(path.read_text()).items()]


def test_plan_and_bill_are_the_same_to_the_byte(pair: Pair) -> None:
    for name in ("plan.json", "guarantee.json", "spec.yaml"):
        few, many = (next((house.home / "artifacts").rglob(name)).read_bytes() for house in pair.values())
        assert few == many


def test_nothing_outside_the_vault_holds_what_is_sealed(pair: Pair, secrets: dict[int, bytes]) -> None:
    for count, house in pair.items():
        assert_sealed(house, secrets[count], count - 1, COMMANDS)


def assert_sealed(house: House, secret: bytes, losers: int, commands: Sequence[tuple[str, ...]]) -> None:
    sealed = needles(house, secret)
    assert len(sealed) > 2 * 3 * losers
    seen = {str(p): p.read_bytes() for p in house.home.rglob("*") if p.is_file() and "vault" not in p.relative_to(house.home).parts}
    seen["terminal"] = (house.said.out + house.said.err).encode()
    for command in commands:
        seen[" ".join(command)] = house.run(*command, "--json").out.encode()
    hits = [(place, needle) for place, content in seen.items() for needle in sealed if needle in content]
    assert not hits
    inside = (vault(house) / "vault.db").read_bytes()
    assert any(needle in inside for needle in sealed)  # the search itself finds what is there


def test_two_sweeps_with_arms_look_the_same_however_many_runs_each_arm_drew(build: Callable[..., House]) -> None:
    spec = sweep_from_dict(ARMED)
    secrets = {label: secret_drawing(counts, spec) for label, counts in ARM_COUNTS.items()}
    arms = run_both(build, ARMED, secrets)
    for label, house in arms.items():
        drawn = [row["arm"] for row in table(vault(house), ["arm"]).values()]
        assert drawn == [arm for arm, count in ARM_COUNTS[label].items() for _ in range(count)]
        assert_sealed(house, secrets[label], sum(ARM_COUNTS[label].values()) - 3, [("compare", "pair")])
    said = [sorted(map(bare, (house.said.out + house.said.err).splitlines())) for house in arms.values()]
    assert said[0] == said[1]
    few, many = map(database, arms.values())
    assert few == many
    assert len(few["runs"]) == 1 + 3
    assert_like_files(*map(files, arms.values()))
    few_plan, many_plan = (next((house.home / "artifacts").rglob("plan.json")).read_bytes() for house in arms.values())
    assert few_plan == many_plan


def bare(line: str) -> str:
    """A line without numbers, arms, and the widths of columns: which arm won, and by how much, is what was paid for."""
    return re.sub(
        r"[ -]+", " ", re.sub(r"\b(wide|low|slow)\b", "ARM", re.sub(r"\d[\d.e+-]*", "#", IDENTITY.sub("#", line)))
    ).strip()


def test_the_vault_is_closed_and_nothing_of_ray_is_left(pair: Pair) -> None:
    for house in pair.values():
        assert vault(house).stat().st_mode & 0o077 == 0
        assert vault(house).parent.stat().st_mode & 0o077 == 0
        assert {path.name for path in vault(house).iterdir()} <= {"vault.db", "vault.db-journal", "driver.lock"}
        assert [p.name for p in house.temporary.iterdir() if p.name.startswith("swp")] == []
        assert not (house.place / "user" / "ray_results").exists()
        house.wait_until_alone(10, agents=True)


def vault(house: House) -> Path:
    return house.home / "vault" / "pair"


def released_at(house: House) -> float:
    with sqlite3.connect(vault(house) / "vault.db") as db:
        return float(json.loads(db.execute("SELECT value FROM meta WHERE key = 'release'").fetchone()[0])["released_at"])


def outside(house: House) -> list[Path]:
    """All files of a home but the vault's."""
    return [p for p in sorted(house.home.rglob("*")) if p.is_file() and p.relative_to(house.home).parts[0] != "vault"]


def files(house: House) -> dict[str, list[Path]]:
    """All that lies in a home outside the vault, by its name with ids masked."""
    found: dict[str, list[Path]] = {}
    for path in outside(house):
        inside = path.relative_to(house.home)
        name = IDENTITY.sub("#", str(inside)) if inside.parts[0] != "cache" else str(inside)
        found.setdefault(name, []).append(path)
    return found


def database(house: House, file: Path | None = None) -> dict[str, list[Any]]:
    """All tables of the store as sorted rows of text, what may differ masked."""
    masks = [(house.place.name, "HOUSE"), (str(round(released_at(house) * 1000)), "RELEASE")]
    with sqlite3.connect(file or house.home / "mlflow.db") as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: sorted(row_text(row, masks) for row in _rows(db, name)) for name in names}


def _rows(db: sqlite3.Connection, name: str) -> list[dict[str, Any]]:
    cursor = db.execute(f'SELECT * FROM "{name}"')
    return [dict(zip((column[0] for column in cursor.description), row, strict=True)) for row in cursor]


def row_text(row: dict[str, Any], masks: list[tuple[str, str]]) -> str:
    if row.get("key") in FREE or row.get("param_key") in FREE or row.get("metric_name") in FREE:
        row = {k: "FREE" if k in ("value", "param_value", "metric_value", "value_string") else v for k, v in row.items()}
    row = {k: "CLOCK" if re.search("creation|last_update|created|updated", k) and isinstance(v, int) else v for k, v in row.items()}
    text = json.dumps(row, default=repr, sort_keys=True)
    for old, new in masks:
        text = text.replace(old, new)
    return IDENTITY.sub("#", text)


def masked(value: Any) -> Any:
    """JSON with what may differ masked: identities, clock times, and the winner's own numbers."""
    if isinstance(value, dict):
        free = FREE | {
            "score",
            "at",
            "id",
            "mean",
            "best",
            "group",
            "model_uri",
            "settings",
            "submission",
            "clip.clip_norm",
            "step.c",
        }
        return {key: "FREE" if key in free and not isinstance(item, (dict, list)) else masked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [masked(item) for item in value]
    return IDENTITY.sub("#", value) if isinstance(value, str) else value


def needles(house: House, secret: bytes) -> list[bytes]:
    """The secret, and every other trial's settings and score, as the text and the bytes in which they could be written."""
    rows = table(vault(house), ["candidate", "score", "settings", "trace"])
    with sqlite3.connect(vault(house) / "vault.db") as db:
        winners = json.loads(db.execute("SELECT value FROM meta WHERE key = 'release'").fetchone()[0])["winners"].values()
    shown = {n for winner in winners for n in numbers(rows[winner])}
    hidden = [n for index, row in rows.items() if index not in winners for n in numbers(row) if n not in shown]
    found = [secret, secret.hex().encode()]
    for number in hidden:
        found += [repr(number).encode(), struct.pack(">d", number), struct.pack("<d", number)]
    return found


def numbers(row: dict[str, Any]) -> list[float]:
    settings = {**json.loads(row["candidate"]), **json.loads(row["settings"] or "{}")}
    traced = [value for values in json.loads(row["trace"] or "{}").values() for value in values]
    return [v for v in [row["score"], *settings.values(), *traced] if isinstance(v, float) and len(repr(v)) > 8]
