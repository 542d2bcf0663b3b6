"""The program as a user runs it: a process of its own, a home of its own, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

SWEEPER = str(Path(sys.executable).parent / "sweeper")
MAIN = "import sys; from sweeper.cli import main; sys.exit(main(sys.argv[1:]))"
AGENTS = ("ray::Dashboard", "ray::RuntimeEnv")  # each a helper of a raylet, without any data
MARK = "SWEEPER_TEST_HOUSE"  # in the environment of every process that a house starts, and of all their children


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str
    seconds: float

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class House:
    """A SWEEPER_HOME with a user's HOME and a temporary folder beside it. `close` ends what is left by its process ids."""

    def __init__(self, place: Path, data: str, prices: Path | None = None) -> None:
        self.place, self.home = place, place / "home"
        (self.home / "cache").mkdir(parents=True)
        if prices is not None:
            (self.home / "cache" / "prices").symlink_to(prices)
        (place / "user").mkdir()
        self.temporary = Path(tempfile.mkdtemp(prefix="swt"))  # short: Ray puts sockets under it
        self.said = Ended(-1, "", "", 0.0)  # what the sweep of a shared house said
        self.mark = f"{os.getpid()}-{self.temporary.name}"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("SWEEPER_", "RAY_", "MLFLOW_", "TUNE_"))} | {
            "SWEEPER_HOME": str(self.home),
            "SWEEPER_DATA": data,
            "HOME": str(place / "user"),
            "TMPDIR": str(self.temporary),
            MARK: self.mark,
        }

    def start(self, *args: str, patch: str = "") -> subprocess.Popen[str]:
        """The program in a session of its own, as a terminal would start it; with Python that runs before it, if given."""
        command = [sys.executable, "-c", f"{patch}\n{MAIN}", *args] if patch else [SWEEPER, *args]
        return subprocess.Popen(
            command, env=self.env, cwd=self.place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def run(self, *args: str, patch: str = "", timeout: float = 120) -> Ended:
        started = time.monotonic()
        return ended(self.start(*args, patch=patch), timeout, started)

    def write(self, spec: dict[str, Any]) -> str:
        """The sweep as a file (JSON is YAML)."""
        path = self.place / f"{spec['name']}.yaml"
        path.write_text(json.dumps(spec))
        return str(path)

    def processes(self, agents: bool = True) -> list[psutil.Process]:
        """Every living process that was started from here."""
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE
                if ours and (agents or not process.name().startswith(AGENTS)):
                    found.append(process)
            except psutil.Error:
                continue  # it ended meanwhile, or it is another user's
        return found

    def wait_until_alone(self, seconds: float = 30, agents: bool = False) -> None:
        """Nothing started from here runs any more; Ray's two idle agents, if they do not count, may take a minute to notice."""
        until(lambda: not self.processes(agents), seconds, lambda: f"running: {[p.name() for p in self.processes(agents)]}")

    def close(self) -> None:
        for process in self.processes():
            process.kill()
        shutil.rmtree(self.temporary, ignore_errors=True)


def ended(process: subprocess.Popen[str], timeout: float = 120, started: float | None = None) -> Ended:
    started = time.monotonic() if started is None else started
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"took longer than {timeout} s: {out} {err}") from None
    return Ended(process.returncode, out, err, time.monotonic() - started)


def until(condition: Callable[[], Any], seconds: float, why: Callable[[], str] = lambda: "waited in vain") -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, why()
        time.sleep(0.02)
    return found


def patched(secret: bytes, *lines: str) -> str:
    """Python that fixes the sweep's secret and does what else is asked before the program starts."""
    return "\n".join((f"import sweeper.seeds as seeds; seeds.new_secret = lambda: bytes.fromhex('{secret.hex()}')", *lines))


def dies_in(where: str) -> str:
    """Python that makes a process die, as by kill -9, when it enters `module:Class.method`."""
    module, name = where.split(":")
    owner, method = name.split(".")
    return f"import os; from {module} import {owner}; {owner}.{method} = lambda *_, **__: os.kill(os.getpid(), 9)"


def table(vault: Path, columns: Sequence[str]) -> dict[int, dict[str, Any]]:
    """Rows of a vault by index, read from outside while others write. (Read-only, SQLite could not undo what a kill left half.)"""
    with closing(sqlite3.connect(f"file:{vault / 'vault.db'}?mode=rw", uri=True, timeout=10)) as db:
        rows = db.execute(f"SELECT trial, {', '.join(columns)} FROM trials ORDER BY trial").fetchall()
    return {row[0]: dict(zip(columns, row[1:], strict=True)) for row in rows}


def run_both(build: Callable[..., House], sweep: dict[str, Any], secrets: dict[int, bytes]) -> dict[int, House]:
    """The same sweep in two houses at a time, with secrets that draw few and many runs. What it said is in `said`."""
    houses = {count: build(f"k{count}", shared_prices=False) for count in (2, 30)}
    running = {n: house.start("run", house.write(sweep), patch=patched(secrets[n])) for n, house in houses.items()}
    for count, process in running.items():
        houses[count].said = ended(process, timeout=150)
        assert houses[count].said.code == 0, houses[count].said
    return houses
