"""What the doctor says of machines, homes and packages that are not as this one: real files, folders and metadata."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from sweeper.checks import FieldError, RequestError
from sweeper.doctor import data_cache, finding, machine, place, versions
from sweeper.doctor.finding import FAIL, OK, WARN, refused
from sweeper.store.home import Home


def words(verdicts) -> list[str]:
    return [verdict.word for verdict in verdicts]


def test_a_container_with_fewer_processors_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 64)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: range(64))
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    assert words(machine.cpus()) == [OK]
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert machine.usable_cpus() == 64
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    assert machine.usable_cpus() == 2.5
    (verdict,) = machine.cpus()
    assert verdict.word == WARN
    assert "64 counted" in verdict.text
    assert "max_concurrent: 2" in verdict.fix


@pytest.mark.parametrize(("given", "word"), [(None, OK), ("1", OK), ("500", WARN), ("many", WARN), ("0", WARN)])
def test_threads(given, word, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert words(machine.threads()) == [word]


def test_free_memory_is_the_machines_or_what_a_container_leaves(tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text("MemTotal:  100 kB\nMemAvailable:   5000000 kB\n")
    assert machine.free_memory(tmp_path / "meminfo", tmp_path) == 5_000_000 * 1024
    (tmp_path / "memory.max").write_text("3000000000\n")
    (tmp_path / "memory.current").write_text("1200000000\n")
    assert machine.free_memory(tmp_path / "meminfo", tmp_path) == 1_800_000_000
    assert machine.free_memory(tmp_path / "no", tmp_path / "no") is None
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    assert words(machine.memory()) == [WARN]


def test_shared_memory_that_is_missing_or_small(tmp_path, monkeypatch):
    assert words(machine.shared_memory(tmp_path / "none")) == [WARN]
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage._replace(free=64_000_000))
    (verdict,) = machine.shared_memory(tmp_path)
    assert verdict.word == WARN
    assert "--shm-size" in verdict.fix


def test_a_temporary_folder_with_a_long_name_is_not_rays(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    (verdict,) = machine.temporary_folder()
    assert "Ray uses /tmp" in verdict.text
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    usage = shutil.disk_usage("/tmp")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage._replace(used=96, free=4))
    assert words(machine.temporary_folder()) == [WARN]


def test_a_home_that_is_not_there_is_not_made(tmp_path):
    home = Home(tmp_path / "a" / "b")
    assert words([*place.writable(home), *place.mode(home), *place.disk(home)]) == [OK] * 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["file/home", "/proc/home"])
def test_a_home_that_cannot_be_written(where, tmp_path):
    (tmp_path / "file").write_text("")
    (verdict,) = place.writable(Home(tmp_path / where))
    assert verdict.word == FAIL
    assert "SWEEPER_HOME" in verdict.fix


def test_a_home_that_is_written_is_left_as_it_was(tmp_path):
    home = Home(tmp_path / "home").ensure()
    before = sorted(home.path.rglob("*"))
    assert words([*place.writable(home), *place.mode(home)]) == [OK] * 2
    assert sorted(home.path.rglob("*")) == before


@pytest.mark.parametrize(("mode", "word"), [(0o700, OK), (0o750, WARN), (0o755, WARN), (0o770, FAIL), (0o707, FAIL)])
def test_modes(mode, word, tmp_path):
    home = Home(tmp_path / "home").ensure()
    home.path.chmod(mode)
    (verdict,) = place.mode(home)
    assert verdict.word == word
    assert (f"chmod 700 {home.path}" == verdict.fix) is (word != OK)
    home.path.chmod(0o700)
    home.vault.chmod(0o750)
    assert words(place.mode(home)) == [OK, FAIL]


@pytest.mark.parametrize(("free", "word"), [(10e9, OK), (1e9, WARN), (5e7, FAIL)])
def test_free_disk(free, word, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(place.shutil, "disk_usage", lambda _: usage._replace(free=int(free)))
    assert words(place.disk(Home(tmp_path))) == [word]


def installed(folder: Path, name: str, version: str, *lines: str) -> None:
    """Metadata that Python finds before what is really installed."""
    place = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines, ""]))


@pytest.fixture
def site(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def test_the_packages_of_this_environment_are_right():
    for name in versions.LOADED:
        assert words(versions.named(name)) == [OK]
    assert words([*versions.python(), *versions.others(), *versions.extras(), *versions.cuda()]) == [OK] * 4


def test_an_old_package_is_named_with_the_bound_that_the_metadata_states(site):
    installed(site, "torch", "2.1.0")
    (verdict,) = versions.named("torch")
    assert verdict.word == FAIL
    assert verdict.text.startswith("2.1.0 is installed")
    bound = next(str(r.specifier) for r in versions.required() if r.name == "torch")
    assert bound in verdict.text
    assert verdict.fix == f"pip install 'torch{bound}'"


def test_bounds_are_read_and_not_kept_twice(site):
    installed(site, "sweeper", "0.1.0", "Requires-Python: >=9.1", "Requires-Dist: numpy>=99", "Requires-Dist: nowhere-at-all>=1")
    assert [v.text.split()[0] for v in versions.others() if v.word == FAIL] == ["numpy", "nowhere-at-all"]
    (python,) = versions.python()
    assert (python.word, ">=9.1" in python.text) == (FAIL, True)
    assert words(versions.named("torch")) == [WARN]


def test_what_an_extra_asks_for_is_asked_for(site):
    asked = 'Requires-Dist: nowhere-at-all; extra == "tune"'
    installed(site, "ray", "2.60.0", "Provides-Extra: tune", asked)
    (verdict,) = versions.named("ray")
    assert verdict.word == FAIL
    assert "lacks nowhere-at-all of its extra tune" in verdict.text


def test_a_package_that_does_not_load_fails_whatever_its_version(monkeypatch):
    monkeypatch.setitem(versions.LOADED, "opacus", "sweeper.no_such_module")
    (verdict,) = versions.named("opacus")
    assert verdict.word == FAIL
    assert "does not load (ModuleNotFoundError" in verdict.text
    assert "--force-reinstall 'opacus" in verdict.fix


def test_a_torn_file_is_found_by_its_hash_and_a_missing_one_is_no_fault(tmp_path, data_cache, monkeypatch):
    monkeypatch.delenv("SWEEPER_DATA", raising=False)
    home = Home(tmp_path / "home").ensure()
    (verdict,) = data_cache_of(home)
    assert (verdict.word, "nothing fetched yet" in verdict.text) == (OK, True)
    kept = home.cache / "data" / "adult"
    kept.mkdir(parents=True)
    whole = (Path(data_cache) / "data" / "adult" / "adult.data").read_bytes()
    (kept / "adult.data").write_bytes(whole)
    (verdict,) = data_cache_of(home)
    assert (verdict.word, verdict.text) == (OK, "whole: adult")
    (kept / "adult.data").write_bytes(whole[:-1000])
    (verdict,) = data_cache_of(home)
    assert verdict.word == FAIL
    assert str(kept / "adult.data") in verdict.text
    assert verdict.fix == "Delete it and run: sweeper data fetch adult"


def data_cache_of(home: Home):
    return list(data_cache.files(home))


def test_a_file_too_large_is_not_read(tmp_path, data_cache, monkeypatch):
    monkeypatch.delenv("SWEEPER_DATA", raising=False)
    home = Home(tmp_path / "home").ensure()
    kept = home.cache / "data" / "adult"
    kept.mkdir(parents=True)
    with (kept / "adult.data").open("wb") as file:
        file.truncate(300_000_000)  # a hole: takes no room
    (verdict,) = data_cache_of(home)
    assert (verdict.word, "too large to be read now: adult" in verdict.text) == (OK, True)


SECRETS = ("http://user:p%40ss%2Fword@host:1/x", "postgresql://user:p@ss/word@host/db", "postgresql://h/db?password=p%40ss%2Fword")


@pytest.mark.parametrize("address", SECRETS)
def test_no_way_of_writing_a_password_is_shown(address, monkeypatch):
    monkeypatch.setenv("SWEEPER_LEDGER_URI", address)
    for text in (f"no answer from {address}", "user p@ss/word", "p%40ss%2Fword", "p%40ss/word"):
        shown = finding.hidden(text)
        assert "p@ss" not in shown
        assert "p%40ss%2F" not in shown
    assert "p@ss" not in str(refused(RequestError(f"{address} is down. Start {address}")))


def test_the_way_out_of_an_error_is_its_fix():
    assert refused(FieldError("a.b", 2, "must be 1", "Set 1.")) == (FAIL, "a.b = 2 must be 1", "Set 1.")
    assert refused(RequestError("x.yaml: a = 2.5 must be 1. Set 1. Or 2")) == (FAIL, "x.yaml: a = 2.5 must be 1", "Set 1. Or 2")
    assert os.environ.get("RAY_ADDRESS") is None
