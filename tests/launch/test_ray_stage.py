"""Sealed rows through a real Ray Tune: settled once each, with the bits a laptop would give, whatever happens to workers."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from bad_trainers import POISON, Failing, Slow
from tiny_sweeps import secret_drawing, spec_of, tiny

from sweeper import catalog
from sweeper.checks import RequestError
from sweeper.launch import tune as tune_module
from sweeper.launch.candidate import trial_spec
from sweeper.launch.open_data import OpenData
from sweeper.launch.tune import Stage, run_stage
from sweeper.launch.worker import Worker
from sweeper.seeds import Streams, secret_from_seed
from sweeper.spec.sweep import SweepSpec
from sweeper.store.home import Home
from sweeper.store.vault import Vault
from sweeper.store.vault_rows import CLAIMED, FAILED, SETTLED

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("ray_session")]

SECRET, SIGMA = secret_from_seed("a stage"), 0.9
CANDIDATES = [{"clip.clip_norm": norm, "step.c": 2.0} for norm in (0.1, 0.2, 0.4, 0.8)]


@pytest.fixture
def vault(home: Home) -> Iterator[Vault]:
    with Vault.create(
        home.path, "stage", spec=tiny(), plan={}, fingerprint="f", secret=SECRET, reservation=None, candidates=CANDIDATES
    ) as made:
        yield made


def run(vault: Vault, home: Home, adult: OpenData, trainer: Any = None, progress: Any = None, **resources: Any) -> bool:
    spec = sweep(trainer, **resources)
    stage = Stage(spec=spec, noises={"": SIGMA}, data=spec.data, open_data=adult, indices=tuple(vault.unsettled()))
    return run_stage(vault, home.path, stage, progress)


def sweep(trainer: Any = None, **resources: Any) -> SweepSpec:
    import dataclasses

    spec = spec_of(resources={"cpu": 1, **resources})
    return spec if trainer is None else dataclasses.replace(spec, trainer=trainer)


def alone(adult: OpenData, index: int) -> Any:
    """What the trial of a row gives in this process, without Ray."""
    return Worker(adult).run(trial_spec(spec_of(), SIGMA, index, CANDIDATES[index]), Streams(SECRET, index)).released


def bits(row: Any) -> Any:
    return {"score": row.score, "settings": row.settings, "trace": row.trace, "params": row.params}


def test_every_row_is_settled_once_with_the_bits_of_a_laptop(
    vault: Vault, home: Home, adult: OpenData, capfd: pytest.CaptureFixture[str]
) -> None:
    heard: list[int] = []
    assert run(vault, home, adult, progress=heard.append)
    rows = vault.rows()
    assert [(row.state, row.attempts) for row in rows] == [(SETTLED, 1)] * 4
    assert [bits(row) for row in rows] == [alone(adult, index) for index in range(4)]
    assert set(heard) <= set(range(5))
    assert not (vault.directory / "tune").exists()  # Tune's own records know K
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_a_failing_trial_counts_once_and_speaks_in_the_vault_only(
    vault: Vault, home: Home, adult: OpenData, how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(vault, home, adult, Failing(batch_size=64, steps=20, how=how, below=0.3))
    rows = vault.rows()
    assert [(row.state, row.attempts) for row in rows] == [(FAILED, 1)] * 2 + [(SETTLED, 1)] * 2
    for row in rows[:2]:
        assert row.score is None
        assert "Traceback" in str(row.error)
        assert POISON in str(row.error)
        assert row.output == f"printed {POISON}\ncomplained {POISON}\n"
    assert [bits(row) for row in rows[2:]] == [alone(adult, index) for index in (2, 3)]
    assert vault.winner(iter([0.0])) in (2, 3)
    assert capfd.readouterr() == ("", "")  # and the session's logs: see the fixture


def test_a_diverged_trial_is_settled_without_a_score(vault: Vault, home: Home, adult: OpenData) -> None:
    assert run(vault, home, adult, Failing(batch_size=64, steps=20, how="diverge", below=0.5))
    assert [row.score is None for row in vault.rows()] == [True, True, True, False]
    assert vault.winner(iter([0.0])) == 3


def test_a_killed_worker_is_replaced_and_replays_its_streams(
    vault: Vault, home: Home, adult: OpenData, capfd: pytest.CaptureFixture[str]
) -> None:
    with killing(vault, times=1) as killed:
        assert run(vault, home, adult, Slow(batch_size=64, steps=20, seconds=0.6), max_concurrent=1)
    assert len(killed) == 1
    rows = vault.rows()
    assert [row.state for row in rows] == [SETTLED] * 4
    assert sorted(row.attempts for row in rows) == [1, 1, 1, 2]
    assert [bits(row) for row in rows] == [alone(adult, index) for index in range(4)]
    assert capfd.readouterr() == ("", "")


def test_a_trial_whose_workers_keep_dying_is_left_for_resume(
    vault: Vault, home: Home, adult: OpenData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_module, "ATTEMPTS", 1)
    with killing(vault, times=1):
        assert not run(vault, home, adult, Slow(batch_size=64, steps=20, seconds=0.6), max_concurrent=1)
    lost = [row for row in vault.rows() if row.state == CLAIMED]
    assert len(lost) == 1
    before = {row.index: (row.settled_at, bits(row)) for row in vault.rows() if row.state == SETTLED}
    assert run(vault, home, adult)  # what resume does
    after = {row.index: (row.settled_at, bits(row)) for row in vault.rows()}
    assert {index: after[index] for index in before} == before
    assert vault.row(lost[0].index).attempts == 2
    assert bits(vault.row(lost[0].index)) == alone(adult, lost[0].index)


def sharing(monkeypatch: pytest.MonkeyPatch, share: int) -> list[list[tuple[int, ...]]]:
    """Makes Tune trials of so many candidates each; the rows of each as it was handed out."""
    handed: list[list[tuple[int, ...]]] = []

    class Watched(tune_module.Rows):
        def suggest(self, trial_id: str) -> Any:
            found = super().suggest(trial_id)
            if isinstance(found, dict):
                handed.append(found["rows"])
            return found

    monkeypatch.setattr(tune_module, "Rows", Watched)
    monkeypatch.setattr(tune_module, "share_of", lambda rows, concurrent: share)
    return handed


def test_a_share_of_the_candidates_loses_only_what_ran_when_its_worker_died(
    vault: Vault, home: Home, adult: OpenData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four candidates in two Tune trials. The killed worker's candidate replays; what its share had settled is not run again."""
    handed = sharing(monkeypatch, 2)
    with killing(vault, times=1) as killed:
        assert run(vault, home, adult, Slow(batch_size=64, steps=20, seconds=0.6), max_concurrent=1)
    assert (handed, len(killed)) == ([[(0,), (1,)], [(2,), (3,)]], 1)
    rows = vault.rows()
    assert [row.state for row in rows] == [SETTLED] * 4
    assert sorted(row.attempts for row in rows) == [1, 1, 1, 2]
    assert [bits(row) for row in rows] == [alone(adult, index) for index in range(4)]


