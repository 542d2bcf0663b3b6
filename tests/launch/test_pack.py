"""Trials that share a device: each ends as it would alone, what it prints and raises is its own, and a lost pack replays."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from bad_trainers import POISON, Failing
from tiny_sweeps import spec_of

from sweeper.backends.meeting import PackFailed
from sweeper.backends.vmapped import Pack
from sweeper.launch.candidate import trial_spec
from sweeper.launch.job import Job
from sweeper.launch.open_data import OpenData
from sweeper.launch.pack import packs_of, run_pack
from sweeper.launch.worker import Outcome, Worker, guarded
from sweeper.seeds import Streams, secret_from_seed
from sweeper.spec.sweep import TrialSpec

SECRET, SEATS, LENGTH = secret_from_seed("a pack"), 4, 192


def trial(row: int, **changes: Any) -> TrialSpec:
    candidate = {"clip.clip_norm": 0.1 * (row + 1), "step.c": 1.0 + row}
    return dataclasses.replace(trial_spec(spec_of(), 0.9, row, candidate), **changes)


def pack_of(adult: OpenData) -> Pack:
    return Pack(
        model=trial(0).model,
        description=adult.spec.source.description,
        table=adult.table,
        rows=adult.train_rows,
        seats=SEATS,
        length=LENGTH,
    )


class Rows:
    """The Vault's part: hands out jobs, and keeps what they come to."""

    def __init__(self, make: Callable[[int], Job | None] | None = None) -> None:
        self.settled: dict[int, Outcome] = {}
        self.claimed: list[int] = []
        self._make = make or (lambda row: Job(trial=trial(row), streams=Streams(SECRET, row)))

    def claim(self, row: int) -> Job | None:
        self.claimed.append(row)
        return self._make(row)

    def settle(self, row: int, outcome: Outcome) -> None:
        assert row not in self.settled
        self.settled[row] = outcome

    def run(self, adult: OpenData, rows: list[int], pack: Pack | None = None) -> dict[int, Outcome]:
        run_pack(pack or pack_of(adult), adult, rows, self.claim, self.settle)
        return self.settled


def bits(outcome: Outcome) -> tuple[Any, ...]:
    assert outcome.result is not None, outcome.error
    timeless = {key: value for key, value in outcome.result.sealed.items() if not key.startswith("seconds_")}
    return outcome.result.released, timeless


@pytest.fixture(scope="module")
def whole(adult: OpenData) -> dict[int, Outcome]:
    """Rows 0 to 6 on four seats: some seats run two, one after the other."""
    return Rows().run(adult, list(range(7)))


def test_every_trial_comes_to_what_it_comes_to_alone(adult: OpenData, whole: dict[int, Outcome]) -> None:
    worker = Worker(adult)
    for row in range(7):
        alone = guarded(worker, trial(row), Streams(SECRET, row)).result
        ours = whole[row].result
        assert alone is not None
        assert ours is not None
        one, other = (np.frombuffer(result.released["params"], "<f4") for result in (alone, ours))
        assert np.linalg.norm(one - other) <= 1e-5 * np.linalg.norm(one)
        assert abs(alone.sealed["correct"] - ours.sealed["correct"]) <= 1  # a row on the boundary
        assert abs(alone.released["score"] - ours.released["score"]) <= 1.5 / len(adult.holdout_rows)
        assert ours.released["settings"] == alone.released["settings"]
        assert ours.sealed["mean_batch_size"] == alone.sealed["mean_batch_size"]


def test_a_row_is_the_same_bits_in_any_pack(adult: OpenData, whole: dict[int, Outcome]) -> None:
    for rows in ([0], [2, 0], [5, 2, 3], [6]):
        again = Rows().run(adult, rows)
        assert set(again) == set(rows)
        for row in rows:
            assert bits(again[row]) == bits(whole[row])


