"""One trial -> one TrialResult. Knows no Ray; the same call runs a trial on a laptop, in a test and on a cluster node."""

from __future__ import annotations

import contextlib
import io
import time
import traceback
from dataclasses import dataclass
from typing import Any

import torch

from sweeper import seeds
from sweeper.backends.choice import network_of, problem_of
from sweeper.backends.closed_form import evaluate
from sweeper.data.split import secret_part
from sweeper.launch.candidate import settings_of
from sweeper.launch.open_data import OpenData
from sweeper.launch.part import PartProblem
from sweeper.privacy.discrete_laplace import discrete_laplace
from sweeper.seeds import Streams
from sweeper.spec.protocols import Problem
from sweeper.spec.result import TrialResult
from sweeper.spec.sweep import TrialSpec
from sweeper.trainers.checkpoint import Keep


class Worker:
    """Runs the trials of one model on one table, one after the other. Keeps the problem between trials, nothing else."""

    def __init__(self, data: OpenData) -> None:
        self.data = data
        self._problems: dict[Any, Problem] = {}

    def run(self, trial: TrialSpec, streams: Streams, keep: Keep | None = None) -> TrialResult:
        """Train, score, and part what is paid for from what is not.

        Guarantee: `released` costs what planning.trial_event says: the training event, and discrete Laplace noise on the count of
        correct records of the scored split, over its public number. Relation: the trainer's. Everything else is in `sealed`.
        A trial with a part trains, and scores on training rows, inside its part alone.
        keep: where a long run's state is kept, and what it goes on from; changes no result.
        """
        started = time.perf_counter()
        problem, rows, share = self._problem(trial), self.data.train_rows, 1.0
        if trial.part is not None:
            inside = secret_part(len(rows), trial.part.fraction, streams, trial.arm) ^ trial.part.rest
            problem, rows, share = PartProblem(problem, inside), rows[inside], trial.part.share
        resuming = {"keep": keep} if keep is not None and getattr(trial.trainer, "resumable", False) else {}
        fitted = trial.trainer.fit(problem, trial.clip, trial.step, trial.noise_multiplier, streams, share=share, **resuming)
        params_P = problem.released(fitted.params_P)
        trained = time.perf_counter()
        scored = share * len(self.data.train_rows)
        if trial.score.split == "holdout":
            rows, scored = self.data.holdout_rows, len(self.data.holdout_rows)
        finite = bool(torch.isfinite(params_P).all())
        correct = evaluate(network_of(trial.model), params_P, self.data.table, rows) if finite else 0
        noisy = correct + discrete_laplace(streams.bits(seeds.SCORE), trial.score.epsilon)
        sealed = {
            **fitted.sealed,
            "correct": correct,
            "diverged": not finite,
            "resumed_from": 0 if keep is None else keep.resumed_from,
            "seconds_training": trained - started,
            "seconds_scoring": time.perf_counter() - trained,
        }
        released = {
            "score": noisy / scored if finite else None,
            "settings": settings_of(trial) | dict(fitted.chosen),
            "trace": fitted.trace,
            "params": params_P.detach().to(torch.float32).contiguous().numpy().tobytes(),
        }
        return TrialResult(released=released, sealed=sealed)

    def _problem(self, trial: TrialSpec) -> Problem:
        if trial.model not in self._problems:
            source = trial.data.source
            self._problems[trial.model] = problem_of(
                trial.model,
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


def guarded(worker: Worker, trial: TrialSpec, streams: Streams, keep: Keep | None = None) -> Outcome:
    """Run a trial so that nothing it raises or prints leaves the worker but through the returned record.

    A trial that fails here failed after data was opened, for a reason data may have influenced: it is never redrawn.
    """
    printed = io.StringIO()
    result, error = None, ""
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            result = worker.run(trial, streams, *([] if keep is None else [keep]))
        except (Exception, SystemExit):  # an exit, too, would kill the worker and have the trial run again
            error = traceback.format_exc()
    return Outcome(result, error, printed.getvalue()[-20_000:])
