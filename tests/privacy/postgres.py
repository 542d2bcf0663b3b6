"""A private PostgreSQL for tests: Debian's binaries, a unix socket in a folder of its own, no TCP, stopped at the end.

A test module says `pytest_plugins = ["postgres"]` and asks for `postgres_uri`, the URI of an empty database of its own, and
`connect`, which opens a connection of the driver alone.
SWEEPER_TEST_POSTGRES_URI names another server, on which databases may be created.
"""

from __future__ import annotations

import getpass
import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import URL, make_url

BINARIES = "/usr/lib/postgresql"  # Debian's; elsewhere those on the PATH
PASSWORD = "s3cret/of:tests"  # the server asks for none, and nothing may show it


def binaries() -> Path:
    """The folder with initdb and pg_ctl, installed if this is Debian and we may."""
    for attempt in range(2):
        found = sorted(Path(BINARIES).glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
        on_path = shutil.which("initdb")
        if found or on_path:
            return (found[-1] if found else Path(str(on_path))).parent
        if attempt == 0 and os.getuid() == 0 and shutil.which("apt-get"):
            subprocess.run(["apt-get", "install", "-y", "-q", "postgresql"], check=False, capture_output=True)
    raise pytest.UsageError(
        "the ledger's tests need PostgreSQL: apt-get install postgresql, or set SWEEPER_TEST_POSTGRES_URI to a server"
    )


class Server:
    """One server in a temporary folder. Its files are not synced: only clients are killed here, never the machine."""

    def __init__(self) -> None:
        self._binaries = binaries()
        self._user = "postgres" if os.getuid() == 0 else getpass.getuser()  # the server refuses to run as root
        self.folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))  # short: the name of a socket holds 107 letters
        if os.getuid() == 0:
            owner = pwd.getpwnam(self._user)
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
        self._run("initdb", "-D", str(self.folder / "data"), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8")
        options = f"-k {self.folder} -c listen_addresses='' -c fsync=off -c max_connections=60 -c shared_buffers=16MB"
        self._ctl("start", "-o", options, "-l", str(self.folder / "log"))

    @property
    def url(self) -> URL:
        query = {"host": str(self.folder)}
        return URL.create("postgresql+psycopg", username="postgres", password=PASSWORD, database="postgres", query=query)

    def stop(self) -> None:
        self._ctl("stop", "-m", "immediate")
        shutil.rmtree(self.folder)

    def _ctl(self, *arguments: str) -> None:
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-w", "-s", *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        user = self._user if os.getuid() == 0 else None
        with tempfile.TemporaryFile() as said:  # a pipe would stay open as long as the server
            command = [str(self._binaries / program), *arguments]
            done = subprocess.run(command, user=user, cwd=self.folder, stdout=said, stderr=said, check=False)
            said.seek(0)
            assert done.returncode == 0, f"{program}: {said.read().decode(errors='replace')}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[URL]:
    """The URL of a server, as its superuser or as whoever SWEEPER_TEST_POSTGRES_URI names."""
    given = os.environ.get("SWEEPER_TEST_POSTGRES_URI")
    if given:
        yield make_url(given)
        return
    server = Server()
    try:
        yield server.url
    finally:
        server.stop()


@pytest.fixture
def postgres_uri(postgres_server: URL) -> Iterator[str]:
    """An empty database."""
    name = f"sweeper_test_{secrets.token_hex(6)}"
    with connected(postgres_server) as db:
        db.execute(f"CREATE DATABASE {name}")
    yield postgres_server.set(database=name).render_as_string(hide_password=False)
    with connected(postgres_server) as db:
        db.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def connect() -> Callable[[str], psycopg.Connection]:
    """Opens a connection of the driver alone, each statement of which is a transaction."""
    return connected


def connected(uri: str | URL) -> psycopg.Connection:
    """A connection of the driver alone, each statement of which is a transaction."""
    url = make_url(uri)
    options = {"dbname": url.database, "user": url.username, "password": url.password, "host": url.host, "port": url.port}
    options |= dict(url.query)
    return psycopg.connect(**{key: value for key, value in options.items() if value is not None}, autocommit=True)
