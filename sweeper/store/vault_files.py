"""Where vaults lie on disk: a vault appears under its name complete or not at all, and disappears the same way."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sweeper import checks
from sweeper.checks import RequestError

ABANDONED_SECONDS = 3600.0  # older leftovers of a creation or removal that was killed are removed; both take seconds


def directory_of(root: Path, sweep: str) -> Path:
    checks.name(sweep=sweep)
    return Path(root) / "vault" / sweep


def sweeps(root: Path) -> list[str]:
    """Names of the sweeps that have a vault. Names never start with a dot; unfinished business does."""
    return sorted(path.name for path in (Path(root) / "vault").glob("[!.]*") if path.is_dir())


def build_then_rename(root: Path, sweep: str, fill: Callable[[Path], None]) -> Path:
    """A new directory of mode 0700, filled under a hidden name and then given its own.

    Raises:
      RequestError: the name is taken.
    """
    final = directory_of(root, sweep)
    final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if final.exists():
        raise _taken(sweep)
    _sweep_out(final.parent)
    hidden = final.parent / f".creating-{secrets.token_hex(8)}"
    hidden.mkdir(mode=0o700)
    try:
        fill(hidden)
        os.rename(hidden, final)  # refused by the system when a vault is there: its directory is not empty
    except OSError as error:
        shutil.rmtree(hidden)
        if final.exists():
            raise _taken(sweep) from error
        raise
    except BaseException:
        shutil.rmtree(hidden)
        raise
    _sync(final.parent)
    return final


def close_down(directory: Path) -> None:
    """Remove a vault; its name is gone at once, its content right after."""
    hidden = directory.parent / f".removing-{secrets.token_hex(8)}"
    os.rename(directory, hidden)
    _sync(directory.parent)
    shutil.rmtree(hidden)
    _sweep_out(directory.parent)


def read_kept(directory: Path, index: int) -> bytes | None:
    """A trial's state, if one is kept. What the disk does not give back is as good as none: the trial replays from its start."""
    try:
        return _kept(directory, index).read_bytes()
    except OSError:
        return None


def write_kept(directory: Path, index: int, content: bytes) -> None:
    """In the place of an earlier one, on disk before it returns; mode 0600."""
    path = _kept(directory, index)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=f"{index}-", suffix=".part")  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise


def drop_kept(directory: Path, index: int) -> None:
    """With what a writer left that was killed."""
    path = _kept(directory, index)
    for each in (path, *path.parent.glob(f"{index}-*.part")):
        each.unlink(missing_ok=True)


def _kept(directory: Path, index: int) -> Path:
    return directory / "checkpoints" / f"{index}"


def _taken(sweep: str) -> RequestError:
    return RequestError(f"sweep {sweep} exists: sweeper resume {sweep}, or choose another name")


def _sweep_out(parent: Path) -> None:
    for pattern in (".creating-*", ".removing-*"):
        for path in parent.glob(pattern):
            with contextlib.suppress(FileNotFoundError):  # its owner just finished
                if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                    shutil.rmtree(path)


def _sync(directory: Path) -> None:
    """Make a rename survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
