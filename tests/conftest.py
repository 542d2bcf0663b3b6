"""Fixtures that every part of the suite may use, and what makes a whole run fail: a test that is missing or skipped in silence."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two threads on a busy machine run many times slower than one

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell's background job: tests of Ctrl-C need one that can be heard
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]
FLOOR = ROOT / "tests" / "FLOOR"  # tests that a whole run must have collected: raise it with the suite, never lower it in silence
PAIRS = tuple(f"tests/e2e/test_{name}.py" for name in ("differential", "killed", "subsample_tune"))  # they share the runs of a pair
LONG = ("tests/launch/", "tests/e2e/ pairs", "tests/e2e/", "tests/test_readme.py", "tests/test_notebooks.py")  # each in one process
REASON = 12  # letters a stated reason has at least


@pytest.fixture(scope="session")
def data_cache() -> str:
    """A cache with the real files in it, kept between runs in a folder that git ignores."""
    from sweeper.data.adult import Adult
    from sweeper.data.fashion_mnist import FashionMnist

    cache = str(ROOT / ".sweeper" / "cache")
    Adult().fetch(cache)
    FashionMnist().fetch(cache)
    return cache


@pytest.fixture(autouse=True, scope="session")
def _a_home_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing a test does reaches the developer's own ledger, cache of prices or store."""
    names = ("SWEEPER_HOME", "SWEEPER_DATA", "SWEEPER_MLFLOW_URI", "SWEEPER_LEDGER_URI", "RAY_ADDRESS")
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ["SWEEPER_HOME"] = str(tmp_path_factory.mktemp("home"))
    yield
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under xdist the long parts of the suite start first; else in order."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: LONG.index(_unit(item.nodeid)) if _unit(item.nodeid) in LONG else len(LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Under `-n 2`: each of LONG in one process, the first two side by side, and the rest file by file."""
    from xdist.scheduler import LoadScopeScheduling

    class ByUnit(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _unit(nodeid)

    return ByUnit(config, log)


def _unit(nodeid: str) -> str:
    """What runs in one process, in order."""
    path = nodeid.split("::", 1)[0]
    if path in PAIRS:
        return "tests/e2e/ pairs"
    return next((long for long in LONG if path.startswith(long)), path)


def pytest_collection_finish(session: pytest.Session) -> None:
    whole = not session.config.option.keyword and not session.config.option.markexpr and session.config.args in ([], ["tests"])
    wanted = int(FLOOR.read_text()) if FLOOR.exists() else 0
    if whole and not session.config.option.collectonly and len(session.items) < wanted:
        raise pytest.UsageError(f"{len(session.items)} tests were collected, and tests/FLOOR says that there are at least {wanted}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # a process of xdist: the one that collects the reports looks at them
        return
    silent = [report for report in reporter.stats.get("skipped", []) if not _reason(report)]
    for report in silent:
        reporter.write_line(f"skipped without a stated reason: {report.nodeid}", red=True)
    if silent and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _reason(report: pytest.TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    text = text.removeprefix("Skipped: ").strip()
    return "" if text in ("unconditional skip", "<Skipped instance>") or len(text) < REASON else text
