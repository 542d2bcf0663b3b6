"""One sweep in a process of its own, the seconds of its stages and the memory of its processes: JSON on stdout.

python one_sweep.py '{"trials": 100, "steps": 1, "nodes": 0}'
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SECONDS = 0.2  # between two looks at memory


def run(**settings: Any) -> dict[str, Any]:
    """A sweep in a fresh process and a fresh home. What it printed is in the error if it fails."""
    memory = Path("/dev/shm")  # SQLite on a busy disk would measure the disk
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as home:
        environment = os.environ | {"SWEEPER_HOME": home, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        command = [sys.executable, str(HERE / "one_sweep.py"), json.dumps(settings)]
        done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"a sweep of {settings} failed: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def spec_of(*, trials: int, steps: int = 1, rows: int = 10, features: int = 2, batch_size: int = 4) -> dict[str, Any]:
    """A public release-all sweep of a linear model, as YAML would give it."""
    source = {"module": "tiny_table:load", "args": {"rows": rows, "features": features}}
    return {
        "name": "bench",
        "data": {"source": source | {"rows": rows, "features": features, "classes": 2}, "public": True},
        "model": {"kind": "logistic"},
        "trainer": {"kind": "dp-sgd", "batch_size": batch_size, "steps": steps},
        "privacy": {"noise_multiplier": 1.0, "delta": 1e-6},
        "protocol": {"kind": "release-all", "trials": trials},
        "space": {
            "clip": {"policy": "fixed", "range": [0.05, 2.0], "scale": "log"},
            "step": {"policy": "coupled", "range": [0.3, 10.0], "scale": "log"},
        },
    }


class Watched(threading.Thread):
    """CPU seconds of this process and all below it so far, and the most memory in MB that those of a sweep held, by name."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most: dict[str, float] = {}
        self.now = 0.0  # of the driver
        self._cpu: dict[int, float] = {}  # of a process that ended, what it had used when last seen
        self._over, self._turn = threading.Event(), threading.Lock()

    def run(self) -> None:
        while not self._over.wait(SECONDS):
            self.look()

    def look(self) -> float:
        import psutil

        own, found = psutil.Process(), {}
        with self._turn:
            for process in (own, *own.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    times, title = process.cpu_times(), (process.cmdline() or [""])[0]
                    self._cpu[process.pid] = times.user + times.system
                    name = next((word for word in ("Keeper", "Runner") if word in title), None)
                    name = "driver" if process == own else name
                    if name is not None:
                        found[name.lower()] = max(found.get(name.lower(), 0.0), process.memory_info().rss / 2**20)
            for name, size in found.items():
                self.most[name] = max(self.most.get(name, 0.0), size)
            self.now = found["driver"]
            return sum(self._cpu.values())

    def end(self) -> None:
        self._over.set()
        self.join()


@contextlib.contextmanager
def nodes(count: int) -> Iterator[None]:
    """A local cluster of nodes with one CPU each; 0: the sweep starts Ray itself."""
    if not count:
        yield
        return
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(count):
            cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def timed(settings: dict[str, Any]) -> dict[str, Any]:
    """Seconds on the wall and of CPU, whole and by stage; `training` is what the trials themselves took."""
    from sweeper import catalog, planning, seeds
    from sweeper.launch.driver import Driver
    from sweeper.store.home import Home
    from sweeper.store.vault import Vault

    count, wall, cpu, driver_cpu, after, watched = settings.pop("nodes", 0), {}, {}, {}, {}, Watched()

    class Timed(Driver):
        def _stage(self, *given: Any) -> None:
            with lap("trials"):
                super()._stage(*given)

        def _publish(self, *given: Any) -> Any:
            with lap("publishing"):
                return super()._publish(*given)

    @contextlib.contextmanager
    def lap(name: str) -> Iterator[None]:
        start, own, used = time.perf_counter(), time.process_time(), watched.look()
        yield
        wall[name], driver_cpu[name] = time.perf_counter() - start, time.process_time() - own
        cpu[name], after[name] = watched.look() - used, watched.now

    plan = planning.plan(catalog.sweep_from_dict(spec_of(**settings)), seeded=False)
    home = Home()
    with nodes(count):
        watched.start()
        with lap("whole"):
            Timed(home, lambda _: None).run(plan, seeds.new_secret(), "bench")
        watched.end()
    with Vault.open(home.path, "bench") as vault:
        sealed = [row.sealed or {} for row in vault.rows(params=False)]
    wall["training"] = sum(each["seconds_training"] + each["seconds_scoring"] for each in sealed)
    found = {"wall": wall, "cpu": cpu, "driver_cpu": driver_cpu, "driver_memory": after, "memory": watched.most}
    rounded = {name: {part: round(value, 3) for part, value in each.items()} for name, each in found.items()}
    return {"trials": len(sealed), "load": os.getloadavg()[0]} | rounded


if __name__ == "__main__":
    print(json.dumps(timed(json.loads(sys.argv[1]))))
