"""What one submission makes visible, and nothing else. The store writes a Release and never sees what was sealed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sweeper import checks

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

WINNERS_ONLY = ("select-best", "subsample-tune")  # protocols whose price covers winners alone


class StoreError(Exception):
    """The store could not be reached, read or written. Nothing is lost: the same call can be made again."""


@dataclass(frozen=True, kw_only=True)
class ReleasedTrial:
    """One visible trial. `id` is fresh and random: neither its order, nor its streams, nor its clock can be read from it."""

    id: str
    settings: Mapping[str, Any]  # plain name -> value of the policies as built: clip_norm, learning_rate, momentum, ...
    candidate: Mapping[str, Any]  # the searched part under its full names: clip.clip_norm, ...
    metric: str  # what the score measures; larger is better
    score: float | None  # None: the trial failed or gave no finite score
    clip_policy: str
    step_policy: str
    trainer: str
    arm: str = ""  # whose trial it is, in a sweep with arms
    arm_epsilon: float | None = None  # that arm's own bill, which may be infinite; None without arms
    arm_relation: str = ""  # that the bill is stated for
    noise_multiplier: float | None = None
    trace: Mapping[str, Sequence[float]] = field(default_factory=dict)  # name -> a number at each of trace["step"]
    params: bytes | None = None  # params_P, float32
    is_best: bool = False  # its model is logged, loadable without sweeper
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.name(id=self.id)
        if self.score is not None and not math.isfinite(self.score):
            object.__setattr__(self, "score", None)


@dataclass(frozen=True, kw_only=True)
class Release:
    """Everything a submission releases, with its bill.

    Guarantee: `guarantee` covers every field here; it is the caller's duty to put nothing in that was not paid for. Under a
    protocol that pays for winners only, a release that holds any other trial is refused. The store stamps MLflow's models
    and experiments with the clock of the call, so publish at `released_at` or later, never while trials run.
    """

    sweep: str
    submission: str
    spec_yaml: str
    spec: Mapping[str, Any]
    plan: Mapping[str, Any]
    guarantee: Mapping[str, Any]  # Guarantee.to_dict(): epsilon None means infinite
    ledger: Mapping[str, Any]
    protocol: str
    public: bool
    released_at: float  # unix seconds; start and end of every run
    timing: str  # what is promised about clock times
    description_markdown: str
    trials: Sequence[ReleasedTrial]  # read one at a time, so they need not all be in memory
    build_model: Callable[[bytes], nn.Module] | None = None
    build_example: Callable[[], np.ndarray] | None = None  # synthetic rows; see synthetic_rows
    score_noise: float | None = None  # standard deviation of the noise on a score
    supersedes: str | None = None  # an earlier submission whose trials are all in this one, so that its bill is not added

    def __post_init__(self) -> None:
        checks.name(sweep=self.sweep, submission=self.submission)
        seen = set()
        for trial in self.trials:
            if trial.id in seen:
                raise ValueError("two trials of one release have the same id")
            if self.protocol in WINNERS_ONLY and not self.public and not trial.is_best:
                raise ValueError(f"{self.protocol} pays for winners only; this release holds another trial")
            if trial.is_best and trial.params is not None and None in (self.build_model, self.build_example):
                raise ValueError("a winner's parameters need build_model and build_example")
            seen.add(trial.id)


def synthetic_rows(features: int, rows: int = 2) -> np.ndarray:
    """float32 [rows, features], uniform in [0, 1), always the same: an input example that no data row can have touched."""
    import numpy as np

    stream = hashlib.shake_256(b"sweeper input example").digest(4 * rows * features)
    return ((np.frombuffer(stream, dtype="<u4") >> 8) / np.float32(2**24)).astype(np.float32).reshape(rows, features)
