"""A real SQLite store and a real `mlflow server`. Nothing here is faked."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sweeper.store.home import Home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema_file: bytes) -> Home:
    """A home with a fresh SQLite store. The schema is a copy of one that `prepare` made: making it takes a second each time."""
    monkeypatch.delenv("SWEEPER_MLFLOW_URI", raising=False)
    place = Home(tmp_path / "home").ensure()
    assert place.mlflow_database is not None
    place.mlflow_database.write_bytes(schema_file)
    return place


@pytest.fixture(scope="session")
def schema_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    from sweeper.store.mlflow import Store

    place = Home(tmp_path_factory.mktemp("schema"))
    Store(place).prepare()
    assert place.mlflow_database is not None
    return place.mlflow_database.read_bytes()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `mlflow server`, started the way `sweeper ui` starts it."""
    from sweeper.store.mlflow import Store

    store = Store(Home(tmp_path_factory.mktemp("server")))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("log") / "server.txt"
    with log.open("w") as output:
        process = subprocess.Popen(
            store.ui_command(port),
            env=os.environ | store.ui_environment(),
            cwd=log.parent,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until(lambda: answers(f"http://127.0.0.1:{port}/health") or process.poll() is not None, seconds=90)
            assert process.poll() is None, log.read_text()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=20)


@pytest.fixture(params=["sqlite", "http"])
def any_home(request: pytest.FixtureRequest, home: Home, monkeypatch: pytest.MonkeyPatch) -> Home:
    """The same tests against a SQLite file and against a server. Sweeps of one session share the server: name them apart."""
    if request.param == "http":
        monkeypatch.setenv("SWEEPER_MLFLOW_URI", request.getfixturevalue("server"))
    return home


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)
