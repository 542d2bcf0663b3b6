"""What a Ray has room for, asked in a process of its own, so that one that never answers hangs nobody.

`python -m sweeper.launch.probe CPU GPU` starts or joins Ray as a sweep would, and prints one line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from sweeper.checks import RequestError
from sweeper.spec.sweep import Resources

LAST_WORDS = 3.0  # seconds that a Ray gets to end itself


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back. `failed`: there is no Ray; `refused`: it cannot hold one trial."""

    nodes: int = 0
    cpu: float = 0.0  # of all nodes
    gpu: float = 0.0
    room: int = 0  # trials at once
    seconds: float = 0.0  # until it was there
    failed: str = ""
    refused: str = ""


def ask(resources: Resources, timeout: float) -> Answer:
    """How many trials of this size the Ray of the next sweep holds: the one at RAY_ADDRESS, or one started here and ended again."""
    command = [sys.executable, "-m", "sweeper.launch.probe", str(resources.cpu), str(resources.gpu)]
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    try:
        said, _ = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return Answer(failed=f"no answer within {timeout:.0f} s")
    finally:
        _end(child)
    lines = said.strip().splitlines()
    try:
        return Answer(**json.loads(lines[-1]))
    except (IndexError, ValueError, TypeError):
        return Answer(failed=f"its process ended with code {child.returncode} and said nothing")


def _end(child: subprocess.Popen[str]) -> None:
    """The process and what it started."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.killpg(child.pid, sent)
        with contextlib.suppress(subprocess.TimeoutExpired):  # the next signal is harder
            child.communicate(timeout=LAST_WORDS)


def _answer(resources: Resources) -> Answer:
    started = time.monotonic()
    import ray

    from sweeper.launch.cluster import ray_for_one_sweep, room_for
    from sweeper.launch.outcome import WorkFailed

    try:
        with tempfile.TemporaryDirectory() as place, ray_for_one_sweep(Path(place) / "ray"):
            seconds = time.monotonic() - started
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
            cpu, gpu = (sum(node.get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU"))
            room, refused = 0, ""
            try:
                room = room_for(resources)
            except RequestError as error:
                refused = str(error)
            return Answer(nodes=len(nodes), cpu=cpu, gpu=gpu, room=room, seconds=seconds, refused=refused)
    except WorkFailed as error:
        return Answer(failed=str(error))


if __name__ == "__main__":
    print(json.dumps(asdict(_answer(Resources(cpu=float(sys.argv[1]), gpu=float(sys.argv[2]))))), flush=True)
