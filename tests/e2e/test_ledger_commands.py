"""Reserving beforehand, recovering, verifying, exporting, as typed: exit codes, one line on failure, no charge lost or doubled."""

from __future__ import annotations

import csv
import io
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from program import Ended, House, dies_in, ended
from tiny_sweeps import SELECT_BEST, tiny

pytestmark = pytest.mark.timeout(240)
SMALL = {"protocol": SELECT_BEST | {"mean_trials": 2, "max_trials": 3}}


@pytest.fixture(scope="module")
def house(build: Callable[..., House]) -> House:
    return build("ledger-commands")


def charges(house: House, sweep: str) -> list[dict[str, Any]]:
    return [row for row in house.run("ledger", "--json").json["charges"] if row["sweep"] == sweep]


def refused(said: Ended, *words: str) -> bool:
    assert said.code == 2, said
    assert said.out == ""
    assert said.err.count("\n") == 1, said.err
    for word in words:
        assert word in said.err
    return True


def reserved(house: House, file: str) -> str:
    said = house.run("plan", file, "--reserve")
    assert said.code == 0, said
    (line,) = [line for line in said.out.splitlines() if line.startswith("reserved: ")]
    assert f"--reservation {line.split()[1]}" in said.out
    return line.split()[1]


def test_a_reservation_is_held_used_once_and_only_for_what_was_planned(house: House) -> None:
    file = house.write(tiny("held", **SMALL))
    identity = reserved(house, file)
    (held,) = charges(house, "held")
    assert (held["id"], held["state"], held["started"], held["unit"], held["relation"]) == (
        *(identity, "reserved", ""), "record", "zero-out",
    )  # fmt: skip
    other = house.write(tiny("held", trainer={"kind": "dp-sgd", "batch_size": 64, "steps": 21}, **SMALL) | {"name": "other"})
    assert refused(house.run("run", other, "--reservation", identity), "was made for another sweep")
    assert refused(house.run("run", file, "--reservation", "0000"), "is the beginning of no reservation")
    assert charges(house, "other") == []

    said = house.run("run", file, "--reservation", identity[:8])
    assert said.code == 0, said
    (used,) = charges(house, "held")
    assert (used["id"], used["state"]) == (identity, "committed")
    assert used["started"]
    assert refused(house.run("run", file, "--name", "again", "--reservation", identity), "is committed")
    assert refused(house.run("ledger", "release", identity), "committed")
    known = house.run("ledger", "recover", "held", "--json").json
    assert [(row["state"], row["may_be_given_back"]) for row in known] == [("committed", False)]


def test_two_runs_on_one_reservation_and_the_later_one_takes_nothing_away(house: House) -> None:
    """The second is sealed while the first is free; the first starts; the second is refused and the charge stays the first's."""
    file = house.write(tiny("race", **SMALL))
    identity = reserved(house, file)
    first = house.run("run", file, "--reservation", identity, patch=dies_in("sweeper.launch.open_data:OpenData.of"))
    assert first.code == -signal.SIGKILL, first  # after the start row
    (row,) = charges(house, "race")
    assert row["started"]
    late = house.run("run", file, "--name", "late-race", "--reservation", identity)
    assert refused(late, "is in use by another run")
    assert charges(house, "race") == [row]
    assert house.run("resume", "race").code == 0
    assert [c["state"] for c in charges(house, "race")] == ["committed"]


def test_a_hold_is_given_back_by_hand(house: House) -> None:
    identity = reserved(house, house.write(tiny("unused", **SMALL)))
    known = house.run("ledger", "recover", "unused")
    assert known.code == 0
    assert "never started: no data was opened" in known.out
    assert "--reservation" in known.out
    assert house.run("ledger", "release", identity[:10], "--reason", "not needed").code == 0
    (row,) = charges(house, "unused")
    assert (row["state"], row["reason"]) == ("released", "not needed")
    assert refused(house.run("ledger", "recover", "unused", "--give-back"), "nothing of sweep unused can be given back")


