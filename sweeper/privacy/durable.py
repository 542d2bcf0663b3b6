"""SQLite files that survive kill -9: owned by one user, rollback journal, every commit on disk before it returns."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

BUSY_SECONDS = 30.0  # how long a writer waits for another before it gives up

_CREATING = threading.Lock()


def create_private(path: Path) -> None:
    """An empty file of mode 0600, in a directory of mode 0700 unless that exists already. Harmless when the file is there."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Closing any descriptor of a SQLite file drops the locks this process holds on it: O_EXCL so that only a file nobody can
    # have opened is closed, the lock so that no other thread opens it in between.
    with _CREATING, contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def connect(path: Path) -> sqlite3.Connection:
    """A connection that never creates the file (SQLite would make it readable by others) and opens transactions only on demand.

    TRUNCATE is a rollback journal that is emptied and synced at each commit. In mode DELETE its removal is not synced, so that a
    power failure may bring the journal back and undo a commit.
    """
    db = sqlite3.connect(
        path.absolute().as_uri() + "?mode=rw", uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    db.execute("PRAGMA journal_mode = TRUNCATE")
    db.execute("PRAGMA synchronous = FULL")
    return db


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """One writer at a time from the first statement on; all of the block or nothing."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
