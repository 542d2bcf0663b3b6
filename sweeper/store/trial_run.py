"""What a released trial becomes in MLflow: tags, parameters, numbers and files. Pure functions of the release."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sweeper.store import schema
from sweeper.store.bulk import FinishedRun
from sweeper.store.connection import fits, tag_text
from sweeper.store.logged_model import state_file
from sweeper.store.release import Release, ReleasedTrial


def finished_run(release: Release, trial: ReleasedTrial, position: int, parent: str) -> FinishedRun:
    """What `_open` and `_write_trial` write of a trial that did not win, all at once."""
    run_id = uuid.uuid4().hex
    tags, files = trial_tags(release, trial, position, parent), files_of(release, trial)
    if schema.STATE_FILE in files:
        tags[schema.MODEL_URI] = state_uri(run_id)
    numbers = [(name, 0, value) for name, value in metrics_of(release, trial).items()]
    numbers += [(schema.TRACE_PREFIX + schema.key(name), step, value) for name, step, value in points(trial.trace)]
    return FinishedRun(
        run_id=run_id,
        name=trial.id,
        tags={schema.SUBMISSION: release.submission, **tags},
        params={name: schema.cut(text, schema.PARAM_LIMIT) for name, text in params_of(trial).items()},
        metrics=[(name, step, float(value)) for name, step, value in numbers if schema.finite(value)],
        files=files,
    )


def state_uri(run_id: str) -> str:
    return f"runs:/{run_id}/{schema.STATE_FILE}"


def params_of(trial: ReleasedTrial) -> dict[str, str]:
    params = schema.flat(schema.plain(trial.settings), "") | schema.flat(trial.candidate, schema.CANDIDATE_PREFIX)
    own = {schema.CLIP_PARAM: trial.clip_policy, schema.STEP_PARAM: trial.step_policy, schema.TRAINER_PARAM: trial.trainer}
    return params | own


def metrics_of(release: Release, trial: ReleasedTrial) -> dict[str, Any]:
    """Settings as numbers, the bill, the score; some may be none."""
    metrics = {schema.SETTING_PREFIX + schema.key(name): value for name, value in schema.plain(trial.settings).items()}
    metrics |= {schema.EPSILON: _billed(release, trial), schema.DELTA: release.guarantee.get("delta")}
    metrics |= {schema.NOISE_MULTIPLIER: trial.noise_multiplier, schema.ARM_EPSILON: trial.arm_epsilon}
    if trial.score is not None:
        metrics |= {schema.SCORE_PREFIX + schema.key(trial.metric): trial.score, schema.SCORE_NOISE: release.score_noise}
    return metrics


def files_of(release: Release, trial: ReleasedTrial) -> dict[str, bytes]:
    """Settings too long for a tag, the trace, the parameters of a trial that did not win."""
    files = {}
    if not fits(text := schema.to_json(trial.settings)):
        files[schema.SETTINGS_FILE] = text.encode()
    if trial.trace:
        files[schema.TRACE_FILE] = schema.to_json(trial.trace).encode()
    if trial.params is not None and not trial.is_best and release.build_model is not None:
        files[schema.STATE_FILE] = state_file(release.build_model(trial.params))
    return files


def points(trace: Mapping[str, Sequence[float]]) -> Iterator[tuple[str, int, float]]:
    """(name, step, value) of a trace. All of one trial's have one timestamp, that of the release: steps tell them apart."""
    steps = trace.get(schema.TRACE_STEP, ())
    for name, values in trace.items():
        if name != schema.TRACE_STEP:
            yield from ((name, int(step), value) for step, value in zip(steps, values, strict=True))


def bill(protocol: str, public: bool, guarantee: Mapping[str, Any]) -> dict[str, str]:
    return {
        schema.PROTOCOL: protocol,
        schema.PUBLIC: _word(public),
        schema.EPSILON_TEXT: _epsilon_text(guarantee.get("epsilon")),
        schema.DELTA_TEXT: repr(float(guarantee["delta"])),
    }


def _billed(release: Release, trial: ReleasedTrial) -> float | None:
    """The bill of whoever sees a trial: the whole one, but on public data each arm is billed alone."""
    epsilon: float | None = trial.arm_epsilon if trial.arm and release.public else release.guarantee.get("epsilon")
    return epsilon


def _epsilon_text(epsilon: float | None) -> str:
    return repr(float(epsilon)) if epsilon is not None and schema.finite(epsilon) else "infinite"


def trial_tags(release: Release, trial: ReleasedTrial, position: int, parent: str) -> dict[str, str]:
    """All tags but the model's address, given when the run is made: that saves a transaction per run."""
    tags = {schema.key(name): schema.cut(str(text), schema.TAG_LIMIT) for name, text in trial.tags.items()}
    tags |= {
        schema.ROLE: schema.TRIAL,
        schema.TRIAL_ID: trial.id,
        schema.POSITION: str(position),
        schema.PARENT_RUN: parent,
        schema.CLIP_POLICY: trial.clip_policy,
        schema.STEP_POLICY: trial.step_policy,
        schema.TRAINER: trial.trainer,
        schema.METRIC: trial.metric,
        schema.BEST: _word(trial.is_best),
        schema.SETTINGS: tag_text(schema.to_json(trial.settings), schema.SETTINGS_FILE),
    }
    if trial.arm:
        tags |= {schema.ARM: trial.arm, schema.ARM_EPSILON_TEXT: _epsilon_text(trial.arm_epsilon)}
        tags[schema.ARM_RELATION] = trial.arm_relation
    tags |= bill(release.protocol, release.public, release.guarantee)
    tags[schema.EPSILON_TEXT] = _epsilon_text(_billed(release, trial))
    return tags if trial.score is not None else tags | {schema.DIVERGED: _word(True)}


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _word(flag: bool) -> str:
    return "true" if flag else "false"