def test_what_provably_did_not_run_is_given_back_and_what_did_is_not(house: House) -> None:
    file = house.write(tiny("crashed", **SMALL))
    said = house.run("run", file, patch=dies_in("sweeper.launch.driver:Driver._go_on"))
    assert said.code == -signal.SIGKILL
    assert [c["state"] for c in charges(house, "crashed")] == ["reserved"]
    assert "sealed here, never started" in house.run("ledger", "recover", "crashed").out
    given = house.run("ledger", "recover", "crashed", "--give-back", "--json")
    assert given.code == 0, given
    assert [row["state"] for row in given.json] == ["released"]
    assert not (house.home / "vault" / "crashed").exists()
    assert refused(house.run("resume", "crashed"), "no sweep")

    file = house.write(tiny("halfway", **SMALL))
    said = house.run("run", file, patch=dies_in("sweeper.launch.driver:Driver._commit"))
    assert said.code == -signal.SIGKILL
    known = house.run("ledger", "recover", "halfway")
    assert "trials were run on the data: it stays charged" in known.out
    assert refused(house.run("ledger", "recover", "halfway", "--give-back"), "can be given back")
    assert house.run("resume", "halfway").code == 0
    assert [c["state"] for c in charges(house, "halfway")] == ["committed"]


def test_export_names_everything_and_the_head_is_still_there(house: House) -> None:
    (row,) = [r for r in csv.DictReader(io.StringIO(house.run("ledger", "export").out)) if r["sweep"] == "held"]
    assert (row["relation"], row["unit"], row["protocol"], row["state"]) == ("zero-out", "record", "select-best", "committed")
    assert house.run("ledger", "export", "adult", "-o", "statement.html").code == 0
    page = (house.place / "statement.html").read_text()
    for words in ("zero-out", "select-best", "Gaussian sum", "What is not covered", "How long a sweep ran"):
        assert words in page
    head = house.run("ledger", "--json").json["head"]
    assert head.split(":")[1] in page
    assert refused(house.run("ledger", "export", "adlut"), "did you mean adult?")
    assert refused(house.run("ledger", "export", "-o", "statement.pdf"), "must end in .html or .csv")
    best = house.run("best", "held", "--json").json
    assert house.run("ledger", "verify", "--head", best["ledger_head"]).code == 0
    assert f"sweeper ledger verify --head {best['ledger_head']}" in house.run("best", "held").out


def test_an_edited_row_is_found(house: House, tmp_path: Path) -> None:
    assert house.run("ledger", "verify").code == 0
    seq, _, digest = house.run("ledger", "--json").json["head"].partition(":")
    assert house.run("ledger", "verify", "--head", f"{seq}:{digest}").code == 0
    other = house.run("ledger", "verify", "--head", f"{seq}:{'0' * 64}", "--json")
    assert other.code == 1
    assert other.json["broken"] is not None
    assert refused(house.run("ledger", "verify", "--head", "seven"), "must be SEQ:HASH")
    before = (house.home / "ledger.db").read_bytes()
    with closing(sqlite3.connect(house.home / "ledger.db")) as db, db:
        for (trigger,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f'DROP TRIGGER "{trigger}"')
        changed = db.execute("UPDATE budgets SET epsilon = 900.0").rowcount
    assert changed == 1
    said = house.run("ledger", "verify")
    assert said.code == 1
    assert said.err.startswith("the ledger was changed: row 1: ")
    listed = house.run("ledger")
    assert listed.code == 0
    assert listed.err.startswith("warning: the ledger was changed: row 1: ")
    assert refused(house.run("ledger", "export"), "the ledger was changed: row 1: ", "No statement can be made of it")
    (house.home / "ledger.db").write_bytes(before)
    assert house.run("ledger", "verify").code == 0


def test_public_data_takes_no_reservation(house: House) -> None:
    file = house.write(tiny("open", data={"source": "adult", "holdout": 0.2, "public": True}))
    assert refused_reserve(house.run("plan", file, "--reserve"))
    assert refused(house.run("run", file, "--reservation", "none"), "is the beginning of no")  # ids are hex digits


def refused_reserve(said: Ended) -> bool:
    assert said.code == 2, said
    assert "nothing is charged, so there is nothing to reserve" in said.err
    return True


def test_an_interrupted_hold_is_whole_or_absent(house: House) -> None:
    """Ctrl-C while the price is reserved: afterwards the ledger is whole, and either nothing or one hold is in it."""
    file = house.write(tiny("torn", **SMALL))
    process = house.start("plan", file, "--reserve", patch="import os, signal, threading, time\n"
        "threading.Timer(0.6, lambda: os.kill(os.getpid(), signal.SIGINT)).start()")  # fmt: skip
    said = ended(process)
    assert said.code in (0, 130)
    assert house.run("ledger", "verify").code == 0
    assert len(charges(house, "torn")) in ((1,) if said.code == 0 else (0, 1))
