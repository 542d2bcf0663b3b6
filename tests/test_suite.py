"""The suite watches itself: skips need reasons, tests may not vanish, every kind stands in its contract suite."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sweeper import catalog

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("def test_a():\n    assert True", 0),
        ("import pytest\ndef test_a():\n    pytest.skip('needs a GPU and there is none')", 0),
        ("import pytest\n@pytest.mark.skip\ndef test_a():\n    assert True", 1),
        ("import pytest\ndef test_a():\n    pytest.skip('todo')", 1),
        ("def test_a():\n    assert False", 1),
    ],
)
def test_a_skip_without_a_reason_fails_the_run(tmp_path, body, code):
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(body)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "test_it.py")]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == code


def test_a_suite_that_lost_tests_fails(tmp_path):
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tests / "test_it.py").write_text("def test_a():\n    assert True")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    for floor, code in (("1", 0), ("2", 4)):
        (tests / "FLOOR").write_text(floor)
        assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == code


def test_two_processes_keep_the_same_rules(tmp_path):
    """`make test` runs the suite in two processes: a silent skip, or a suite that lost tests, fails there too."""
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "tests"]
    bodies = {"def test_a():\n    assert True": ("1", True), "import pytest\ndef test_a():\n    pytest.skip('todo')": ("1", False)}
    for body, (floor, passes) in [*bodies.items(), ("def test_a():\n    assert True", ("2", False))]:
        (tests / "test_it.py").write_text(body)
        (tests / "FLOOR").write_text(floor)
        assert (subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0) is passes


def test_a_file_of_tests_runs_in_one_process(tmp_path):
    """And all of tests/e2e in one, whose sweeps other tests of it look at again."""
    tests = tmp_path / "tests"
    (tests / "e2e").mkdir(parents=True)
    (tests / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    body = "import os, pathlib, pytest\n@pytest.mark.parametrize('i', range(5))\ndef test_it(i):\n"
    body += "    with open(pathlib.Path(__file__).parents[{}] / 'seen', 'a') as f:\n"
    body += "        f.write(f'{{os.environ[\"PYTEST_XDIST_WORKER\"]}} {}\\n')\n"
    for name, up, unit in (("e2e/test_a.py", 2, "e2e"), ("e2e/test_b.py", 2, "e2e"), ("test_c.py", 1, "c"), ("test_d.py", 1, "d")):
        (tests / name).write_text(body.format(up, unit))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "tests"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    seen = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    assert len(seen) == 20
    units = {unit: {worker for worker, its in seen if its == unit} for unit in ("e2e", "c", "d")}
    assert all(len(workers) == 1 for workers in units.values())
    assert len({worker for worker, _ in seen}) == 2


@pytest.mark.parametrize("family", ["clip", "step", "trainer"])
def test_every_kind_has_a_row_in_its_contract_suite(family):
    suite = "".join(path.read_text() for path in (ROOT / "tests" / "contracts").glob(f"test_{family}*.py"))
    for kind in catalog.KINDS[family]:
        name = catalog.resolve(family, kind).__name__
        assert re.search(rf"\b{name}\(", suite), f"{name} has no row in tests/contracts/test_{family}*.py"


def test_every_part_of_the_package_has_tests():
    parts = [p.parent.name for p in (ROOT / "sweeper").glob("*/__init__.py")]
    homes = {"clip": "contracts/test_clip.py", "step": "contracts/test_step.py"}
    for part in parts:
        place = ROOT / "tests" / homes.get(part, part)
        assert place.is_file() or list(place.glob("test_*.py")), f"sweeper/{part} has no tests"


def test_nothing_in_the_repository_names_the_machine_it_was_made_on():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    forbidden = re.compile(r"/" + r"work/(main|shared)|/" + r"root/|py" + r"pi/simple")
    for name in tracked:
        path = ROOT / name
        if path.is_file() and path.suffix in (".py", ".md", ".toml", ".yaml", ".txt", "", ".json"):
            assert not forbidden.search(path.read_text(errors="replace")), name
