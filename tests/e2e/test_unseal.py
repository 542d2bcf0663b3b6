"""Unsealing: what it costs, that it is asked for first, what it shows, and that a kill at any step loses and doubles nothing."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from collections.abc import Callable

import pytest
from program import SWEEPER, House, dies_in, patched
from tiny_sweeps import SELECT_BEST, secret_drawing, spec_of, tiny

from sweeper.privacy import accountant
from sweeper.privacy.events import Repeated, event_from_dict
from sweeper.store.home import Home
from sweeper.store.queries import trials

pytestmark = pytest.mark.timeout(240)
PROTOCOL = SELECT_BEST | {"mean_trials": 3, "max_trials": 6}
SWEEP = tiny("sealed", protocol=PROTOCOL)
RUNS = 4


@pytest.fixture(scope="module")
def house(build: Callable[..., House]) -> House:
    found = build("unseal")
    said = found.run("run", found.write(SWEEP), patch=patched(secret_drawing(RUNS, spec_of("sealed", protocol=PROTOCOL))))
    assert said.code == 0, said
    return found


def charge(house: House) -> dict:
    (row,) = house.run("ledger", "--json").json["charges"]
    return row


def test_the_quote_is_the_price_of_the_most_runs_and_charges_nothing(house: House) -> None:
    before = charge(house)
    quote = house.run("unseal", "sealed", "--quote", "--json").json
    trial = event_from_dict(before["event"]["trial"])
    assert quote["unsealed_epsilon"] == pytest.approx(accountant.epsilon(Repeated(trial, 6), 1e-5), rel=2e-3)
    assert quote["epsilon"] == pytest.approx(2.0, rel=5e-3)
    assert (quote["most"], quote["unsealed"], quote["over"]) == (6, False, False)
    plan = house.run("plan", str(house.place / "sealed.yaml"), "--json").json
    assert quote["unsealed_epsilon"] == pytest.approx(plan["unseal_epsilon"], rel=1e-6)
    assert (
        quote["after"] > quote["unsealed_epsilon"]
    )  # the ledger charges it at a smaller delta: it is decided after the winner is seen
    assert charge(house) == before


def test_it_is_asked_for_and_no_is_no(house: House) -> None:
    before = charge(house)
    said = house.run("unseal", "sealed")
    assert said.code == 2
    assert "add --yes" in said.err
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [SWEEPER, "unseal", "sealed"], env=house.env, cwd=house.place, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    os.write(ours, b"n\n")
    out, err = process.communicate(timeout=60)
    os.close(ours), os.close(theirs)
    assert process.returncode == 2
    assert b"unsealed, at most   6 trials visible" in out
    assert b"nothing was charged" in err
    assert charge(house) == before
    assert len(trials("sealed", Home(house.home))) == 1


def test_over_budget_nothing_is_charged_or_shown(build: Callable[..., House]) -> None:
    poor = build("poor")
    assert poor.run("run", poor.write(SWEEP)).code == 0
    assert poor.run("ledger", "set-budget", "adult", "--epsilon", "2.1", "--delta", "1e-4").code == 0
    before = charge(poor)
    said = poor.run("unseal", "sealed", "--yes")
    assert said.code == 2
    assert said.err.startswith("over budget: unsealing would bring adult to epsilon ")
    assert charge(poor) == before
    assert len(trials("sealed", Home(poor.home))) == 1


def test_killed_at_every_step_and_then_done_once(house: House) -> None:
    """After the charge, before publication, in it, and before the charge comes down. The last call finishes; one more is free."""
    moments = [
        "sweeper.launch.unseal:Unsealing._record",
        "sweeper.store.mlflow:Store._write_trial",
        "sweeper.store.mlflow:Store._write_bill",
        "sweeper.privacy.ledger:Ledger.commit_unsealed",
    ]
    old = charge(house)
    most = None
    for where in moments:
        said = house.run("unseal", "sealed", "--yes", patch=dies_in(where))
        assert said.code == -signal.SIGKILL, (where, said)
        row = charge(house)
        assert row["price"]["stated_epsilon"] > old["price"]["stated_epsilon"] * 1.2
        most = most or row
        assert row == most  # charged once, at the most runs, before anything is shown
    said = house.run("unseal", "sealed", "--yes", "--json")
    assert said.code == 0, said
    assert said.json["trials"] == RUNS
    trial = event_from_dict(old["event"]["trial"])
    assert said.json["epsilon"] == pytest.approx(accountant.epsilon(Repeated(trial, RUNS), 1e-5), rel=2e-3)
    down = charge(house)
    assert old["price"]["stated_epsilon"] < down["price"]["stated_epsilon"] < most["price"]["stated_epsilon"]
    assert event_from_dict(down["event"]) == Repeated(trial, RUNS)

    again = house.run("unseal", "sealed")  # free: it asks nothing
    assert again.code == 0, again
    assert "unsealed already" in again.out
    assert charge(house) == down
    assert house.run("ledger", "verify").code == 0


def test_every_trial_is_visible_at_the_new_bill(house: House) -> None:
    frame = trials("sealed", Home(house.home))
    assert len(frame) == RUNS
    assert frame["is_best"].sum() == 1
    assert frame["released_at"].nunique() == 1
    best = house.run("best", "sealed", "--json").json
    assert best["protocol"] == "release-all"
    trial = event_from_dict(charge(house)["event"]["event"])
    assert best["epsilon"] == pytest.approx(accountant.epsilon(Repeated(trial, RUNS), 1e-5), rel=2e-3)
    assert best["epsilon"] <= charge(house)["price"]["stated_epsilon"]
    assert best["score"] == frame["score"].max()
    groups = house.run("compare", "sealed", "--json").json
    assert sum(group["n"] for group in groups["groups"]) == RUNS
    assert [group["epsilon"] for group in groups["groups"]] == pytest.approx([best["epsilon"]] * len(groups["groups"]))
    assert groups["note"] == ""
    assert house.run("ledger", "verify", "--head", best["ledger_head"]).code == 0


def test_what_has_nothing_sealed_or_nothing_released_is_refused(house: House) -> None:
    one = tiny("one", protocol={"kind": "no-tuning"}, space={
        "clip": {"policy": "fixed", "value": 0.5}, "step": {"policy": "coupled", "value": 2.0}})  # fmt: skip
    assert house.run("run", house.write(one)).code == 0
    for name, words in (("one", "every trial is visible already"), ("nowhere", "no sweep")):
        said = house.run("unseal", name, "--yes")
        assert (said.code, said.out) == (2, "")
        assert words in said.err
    early = house.write(tiny("early", protocol=PROTOCOL))
    assert house.run("run", early, patch=dies_in("sweeper.launch.driver:Driver._commit")).code == -signal.SIGKILL
    said = house.run("unseal", "early", "--yes")
    assert said.code == 2
    assert "sweeper resume early" in said.err
