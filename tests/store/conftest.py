"""A real SQLite store and a real `mlflow server`. Nothing here is faked."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sweeper.store.home import Home


@contextmanager
def in_memory() -> Iterator[Path]:
    """A directory in memory where there is one: MLflow commits seven times a run, and on a busy disk that takes minutes."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as place:
        yield Path(place)


def filled(path: Path, schema_file: bytes) -> Home:
    """A home with a fresh SQLite store. The schema is a copy of one that `prepare` made: making it takes a second each time."""
    home = Home(path).ensure()
    assert home.mlflow_database is not None
    home.mlflow_database.write_bytes(schema_file)
    return home


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, schema_file: bytes) -> Iterator[Home]:
    monkeypatch.delenv("SWEEPER_MLFLOW_URI", raising=False)
    with in_memory() as place:
        yield filled(place / "home", schema_file)


@pytest.fixture(scope="session")
def schema_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    from sweeper.store.mlflow import Store

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SWEEPER_MLFLOW_URI", raising=False)
        home = Home(tmp_path_factory.mktemp("schema"))
        Store(home).prepare()
        assert home.mlflow_database is not None
        return home.mlflow_database.read_bytes()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, schema_file: bytes) -> Iterator[str]:
    """The address of `mlflow server`, started the way `sweeper ui` starts it."""
    with in_memory() as place, pytest.MonkeyPatch.context() as patch:
        patch.delenv("SWEEPER_MLFLOW_URI", raising=False)
        yield from serve(filled(place, schema_file), tmp_path_factory.mktemp("server"))


def serve(home: Home, place: Path) -> Iterator[str]:
    from sweeper.store.mlflow import Store

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command, environment = Store(home).ui_command(port), os.environ | Store(home).ui_environment()
    log = place / "server.txt"
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, cwd=place, stdout=output, stderr=subprocess.STDOUT)
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
