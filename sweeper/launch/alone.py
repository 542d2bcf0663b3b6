"""One driver per sweep."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from sweeper.checks import RequestError
from sweeper.store.vault import Vault


@contextmanager
def alone(vault: Vault) -> Iterator[None]:
    """Hold a vault's lock, which the kernel frees when its holder is killed.

    Raises:
      RequestError: another process holds it.
    """
    descriptor = os.open(vault.directory / "driver.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise RequestError(f"sweep {vault.sweep} is being run by another process; wait for it, or stop it first") from None
    try:
        yield
    finally:
        os.close(descriptor)
