"""$SWEEPER_HOME: who can write and read it, and the disk that it lies on."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sweeper.doctor.finding import FAIL, OK, WARN, Verdict
from sweeper.doctor.machine import GB
from sweeper.store.home import Home

LITTLE_DISK, NO_DISK = 2 * GB, 0.1 * GB


def writable(home: Home) -> Iterator[Verdict]:
    """A file is made and removed, in the home or in the folder that it would be made in. The home itself is not made."""
    place = nearest(home.path)
    where = str(home.path) if place == home.path else f"{home.path}, which the first command makes in {place}"
    if not place.is_dir():
        yield Verdict(FAIL, f"{place} is no folder", "Set SWEEPER_HOME to another place.")
        return
    try:
        with tempfile.TemporaryFile(dir=place) as probe:
            probe.write(b"x")
            probe.flush()
    except OSError as error:
        fix = f"Set SWEEPER_HOME to a folder of your own, or: chown -R $(id -un) {place}"
        yield Verdict(FAIL, f"{where} cannot be written ({error.strerror})", fix)
        return
    yield Verdict(OK, where)


def mode(home: Home) -> Iterator[Verdict]:
    """The home holds what is sealed: secrets of sweeps, features of private records."""
    if not home.path.is_dir():
        yield Verdict(OK, "will be made with mode 0700")
        return
    found = home.path.stat()
    bits, fix = stat.S_IMODE(found.st_mode), f"chmod 700 {home.path}"
    if bits & 0o022:
        yield Verdict(FAIL, f"{home.path} has mode {bits:04o}: other users can change the ledger in it", fix)
    elif bits & 0o055:
        yield Verdict(WARN, f"{home.path} has mode {bits:04o}: other users can look into it", fix)
    elif found.st_uid != os.getuid():
        yield Verdict(WARN, f"{home.path} belongs to user {found.st_uid}, not to you", f"chown -R $(id -un) {home.path}")
    else:
        yield Verdict(OK, f"{bits:04o}")
    if home.vault.is_dir() and stat.S_IMODE(home.vault.stat().st_mode) & 0o077:
        rule = f"{home.vault} is open to other users, and holds what sweeps sealed"
        yield Verdict(FAIL, rule, f"chmod 700 {home.vault}")


def disk(home: Home) -> Iterator[Verdict]:
    free = shutil.disk_usage(nearest(home.path)).free
    text, fix = f"{free / GB:.1f} GB free", "Free space, or set SWEEPER_HOME to a larger disk."
    if free < NO_DISK:
        yield Verdict(FAIL, f"{free / 1e6:.0f} MB free: a ledger or a vault could not be written", fix)
    elif free < LITTLE_DISK:
        yield Verdict(WARN, text, fix)
    else:
        yield Verdict(OK, text)


def nearest(path: Path) -> Path:
    """The path itself, or the first above it that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
