"""The vault: sealed whole or not at all, every trial settled once, nothing shown by accident."""

from __future__ import annotations

import math
import os
import random
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from oracles import FALSE_ALARM, REJECTED, frequency_p_value

from sweeper.checks import FieldError, RequestError
from sweeper.seeds import TIES, Streams, secret_from_seed
from sweeper.spec.result import TrialResult
from sweeper.store import vault_files
from sweeper.store.vault import Vault

ROOT = Path(__file__).resolve().parents[2]
SECRET = bytes(range(200, 232))
SPEC = {"name": "adult-clip", "privacy": {"epsilon": 2.0, "delta": 1e-5}}


def create(root: Path, sweep: str = "adult-clip", count: int = 6) -> Vault:
    candidates = [{"clip.clip_norm": 0.1 + i / 7, "step.product": 3.0} for i in range(count)]
    return Vault.create(
        root,
        sweep,
        spec=SPEC,
        plan={"epsilon": 2.0},
        fingerprint="f00d",
        secret=SECRET,
        reservation="ab12",
        candidates=candidates,
    )


def result(score: float | None, **sealed: object) -> TrialResult:
    params = np.arange(3, dtype="<f4").tobytes()
    return TrialResult(released={"score": score, "settings": {"clip_norm": 0.2}, "params": params}, sealed=sealed)


def settle_all(vault: Vault, scores: list[float | None]) -> None:
    for index, score in enumerate(scores):
        vault.claim(index)
        vault.settle(index, result(score))


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return create(tmp_path)


# Sealing.


def test_what_was_sealed_comes_back_exactly(tmp_path):
    create(tmp_path).close()
    vault = Vault.open(tmp_path, "adult-clip")
    assert (vault.secret(), vault.meta("spec"), vault.meta("plan")) == (SECRET, SPEC, {"epsilon": 2.0})
    assert (vault.meta("fingerprint"), vault.meta("reservation"), vault.meta("sweep")) == ("f00d", "ab12", "adult-clip")
    assert [row.candidate for row in vault.rows()] == [{"clip.clip_norm": 0.1 + i / 7, "step.product": 3.0} for i in range(6)]
    assert {(row.state, row.stage, row.attempts, row.score) for row in vault.rows()} == {("sealed", "search", 0, None)}
    assert (vault.count(), vault.count("search"), vault.count("final")) == (6, 6, 0)
    assert vault.unsettled() == [0, 1, 2, 3, 4, 5]
    assert vault.phase == "sealed"
    assert vault.release_id is None


def test_a_taken_name_is_refused_and_the_vault_under_it_untouched(tmp_path):
    create(tmp_path, count=2)
    with pytest.raises(RequestError, match=r"^sweep adult-clip exists: sweeper resume adult-clip, or choose another name$"):
        create(tmp_path, count=3)
    assert Vault.open(tmp_path, "adult-clip").count() == 2
    assert sorted(p.name for p in (tmp_path / "vault").iterdir()) == ["adult-clip"]


