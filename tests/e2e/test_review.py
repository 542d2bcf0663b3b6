"""What a hostile reader found, each as the user would meet it, without Ray."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sweeper import cli, service
from sweeper.catalog import load_spec, sweep_from_dict
from sweeper.checks import RequestError
from sweeper.clip.fixed import FixedClip
from sweeper.data.adult import Adult
from sweeper.launch.driver import Driver
from sweeper.launch.outcome import silent
from sweeper.launch.release import score_noise
from sweeper.privacy.events import Gaussian
from sweeper.privacy.guarantee import Guarantee
from sweeper.privacy.ledger import Ledger
from sweeper.spec.sweep import DataSpec
from sweeper.store.home import Home

JOB = Path(__file__).resolve().parents[2] / "jobs" / "adult_logistic_clip.yaml"


def home_with(tmp_path: Path, content: bytes) -> Home:
    home = Home(tmp_path / "home").ensure()
    place = home.cache / "data" / "adult"
    place.mkdir(parents=True)
    (place / "adult.data").write_bytes(content)
    return home


def test_a_file_charged_as_private_is_not_published_for_nothing(tmp_path):
    home = home_with(tmp_path, b"39, State-gov\n")
    ledger = Ledger(home.ledger)
    ledger.set_budget("adult", 8.0, 1e-4, "ann")
    public, private = (DataSpec(source=Adult(), public=flag) for flag in (True, False))
    driver = Driver(home, silent)
    driver._admit(public, "adult")  # never charged: a benchmark
    driver._admit(private, "adult")
    driver._admit(public, "adult")  # known by its digest, and nothing was asked of it yet
    ledger.reserve("adult", "s", "f", Gaussian(10.0), Guarantee(epsilon=0.5, delta=1e-5), "ann")
    with pytest.raises(RequestError, match="charged as private under"):
        driver._admit(public, "other")


def test_a_file_that_cannot_be_unpacked_is_refused_in_words(tmp_path):
    home = home_with(tmp_path, b"\x1f\x8bgarbage")
    Ledger(home.ledger).set_budget("adult", 8.0, 1e-4, "ann")
    with pytest.raises(RequestError, match="cannot be read or unpacked"):
        Driver(home, silent)._admit(DataSpec(source=Adult()), "adult")


def test_the_digest_of_a_users_own_file_is_never_shown(tmp_path):
    home = home_with(tmp_path, b"39, State-gov\n")
    with pytest.raises(RequestError, match="not the published file") as caught:
        Adult().fetch(str(home.cache))
    assert Adult().digest(str(home.cache)) not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("holdout: 0.2", "holdout: 1e-9", "data.holdout"),
        ("batch_size: 256", "batch_size: 30000", "trainer.batch_size"),
        ("epsilon: 2.0", "epsilon: 0.01", "privacy.epsilon"),
        ("epsilon: 0.1}", "epsilon: 1e-17}", "score.epsilon"),
        ("[0.05, 2.0]", "[1e-44, 2.0]", "space.clip.clip_norm"),
    ],
)
def test_what_planning_refuses_names_the_file_too(tmp_path, monkeypatch, capsys, old, new, field):
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    file = tmp_path / "sweep.yaml"
    file.write_text(JOB.read_text().replace(old, new))
    assert cli.main(["plan", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{file}: {field}")
    assert said.count("\n") == 1


def test_score_noise_is_right_where_floats_are_coarse():
    assert score_noise(1e-6, 100) == pytest.approx(2**0.5 * 1e6 / 100, rel=1e-5)
    sweep = service.plan(load_spec(JOB)).to_dict()["spec"]
    with pytest.raises(RequestError):
        sweep_from_dict({**sweep, "score": {"epsilon": 1e-9}})


def test_a_clip_norm_below_floats_is_refused():
    with pytest.raises(RequestError, match="clip_norm"):
        FixedClip(clip_norm=1e-44)


@pytest.mark.parametrize(("epsilon", "code"), [("1e-20", 2), ("1e40", 2), ("1e-6", 0), ("1e6", 0)])
def test_extreme_budgets(tmp_path, monkeypatch, capsys, epsilon, code):
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    assert cli.main(["ledger", "set-budget", "adult", "--epsilon", epsilon]) == code
    assert ("epsilon" in capsys.readouterr().err) is bool(code)


def test_a_budgets_delta_has_a_default(tmp_path, monkeypatch):
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    assert cli.main(["ledger", "set-budget", "adult", "--epsilon", "8"]) == 0
    budget = Ledger(Home().ledger).budget("adult")
    assert budget is not None
    assert budget.delta == 1e-4


def test_the_home_is_closed_whoever_makes_it(tmp_path):
    env = {**os.environ, "SWEEPER_HOME": str(tmp_path / "home")}
    subprocess.run([sys.executable, "-m", "sweeper.cli", "plan", str(JOB)], env=env, check=True, capture_output=True)
    assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o700


def test_a_pipe_is_no_sweep_and_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RequestError, match="not a regular file"):
        load_spec(tmp_path / "pipe")
