"""Starting, releasing and recovering: one reservation pays for one run, and only what opened no data is given back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ledgers import DELTA, STATED, Gaussians, reserve

from sweeper.checks import FieldError, RequestError
from sweeper.privacy.events import NOTHING, Gaussian
from sweeper.privacy.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "ledger.db", accountant=Gaussians())
    made.set_budget("adult", 8.0, DELTA, "ann")
    return made


def test_a_run_may_start_again_and_no_other_run_may(ledger):
    made = reserve(ledger)
    assert ledger.find(made).started == ""
    ledger.start(made, "run-1")
    rows = len(ledger.entries())
    ledger.start(made, "run-1")
    assert len(ledger.entries()) == rows
    with pytest.raises(RequestError, match=r"pays for one run, and another one has started.*sweeper resume clip"):
        ledger.start(made, "run-2")
    assert ledger.find(made).started == "run-1"
    ledger.commit(made)
    ledger.start(made, "run-1")  # a driver that died between its commit and its release
    with pytest.raises(RequestError, match="another one has started"):
        ledger.start(made, "run-2")


def test_a_start_changes_no_charge(ledger):
    made = reserve(ledger)
    before = ledger.spent("adult")
    ledger.start(made, "run-1")
    assert ledger.spent("adult") == before
    assert ledger.find(made).state == "reserved"


@pytest.mark.parametrize("event", [NOTHING, Gaussian(4.0)])
def test_what_was_given_back_or_lowered_pays_for_no_run(ledger, event):
    made = reserve(ledger)
    ledger.commit(made, event, reason="test")
    with pytest.raises(RequestError, match=r"pays for no run\. Reserve again"):
        ledger.start(made, "run-1")


@pytest.mark.parametrize("run", ["", "unknown"])
def test_a_run_has_an_id_of_its_own(ledger, run):
    with pytest.raises(FieldError, match=r"run = .* must be the random id of a vault"):
        ledger.start(reserve(ledger), run)


def test_only_what_never_started_is_released(ledger):
    idle, running, ended = reserve(ledger, 6.0), reserve(ledger, 6.0), reserve(ledger, 6.0)
    ledger.start(running, "run-1")
    ledger.commit(ended)
    assert ledger.release(idle, "ann changed her mind").state == "released"
    assert ledger.find(idle).reason == "ann changed her mind"
    assert ledger.release(idle, "again").reason == "ann changed her mind"
    before = ledger.spent("adult")
    for attempt in (lambda: ledger.release(running, "x"), lambda: ledger.commit(running, NOTHING, reason="x")):
        with pytest.raises(
            RequestError, match=r"has started, so it may have opened data and stays charged\. .*ledger recover clip"
        ):
            attempt()
    with pytest.raises(RequestError, match="already committed"):
        ledger.release(ended, "x")
    with pytest.raises(FieldError, match="reason"):
        ledger.release(reserve(ledger, 6.0), "")
    ledger.release(ledger.reservations()[-1].id, "test")
    assert ledger.spent("adult").epsilon == before.epsilon


def test_proof_that_nothing_ran_gives_a_started_reservation_back(ledger):
    made = reserve(ledger)
    ledger.start(made, "run-1")
    with pytest.raises(FieldError, match="reason"):
        ledger.recover(made, "")
    found = ledger.recover(made, "vault of run-1: 12 trials, none claimed")
    assert (found.state, found.reason) == ("released", "vault of run-1: 12 trials, none claimed")
    assert ledger.spent("adult").epsilon == 0.0
    with pytest.raises(RequestError, match="pays for no run"):
        ledger.start(made, "run-2")


def test_no_proof_undoes_a_commit(ledger):
    made = reserve(ledger)
    ledger.start(made, "run-1")
    ledger.commit(made)
    with pytest.raises(RequestError, match="already committed"):
        ledger.recover(made, "no trial in its vault was ever claimed")


def test_reservations_are_found_by_id_and_by_sweep(ledger):
    ledger.set_budget("zoo", 8.0, DELTA, "ann")
    made = [reserve(ledger, 6.0, sweep="a"), reserve(ledger, 6.0, sweep="b"), reserve(ledger, 6.0, sweep="a", data_set="zoo")]
    assert [r.id for r in ledger.of_sweep("a")] == [made[0], made[2]]
    assert ledger.of_sweep("c") == []
    assert ledger.find(made[1]).sweep == "b"
    for unknown in (lambda: ledger.find("x"), lambda: ledger.start("x", "run-1"), lambda: ledger.release("x", "y")):
        with pytest.raises(RequestError, match="no reservation x in this ledger"):
            unknown()


def test_a_reservation_says_who_asked_and_what_is_promised_of_whom(ledger):
    ledger.start(reserve(ledger), "run-1")
    line = json.loads(json.dumps(ledger.reservations()[0].to_dict()))
    wanted = {"who": "ann", "fingerprint": "f00d", "unit": "record", "relation": "zero-out", "started": "run-1", "unsealed": ""}
    assert {key: line[key] for key in wanted} == wanted
    assert line["guarantee"] == STATED.to_dict()


def test_two_homes_cannot_start_one_reservation(ledger, tmp_path):
    """Both decide on the state before either start; the second finds its decision overtaken."""
    made, path = reserve(ledger), tmp_path / "ledger.db"
    other = Ledger(path)

    class Overtaken(Ledger):
        def __init__(self) -> None:
            super().__init__(path)
            decide_on, self._first = self._chain.append, True

            def append(decide):
                def slowly(entries):
                    if self._first:
                        self._first = False
                        other.start(made, "other home")
                    return decide(entries)

                decide_on(slowly)

            self._chain.append = append

    with pytest.raises(RequestError, match="another one has started"):
        Overtaken().start(made, "this home")
    assert ledger.find(made).started == "other home"
