"""The sealed rows of a Vault through Ray Tune: one Tune trial = one candidate, reused actors, nothing in Tune's own records.

Tune sees an index and the word "settled". Candidates and the secret travel from the Vault's keeper (one actor beside the
driver, the only writer) to the worker that runs them, and results travel back the same way. Tune's state is never the record.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # their files would hold configs and scores
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # Ctrl-C must reach the driver, which ends things in order
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ.setdefault("RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from ray import tune
from ray.tune import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from ray.tune.search import Searcher
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sweeper.checks import RequestError
from sweeper.launch.worker import OpenData, Outcome, Worker, guarded, trial_spec
from sweeper.seeds import Streams
from sweeper.spec.result import TrialResult
from sweeper.spec.sweep import DataSpec, Resources, SweepSpec
from sweeper.store.vault import Vault
from sweeper.store.vault_rows import FAILED, SETTLED

ATTEMPTS = 4  # of a trial whose worker or node is lost; each replays the same streams
Progress = Callable[[int], None]  # hears how many of this call's trials are settled; show it only where counts are public


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Some rows of a Vault to run on one table."""

    spec: SweepSpec
    noise_multiplier: float
    data: DataSpec
    open_data: OpenData
    indices: tuple[int, ...]


class Keeper:
    """The Vault's one writer while trials run. An actor on the driver's node, with no CPU of its own."""

    def __init__(self, root: str, sweep: str, spec: SweepSpec, noise_multiplier: float, data: DataSpec) -> None:
        self._vault = Vault.open(Path(root), sweep)
        self._spec, self._noise_multiplier, self._data = spec, noise_multiplier, data
        self._settled = 0

    def claim(self, index: int) -> tuple[Any, Streams] | None:
        """The trial and its streams; None when the row is settled (its settlement outlived the worker that made it)."""
        if self._vault.row(index).state in (SETTLED, FAILED):
            return None
        row = self._vault.claim(index)
        return (
            trial_spec(self._spec, self._noise_multiplier, index, row.candidate, self._data),
            Streams(self._vault.secret(), index),
        )

    def settle(self, index: int, result: TrialResult | None, error: str, output: str) -> None:
        if result is None:
            self._vault.fail(index, error, output)
        else:
            sealed = {**result.sealed, "output": output}
            self._vault.settle(index, TrialResult(released=result.released, sealed=sealed))
        self._settled += 1

    def settled(self) -> int:
        return self._settled


class Runner(tune.Trainable):
    """A reused actor: each trial is one step. Reports that a row is settled, never what came of it."""

    def setup(self, config: dict[str, Any], keeper: Any = None, open_data: OpenData | None = None) -> None:
        import torch

        torch.set_num_threads(1)  # two threads under contention run many times slower than one
        self._index, self._keeper = config["row"], keeper
        assert open_data is not None
        self._worker = Worker(open_data)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._index = new_config["row"]
        return True

    def step(self) -> dict[str, Any]:
        claimed = ray.get(self._keeper.claim.remote(self._index))
        if claimed is not None:
            trial, streams = claimed
            outcome: Outcome = guarded(self._worker, trial, streams)
            ray.get(self._keeper.settle.remote(self._index, outcome.result, outcome.error, outcome.output))
        return {"settled": 1, "done": True}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        return None

    def load_checkpoint(self, checkpoint: Any) -> None:
        return None


class Rows(Searcher):
    """Hands out the rows that are left, each once, then says that it is finished. How many there are stays inside."""

    def __init__(self, indices: Sequence[int]) -> None:
        super().__init__(metric="settled", mode="max")
        self._left = list(indices)

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        return {"row": self._left.pop(0)} if self._left else Searcher.FINISHED

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        return None

    def save(self, checkpoint_path: str) -> None:
        return None

    def restore(self, checkpoint_path: str) -> None:
        return None


@contextlib.contextmanager
def local_ray(resources: Resources) -> Iterator[None]:
    """A Ray of this machine for one sweep, its session files in a closed folder that is removed at the end.

    With RAY_ADDRESS set, or inside a Ray job, the cluster that is there is used and left running.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)
    if ray.is_initialized():
        yield
        return
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
        try:
            yield
        finally:
            ray.shutdown()
        return
    folder = tempfile.mkdtemp(prefix="swp")  # 0700, and short: Ray puts sockets under it
    try:
        ray.init(
            num_cpus=max(1, os.cpu_count() or 1),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=folder,
        )
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def run_stage(vault: Vault, root: Path, stage: Stage, progress: Progress | None = None) -> bool:
    """Run the rows of a stage. True when all are settled; False when some were lost to the infrastructure too often.

    Raises:
      RequestError: the cluster cannot hold one trial.
    """
    if not stage.indices:
        return True
    concurrent = _concurrent(stage.spec.resources)
    here = NodeAffinitySchedulingStrategy(node_id=ray.get_runtime_context().get_node_id(), soft=False)
    keeper = (
        ray.remote(Keeper)
        .options(num_cpus=0, scheduling_strategy=here)
        .remote(str(root), vault.sweep, stage.spec, stage.noise_multiplier, stage.data)
    )
    resources = {"cpu": stage.spec.resources.cpu, "gpu": stage.spec.resources.gpu}
    runner = tune.with_parameters(Runner, keeper=keeper, open_data=stage.open_data)
    staging = vault.directory / "tune"  # 0700 with the Vault: Tune's own state knows K
    watch = threading.Event()
    watcher = threading.Thread(target=_watch, args=(keeper, progress, watch), daemon=True)
    watcher.start()
    try:
        tuner = tune.Tuner(
            tune.with_resources(runner, resources),
            tune_config=TuneConfig(
                search_alg=Rows(stage.indices),
                num_samples=1_000_000_000,
                max_concurrent_trials=concurrent,
                reuse_actors=True,
                trial_name_creator=lambda trial: trial.trial_id,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=RunConfig(
                storage_path=str(staging),
                name="run",
                failure_config=FailureConfig(max_failures=ATTEMPTS - 1),
                checkpoint_config=CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
                callbacks=[],
                verbose=0,
            ),
        )
        with _quiet():
            tuner.fit()
    finally:
        watch.set()
        watcher.join(timeout=5)
        ray.kill(keeper)
        shutil.rmtree(staging, ignore_errors=True)
    return not set(stage.indices) & set(vault.unsettled())


def _concurrent(resources: Resources) -> int:
    """How many trials fit at once.

    Raises:
      RequestError: not even one does; says what the cluster has. (Ray would wait for ever, in silence.)
    """
    has = ray.cluster_resources()
    fits = int(has.get("CPU", 0) / resources.cpu + 1e-9)
    if resources.gpu:
        fits = min(fits, int(has.get("GPU", 0) / resources.gpu + 1e-9))
    if fits < 1:
        raise RequestError(
            f"resources: a trial asks for {resources.cpu:g} CPU and {resources.gpu:g} GPU, and the cluster has {has.get('CPU', 0):g} "
            f"CPU and {has.get('GPU', 0):g} GPU. Lower resources in the sweep, or add nodes."
        )
    return min(fits, resources.max_concurrent) if resources.max_concurrent else fits


def _watch(keeper: Any, progress: Progress | None, stop: threading.Event) -> None:
    while progress is not None and not stop.wait(0.5):
        try:
            progress(ray.get(keeper.settled.remote(), timeout=5))
        except Exception as error:  # the keeper is gone or busy: the display is not worth a sweep
            logging.getLogger(__name__).debug("no progress: %s", type(error).__name__)
            return


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Tune's advice off the terminal: it names counts and trials."""
    names = ("ray.tune", "ray.train", "ray.air")
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
