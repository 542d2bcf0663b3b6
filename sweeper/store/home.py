"""Where state lives: $SWEEPER_HOME, default ./.sweeper. One directory, closed to other users."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from sweeper.checks import FieldError
from sweeper.privacy.ledger_address import VARIABLE as LEDGER_VARIABLE
from sweeper.privacy.ledger_address import address

SQLITE = "sqlite:///"


def sqlite_uri(path: Path) -> str:
    """The address of an SQLite file. Of odd letters only those that would change the meaning of an address are escaped."""
    return SQLITE + str(path).replace("%", "%25").replace("?", "%3F")


def _from_environment() -> Path:
    return Path(os.environ.get("SWEEPER_HOME") or ".sweeper")


@dataclass(frozen=True)
class Home:
    """The paths and addresses of one user's state. Holds no open file; making one touches nothing on disk."""

    path: Path = field(default_factory=_from_environment)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(os.path.abspath(Path(self.path).expanduser())))

    @property
    def mlflow_uri(self) -> str:
        return os.environ.get("SWEEPER_MLFLOW_URI") or sqlite_uri(self.path / "mlflow.db")

    @property
    def mlflow_database(self) -> Path | None:
        """The SQLite file behind `mlflow_uri`, or None when the store is a server or another database."""
        uri = self.mlflow_uri
        return Path(os.path.abspath(unquote(uri.removeprefix(SQLITE)))) if uri.startswith(SQLITE) else None

    @property
    def artifacts(self) -> Path:
        return self.path / "artifacts"

    @property
    def ledger(self) -> Path:
        """The file that holds the ledger where SWEEPER_LEDGER_URI names no other place."""
        return self.path / "ledger.db"

    @property
    def ledger_uri(self) -> str:
        """What to make a Ledger of. It may hold a password: show the Ledger instead."""
        return os.environ.get(LEDGER_VARIABLE) or sqlite_uri(self.ledger)

    def ledger_exists(self) -> bool:
        """Whether there is a ledger to read without making one. A server counts as one: it is asked when the ledger is opened.

        Raises:
          FieldError: SWEEPER_LEDGER_URI is no address of a ledger.
        """
        file = address(self.ledger_uri).file
        return file is None or file.exists()

    @property
    def cache(self) -> Path:
        return self.path / "cache"

    @property
    def vault(self) -> Path:
        return self.path / "vault"

    def ensure(self) -> Home:
        """Create what is missing, open to its owner only. The vault is closed again if somebody opened it."""
        try:
            for place in (self.path, self.artifacts, self.cache, self.vault):
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.vault.chmod(0o700)
            ignore = self.path / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")  # a home inside a repository must never be committed
        except OSError as error:
            rule = f"must be a directory that can be written ({error.strerror})"
            raise FieldError("SWEEPER_HOME", str(self.path), rule, "Set SWEEPER_HOME to another directory.") from error
        return self

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold a lock among the processes that use this home. The kernel frees it when a holder is killed. Not reentrant."""
        self.ensure()
        descriptor = os.open(self.path / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
