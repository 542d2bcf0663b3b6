"""Every name that is written to MLflow, in one place, and what makes a name or a text acceptable to it."""

from __future__ import annotations

import hashlib
import json
import math
import posixpath
import re
from collections.abc import Mapping
from typing import Any, Final

# Tags of an experiment (one sweep), of a parent run (one submission) and of a child run (one released trial).
ROLE: Final = "sweeper.role"
SWEEP, PARENT, TRIAL = "sweep", "submission", "trial"  # values of ROLE
SWEEP_NAME: Final = "sweeper.sweep"
SUBMISSION: Final = "sweeper.submission"
TRIAL_ID: Final = "sweeper.trial_id"  # fresh and random: no index, no clock
POSITION: Final = "sweeper.position"  # place in the release, which is public
BEST: Final = "sweeper.best"
PROTOCOL: Final = "sweeper.protocol"
PUBLIC: Final = "sweeper.public"  # true: data declared public, the bill is "as if private"
CLIP_POLICY: Final = "sweeper.clip_policy"
STEP_POLICY: Final = "sweeper.step_policy"
TRAINER: Final = "sweeper.trainer"
ARM: Final = "sweeper.arm"  # only in a sweep with arms
ARM_EPSILON_TEXT: Final = "sweeper.arm_epsilon"  # that arm's own bill; also says "infinite"
ARM_RELATION: Final = "sweeper.arm_relation"
EPSILON_TEXT: Final = "sweeper.epsilon"  # the bill; also says "infinite", which no metric can. Of a public arm's trial: the arm's
DELTA_TEXT: Final = "sweeper.delta"
GUARANTEE: Final = "sweeper.guarantee"  # JSON
SETTINGS: Final = "sweeper.settings"  # JSON, exact; parameters are text and may be cut
TIMING: Final = "sweeper.timing"
LEDGER_HEAD: Final = "sweeper.ledger_head"  # seq:hash of the ledger's last row when this was released
METRIC: Final = "sweeper.metric"  # what the score measures
MODEL_URI: Final = "sweeper.model_uri"
STAGE: Final = "sweeper.stage"  # proxy (a run that only chose the setting of another), private or public
PROXY: Final = "proxy"
DIVERGED: Final = "sweeper.diverged"
FAILURE: Final = "sweeper.failure"
SUPERSEDES: Final = "sweeper.supersedes"  # on a parent run: the submission whose trials and bill are all in this one
SUPERSEDED_BY: Final = "sweeper.superseded_by"  # on the other

# MLflow's own tags.
NOTE: Final = "mlflow.note.content"  # Markdown at the head of an experiment or run
PARENT_RUN: Final = "mlflow.parentRunId"
EXPERIMENT_KIND: Final = ("mlflow.experimentKind", "custom_model_development")  # the UI then shows runs, not traces

# Metrics: numbers only, so that the UI and queries can filter (MLflow compares parameters as text).
EPSILON: Final = "epsilon"
DELTA: Final = "delta"
EPSILON_ONE_TRIAL: Final = "epsilon_one_trial"
UNSEAL_EPSILON: Final = "unseal_epsilon"
SCORE_NOISE: Final = "score_noise"
NOISE_MULTIPLIER: Final = "noise_multiplier"
ARM_EPSILON: Final = "arm_epsilon"
PLAN_METRICS: Final = (EPSILON_ONE_TRIAL, UNSEAL_EPSILON, NOISE_MULTIPLIER, "sampling_probability")  # read from the plan
SCORE_PREFIX, SETTING_PREFIX = "score/", "hp/"  # hp/clip_norm, hp/learning_rate, ...
TRACE_PREFIX, TRACE_STEP = "trace/", "step"  # trace/step_size, ... at the steps that the trace's own list names

# Parameters besides the settings themselves.
CLIP_PARAM, STEP_PARAM, TRAINER_PARAM = "policy/clip", "policy/step", "policy/trainer"
CANDIDATE_PREFIX, SPEC_PREFIX, GUARANTEE_PREFIX = "candidate/", "spec/", "guarantee/"

# Artifacts.
SPEC_FILE, PLAN_FILE, GUARANTEE_FILE, LEDGER_FILE = "spec.yaml", "plan.json", "guarantee.json", "ledger.json"
SETTINGS_FILE, STATE_FILE, TRACE_FILE = "settings.json", "model/state.pt", "trace.json"

# What a failed submission may say: fixed phrases, so that no exception's text, which can quote rows, ever leaves the Vault.
FAILED: Final = "The sweep failed. What happened is in the Vault; sweeper resume runs what did not run."
INTERRUPTED: Final = "The sweep was interrupted. sweeper resume runs what did not run."
CANCELLED: Final = "The sweep was cancelled by its user."
FAILURES: Final = (FAILED, INTERRUPTED, CANCELLED)

KEY_LIMIT, PARAM_LIMIT, TAG_LIMIT, NOTE_LIMIT = 250, 6000, 8000, 20000  # characters; MLflow cuts or refuses what is longer


def key(name: str) -> str:
    """A name that MLflow accepts. A changed name ends in a digest of the original, so that two names never become one."""
    plain_path = posixpath.normpath(name) == name and not name.startswith(("/", "..")) and name != "."
    if plain_path and len(name) <= KEY_LIMIT - 20 and re.fullmatch(r"[A-Za-z0-9_.\- /]+", name):
        return name
    stem = re.sub(r"[^A-Za-z0-9_\-]", "_", name)[:100]
    return f"{stem}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def cut(text: str, limit: int) -> str:
    """The text if it fits, or its head with a mark. The full text is then in an artifact."""
    return text if len(text) <= limit else text[: limit - 10] + " [cut ...]"


def plain(value: Any) -> Any:
    """Only what JSON can hold: mappings, lists, text, finite numbers, true, false, null. Infinity and NaN become null."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if hasattr(value, "item"):  # a numpy scalar
        return plain(value.item())
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(plain(value), sort_keys=True, indent=indent, allow_nan=False, ensure_ascii=False)


def finite(value: Any) -> bool:
    """A number that may become a metric: MLflow stores infinity as 1.8e308, which then ranks best."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def flat(value: Any, prefix: str) -> dict[str, str]:
    """A nested mapping as parameters: `spec/privacy.epsilon` -> "2.0"."""
    leaves: dict[str, str] = {}

    def visit(item: Any, path: str) -> None:
        if isinstance(item, dict) and item:
            for name, inner in item.items():
                visit(inner, f"{path}.{name}" if path else name)
        else:
            leaves[prefix + key(path)] = item if isinstance(item, str) else to_json(item)

    visit(plain(value), "")
    return leaves
