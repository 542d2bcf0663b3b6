"""The meeting of a pack: all who are there ask, then all are answered; who leaves is not waited for; what breaks it ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from functools import partial

import pytest

from sweeper.backends.meeting import Meeting, PackFailed, Question


def counting(log: list[list[int]], hands: int = 1) -> Meeting:
    def answer(asked: Mapping[int, Question]) -> None:
        log.append(sorted(asked))
        for seat, question in asked.items():
            question.answer = 10 * seat

    return Meeting(answer, hands=hands)


@pytest.mark.parametrize("hands", [1, 2, 8])
def test_all_are_answered_together_and_those_that_end_are_not_waited_for(hands: int) -> None:
    log: list[list[int]] = []
    meeting, heard = counting(log, hands), dict[int, list[int]]()

    def work(seat: int) -> None:
        with meeting.at_work(seat):
            heard[seat] = [meeting.ask(seat, Question()) for _ in range(seat)]

    meeting.run({seat: partial(work, seat) for seat in range(5)})  # seat s asks s times
    assert log == [[1, 2, 3, 4], [2, 3, 4], [3, 4], [4]]
    assert heard == {seat: [10 * seat] * seat for seat in range(5)}


@pytest.mark.parametrize("hands", [1, 3])
def test_no_more_are_at_work_than_there_are_hands(hands: int) -> None:
    meeting, lock = counting([], hands), threading.Lock()
    now, most = [0], [0]

    def work(seat: int) -> None:
        with meeting.at_work(seat):
            for _ in range(4):
                with lock:
                    now[0] += 1
                    most[0] = max(most[0], now[0])
                time.sleep(0.002)
                with lock:
                    now[0] -= 1
                meeting.ask(seat, Question())

    meeting.run({seat: partial(work, seat) for seat in range(6)})
    assert most[0] == hands


def test_somebody_who_did_not_join_is_answered_at_once() -> None:
    log: list[list[int]] = []
    assert counting(log).ask(3, Question()) == 30
    assert log == [[3]]


def test_a_fault_of_one_question_is_raised_where_it_was_asked() -> None:
    def answer(asked: Mapping[int, Question]) -> None:
        for seat, question in asked.items():
            question.fault = ValueError("mine") if seat == 1 else None

    meeting, raised = Meeting(answer), []

    def work(seat: int) -> None:
        try:
            meeting.ask(seat, Question())
        except ValueError:
            raised.append(seat)
        meeting.ask(0, Question()) if seat == 0 else None

    meeting.run({seat: partial(work, seat) for seat in range(3)})
    assert raised == [1]


@pytest.mark.parametrize("where", ["answer", "work"])
def test_what_breaks_it_is_told_to_all_and_nobody_waits_for_ever(where: str) -> None:
    def answer(asked: Mapping[int, Question]) -> None:
        if where == "answer":
            raise MemoryError("no room")

    meeting, told = Meeting(answer), []

    def work(seat: int) -> None:
        if where == "work" and seat == 2:
            time.sleep(0.05)
            raise MemoryError("no room")
        try:
            meeting.ask(seat, Question())
        except PackFailed as failed:
            told.append((seat, str(failed.__cause__)))

    with pytest.raises(PackFailed, match="MemoryError: no room"):
        meeting.run({seat: partial(work, seat) for seat in range(3)})
    assert sorted(told) == [(seat, "no room") for seat in range(3 if where == "answer" else 2)]
    assert threading.active_count() < 10
    with pytest.raises(PackFailed):
        meeting.run({0: lambda: pytest.fail("ran")})
    with pytest.raises(PackFailed):
        meeting.ask(0, Question())


def test_an_interrupt_ends_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the main thread waits for the seats: they get no answer, and are over when it goes on."""
    meeting, ended = counting([]), []
    join = threading.Thread.join
    interrupts = iter([KeyboardInterrupt()])

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        for interrupt in interrupts:
            raise interrupt
        join(thread, timeout)

    def work(seat: int) -> None:
        try:
            while True:
                meeting.ask(seat, Question())
        except PackFailed:
            ended.append(seat)

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        meeting.run({seat: partial(work, seat) for seat in range(3)})
    assert sorted(ended) == [0, 1, 2]
