"""The Ray that a sweep runs on: one of its own on this machine, or a cluster that is there already."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import ray
from ray._private import worker as ray_worker

from sweeper.checks import RequestError
from sweeper.launch.outcome import WorkFailed
from sweeper.spec.sweep import Resources

LONGEST = 38  # characters of a folder under which Ray's sockets (about 60 more) stay within the system's 107
PREFIX = "swp"


@contextlib.contextmanager
def ray_for_one_sweep(link: Path) -> Iterator[None]:
    """Ray for one sweep. Its session files lie in a closed folder that is removed at the end; `link` points there until then.

    With Ray initialised, RAY_ADDRESS set, or inside a Ray job, the cluster that is there is used and left running.

    Raises:
      WorkFailed: Ray does not start, or the cluster does not answer.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)
    _remove(link)  # what a killed driver left
    if ray.is_initialized():
        yield
        return
    if address := os.environ.get("RAY_ADDRESS"):
        _knock(address)
        with _hushed():
            try:
                _init()
                yield
            finally:
                ray.shutdown()
        return
    given = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=given if len(given) <= LONGEST else "/tmp")  # of mode 0700
    with _hushed():
        try:
            link.symlink_to(folder)
            # Ray opens its own folder to everybody: it gets one inside the closed one
            _init(num_cpus=os.cpu_count() or 1, include_dashboard=False, _temp_dir=f"{folder}/r")
            yield
        finally:
            ray.shutdown()
            _remove(link)


def _knock(address: str) -> None:
    """Fail within seconds where nobody listens; Ray itself would try for a quarter of an hour."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # "auto" or "local": Ray finds out
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise WorkFailed(f"no Ray answers at RAY_ADDRESS = {address} ({error}). Nothing ran; resume when it does") from error


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """No news of the cluster on standard output, where results go. Ray prints some ("a worker died") whatever its settings say."""
    told = ray_worker.print_to_stdstream
    ray_worker.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        ray_worker.print_to_stdstream = told


def _init(**settings: object) -> None:
    """Start or join Ray, which takes SIGTERM for itself and would end this process with exit code 15: give it back.

    A signal that came meanwhile is heard afterwards, even where Ray's handler or Python's own raised in vain (as after a fork).
    """
    handler, main = signal.getsignal(signal.SIGTERM), threading.current_thread() is threading.main_thread()
    with _listening() if main else contextlib.nullcontext(set[int]()) as heard:
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **settings)
        except SystemExit:  # SIGTERM came while Ray had it
            heard.add(signal.SIGTERM)
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            lines = str(error).strip().splitlines() or ["no reason given"]
            raise WorkFailed(f"Ray did not start: {type(error).__name__}: {lines[0][:200]}") from error
        finally:
            if main:
                signal.signal(signal.SIGTERM, handler)
    if signal.SIGTERM in heard:
        signal.raise_signal(signal.SIGTERM)
        raise SystemExit(128 + signal.SIGTERM)
    if signal.SIGINT in heard:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _listening() -> Iterator[set[int]]:
    """The numbers of the signals that came inside, there once it is over. Of the main thread only."""
    heard: set[int] = set()
    reader, writer = os.pipe()
    os.set_blocking(reader, False), os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield heard
    finally:
        signal.set_wakeup_fd(before)
        with contextlib.suppress(BlockingIOError):  # nothing came
            heard.update(os.read(reader, 4096))
        os.close(reader), os.close(writer)


def _remove(link: Path) -> None:
    """The session folder behind a link, and the link. Only a folder of the kind made here is touched."""
    if not link.is_symlink():
        return
    folder = link.readlink()
    if folder.name.startswith(PREFIX) and folder.is_dir() and folder.stat().st_uid == os.getuid():
        shutil.rmtree(folder, ignore_errors=True)
    link.unlink()


def room_for(resources: Resources) -> int:
    """How many trials fit at once, at least 1.

    Raises:
      RequestError: no node can hold one; says what the largest has. (Ray would wait for ever, in silence.)
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    has = [(node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in nodes]
    fits = sum(_times(resources, cpu, gpu) for cpu, gpu in has)
    if fits < 1:
        cpu, gpu = max(has, key=lambda node: (node[1], node[0])) if resources.gpu else max(has)
        where = "this machine has" if len(has) == 1 else f"the largest of {len(has)} nodes has"
        raise RequestError(
            f"resources: a trial asks for {resources.cpu:g} CPU and {resources.gpu:g} GPU, and {where} "
            f"{cpu:g} CPU and {gpu:g} GPU. Lower resources in the sweep, or add a larger node."
        )
    return min(fits, resources.max_concurrent) if resources.max_concurrent else fits


def _times(resources: Resources, cpu: float, gpu: float) -> int:
    """How many trials one node holds. Ray never splits a share of a GPU over two: 0.4 fits twice into each."""
    fits = int(cpu / resources.cpu + 1e-9)
    if 0 < resources.gpu < 1:
        fits = min(fits, int(gpu) * int(1 / resources.gpu + 1e-9))
    elif resources.gpu:
        fits = min(fits, int(gpu / resources.gpu + 1e-9))
    return fits
