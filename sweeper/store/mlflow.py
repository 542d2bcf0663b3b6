"""Writing to MLflow. Everything is written at release, in one go, with the release time: no run is ever open while trials run."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow.entities import Metric, Param, RunTag

from sweeper import checks
from sweeper.store import schema
from sweeper.store.bulk import database_of, save_files, write_runs
from sweeper.store.connection import Connection, tag_text
from sweeper.store.home import Home
from sweeper.store.logged_model import load_model, log_model
from sweeper.store.release import Release, ReleasedTrial
from sweeper.store.trial_run import bill, files_of, finished_run, metrics_of, milliseconds, params_of, points, state_uri, trial_tags

if TYPE_CHECKING:
    from mlflow.entities import Run
    from torch import nn

FINISHED, FAILED, RUNNING, KILLED = "FINISHED", "FAILED", "RUNNING", "KILLED"
ANALYZE_FROM = 50  # runs in one release, from which refreshing SQLite's statistics pays (3 s -> 0.04 s per sorted search)


class Store:
    """Writes releases of the sweeps of one home: an experiment per sweep, a run per submission, child runs for what is released."""

    def __init__(self, home: Home) -> None:
        self.connection = Connection(home)

    def prepare(self) -> None:
        """Make the schema before anybody else needs it. Call once before workers start."""
        self.connection.prepare()

    def publish(self, release: Release) -> str:
        """Write a release; the id of its parent run. Called again after a kill, it completes what is missing and repeats nothing.

        The parent run ends last, so a submission shows up in queries as a whole or not at all.

        Raises:
          ValueError: the submission was already published with other trials. Another release needs another submission id.
          StoreError: the store failed; call again.
        """
        with self.connection.home.lock("publish"), self.connection.reported():
            experiment = self._experiment(release.sweep, release.description_markdown)
            known = self._known(experiment, release.submission)
            done = known.get(schema.PARENT)
            if done is not None and done.info.status == FINISHED:
                if set(known) != {schema.PARENT} | {trial.id for trial in release.trials}:
                    raise ValueError(f"submission {release.submission} is already published with other trials")
                return str(done.info.run_id)
            paid = bill(release.protocol, release.public, release.guarantee)
            mark = {} if release.supersedes is None else {schema.SUPERSEDES: release.supersedes}
            parent = done or self._open(experiment, release.submission, release, {schema.ROLE: schema.PARENT, **paid, **mark})
            database, at_once = database_of(self.connection), []
            for position, trial in enumerate(release.trials):
                run = known.get(trial.id)
                if run is None and database is not None and not trial.is_best:
                    at_once.append(position)
                    continue
                if run is None:
                    run = self._open(experiment, trial.id, release, trial_tags(release, trial, position, parent.info.run_id))
                if run.info.status != FINISHED:
                    self._write_trial(run, release, trial)
            if database is not None:
                runs = (finished_run(release, release.trials[position], position, parent.info.run_id) for position in at_once)
                write_runs(database, experiment, runs, milliseconds(release.released_at))
            self._write_bill(parent, release)
            if release.supersedes is not None:
                older = self._known(experiment, release.supersedes).get(schema.PARENT)
                if older is not None:
                    self.connection.client.set_tag(older.info.run_id, schema.SUPERSEDED_BY, release.submission)
            if len(release.trials) >= ANALYZE_FROM:
                self._analyze()
            return str(parent.info.run_id)

    def fail(
        self, sweep: str, submission: str, message: str, *, guarantee: Mapping[str, Any], protocol: str, public: bool, at: float
    ) -> str:
        """A submission that released nothing, with the bill it was charged all the same. `at`: unix seconds, no trial's clock.

        Raises:
          FieldError: the message is not one of schema.FAILURES; free text could carry what a trial saw.
        """
        checks.one_of(schema.FAILURES, message=message)
        checks.name(sweep=sweep, submission=submission)
        with self.connection.home.lock("publish"), self.connection.reported():
            experiment = self._experiment(sweep, None)
            run = self._known(experiment, submission).get(schema.PARENT)
            if run is not None and run.info.status == FINISHED:
                return str(run.info.run_id)
            tags = {schema.ROLE: schema.PARENT, schema.SUBMISSION: submission, schema.FAILURE: message, schema.NOTE: message}
            tags |= bill(protocol, public, guarantee)
            if run is None:
                run = self.connection.client.create_run(experiment, round(at * 1000), tags, submission)
            metrics = {schema.EPSILON: guarantee.get("epsilon"), schema.DELTA: guarantee.get("delta")}
            self._log(run, at, {}, metrics, tags)
            self._close(run, FAILED, at)
            return str(run.info.run_id)

    def reconcile(self) -> int:
        """End the runs of ours that a killed publication left open; how many. Publishing again completes them."""
        if self.connection.empty:
            return 0
        with self.connection.home.lock("publish"), self.connection.reported():
            experiments = list(self.connection.sweeps().values())
            wanted = f"attributes.status = '{RUNNING}'"
            runs = list(self.connection.runs(experiments, wanted)) if experiments else []
            ours = [run for run in runs if schema.ROLE in run.data.tags]
            for run in ours:
                self._close(run, KILLED, run.info.start_time / 1000)
            return len(ours)

    def load_model(self, uri: str) -> nn.Module:
        return load_model(self.connection, uri)

    def ui_command(self, port: int) -> list[str]:
        return self.connection.ui(port)[0]

    def ui_environment(self) -> dict[str, str]:
        """What to add to the environment of `ui_command`."""
        return self.connection.ui(0)[1]

    def _experiment(self, sweep: str, description: str | None) -> str:
        client = self.connection.client
        found = client.get_experiment_by_name(sweep)
        if found is None:
            place = None if self.connection.served else (self.connection.home.artifacts / sweep).as_uri()
            identity = client.create_experiment(sweep, place)
        else:
            identity = found.experiment_id
            if found.lifecycle_stage == "deleted":
                client.restore_experiment(identity)  # what was paid for stays visible
        tags = {schema.ROLE: schema.SWEEP, schema.SWEEP_NAME: sweep, schema.EXPERIMENT_KIND[0]: schema.EXPERIMENT_KIND[1]}
        if description is not None:
            tags[schema.NOTE] = schema.cut(description, schema.NOTE_LIMIT)
        current = found.tags if found is not None else {}
        for name, value in tags.items():
            if current.get(name) != value:
                client.set_experiment_tag(identity, name, value)
        return str(identity)

    def _known(self, experiment: str, submission: str) -> dict[str, Run]:
        """Runs of a submission that exist: by trial id, the parent under schema.PARENT."""
        runs = self.connection.runs([experiment], f"tags.`{schema.SUBMISSION}` = '{submission}'")
        return {run.data.tags.get(schema.TRIAL_ID, schema.PARENT): run for run in runs}

    def _open(self, experiment: str, name: str, release: Release, tags: dict[str, str]) -> Run:
        tags = {schema.SUBMISSION: release.submission, **tags}
        return self.connection.client.create_run(experiment, milliseconds(release.released_at), tags, name)

    def _close(self, run: Run, status: str, at: float) -> None:
        self.connection.client.set_terminated(run.info.run_id, status, milliseconds(at))

    def _write_trial(self, run: Run, release: Release, trial: ReleasedTrial) -> None:
        tags, files, model = {}, files_of(release, trial), None
        if trial.params is not None and trial.is_best:
            model = log_model(self.connection, run, release, trial)
            tags[schema.MODEL_URI] = f"models:/{model}"
        elif schema.STATE_FILE in files:
            tags[schema.MODEL_URI] = state_uri(run.info.run_id)
        save_files(run.info.artifact_uri, files, self.connection.home.mlflow_uri)
        self._log(run, release.released_at, params_of(trial), metrics_of(release, trial), tags, model, trial.trace)
        self._close(run, FINISHED, release.released_at)

    def _write_bill(self, parent: Run, release: Release) -> None:
        tags = bill(release.protocol, release.public, release.guarantee)
        tags[schema.GUARANTEE] = tag_text(schema.to_json(release.guarantee), schema.GUARANTEE_FILE)
        tags |= {schema.TIMING: release.timing, schema.NOTE: release.description_markdown}
        if release.ledger.get("head"):
            tags[schema.LEDGER_HEAD] = release.ledger["head"]
        params = schema.flat(release.spec, schema.SPEC_PREFIX) | schema.flat(release.guarantee, schema.GUARANTEE_PREFIX)
        metrics = {name: release.plan.get(name) for name in schema.PLAN_METRICS}
        metrics |= {schema.EPSILON: release.guarantee.get("epsilon"), schema.DELTA: release.guarantee.get("delta")}
        metrics[schema.SCORE_NOISE] = release.score_noise
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / schema.SPEC_FILE).write_text(release.spec_yaml, encoding="utf-8")
            documents = {
                schema.PLAN_FILE: release.plan,
                schema.GUARANTEE_FILE: release.guarantee,
                schema.LEDGER_FILE: release.ledger,
            }
            for file, document in documents.items():
                (Path(place) / file).write_text(schema.to_json(document, indent=2) + "\n", encoding="utf-8")
            self.connection.client.log_artifacts(parent.info.run_id, place)
        self._log(parent, release.released_at, params, metrics, tags)
        if schema.FAILURE in parent.data.tags:  # it failed once and was resumed
            self.connection.client.delete_tag(parent.info.run_id, schema.FAILURE)
        self._close(parent, FINISHED, release.released_at)

    def _log(
        self,
        run: Run,
        at: float,
        params: Mapping[str, str],
        metrics: Mapping[str, Any],
        tags: Mapping[str, str],
        model: str | None = None,
        trace: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        """One log_batch; the client splits it at MLflow's limits. What is no finite number is left out: it would rank best."""
        when, run_id = milliseconds(at), run.info.run_id
        kept = [Metric(k, float(v), when, 0, model_id=model, run_id=run_id) for k, v in metrics.items() if schema.finite(v)]
        traced = points(trace or {})
        kept += [Metric(schema.TRACE_PREFIX + schema.key(k), float(v), when, step) for k, step, v in traced if schema.finite(v)]
        pairs = [Param(k, schema.cut(v, schema.PARAM_LIMIT)) for k, v in params.items()]
        marks = [RunTag(k, schema.cut(v, schema.TAG_LIMIT)) for k, v in tags.items()]
        self.connection.client.log_batch(run_id, kept, pairs, marks, synchronous=True)

    def _analyze(self) -> None:
        database = self.connection.home.mlflow_database
        if database is not None:
            with closing(sqlite3.connect(database, timeout=20)) as connection, connection:
                connection.execute("ANALYZE")
