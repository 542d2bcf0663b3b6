"""Processors, threads, memory, the temporary folder: what Ray and the trials find on this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sweeper.doctor.finding import FAIL, OK, WARN, Verdict

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
SHARED = Path("/dev/shm")
GB = 1e9
LITTLE_MEMORY = 2 * GB  # a driver and one trial: 0.5 GB each, and Ray's own processes about 0.7 GB
LITTLE_SHARED = 1 * GB
FULL = 0.95  # of a file system: beyond it Ray writes no object there


def cpus() -> Iterator[Verdict]:
    """Ray starts as many workers as the machine has processors, whatever a container allows."""
    counted, usable = os.cpu_count() or 1, usable_cpus()
    if usable < counted:
        few = f"{usable:g}"
        yield Verdict(
            WARN,
            f"{counted} counted, which Ray goes by, and this process may use {few}",
            f"Set resources: {{max_concurrent: {max(1, int(usable))}}} in the sweep.",
        )
    else:
        yield Verdict(OK, f"{counted}")


def usable_cpus(cgroup: Path | None = None) -> float:
    """Processors that this process may use: of the machine, of its affinity, of its container."""
    found = [float(os.cpu_count() or 1)]
    if hasattr(os, "sched_getaffinity"):
        found.append(float(len(os.sched_getaffinity(0))))
    quota, _, period = _read((cgroup or CGROUP) / "cpu.max").partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        found.append(int(quota) / int(period))
    return min(found)


def threads() -> Iterator[Verdict]:
    """A trial uses one thread whatever this says; what else loads OpenMP goes by it."""
    given = os.environ.get("OMP_NUM_THREADS")
    if given is None:
        yield Verdict(OK, "OMP_NUM_THREADS is not set; a trial uses one thread")
    elif not given.isdigit() or int(given) < 1:
        yield Verdict(WARN, f"OMP_NUM_THREADS = {given!r} is no number of threads", "export OMP_NUM_THREADS=1")
    elif int(given) > usable_cpus():
        rule = f"OMP_NUM_THREADS = {given} is more than the {usable_cpus():g} processors: threads that wait for each other"
        yield Verdict(WARN, rule, "export OMP_NUM_THREADS=1")
    else:
        yield Verdict(OK, f"OMP_NUM_THREADS = {given}; a trial uses one thread")


def memory() -> Iterator[Verdict]:
    free = free_memory()
    if free is None:
        yield Verdict(OK, "this system does not say how much is free")
    elif free < LITTLE_MEMORY:
        yield Verdict(WARN, f"{free / GB:.1f} GB free, and a small sweep takes about {LITTLE_MEMORY / GB:.0f} GB", "Free some.")
    else:
        yield Verdict(OK, f"{free / GB:.1f} GB free")


def free_memory(meminfo: Path | None = None, cgroup: Path | None = None) -> float | None:
    """Bytes that new processes may take: of the machine, or what is left of the container's limit; None where nobody says."""
    lines = dict(line.partition(":")[::2] for line in _read(meminfo or MEMINFO).splitlines())
    found = [1024.0 * int(lines["MemAvailable"].split()[0])] if "MemAvailable" in lines else []
    limit, used = (_read((cgroup or CGROUP) / name).strip() for name in ("memory.max", "memory.current"))
    if limit.isdigit() and used.isdigit():
        found.append(float(max(0, int(limit) - int(used))))
    return min(found, default=None)


def shared_memory(place: Path | None = None) -> Iterator[Verdict]:
    """Where Ray keeps the table that all trials read."""
    free = free_shared_memory(place)
    if free is None:
        yield Verdict(WARN, f"{place or SHARED} is not here, so Ray keeps the table in slow files", "Mount a tmpfs there.")
    elif free < LITTLE_SHARED:
        yield Verdict(
            WARN,
            f"{free / GB:.2f} GB free in {place or SHARED}: Ray keeps a larger table in slow files",
            "Start the container with --shm-size=2g, or: mount -o remount,size=2G /dev/shm",
        )
    else:
        yield Verdict(OK, f"{free / GB:.1f} GB free in {place or SHARED}")


def free_shared_memory(place: Path | None = None) -> float | None:
    try:
        return float(shutil.disk_usage(place or SHARED).free)
    except OSError:
        return None


def temporary_folder() -> Iterator[Verdict]:
    """Ray puts sockets there, whose names the system cuts at 107 letters, and its session files."""
    from sweeper.launch.cluster import LONGEST

    try:
        given = tempfile.gettempdir()
    except FileNotFoundError:
        yield Verdict(FAIL, "no folder for temporary files can be written", "export TMPDIR=/path/to/a/folder")
        return
    used = given if len(given) <= LONGEST else "/tmp"
    long = f"{given} has {len(given)} letters and sockets leave room for {LONGEST}: Ray uses /tmp" if used != given else used
    usage = shutil.disk_usage(used)
    if not os.access(used, os.W_OK | os.X_OK):
        yield Verdict(FAIL, f"{long}, which cannot be written", f"export TMPDIR to a folder of at most {LONGEST} letters")
    elif usage.used / (usage.used + usage.free) > FULL:
        yield Verdict(WARN, f"{long}, whose disk is over {FULL:.0%} full: Ray writes nothing there", "Free space, or set TMPDIR.")
    else:
        yield Verdict(OK, f"{long}, {usage.free / GB:.1f} GB free")


def _read(path: Path) -> str:
    """The text of a file of the system; nothing where there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""
