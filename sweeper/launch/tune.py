"""The sealed rows of a Vault through Ray Tune: one candidate after the other in reused actors, nothing in Tune's own records.

A Tune trial is one candidate of a small sweep, and a share of them of a large one: Tune keeps 40 kB and a folder of each for good.
Tune sees indices and the word "settled". Candidates and the secret travel from the Vault's keeper (one actor beside the
driver, the only writer) to the worker that runs them, and results travel back the same way. Tune's state is never the record.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import tune
from ray.tune import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from ray.tune.search import Searcher
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sweeper.launch.checkpoints import DEFAULT_SECONDS, TrialKeep, seconds_between
from sweeper.launch.cluster import room_for
from sweeper.launch.examined import take_over
from sweeper.launch.job import Job
from sweeper.launch.keeper import Keeper
from sweeper.launch.open_data import OpenData
from sweeper.launch.packing import OnWorker, Packing, Packs, packing_of
from sweeper.spec.sweep import DataSpec, Resources, SweepSpec
from sweeper.store.vault import Vault

if TYPE_CHECKING:
    from sweeper.launch.worker import Outcome

ATTEMPTS = 4  # of a Tune trial whose worker or node is lost; each replays the same streams, and what is settled is not run again
TUNE_TRIALS = 256  # about how many there are at most
SHARES = 20  # at least, of each worker: so few are left to one worker at the end
Progress = Callable[[int], None]  # hears how many of this call's trials are settled; show it only where counts are public


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Some rows of a Vault to run on one table."""

    spec: SweepSpec
    noises: Mapping[str, float]  # of each arm; under "" without arms
    data: DataSpec
    open_data: OpenData
    indices: tuple[int, ...]
    examination: Any = None  # of a user's module


class Runner(tune.Trainable):
    """A reused actor: each candidate is one step. Reports that a row is settled, never what came of it."""

    def setup(
        self,
        config: dict[str, Any],
        keeper: Any = None,
        open_data: OpenData | None = None,
        folder: str = "",
        checkpoint_seconds: float = DEFAULT_SECONDS,
        examined: tuple[SweepSpec, Any] | None = None,
        packing: Packing | None = None,
    ) -> None:
        import torch

        if folder not in sys.path:  # where the driver was started: a user's own module may lie there
            sys.path.append(folder)

        from sweeper.launch.worker import Worker

        torch.set_num_threads(1)  # two threads under contention run many times slower than one
        self._left, self._keeper, self._seconds = list(config["rows"]), keeper, checkpoint_seconds
        assert open_data is not None
        if examined is not None:
            take_over(*examined)
        self._worker = Worker(open_data)
        self._packs = None if packing is None or examined is None else Packs(packing, examined[0], open_data)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._left = list(new_config["rows"])
        return True

    def step(self) -> dict[str, Any]:
        from sweeper.launch.worker import guarded

        if self._packs is not None:
            rows = self._left.pop(0)
            self._packs.run(ray.get(self._keeper.arm.remote(rows[0])), rows, self._claimed, self._settle)
            return {"settled": len(rows), "done": not self._left}
        job = None
        while job is None and self._left:  # what a lost worker settled is not given again
            (index,) = self._left.pop(0)
            job = self._claimed(index)
        if job is not None:
            self._settle(index, guarded(self._worker, job.trial, job.streams, job.keep))
        return {"settled": 1, "done": not self._left}

    def _claimed(self, index: int) -> Job | None:
        claimed = ray.get(self._keeper.claim.remote(index))
        if claimed is None:
            return None
        keep = TrialKeep(
            streams=claimed.streams,
            reference=claimed.reference,
            found=claimed.kept,
            store=partial(self._store, index),
            seconds=self._seconds,
        )
        return Job(trial=claimed.trial, streams=claimed.streams, keep=keep)

    def _settle(self, index: int, outcome: Outcome) -> None:
        ray.get(self._keeper.settle.remote(index, outcome.result, outcome.error, outcome.output))

    def _store(self, index: int, content: bytes) -> None:
        ray.get(self._keeper.keep.remote(index, content))

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        return None

    def load_checkpoint(self, checkpoint: Any) -> None:
        return None