def test_of_many_creators_one_wins_and_the_others_leave_nothing(tmp_path):
    outcomes: list[str] = []
    gate = threading.Barrier(8)

    def attempt(count: int) -> None:
        gate.wait()
        try:
            create(tmp_path, count=count)
            outcomes.append(str(count))
        except RequestError:
            outcomes.append("refused")

    threads = [threading.Thread(target=attempt, args=(count,)) for count in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("refused") == 7
    winner = next(o for o in outcomes if o != "refused")
    assert Vault.open(tmp_path, "adult-clip").count() == int(winner)
    assert sorted(p.name for p in (tmp_path / "vault").iterdir()) == ["adult-clip"]


def test_what_cannot_be_sealed_leaves_nothing(tmp_path):
    with pytest.raises(TypeError):
        Vault.create(
            tmp_path,
            "bad",
            spec={},
            plan={},
            fingerprint="",
            secret=SECRET,
            reservation=None,
            candidates=[{"x": 1.0}, {"x": object()}],
        )
    assert list((tmp_path / "vault").iterdir()) == []


def test_a_sweep_that_drew_no_candidate_is_sealed_and_released_without_a_winner(tmp_path):
    vault = create(tmp_path, count=0)
    assert (vault.count(), vault.unsettled(), vault.rows()) == (0, [], [])
    with pytest.raises(RequestError, match="no winner"):
        vault.winner(iter([0.0]))
    assert vault.release() == vault.release_id


@pytest.mark.parametrize("name", ["../adult", "a/b", ".hidden", ""])
def test_a_name_cannot_leave_the_vault(tmp_path, name):
    with pytest.raises(FieldError):
        create(tmp_path, name)
    with pytest.raises(FieldError):
        Vault.open(tmp_path, name)


def test_an_unknown_sweep_is_refused_with_the_closest_name(tmp_path):
    create(tmp_path)
    with pytest.raises(RequestError, match=r'no sweep "adult-clop" was run here; did you mean adult-clip\?'):
        Vault.open(tmp_path, "adult-clop")


def test_only_the_owner_may_read_it_whatever_the_umask(tmp_path):
    old = os.umask(0)
    try:
        vault = create(tmp_path / "home")
        vault.claim(0)
    finally:
        os.umask(old)
    places = {"home": 0o700, "home/vault": 0o700, "home/vault/adult-clip": 0o700, "home/vault/adult-clip/vault.db": 0o600}
    for place, mode in places.items():
        if place != "home":  # made by whoever owns the home; sweeper.store.home closes it
            assert stat.S_IMODE((tmp_path / place).stat().st_mode) == mode


def test_text_forms_show_no_secret_no_candidate_and_no_score(vault):
    settle_all(vault, [0.8125] * 6)
    shown = repr(vault) + str(vault) + repr(vault.rows()) + str(vault.row(0))
    for secret in ("0.8125", "clip_norm", "0.1", repr(SECRET)[2:-1], SECRET.hex()):
        assert secret not in shown
    assert repr(vault) == "Vault('adult-clip')"


def test_old_leftovers_of_a_killed_creation_are_removed_and_young_ones_kept(tmp_path):
    create(tmp_path, "first")
    old, young = tmp_path / "vault" / ".creating-old", tmp_path / "vault" / ".creating-young"
    for place in (old, young):
        place.mkdir()
        (place / "vault.db").write_bytes(b"secret")
    then = time.time() - vault_files.ABANDONED_SECONDS - 10
    os.utime(old, (then, then))
    create(tmp_path, "second")
    assert not old.exists()
    assert young.exists()
    assert vault_files.sweeps(tmp_path) == ["first", "second"]


# The life of a trial.


def test_a_trial_is_claimed_settled_and_read_back(vault):
    assert vault.claim(2).attempts == 1
    assert vault.claim(2).attempts == 2
    assert vault.phase == "running"
    assert vault.settle(2, result(0.75, seconds=1.5, error="none really", output="hello")) is True
    row = vault.row(2)
    assert (row.state, row.score, row.settings) == ("settled", 0.75, {"clip_norm": 0.2})
    assert np.frombuffer(row.params, "<f4").tolist() == [0.0, 1.0, 2.0]
    assert (row.sealed, row.error, row.output) == ({"seconds": 1.5}, "none really", "hello")
    assert row.claimed_at <= row.settled_at
    assert vault.unsettled() == [0, 1, 3, 4, 5]
    assert vault.rows(params=False)[2].params is None
    assert vault.rows()[2] == row


def test_the_first_settlement_counts_and_later_ones_change_nothing(vault):
    vault.claim(0)
    assert vault.settle(0, result(0.5)) is True
    first = vault.row(0)
    assert vault.settle(0, result(0.9)) is False
    assert vault.fail(0, "late", "") is False
    assert vault.row(0) == first
    with pytest.raises(RequestError, match="settled cannot run again"):
        vault.claim(0)


def test_a_failed_trial_is_never_drawn_again(vault):
    vault.claim(1)
    assert vault.fail(1, "ValueError: row 17 is odd", "printed \udc80") is True
    row = vault.row(1)
    assert (row.state, row.score, row.error, row.output) == ("failed", None, "ValueError: row 17 is odd", "printed \\udc80")
    assert vault.settle(1, result(0.9)) is False
    assert 1 not in vault.unsettled()
    with pytest.raises(RequestError, match="settled cannot run again"):
        vault.claim(1)


def test_a_settlement_without_a_claim_is_a_fault_of_the_caller(vault):
    for attempt in (lambda: vault.settle(0, result(0.5)), lambda: vault.fail(0, "", "")):
        with pytest.raises(ValueError, match="before it was claimed"):
            attempt()
    for attempt in (lambda: vault.claim(99), lambda: vault.settle(99, result(0.5))):
        with pytest.raises(ValueError, match="no such trial"):
            attempt()
    assert vault.unsettled() == [0, 1, 2, 3, 4, 5]


def test_no_diagnostic_and_no_score_stops_a_settlement(vault):
    scores = [np.float32(0.5), math.nan, math.inf, -math.inf, None, np.float64(0.25)]
    diagnostics = [{"loss": math.nan}, {"array": np.arange(2)}, {"nested": {(1, 2): 3}}, {"set": {1}}, {}, {1: "one"}]
    for index, (score, sealed) in enumerate(zip(scores, diagnostics, strict=True)):
        vault.claim(index)
        assert vault.settle(index, TrialResult(released={"score": score, "settings": None, "params": None}, sealed=sealed)) is True
    assert [row.score for row in vault.rows()] == [0.5, None, None, None, None, 0.25]
    assert math.isnan(vault.row(0).sealed["loss"])
    assert vault.row(1).sealed == {"array": "array([0, 1])"}
    assert "(1, 2)" in vault.row(2).sealed["unreadable"]


def test_params_must_be_whole_float32_numbers(vault):
    vault.claim(0)
    with pytest.raises(ValueError, match="float32"):
        vault.settle(0, TrialResult(released={"score": 1.0, "settings": {}, "params": b"12345"}))


def test_a_trial_may_be_added_for_a_later_stage(vault):
    index = vault.add({"clip.clip_norm": 0.3}, "final")
    assert index == 6
    assert (vault.count("search"), vault.count("final"), vault.row(6).stage) == (6, 1, "final")
    assert [row.index for row in vault.rows("final")] == [6]
    with pytest.raises(FieldError):
        vault.add({}, "finale")


def test_notes_may_be_kept_but_not_over_what_was_sealed(vault):
    vault.set_meta("winner", 3)
    vault.set_meta("winner", {"index": 4})
    assert vault.meta("winner") == {"index": 4}
    assert vault.meta("nothing") is None
    for key in ("phase", "spec", "fingerprint", "reservation", "release_id"):
        with pytest.raises(ValueError, match="not changed by hand"):
            vault.set_meta(key, "x")


def test_two_openers_settle_a_trial_once(tmp_path):
    create(tmp_path, count=40).close()
    wins: list[int] = []
    gate = threading.Barrier(2)

    def run() -> None:
        with Vault.open(tmp_path, "adult-clip") as own:
            for index in range(40):
                gate.wait()
                try:
                    own.claim(index)
                except RequestError:
                    continue
                if own.settle(index, result(index / 40)):
                    wins.append(index)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(wins) == list(range(40))
    assert Vault.open(tmp_path, "adult-clip").unsettled() == []


def test_threads_may_share_one_vault(tmp_path):
    vault = create(tmp_path, count=40)
    wins: list[int] = []

    def run(numbers: list[int]) -> None:
        for index in numbers:
            vault.claim(index)
            wins.extend([index] * vault.settle(index, result(0.5)))

    threads = [threading.Thread(target=run, args=([i for i in range(40) if i % 4 == k],)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(wins) == list(range(40))


# Phases.


def test_the_release_has_one_fresh_identity_and_ends_the_sweep(tmp_path, vault):
    vault.start()
    vault.start()
    assert vault.phase == "running"
    identity = vault.release()
    assert len(identity) == 32
    assert vault.release() == Vault.open(tmp_path, "adult-clip").release() == vault.release_id == identity
    assert vault.phase == "released"
    for attempt in (lambda: vault.claim(0), lambda: vault.add({}, "final")):
        with pytest.raises(RequestError, match="is released"):
            attempt()
    assert create(tmp_path, "other").release() != identity


def test_destroy_leaves_nothing_and_frees_the_name(tmp_path, vault):
    vault.destroy()
    assert list((tmp_path / "vault").iterdir()) == []
    with pytest.raises(RequestError):
        Vault.open(tmp_path, "adult-clip")
    with pytest.raises(sqlite3.ProgrammingError):
        vault.count()
    assert create(tmp_path, count=2).count() == 2


# The winner.


def ties(seed: int):
    return Streams(secret_from_seed(seed), -1).bits(TIES)


def test_the_best_finite_score_wins(tmp_path):
    scores = [0.5, math.nan, math.inf, 0.75, None, -math.inf]
    vault = create(tmp_path)
    settle_all(vault, scores)
    assert {vault.winner(ties(seed)) for seed in range(20)} == {3}


def test_negative_scores_still_beat_failures(tmp_path):
    vault = create(tmp_path, count=3)
    vault.claim(0)
    vault.fail(0, "failed", "")
    for index, score in ((1, math.nan), (2, -1e300)):
        vault.claim(index)
        vault.settle(index, result(score))
    assert {vault.winner(ties(seed)) for seed in range(20)} == {2}


def test_there_is_no_winner_before_all_runs_are_settled(tmp_path, vault):
    with pytest.raises(RequestError, match="not every run is settled"):
        vault.winner(ties(0), partial=True)
    for index in range(5):
        vault.claim(index)
        vault.settle(index, result(index / 10))
    with pytest.raises(RequestError, match="not every run is settled"):
        vault.winner(ties(0))
    assert vault.winner(ties(0), partial=True) == 4
    final = vault.add({}, "final")
    vault.claim(final)
    vault.settle(final, result(0.01))
    assert vault.winner(ties(0), stage="final") == final


@pytest.mark.parametrize(
    ("scores", "tied"),
    [([0.5, 0.7, 0.7, 0.1, 0.7, 0.7], [1, 2, 4, 5]), ([None, math.nan, math.inf, None], [0, 1, 2, 3])],
)
@pytest.mark.parametrize("source", ["bits", "uniforms"])
def test_equals_win_equally_often_also_when_all_failed(tmp_path, scores, tied, source):
    vault = create(tmp_path, count=len(scores))
    settle_all(vault, scores)
    stream = ties(11) if source == "bits" else ties(12).uniforms()
    wins = np.bincount([vault.winner(stream) for _ in range(2000)], minlength=len(scores))
    assert set(np.flatnonzero(wins)) == set(tied)
    even = np.full(4, 1 / 4)
    for wrong in (3 / 2, 2 / 3):
        uneven = even * np.array([wrong, 1, 1, 1])
        assert frequency_p_value(wins[tied], uneven / uneven.sum()) < REJECTED ** (1 / 2)
    assert frequency_p_value(wins[tied], even) > FALSE_ALARM


def test_the_same_stream_gives_the_same_winner(tmp_path):
    vault = create(tmp_path)
    settle_all(vault, [0.5] * 6)
    assert vault.winner(ties(5)) == vault.winner(ties(5))
    assert len({vault.winner(ties(seed)) for seed in range(40)}) > 3


# Death.

CHILD = """
import sys
from pathlib import Path
from sweeper.spec.result import TrialResult
from sweeper.store.vault import Vault

what, root, number = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
if what == "create":
    for i in range(10**6):
        name = f"s{number}-{i}"
        Vault.create(Path(root), name, spec={}, plan={}, fingerprint="f", secret=bytes(32), reservation=None,
                     candidates=[{"x": j / 7} for j in range(300)]).close()
        print(name, flush=True)
vault = Vault.open(Path(root), "adult-clip")
for index in vault.unsettled():
    vault.claim(index)
    print("claimed", index, flush=True)
    done = vault.settle(index, TrialResult(released={"score": index / 7, "settings": {"x": index}, "params": bytes(4000)}))
    print("settled", index, done, flush=True)
"""


def killed(what: str, root: Path, number: int, moments: random.Random) -> list[str]:
    """What a child said in whole lines before signal 9: some lines, and then up to twice as long as it takes for one more."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, what, str(root), str(number)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("go\n")
    process.stdin.flush()
    began, wanted = time.perf_counter(), moments.randint(1, 12)
    lines = [process.stdout.readline() for _ in range(wanted)]
    time.sleep(moments.uniform(0, 2) * (time.perf_counter() - began) / wanted)
    process.kill()
    lines += process.stdout.readlines()
    process.wait()
    return [line.rstrip("\n") for line in lines if line.endswith("\n")]


def test_kill_9_while_sealing_leaves_a_whole_vault_or_none(tmp_path):
    moments = random.Random(3)
    said = [name for number in range(12) for name in killed("create", tmp_path, number, moments)]
    found = vault_files.sweeps(tmp_path)
    assert set(said) <= set(found)
    assert len(said) >= 12
    assert len(found) <= len(said) + 12
    for name in found:
        with Vault.open(tmp_path, name) as vault:
            assert (vault.secret(), vault.count(), vault.phase) == (bytes(32), 300, "sealed")
            assert vault.row(299).candidate == {"x": 299 / 7}


def test_kill_9_while_settling_settles_every_trial_once(tmp_path):
    create(tmp_path, count=400).close()
    moments = random.Random(4)
    claims: list[int] = []
    settled: list[int] = []
    for number in range(12):
        lines = [line.split() for line in killed("settle", tmp_path, number, moments)]
        claims += [int(line[1]) for line in lines if line[0] == "claimed"]
        settled += [int(line[1]) for line in lines if line[0] == "settled" and line[2] == "True"]
        with Vault.open(tmp_path, "adult-clip") as vault:
            states = {row.index: row.state for row in vault.rows(params=False)}
            assert {states[index] for index in settled} <= {"settled"}
            assert all(states[index] != "sealed" for index in claims)
    assert len(settled) == len(set(settled)) >= 12
    vault = Vault.open(tmp_path, "adult-clip")
    for index in vault.unsettled():
        vault.claim(index)
        assert vault.settle(index, result(index / 7)) is True
    rows = vault.rows()
    assert {row.state for row in rows} == {"settled"}
    assert [row.score for row in rows] == [index / 7 for index in range(400)]
    assert sum(row.attempts for row in rows) - 400 <= 12  # each death cost one attempt at most


def test_a_claim_and_a_settlement_cost_a_millisecond_beside_the_disk(tmp_path):
    """Processor time of this process: how long the disk takes for its syncs depends on who else writes."""
    vault = create(tmp_path, count=200)
    answer = result(0.5)
    began = time.process_time()
    for index in range(200):
        vault.claim(index)
        vault.settle(index, answer)
    assert (time.process_time() - began) / 200 < 2e-3


# Arms and traces.


def test_arms_have_rows_counts_and_winners_of_their_own(tmp_path):
    candidates = [{"step.c": float(i)} for i in range(5)]
    given = {"spec": SPEC, "plan": {}, "fingerprint": "f", "secret": SECRET, "reservation": None, "candidates": candidates}
    vault = Vault.create(tmp_path, "armed", **given, arms=["a", "a", "b", "b", "b"])
    assert [row.arm for row in vault.rows()] == ["a", "a", "b", "b", "b"]
    assert [vault.count("search", arm) for arm in ("a", "b", "", None)] == [2, 3, 0, 5]
    settle_all(vault, [0.9, 0.1, 0.5])
    assert vault.winner(iter([0.0]), arm="a") == 0
    with pytest.raises(RequestError, match="no winner yet"):
        vault.winner(iter([0.0]), arm="b")
    with pytest.raises(RequestError, match="no winner yet"):
        vault.winner(iter([0.0]))
    for index, score in ((3, None), (4, 0.6)):
        vault.claim(index)
        vault.settle(index, result(score))
    assert vault.winner(iter([0.0]), arm="b") == 4
    assert vault.add(vault.row(4).candidate, "final", "b") == 5
    assert (vault.row(5).arm, vault.count("final", "a"), vault.count("final", "b")) == ("b", 0, 1)
    assert [row.index for row in vault.rows("search", arm="b")] == [2, 3, 4]
    with pytest.raises(ValueError, match="zip"):
        Vault.create(tmp_path, "short", **given, arms=["a"])


def test_a_trace_and_nested_diagnostics_come_back_exactly(vault):
    trace = {"step": [0.0, 1.0], "step_size": [0.1 + 0.2, 1e-300]}
    by_step = {"by_step": {"norm": [0.5, 2.0], "parts": [[1, 2], [3, [4]]]}}
    vault.claim(0)
    released = {"score": 0.5, "settings": {}, "trace": trace, "params": b""}
    vault.settle(0, TrialResult(released=released, sealed=by_step))
    row = vault.row(0)
    assert (row.trace, row.sealed) == (trace, by_step)
    assert "0.3" not in repr(row)  # a trace is shown by no accident
    vault.claim(1)
    vault.fail(1, "error", "")
    assert vault.row(1).trace is None


def test_a_vault_from_before_there_were_arms_opens_and_goes_on(tmp_path):
    """Two processes may find it so at once."""
    create(tmp_path, count=3).close()
    file = tmp_path / "vault" / "adult-clip" / "vault.db"
    with sqlite3.connect(file) as db:
        for name in ("arm", "trace"):
            db.execute(f"ALTER TABLE trials DROP COLUMN {name}")
    gate, opened = threading.Barrier(4), []

    def attempt() -> None:
        gate.wait()
        opened.append(Vault.open(tmp_path, "adult-clip"))

    threads = [threading.Thread(target=attempt) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 4
    settle_all(opened[0], [0.1, 0.3, 0.2])
    assert {(row.arm, row.trace) for row in opened[1].rows()} == {("", None)}
    assert opened[2].winner(iter([0.0]), arm="") == opened[3].winner(iter([0.0])) == 1
