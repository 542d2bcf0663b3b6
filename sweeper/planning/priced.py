"""A sweep with its price: the Plan, and how it is made from a spec."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from sweeper.checks import FieldError
from sweeper.data.split import split_sizes
from sweeper.planning.alternatives import Alternative, alternatives
from sweeper.planning.chosen import Choice, with_law_chosen
from sweeper.planning.searches import refuse_search
from sweeper.planning.trial import noise_for, trial_event
from sweeper.privacy import accountant
from sweeper.privacy.events import ZERO_OUT, Event
from sweeper.privacy.guarantee import Guarantee
from sweeper.privacy.release import DrawnRuns
from sweeper.spec.codec import fingerprint, spec_to_dict
from sweeper.spec.sweep import SweepSpec

TOP = 0.1  # the share of the space whose discovery is quoted


@dataclass(frozen=True, kw_only=True)
class DimensionRow:
    """One searched setting and how it is paid for."""

    name: str
    values: str
    paid_as: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A priced sweep. Calibrated; exists before data is opened."""

    spec: SweepSpec  # with the law that law: auto chose
    fingerprint: str
    train_rows: int
    holdout_rows: int
    sampling_probability: float
    noise_multiplier: float
    calibrated: bool  # the noise was chosen to meet privacy.epsilon
    trial_event: Event
    event: Event  # of everything the sweep releases
    guarantee: Guarantee
    epsilon_one_trial: float
    epsilon_unsealed: float  # the bill if every run of the longest possible sweep were released
    dimensions: tuple[DimensionRow, ...]
    alternatives: tuple[Alternative, ...]
    expected_trials: float
    chance_of_top: float | None  # that a candidate lies in the best TOP of the space; None: candidates are no random draws
    choice: Choice | None = None  # why this law, where the file says law: auto

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON. Infinite epsilons are null."""
        protocol = self.spec.protocol
        return {
            "name": self.spec.name,
            "fingerprint": self.fingerprint,
            "spec": spec_to_dict(self.spec),
            "n": self.spec.data.rows,
            "n_stated_by": self.spec.data.rows_stated_by,
            "train_rows": self.train_rows,
            "holdout_rows": self.holdout_rows,
            "public": self.spec.data.public,
            "protocol": protocol.kind,
            "visible": protocol.visible,
            "search": self.spec.search.kind,
            "run_count_law": protocol.run_counts().to_dict() if isinstance(protocol, DrawnRuns) else None,
            "law_choice": None if self.choice is None else asdict(self.choice),
            "max_trials": protocol.max_trials,
            "expected_trials": self.expected_trials,
            "top": TOP,
            "chance_of_top": self.chance_of_top,
            "chance_of_nothing": protocol.run_counts().nothing if isinstance(protocol, DrawnRuns) else 0.0,
            "sampling_probability": self.sampling_probability,
            "steps": self.spec.trainer.steps,
            "batch_size": self.spec.trainer.expected_batch(self.train_rows),
            "noise_multiplier": self.noise_multiplier,
            "calibrated": self.calibrated,
            "epsilon": _finite(self.guarantee.epsilon),
            "delta": self.guarantee.delta,
            "epsilon_one_trial": _finite(self.epsilon_one_trial),
            "unseal_epsilon": _finite(self.epsilon_unsealed),
            "guarantee": self.guarantee.to_dict(),
            "dimensions": [asdict(row) for row in self.dimensions],
            "alternatives": [asdict(row) | {"epsilon": _finite(row.epsilon)} for row in self.alternatives],
            "trial_event": self.trial_event.to_dict(),
            "event": self.event.to_dict(),
        }


def plan(spec: SweepSpec, *, seeded: bool = False, noise_multiplier: float | None = None) -> Plan:
    """Price a sweep; calibrate its noise when the spec gives epsilon; choose the law where it is auto. Opens no data.

    `noise_multiplier`: one that was calibrated before for this spec, so that a resumed sweep keeps it to the digit.

    Raises:
      FieldError: the spec asks for more rows than it has, for an epsilon that no noise can reach, or for a search that its
        protocol does not pay for.
    """
    train_rows, holdout_rows = split_sizes(spec.data)
    batch_size = spec.trainer.expected_batch(train_rows)
    if batch_size > train_rows:
        raise FieldError("trainer.batch_size", batch_size, f"must be at most the {train_rows:,} training rows")
    spec, choice = with_law_chosen(spec, train_rows)
    refuse_search(spec, train_rows)
    delta = spec.privacy.delta
    if noise_multiplier is None:
        noise_multiplier = noise_for(spec, train_rows)
    one = trial_event(spec, train_rows, noise_multiplier)
    event, unsealed = spec.protocol.total(one), spec.protocol.unsealed(one, spec.protocol.max_trials)
    epsilon, epsilon_one = accountant.epsilon(event, delta), accountant.epsilon(one, delta)
    mean, chance = _counts(spec)
    relation = event.relation or ZERO_OUT
    return Plan(
        spec=spec,
        fingerprint=fingerprint(spec),
        train_rows=train_rows,
        holdout_rows=holdout_rows,
        sampling_probability=batch_size / train_rows,
        noise_multiplier=noise_multiplier,
        calibrated=spec.privacy.noise_multiplier is None,
        trial_event=one,
        event=event,
        guarantee=Guarantee(epsilon=epsilon, delta=delta, relation=relation, unit=spec.privacy.unit, seeded=seeded),
        epsilon_one_trial=epsilon_one,
        epsilon_unsealed=accountant.epsilon(unsealed, delta),
        dimensions=tuple(_dimensions(spec)),
        alternatives=tuple(alternatives(spec, one, epsilon_one, mean)),
        expected_trials=mean,
        chance_of_top=chance,
        choice=choice,
    )


def _counts(spec: SweepSpec) -> tuple[float, float | None]:
    """(expected number of candidates, chance that one is among the best TOP of the space)."""
    protocol = spec.protocol
    if isinstance(protocol, DrawnRuns):
        law = protocol.run_counts()
        return law.mean_trials(), law.chance(TOP)
    trials = protocol.max_trials
    if protocol.runs_one:
        return 1.0, TOP
    return float(trials), 1.0 - (1.0 - TOP) ** trials if spec.search.iid else None


def _dimensions(spec: SweepSpec) -> list[DimensionRow]:
    """How each setting is paid for."""
    how = {
        "select-best": "selected: part of the tuning bill",
        "subsample-tune": "selected on the tuning part: part of the tuning bill",
        "release-all": "released with every trial: each is paid for",
        "public-proxy": "free: chosen on public data",
    }.get(spec.protocol.kind, "fixed beforehand: free")
    coupled = ", coupled to clip: the two are nearly one dimension" if spec.space.step.policy.kind == "coupled" else ""
    rows = [
        DimensionRow(name=name, values=spec.search.values(domain), paid_as=how + (coupled if name.startswith("step.") else ""))
        for name, domain in spec.space.searched()
    ]
    for part in ("clip", "step"):
        space = getattr(spec.space, part)
        fixed = [f"{key} {value}" for key, value in space.settings.items() if not hasattr(value, "at")]
        if fixed:
            rows.append(
                DimensionRow(name=f"{part} ({space.policy.kind})", values=", ".join(fixed), paid_as="fixed beforehand: free")
            )
    return rows


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