class Rows(Searcher):
    """Hands out the groups of rows that are left, each once, then says that it is finished. How many there are stays inside."""

    def __init__(self, groups: Sequence[tuple[int, ...]], share: int) -> None:
        super().__init__(metric="settled", mode="max")
        self._left, self._share = deque(groups), share

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        rows = [self._left.popleft() for _ in range(min(self._share, len(self._left)))]
        return {"rows": rows} if rows else Searcher.FINISHED

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        return None

    def save(self, checkpoint_path: str) -> None:
        return None

    def restore(self, checkpoint_path: str) -> None:
        return None


def share_of(rows: int, concurrent: int) -> int:
    """How many candidates a Tune trial runs: one, until there are many for Tune and for each worker."""
    return max(1, min(-(-rows // TUNE_TRIALS), rows // (SHARES * concurrent)))


def run_stage(vault: Vault, root: Path, stage: Stage, progress: Progress | None = None) -> bool:
    """Run the rows of a stage. True when all are settled; False when some were lost to the infrastructure too often.

    Raises:
      RequestError: the cluster cannot hold one trial, or the time between checkpoints is none.
    """
    if not stage.indices:
        return True
    concurrent, seconds = room_for(stage.spec.resources), seconds_between()  # the driver's: nodes have other environments
    here = NodeAffinitySchedulingStrategy(node_id=ray.get_runtime_context().get_node_id(), soft=False)
    keeper = (
        ray.remote(Keeper)
        .options(num_cpus=0, scheduling_strategy=here)
        .remote(str(root), vault.sweep, stage.spec, dict(stage.noises), stage.data)
    )
    trained, on_worker = len(stage.open_data.train_rows), _on_worker(stage.spec.resources)
    packing = packing_of(vault, stage.spec, stage.noises, stage.data, trained, on_worker)
    given = {
        "keeper": keeper,
        "open_data": stage.open_data,
        "folder": os.getcwd(),
        "checkpoint_seconds": seconds,
        "examined": (stage.spec, stage.examination),
        "packing": packing,
    }
    resources = {"cpu": stage.spec.resources.cpu, "gpu": stage.spec.resources.gpu}
    runner = tune.with_resources(tune.with_parameters(Runner, **given), resources)
    watch = threading.Event()
    watcher = threading.Thread(target=_watch, args=(keeper, progress, watch), daemon=True)
    watcher.start()
    try:
        left = stage.indices
        while left:
            _fit(runner, _groups(vault, left, packing), concurrent, vault.directory / "tune")
            never = tuple(sorted(set(left) & set(vault.unclaimed())))  # those behind one that was lost too often
            left = never if len(never) < len(left) else ()
    finally:
        watch.set()
        watcher.join(timeout=5)
        ray.kill(keeper)
    return not set(stage.indices) & set(vault.unsettled())


def _groups(vault: Vault, indices: Sequence[int], packing: Packing | None) -> list[tuple[int, ...]]:
    """The rows that a worker runs at once."""
    if packing is None:
        return [(index,) for index in indices]
    from sweeper.launch.pack import packs_of

    return packs_of({index: vault.row(index).arm for index in indices}, packing.seats)


def _on_worker(resources: Resources) -> OnWorker:
    """Calls a function where a trial would run, with what a trial has."""

    def called(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        return ray.get(ray.remote(num_cpus=resources.cpu, num_gpus=resources.gpu)(function).remote(**arguments))

    return called


def _fit(runner: Any, groups: Sequence[tuple[int, ...]], concurrent: int, staging: Path) -> None:
    """The rows through Tune once. `staging` is 0700 with the Vault, and gone afterwards: Tune's own state knows K."""
    shutil.rmtree(staging, ignore_errors=True)  # what a killed driver left
    try:
        tuner = tune.Tuner(
            runner,
            tune_config=TuneConfig(
                search_alg=Rows(groups, share_of(len(groups), concurrent)),
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
        shutil.rmtree(staging, ignore_errors=True)


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