def test_candidates_behind_one_that_is_lost_too_often_run_all_the_same(
    vault: Vault, home: Home, adult: OpenData, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed = sharing(monkeypatch, 4)
    monkeypatch.setattr(tune_module, "ATTEMPTS", 1)
    with killing(vault, times=1):
        assert not run(vault, home, adult, Slow(batch_size=64, steps=20, seconds=0.6), max_concurrent=1)
    states = [row.state for row in vault.rows()]
    lost = states.index(CLAIMED)
    assert states == [SETTLED] * lost + [CLAIMED] + [SETTLED] * (3 - lost)
    assert handed == [[(0,), (1,), (2,), (3,)], [(row,) for row in range(lost + 1, 4)]]


@pytest.mark.parametrize(
    ("rows", "concurrent", "share"),
    [(1, 1, 1), (256, 2, 1), (257, 2, 2), (10_000, 2, 40), (10_000, 100, 5), (10_000, 1000, 1), (100, 8, 1)],
)
def test_a_large_sweep_is_few_tune_trials_and_never_few_for_a_worker(rows: int, concurrent: int, share: int) -> None:
    """10,000 / 256 rounded up is 40; of 100 workers each has 20 shares of 5 at least."""
    assert tune_module.share_of(rows, concurrent) == share


@pytest.mark.parametrize("resources", [{"cpu": 999.0}, {"gpu": 64.0}])
def test_what_no_node_can_hold_is_refused_at_once(vault: Vault, home: Home, adult: OpenData, resources: dict[str, float]) -> None:
    started = time.monotonic()
    with pytest.raises(RequestError, match=r"a trial asks for .* and this machine has .* CPU and .* GPU\. Lower resources"):
        run(vault, home, adult, **resources)
    assert time.monotonic() - started < 5
    assert [row.attempts for row in vault.rows()] == [0] * 4


def test_one_trial_at_a_time_if_the_sweep_says_so(vault: Vault, home: Home, adult: OpenData) -> None:
    assert run(vault, home, adult, max_concurrent=1)
    rows = sorted(vault.rows(), key=lambda row: str(row.claimed_at))
    assert all(str(a.settled_at) <= str(b.claimed_at) for a, b in itertools.pairwise(rows))


def test_the_secrets_of_the_suite_draw_what_they_should() -> None:
    spec = catalog.sweep_from_dict(tiny())
    assert secret_drawing(2, spec) != secret_drawing(30, spec)


@contextmanager
def killing(vault: Vault, times: int) -> Iterator[list[int]]:
    """Kill -9 a worker that has claimed a row, so many times; the ids of the killed processes."""
    killed: list[int] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.05) and len(killed) < times:
            if any(row.state == CLAIMED for row in vault.rows(params=False)):
                workers = [
                    p for p in psutil.Process().children(recursive=True) if _name(p).startswith("ray::ResourceTrainable.train")
                ]
                for worker in workers[:1]:
                    worker.kill()
                    killed.append(worker.pid)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_the_folder_of_a_killed_driver_is_removed_by_the_next(tmp_path: Path) -> None:
    from sweeper.launch.cluster import _remove

    left, foreign = tmp_path / "swpabc", tmp_path / "precious"
    for folder in (left, foreign):
        folder.mkdir()
        (folder / "file").write_text("x")
    for folder, stays in ((left, False), (foreign, True)):
        link = tmp_path / "ray"
        link.symlink_to(folder)
        _remove(link)
        assert not link.is_symlink()
        assert folder.exists() is stays