def test_a_row_sits_on_the_seat_of_its_number(adult: OpenData, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device where seats round differently, too, a replay meets the same arithmetic."""
    taken, seat = [], Pack.seat
    monkeypatch.setattr(Pack, "seat", lambda pack, number: (taken.append(number), seat(pack, number))[1])
    Rows().run(adult, [6, 4, 1])
    assert sorted(taken) == [0, 1, 2]


@pytest.mark.parametrize("how", ["raise", "exit", "diverge"])
def test_a_trial_that_fails_costs_nobody_else_and_prints_nowhere(
    adult: OpenData, whole: dict[int, Outcome], how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = Failing(batch_size=trial(0).trainer.batch_size, steps=trial(0).trainer.steps, how=how)

    def make(row: int) -> Job:
        return Job(trial=trial(row, trainer=bad) if row == 1 else trial(row), streams=Streams(SECRET, row))

    found = Rows(make).run(adult, [0, 1, 2, 5])
    for row in (0, 2, 5):  # 5 follows on the seat of 1
        assert bits(found[row]) == bits(whole[row])
        assert found[row].output == found[row].error == ""
    assert found[1].output == f"printed {POISON}\ncomplained {POISON}\n"
    if how == "diverge":
        assert found[1].result is not None
        assert found[1].result.released["score"] is None
        assert found[1].result.sealed["diverged"]
    else:
        assert found[1].result is None
        assert POISON in found[1].error
    assert capfd.readouterr() == ("", "")
    assert sys.stdout is not None
    assert "_Prints" not in type(sys.stdout).__name__


def failing_after(pack: Pack, calls: int) -> None:
    """The joint work raises at this call, as a device does that runs out of memory."""
    joint, done = pack._joint.norms, [0]

    def norms(*args: Any) -> Any:
        done[0] += 1
        if done[0] > calls:
            raise torch.OutOfMemoryError("no room")
        return joint(*args)

    pack._joint.norms = norms  # type: ignore[method-assign]


def test_a_lost_pack_costs_its_unfinished_trials_and_they_replay_bit_for_bit(
    adult: OpenData, whole: dict[int, Outcome], capfd: pytest.CaptureFixture[str]
) -> None:
    """Rows 0 to 3 are done after their 20 steps; 4 to 6 are lost in the middle."""
    rows, pack = Rows(), pack_of(adult)
    failing_after(pack, trial(0).trainer.steps + 7)
    with pytest.raises(PackFailed, match="OutOfMemoryError: no room"):
        rows.run(adult, list(range(7)), pack)
    assert sorted(rows.settled) == [0, 1, 2, 3]
    with pytest.raises(PackFailed):  # a broken pack serves nobody, and claims nothing
        Rows().run(adult, [4], pack)
    rows.run(adult, [row for row in range(7) if row not in rows.settled])
    for row in range(7):
        assert bits(rows.settled[row]) == bits(whole[row])
    assert capfd.readouterr() == ("", "")


def test_a_row_that_was_settled_before_is_passed_over(adult: OpenData, whole: dict[int, Outcome]) -> None:
    rows = Rows(lambda row: None if row in (0, 4) else Job(trial=trial(row), streams=Streams(SECRET, row)))
    assert set(rows.run(adult, [0, 1, 4])) == {1}
    assert bits(rows.settled[1]) == bits(whole[1])
    assert sorted(rows.claimed) == [0, 1, 4]


def test_a_vault_that_is_gone_ends_the_pack(adult: OpenData) -> None:
    class Gone(Rows):
        def settle(self, row: int, outcome: Outcome) -> None:
            raise ConnectionError("the keeper is gone")

    with pytest.raises(PackFailed, match="ConnectionError"):
        Gone().run(adult, [0, 1])


class Kept:
    """A `Keep` that saves once, after some steps, and may then stop the run for good."""

    def __init__(self, content: bytes | None = None, at: int = 9, stop: bool = False) -> None:
        self.content, self.at, self.stop, self.asked, self.resumed_from = content, at, stop, 0, 0

    def load(self) -> bytes | None:
        return self.content

    def due(self) -> bool:
        self.asked += 1
        return self.asked == self.at

    def save(self, content: bytes) -> None:
        self.content = content
        if self.stop:
            raise PackFailed("the worker is gone")


def test_a_kept_state_goes_on_in_another_pack_bit_for_bit(adult: OpenData, whole: dict[int, Outcome]) -> None:
    keeps = {row: Kept(stop=row == 2) for row in (1, 2)}
    rows = Rows(lambda row: Job(trial=trial(row), streams=Streams(SECRET, row), keep=keeps[row]))
    with pytest.raises(PackFailed):
        rows.run(adult, [1, 2])
    later = {2: Kept(keeps[2].content), 3: Kept(at=-1)}
    again = Rows(lambda row: Job(trial=trial(row), streams=Streams(SECRET, row), keep=later[row])).run(adult, [3, 2])
    assert later[2].resumed_from == 9
    released, sealed = bits(again[2])
    assert released == bits(whole[2])[0]
    assert sealed == bits(whole[2])[1] | {"resumed_from": 9}
    assert bits(again[3]) == bits(whole[3])


def test_packs_hold_one_row_a_seat_and_one_kind() -> None:
    kinds = {row: "short" if row < 5 else "long" for row in (0, 1, 3, 4, 5, 6, 9, 11)}
    assert packs_of(kinds, 4) == [(0, 1, 3), (4,), (5, 6), (9, 11)]
    for pack in packs_of(dict.fromkeys(range(100), "one"), 8):
        assert sorted(row % 8 for row in pack) == list(range(len(pack)))
    some = dict.fromkeys([row for row in range(100) if row % 3], "one")  # what is left to resume
    assert sorted(row for pack in packs_of(some, 8) for row in pack) == sorted(some)
    assert packs_of({}, 8) == []
