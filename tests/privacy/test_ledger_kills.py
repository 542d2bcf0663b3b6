"""Many processes at once, and death at random moments, on SQLite and on PostgreSQL.

Children are forked from this process, which has everything imported, so that a moment is a moment of the ledger and not of imports.
"""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from ledgers import DELTA, SMALL, Flat, Gaussians, Silent, converted, room_for

from sweeper.privacy.events import NOTHING, Gaussian
from sweeper.privacy.ledger import Ledger, OverBudget

pytest_plugins = ["postgres"]

PROCESSES = 16
Say = Callable[[str, str], None]


@pytest.fixture
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a ledger that is not there yet, on the backend that the test is parametrised with."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_uri"))
    return str(tmp_path / "new" / "ledger.db")


@dataclass
class Child:
    """A forked process and what it says."""

    pid: int
    pipe: int

    @classmethod
    def fork(cls, work: Callable[[Say], None]) -> Child:
        """What `work` raises is said as well."""
        read, write = os.pipe()
        pid = os.fork()
        if pid:
            os.close(write)
            return cls(pid, read)
        try:
            work(lambda word, what: say(write, word, what))
        except BaseException:
            say(write, "raised", repr(traceback.format_exc()))
        finally:
            os._exit(0)

    def first(self) -> bytes:
        """What it says first."""
        return os.read(self.pipe, 65536)

    def rest(self) -> bytes:
        """Everything else it said, when it has ended."""
        parts = []
        while part := self.first():
            parts.append(part)
        os.close(self.pipe)
        os.waitpid(self.pid, 0)
        return b"".join(parts)


def say(pipe: int, word: str, what: str) -> None:
    os.write(pipe, f"{word} {what}\n".encode())


def lines(said: bytes) -> list[tuple[str, str]]:
    """The whole lines of it: the last one may have been cut off by death."""
    found = [(word, what) for word, _, what in (line.partition(" ") for line in said.decode().split("\n")[:-1])]
    assert not [what for word, what in found if word == "raised"], found
    return found


def all_at_once(work: Callable[[Say], None]) -> list[tuple[str, str]]:
    """What 16 processes say that start at one moment."""
    moment = time.monotonic() + 0.3

    def wait_and_work(say: Say) -> None:
        time.sleep(max(0.0, moment - time.monotonic()))
        work(say)

    children = [Child.fork(wait_and_work) for _ in range(PROCESSES)]
    return [line for child in children for line in lines(child.rest())]


@pytest.mark.parametrize("where", ["sqlite", "postgresql"], indirect=True)
def test_many_processes_may_create_the_same_ledger_at_once(where):
    said = all_at_once(lambda say: say("done", Ledger(where).set_budget("adult", 8.0, DELTA, "child").data_set))
    assert said == [("done", "adult")] * PROCESSES
    made = Ledger(where)
    assert len(made.entries("adult")) == PROCESSES
    assert made.verify() is None


@pytest.mark.parametrize(
    ("where", "binding"), [("sqlite", "renyi"), ("sqlite", "addition"), ("postgresql", "addition")], indirect=["where"]
)
def test_many_processes_admit_as_many_as_fit_and_not_one_more(where, binding):
    ledger, wanted = Ledger(where, accountant=Gaussians() if binding == "renyi" else Silent()), 24
    room_for(ledger, wanted, binding)

    def fill(say: Say) -> None:
        own = Ledger(where, accountant=Flat())
        while True:
            try:
                say("reserved", own.reserve("adult", "clip", "f00d", Gaussian(10.0), SMALL, "child"))
            except OverBudget:
                return

    said = all_at_once(fill)
    assert len(said) == wanted
    assert {made for _, made in said} == {r.id for r in ledger.reservations() if r.sweep == "clip"}
    assert ledger.spent("adult").epsilon <= 8.0
    assert ledger.verify() is None


