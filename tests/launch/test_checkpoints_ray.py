"""Checkpoints through a real Ray: a killed worker's trial goes on; one that cannot be kept or loaded costs time, and no trial."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from halting_trainers import Halting
from tiny_sweeps import secret_drawing, spec_of, tiny

from sweeper import service
from sweeper.checks import FieldError
from sweeper.launch import checkpoints
from sweeper.launch.candidate import trial_spec
from sweeper.launch.checkpoints import SECONDS, TrialKeep
from sweeper.launch.driver import Driver
from sweeper.launch.open_data import OpenData
from sweeper.launch.tune import Stage, run_stage
from sweeper.launch.worker import Outcome, Worker, guarded
from sweeper.seeds import Streams, secret_from_seed
from sweeper.spec.result import TrialResult
from sweeper.store.home import Home
from sweeper.store.vault import Vault
from sweeper.store.vault_rows import SETTLED

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("ray_session")]

SECRET, SIGMA, STEPS = secret_from_seed("kept"), 0.9, 20
CANDIDATE = {"clip.clip_norm": 0.3, "step.c": 2.0}
STREAMS = Streams(SECRET, 0)
TRIAL = trial_spec(spec_of(), SIGMA, 0, CANDIDATE)


@pytest.fixture
def vault(home: Home) -> Iterator[Vault]:
    with Vault.create(
        home.path, "kept", spec=tiny(), plan={}, fingerprint="f", secret=SECRET, reservation="r", candidates=[CANDIDATE]
    ) as made:
        yield made


def stage(vault: Vault, adult: OpenData, **trainer: Any) -> Stage:
    import dataclasses

    spec = spec_of()
    if trainer:
        spec = dataclasses.replace(spec, trainer=Halting(batch_size=64, steps=STEPS, **trainer))
    return Stage(spec=spec, noises={"": SIGMA}, data=spec.data, open_data=adult, indices=tuple(vault.unsettled()))


def test_a_killed_workers_trial_goes_on_where_it_was(
    vault: Vault, home: Home, adult: OpenData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECONDS, "0")  # of this process alone: Ray's workers were started before
    diary, folder, seen = tmp_path / "diary", vault.directory / "checkpoints", list[tuple[int, int, list[str]]]()

    def kill() -> None:
        while not (diary.exists() and diary.read_text().endswith(" 12\n")):
            time.sleep(0.02)
        kept = sorted(folder.iterdir())
        seen.append((stat.S_IMODE(folder.stat().st_mode), stat.S_IMODE(kept[0].stat().st_mode), [path.name for path in kept]))
        os.kill(int(diary.read_text().split()[0]), signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    assert run_stage(vault, home.path, stage(vault, adult, diary=str(diary)))
    killer.join()
    assert seen == [(0o700, 0o600, ["0"])]
    lines = [tuple(map(int, line.split())) for line in diary.read_text().splitlines()]
    (first, last), row = dict.fromkeys(pid for pid, _ in lines), vault.row(0)
    assert lines == [(first, done) for done in range(1, 13)] + [(last, done) for done in range(13, STEPS + 1)]
    assert (row.state, row.attempts) == (SETTLED, 2)
    calm = Worker(adult).run(TRIAL, STREAMS)
    assert {"score": row.score, "settings": row.settings, "trace": row.trace, "params": row.params} == calm.released
    assert row.sealed is not None
    assert row.sealed["resumed_from"] == 12
    assert row.sealed["by_step"] == calm.sealed["by_step"]
    assert not list(folder.iterdir())


@pytest.mark.parametrize("given", ["soon", "nan", "-1"])
def test_a_time_between_checkpoints_that_is_none_is_refused_before_anything_runs(
    vault: Vault, home: Home, adult: OpenData, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv(SECONDS, given)
    with pytest.raises(FieldError, match=f"^{SECONDS} = "):
        run_stage(vault, home.path, stage(vault, adult))
    assert vault.row(0).attempts == 0


def attempt(adult: OpenData, found: bytes | None, store: Any, seconds: float = 0.0) -> Outcome:
    keep = TrialKeep(streams=STREAMS, reference="r", found=found, store=store, seconds=seconds)
    return guarded(Worker(adult), TRIAL, STREAMS, keep)


def kept_at(adult: OpenData, step: int) -> bytes:
    states: list[bytes] = []
    attempt(adult, None, states.append)
    return states[step - 1]


def calm(outcome: Outcome, adult: OpenData) -> Any:
    """The sealed part of a result that is, in what it releases, the undisturbed one."""
    assert outcome.error == ""
    assert outcome.result is not None
    assert outcome.result.released == Worker(adult).run(TRIAL, STREAMS).released
    return outcome.result.sealed


def test_a_full_disk_under_the_vault_fails_no_trial(adult: OpenData) -> None:
    def full(_: bytes) -> None:
        raise OSError(28, "No space left on device")

    outcome = attempt(adult, None, full)
    assert calm(outcome, adult)["resumed_from"] == 0
    assert outcome.output == "a checkpoint could not be kept: OSError\n" * STEPS


def test_a_kept_state_is_what_a_trial_goes_on_from(adult: OpenData) -> None:
    assert calm(attempt(adult, kept_at(adult, 7), print, seconds=1e9), adult)["resumed_from"] == 7


def test_a_changed_one_is_refused_and_the_trial_starts_again(adult: OpenData) -> None:
    state = bytearray(kept_at(adult, 7))
    state[len(state) // 2] ^= 1
    outcome = attempt(adult, bytes(state), print, seconds=1e9)
    assert calm(outcome, adult)["resumed_from"] == 0
    assert outcome.output.startswith("a checkpoint in the vault was not saved by this trial under this charge")


def test_one_of_other_versions_is_refused_and_the_trial_starts_again(adult: OpenData, monkeypatch: pytest.MonkeyPatch) -> None:
    state = kept_at(adult, 7)
    monkeypatch.setattr(checkpoints, "made_with", lambda: "sweeper 0.0.1 python 3.11 torch 2.9 numpy 2.0 opacus 1.6")
    outcome = attempt(adult, state, print, seconds=1e9)
    assert calm(outcome, adult)["resumed_from"] == 0
    assert "with these versions of Python and its packages" in outcome.output


def test_what_a_killed_writer_left_goes_with_the_settlement(vault: Vault) -> None:
    folder = vault.directory / "checkpoints"
    vault.claim(0)
    vault.keep_checkpoint(0, b"a state")
    program = (
        "import os, signal, sys; from pathlib import Path; from sweeper.store.vault_files import write_kept; "
        "os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL); write_kept(Path(sys.argv[1]), 0, b'iterates')"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(vault.directory)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(list(folder.iterdir())) == 2
    assert vault.checkpoint(0) == b"a state"
    vault.settle(0, TrialResult(released={"score": 0.5}, sealed={}))
    assert not list(folder.iterdir())


def test_a_state_that_the_disk_does_not_give_back_is_none(vault: Vault) -> None:
    vault.claim(0)
    (vault.directory / "checkpoints" / "0").mkdir(parents=True)  # reading it is an OSError
    assert vault.checkpoint(0) is None


def test_the_analyst_sees_nothing_of_checkpoints(tmp_path: Path, data_cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same sweep twice, once with a checkpoint at every step: the same files, tables, and lines but for the clock."""
    monkeypatch.setenv("SWEEPER_DATA", f"{data_cache}/data")
    spec, wrote, seen = spec_of("seen"), list[int](), {}
    for seconds in ("1e9", "0"):
        monkeypatch.setenv(SECONDS, seconds)
        home, said = Home(tmp_path / f"home{seconds}").ensure(), list[str]()
        service.set_budget("adult", 1000.0, 1e-4, home=home)
        Driver(home, said.append).run(service.plan(spec), secret_drawing(2, spec), "test")
        wrote.append((home.path / "vault" / "seen" / "checkpoints").exists())
        seen[seconds] = (sorted({re.sub(r" +\d+ s ", " # s ", masked(line)) for line in said}), files(home), tables(home))
    assert wrote == [False, True]
    for without, with_them in zip(seen["1e9"], seen["0"], strict=True):
        assert without == with_them
    assert len(seen["0"][1]) > 5
    assert len(seen["0"][2]["runs"]) == 2
    (home.path / "state").write_bytes(b"7")  # the comparison sees a file, and a number that changed
    with sqlite3.connect(home.path / "mlflow.db") as db:
        db.execute("UPDATE metrics SET value = value * 1.0000001 WHERE key = 'epsilon'")
    assert files(home) != seen["1e9"][1]
    assert tables(home) != seen["1e9"][2]


def masked(text: str) -> str:
    return re.sub(r"\d{13}|home[\d.e]+|[0-9a-f]{64}|[0-9a-f]{32}|(?<!\.)\b[0-9a-f]{16}\b", "#", text)


def files(home: Home) -> list[str]:
    inside = [path.relative_to(home.path) for path in home.path.rglob("*") if path.is_file()]
    return sorted(masked(str(path)) for path in inside if path.parts[0] != "vault")


def tables(home: Home) -> dict[str, list[str]]:
    with sqlite3.connect(home.path / "mlflow.db") as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: sorted(masked(repr(row)) for row in db.execute(f'SELECT * FROM "{name}"')) for name in names}
