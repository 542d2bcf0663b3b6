"""A pack of trials on one device: each in a thread and on a seat of its own, settled one by one as they end. Knows no Ray.

A trial of row i sits on seat i modulo the number of seats, whoever else is there, so that a replay meets the same arithmetic. One
that ends leaves, and the others go on. No scheduler may stop single trials of a pack: what it saved would still be computed.
"""

from __future__ import annotations

import contextlib
import io
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial

from sweeper.backends.meeting import PackFailed
from sweeper.backends.packed_problem import PackedProblem
from sweeper.backends.vmapped import Pack
from sweeper.launch.job import Job
from sweeper.launch.open_data import OpenData
from sweeper.launch.worker import Outcome, Worker
from sweeper.spec.protocols import Problem
from sweeper.spec.sweep import TrialSpec

_PRINTED = 20_000  # characters of a trial's prints that are kept


Claim = Callable[[int], Job | None]  # None: the row was settled before
Settle = Callable[[int, Outcome], None]


class Seated(Worker):
    """A worker whose trials train on one seat of a pack."""

    def __init__(self, data: OpenData, problem: PackedProblem) -> None:
        super().__init__(data)
        self._seat = problem

    def _problem(self, trial: TrialSpec) -> Problem:
        return self._seat


def packs_of(rows: Mapping[int, Hashable], seats: int) -> list[tuple[int, ...]]:
    """Rows by packs: no two on one seat, and together only rows of one kind (model, rows of a round), which `rows` gives for each.

    A row's company depends on its number and the number of seats. It changes no result.
    """
    packs: dict[Hashable, list[int]] = defaultdict(list)
    for row, kind in sorted(rows.items(), key=lambda item: item[0]):
        packs[kind, row // seats].append(row)
    return [tuple(pack) for pack in packs.values()]


def run_pack(pack: Pack, data: OpenData, rows: Sequence[int], claim: Claim, settle: Settle) -> None:
    """Run these rows, several at once. `claim` and `settle` are called from the trials' threads, one call at a time.

    A trial that raises is settled with its traceback: it failed after data was opened, and is never redrawn.

    Raises:
      PackFailed: the joint work failed. What was settled stays; the other rows replay the same streams when they are run again.
    """
    queues: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        queues[row % pack.seats].append(row)
    prints, calls = _Prints(), threading.Lock()

    def serve(seat: int) -> None:
        for row in queues[seat]:
            with calls:
                job = claim(row)
            if job is not None:
                outcome = _trained(pack, data, seat, job, prints)
                with calls:
                    settle(row, outcome)

    with prints.instead_of_the_terminal():
        pack.meeting.run({seat: partial(serve, seat) for seat in sorted(queues)})


def _trained(pack: Pack, data: OpenData, seat: int, job: Job, prints: _Prints) -> Outcome:
    """As launch.worker.guarded, with the prints of this thread alone."""
    result, error = None, ""
    pack.meeting.join(seat)
    try:
        with pack.meeting.at_work(seat):
            result = Seated(data, pack.seat(seat)).run(job.trial, job.streams, *([] if job.keep is None else [job.keep]))
    except PackFailed:
        raise
    except (Exception, SystemExit):
        error = traceback.format_exc()
    finally:
        pack.meeting.leave(seat)
    return Outcome(result, error, prints.taken())


class _Prints(io.TextIOBase):
    """What each thread prints, apart from the others: redirecting for one thread alone is not possible."""

    def __init__(self) -> None:
        self._of: dict[int, io.StringIO] = defaultdict(io.StringIO)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return self._of[threading.get_ident()].write(text)

    def taken(self) -> str:
        """The end of what this thread printed since it last asked."""
        return self._of.pop(threading.get_ident(), io.StringIO()).getvalue()[-_PRINTED:]

    @contextlib.contextmanager
    def instead_of_the_terminal(self) -> Iterator[None]:
        with contextlib.redirect_stdout(self), contextlib.redirect_stderr(self):
            yield