@pytest.mark.parametrize("where", ["sqlite", "postgresql"], indirect=True)
def test_many_processes_start_one_reservation_and_one_of_them_has_it(where):
    ledger = Ledger(where, accountant=Flat())
    ledger.set_budget("adult", 8.0, DELTA, "ann")
    made = ledger.reserve("adult", "clip", "f00d", Gaussian(10.0), SMALL, "ann")

    def start(say: Say) -> None:
        try:
            Ledger(where).start(made, str(os.getpid()))
        except Exception as error:
            say("refused", str(error))
        else:
            say("started", str(os.getpid()))

    said = all_at_once(start)
    started = [run for word, run in said if word == "started"]
    assert started == [ledger.find(made).started]
    assert all("another one has started" in text for word, text in said if word == "refused")
    assert len(said) == PROCESSES


def one_after_the_other(where: str) -> Callable[[Say], None]:
    """Reservations until death. What becomes of each is told by its id, and is said once the call has returned."""

    def work(say: Say) -> None:
        ledger = Ledger(where, accountant=Flat())
        while True:
            made = ledger.reserve("adult", "clip", "f00d", Gaussian(10.0), SMALL, "child")
            say("reserved", made)
            match int(made, 16) % 4:
                case 0:
                    ledger.start(made, "run-1")
                    say("started", made)
                case 1:
                    ledger.start(made, "run-1")
                    ledger.commit(made)
                    say("committed", made)
                case 2:
                    ledger.commit(made, NOTHING, reason="test")
                    say("released", made)

    return work


def kill(where: str, kills: int, moments: random.Random) -> dict[str, set[str]]:
    """Kill so many children, each at a random moment, and return what they had said."""
    said: dict[str, set[str]] = defaultdict(set)
    for _ in range(kills):
        began = time.monotonic()
        child = Child.fork(one_after_the_other(where))
        first = child.first() if moments.random() < 0.8 else b""  # else it may die before its first word
        time.sleep(moments.uniform(0.0, 1.5) * (time.monotonic() - began if first else 0.01))
        os.kill(child.pid, signal.SIGKILL)
        for word, made in lines(first + child.rest()):
            said[word].add(made)
    return said


@pytest.mark.parametrize(("where", "ledgers", "kills"), [("sqlite", 10, 20), ("postgresql", 2, 20)], indirect=["where"])
def test_kill_9_at_any_moment_loses_nothing_that_was_acknowledged(where, ledgers, kills):
    """200 kills on SQLite, 40 on PostgreSQL. Oracle: what the children had said before they died, and the filter's formula."""
    moments = random.Random(7)
    acknowledged = 0
    for number in range(ledgers):
        place = where if "://" in where else f"{where}.{number}"
        ledger = Ledger(place, accountant=Flat())
        before = {r.id for r in ledger.reservations()}
        order = ledger.set_budget("adult", 8.0, DELTA, "ann").order
        said = kill(place, kills, moments)
        acknowledged += len(said["reserved"])
        assert ledger.verify() is None
        found = {r.id: r for r in ledger.reservations() if r.id not in before}
        assert said["reserved"] <= set(found)
        assert len(found) <= len(said["reserved"]) + kills  # each death hides one word at most
        assert all(found[made].started == "run-1" for made in said["started"] | said["committed"])
        assert {found[made].state for made in said["committed"]} <= {"committed"}
        assert {found[made].state for made in said["released"]} <= {"released"}
        for made, r in found.items():  # a row is there only if the loop had come to it
            assert r.state in ("reserved", {1: "committed", 2: "released"}.get(int(made, 16) % 4))
        charged = sum(r.state != "released" for r in ledger.reservations())
        spent = ledger.spent("adult")
        assert spent.charges == charged
        if charged > 1:
            assert spent.epsilon == pytest.approx(0.01 * charged, rel=1e-9) or converted(
                0.001 * charged, spent.epsilon, order
            ) == pytest.approx(0.45 * DELTA, rel=1e-9)
        ledger.reserve("adult", "clip", "f00d", Gaussian(10.0), SMALL, "ann")  # and it goes on
    assert acknowledged > ledgers * kills
