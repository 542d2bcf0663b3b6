"""One trial -> one TrialResult. Knows no Ray; the same call runs a trial on a laptop, in a test and on a cluster node."""

from __future__ import annotations

import contextlib
import io
import math
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch

from sweeper import seeds
from sweeper.backends.closed_form import LinearProblem, evaluate
from sweeper.data.split import split_rows
from sweeper.data.table import Table
from sweeper.privacy.discrete_laplace import discrete_laplace
from sweeper.seeds import Streams
from sweeper.spec.result import TrialResult
from sweeper.spec.sweep import DataSpec, TrialSpec

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class OpenData:
    """A table in memory with its public split."""

    spec: DataSpec
    table: Table
    train_rows: np.ndarray  # positions, int64
    holdout_rows: np.ndarray

    @classmethod
    def of(cls, spec: DataSpec, table: Table) -> OpenData:
        train_rows, holdout_rows = split_rows(spec)
        return cls(spec, table, train_rows, holdout_rows)


class Worker:
    """Runs the trials of one model on one table, one after the other. Keeps the problem between trials, nothing else."""

    def __init__(self, data: OpenData) -> None:
        self.data = data
        self._problems: dict[Any, LinearProblem] = {}

    def run(self, trial: TrialSpec, streams: Streams) -> TrialResult:
        """Train, score, and part what is paid for from what is not.

        Guarantee: `released` costs what plan.trial_event says: the training event, and discrete Laplace noise on the count of
        correct records of the scored split. Relation: zero-out. Everything else is in `sealed`.
        """
        started = time.perf_counter()
        params_P, diagnostics = trial.trainer.fit(self._problem(trial), trial.clip, trial.step, trial.noise_multiplier, streams)
        trained = time.perf_counter()
        rows = self.data.holdout_rows if trial.score.split == "holdout" else self.data.train_rows
        finite = bool(torch.isfinite(params_P).all())
        correct = evaluate(trial.model, params_P, self.data.table, rows) if finite else 0
        noisy = correct + discrete_laplace(streams.bits(seeds.SCORE), trial.score.epsilon)
        sealed = {
            **diagnostics,
            "correct": correct,
            "diverged": not finite,
            "seconds_training": trained - started,
            "seconds_scoring": time.perf_counter() - trained,
        }
        released = {
            "score": noisy / len(rows) if finite else None,
            "settings": settings_of(trial),
            "params": params_P.detach().to(torch.float32).contiguous().numpy().tobytes(),
        }
        return TrialResult(released=released, sealed=sealed)

    def _problem(self, trial: TrialSpec) -> LinearProblem:
        if trial.model not in self._problems:
            source = trial.data.source
            self._problems[trial.model] = LinearProblem(
                model=trial.model,
                description=source.description,
                table=self.data.table,
                rows=self.data.train_rows,
                pixels=bool(getattr(source, "pixels", False)),
            )
        return self._problems[trial.model]


@dataclass(frozen=True)
class Outcome:
    """What a guarded run gives: a result, or the reason there is none; and whatever was printed."""

    result: TrialResult | None
    error: str
    output: str


def guarded(worker: Worker, trial: TrialSpec, streams: Streams) -> Outcome:
    """Run a trial so that nothing it raises or prints leaves the worker but through the returned record.

    A trial that fails here failed after data was opened, for a reason data may have influenced: it is never redrawn.
    """
    printed = io.StringIO()
    result, error = None, ""
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            result = worker.run(trial, streams)
        except Exception:
            error = traceback.format_exc()
    return Outcome(result, error, printed.getvalue()[-20_000:])


def settings_of(trial: TrialSpec) -> dict[str, Any]:
    """Plain name -> value of the policies as built, for people who compare runs."""
    base = replace(trial.step, schedule="constant", warmup=0.0) if hasattr(trial.step, "schedule") else trial.step
    settings: dict[str, Any] = {"learning_rate": base.learning_rate_at(trial.clip, 0, trial.trainer.steps)}
    for policy in (trial.clip, trial.step):
        settings |= {f.name: getattr(policy, f.name) for f in fields(policy) if _plain(getattr(policy, f.name))}
    return settings


def _plain(value: Any) -> bool:
    return isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value))


def trial_spec(
    spec: Any, noise_multiplier: float, index: int, candidate: Mapping[str, Any], data: DataSpec | None = None
) -> TrialSpec:
    """The complete trial of a candidate of a sweep, on the sweep's own table or on `data`."""
    clip, step = spec.space.build(candidate)
    return TrialSpec(
        index=index,
        model=spec.model,
        trainer=spec.trainer,
        clip=clip,
        step=step,
        noise_multiplier=noise_multiplier,
        candidate=dict(candidate),
        data=data or spec.data,
        score=spec.score,
    )
