"""Where trials that run in threads of their own meet: when all that are there have asked something, one call answers them all.

The last one in does the work for the others. Who is there decides when questions are answered, never how.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


class PackFailed(RuntimeError):
    """The joint work of a pack failed, through no doing of one trial: those that are not finished may be run again."""


@dataclass(eq=False)
class Question:
    """What one trial asks, and where its answer or its fault is put."""

    answer: Any = field(default=None, init=False)
    fault: BaseException | None = field(default=None, init=False)  # of this trial alone
    heard: bool = field(default=False, init=False)


class Meeting:
    """Seats are numbers. A seat that joined is waited for until it leaves; one that did not join may ask all the same.

    hands: how many seats may be at work at once between their questions. The others wait: Python would run one of them at a time
    anyway, and more threads than processors get in each other's way.
    """

    def __init__(self, answer: Callable[[Mapping[int, Question]], None], *, hands: int = 1) -> None:
        self._answer, self._hands = answer, threading.Semaphore(hands)
        self._change = threading.Condition()
        self._here: set[int] = set()
        self._at_work: set[int] = set()
        self._asked: dict[int, Question] = {}
        self.broken: BaseException | None = None  # what ended the meeting, if something did

    def run(self, work: Mapping[int, Callable[[], object]]) -> None:
        """Each seat's work in a thread of its own, to the end. What one of them raises ends the meeting.

        Raises:
          PackFailed: somebody raised, or the joint work failed.
        """
        self._raise_if_broken()
        threads = [threading.Thread(target=self._seated, args=(seat, work[seat]), daemon=True) for seat in work]
        self.join(*work)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException as reason:  # an interrupt
            self.fail(reason)
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            raise
        self._raise_if_broken()

    def join(self, *seats: int) -> None:
        """From now on they are waited for. All of a pack join before the first of them starts."""
        with self._change:
            self._here.update(seats)

    def leave(self, seat: int) -> None:
        """It is not waited for any more; if it was the last one missing, the others get their answers."""
        with self._change:
            if seat in self._here:
                self._here.discard(seat)
                self._answer_if_all_asked()

    @contextlib.contextmanager
    def at_work(self, seat: int) -> Iterator[None]:
        """A seat that needs a hand, but for the time in which it waits for an answer."""
        self._hands.acquire()
        self._at_work.add(seat)
        try:
            yield
        finally:
            self._at_work.discard(seat)
            self._hands.release()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Work that only one may do at a time, and beside which nothing is answered."""
        with self._change:
            yield

    def fail(self, reason: BaseException) -> None:
        """Nobody gets an answer any more. The first reason counts."""
        with self._change:
            self.broken = self.broken or reason
            self._asked.clear()
            self._change.notify_all()

    def ask(self, seat: int, question: Question) -> Any:
        """The answer, once all that are here have asked.

        Raises:
          PackFailed: the joint work failed, for all of them.
        """
        waits = False
        with self._change:
            self._raise_if_broken()
            self._asked[seat] = question
            self._answer_if_all_asked()
            if not question.heard and self.broken is None:
                waits = seat in self._at_work
                if waits:
                    self._hands.release()
                while not question.heard and self.broken is None:
                    self._change.wait()
        if waits:
            self._hands.acquire()
        if not question.heard:
            self._raise_if_broken()
        if question.fault is not None:
            raise question.fault
        return question.answer

    def _seated(self, seat: int, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as reason:
            self.fail(reason)
        finally:
            self.leave(seat)

    def _answer_if_all_asked(self) -> None:
        if self.broken is not None or not self._asked or not self._here <= set(self._asked):
            return
        asked, self._asked = self._asked, {}
        try:
            self._answer(asked)
        except BaseException as reason:
            self.broken = reason
            if not isinstance(reason, Exception):  # an interrupt is for whoever runs the pack, too
                raise
        else:
            for question in asked.values():
                question.heard = True
        finally:
            self._change.notify_all()

    def _raise_if_broken(self) -> None:
        if self.broken is not None:
            if isinstance(self.broken, PackFailed):
                raise self.broken
            raise PackFailed(f"the joint work of the pack failed: {type(self.broken).__name__}: {self.broken}") from self.broken
