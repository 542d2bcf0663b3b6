"""A candidate -> the complete trial that a worker needs. Loads no torch, so that the Vault's keeper starts quickly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from sweeper.spec.sweep import DataSpec, SweepSpec, TrialSpec


def trial_spec(
    spec: SweepSpec,
    noise_multiplier: float,
    index: int,
    candidate: Mapping[str, Any],
    data: DataSpec | None = None,
    *,
    final: bool = False,
    arm: str = "",
) -> TrialSpec:
    """The complete trial of a candidate of a sweep, on the sweep's own table or on `data`; `final`: the run after the search.

    Of a sweep with arms `spec` and `noise_multiplier` are those of one `arm`.
    """
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
        part=spec.protocol.part(final=final),
        arm=arm,
    )


def settings_of(trial: TrialSpec) -> dict[str, Any]:
    """Plain name -> value of the policies as built, for people who compare runs."""
    settings: dict[str, Any] = {}
    if hasattr(trial.step, "schedule") and trial.clip.known:
        base = replace(trial.step, schedule="constant", warmup=0.0)
        settings["learning_rate"] = base.learning_rate_at(trial.clip, 0, trial.trainer.steps)
    for policy in (trial.clip, trial.step):
        settings |= {f.name: getattr(policy, f.name) for f in fields(policy) if _plain(getattr(policy, f.name))}
    return settings


def _plain(value: Any) -> bool:
    return isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value))
