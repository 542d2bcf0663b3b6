"""SweepSpec -> Plan: everything about a sweep that is known before any data is opened, its whole price first of all."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from sweeper.checks import FieldError
from sweeper.data.split import split_sizes
from sweeper.privacy import accountant
from sweeper.privacy.events import Composed, DiscreteLaplace, Disjoint, Event, Repeated, SelectBest
from sweeper.privacy.guarantee import Guarantee
from sweeper.privacy.laws import run_count_law
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
class Alternative:
    """What the same sweep, at the same noise, would cost in another way."""

    name: str
    epsilon: float
    delta: float
    note: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A priced sweep. Calibrated; exists before data is opened."""

    spec: SweepSpec
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
    epsilon_unsealed: float  # the bill if every trial of the longest possible run were released
    dimensions: tuple[DimensionRow, ...]
    alternatives: tuple[Alternative, ...]
    expected_trials: float
    chance_of_top: float  # that at least one candidate lies in the best TOP of the space

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON. Infinite epsilons are null."""
        law = self.spec.protocol.run_counts().to_dict() if hasattr(self.spec.protocol, "run_counts") else None
        return {
            "name": self.spec.name,
            "fingerprint": self.fingerprint,
            "spec": spec_to_dict(self.spec),
            "n": self.spec.data.rows,
            "n_stated_by": self.spec.data.rows_stated_by,
            "train_rows": self.train_rows,
            "holdout_rows": self.holdout_rows,
            "public": self.spec.data.public,
            "protocol": self.spec.protocol.kind,
            "visible": self.spec.protocol.visible,
            "run_count_law": law,
            "max_trials": self.spec.protocol.max_trials,
            "expected_trials": self.expected_trials,
            "top": TOP,
            "chance_of_top": self.chance_of_top,
            "sampling_probability": self.sampling_probability,
            "steps": self.spec.trainer.steps,
            "batch_size": self.spec.trainer.batch_size,
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
    """Price a sweep; calibrate its noise when the spec gives epsilon. Opens no data.

    `noise_multiplier`: one that was calibrated before for this spec, so that a resumed sweep keeps it to the digit.

    Raises:
      FieldError: the spec asks for more rows than it has, or for an epsilon that no noise can reach.
    """
    train_rows, holdout_rows = split_sizes(spec.data)
    if spec.trainer.batch_size > train_rows:
        raise FieldError("trainer.batch_size", spec.trainer.batch_size, f"must be at most the {train_rows:,} training rows")
    delta = spec.privacy.delta

    def trial(noise_multiplier: float) -> Event:
        return trial_event(spec, train_rows, noise_multiplier)

    if noise_multiplier is None and spec.privacy.noise_multiplier is not None:
        noise_multiplier = spec.privacy.noise_multiplier
    elif noise_multiplier is None:
        assert spec.privacy.epsilon is not None
        try:
            noise_multiplier = accountant.calibrate(lambda s: spec.protocol.total(trial(s)), spec.privacy.epsilon, delta)
        except FieldError as error:
            raise error.within("privacy") from None
    one, event = trial(noise_multiplier), spec.protocol.total(trial(noise_multiplier))
    epsilon = accountant.epsilon(event, delta)
    epsilon_one = accountant.epsilon(one, delta)
    everything = accountant.epsilon(Repeated(one, spec.protocol.max_trials), delta)
    mean, chance = _counts(spec)
    return Plan(
        spec=spec,
        fingerprint=fingerprint(spec),
        train_rows=train_rows,
        holdout_rows=holdout_rows,
        sampling_probability=spec.trainer.batch_size / train_rows,
        noise_multiplier=noise_multiplier,
        calibrated=spec.privacy.noise_multiplier is None,
        trial_event=one,
        event=event,
        guarantee=Guarantee(epsilon=epsilon, delta=delta, unit=spec.privacy.unit, seeded=seeded),
        epsilon_one_trial=epsilon_one,
        epsilon_unsealed=epsilon if spec.protocol.releases_all else everything,
        dimensions=tuple(_dimensions(spec)),
        alternatives=tuple(_alternatives(spec, one, epsilon_one, mean)),
        expected_trials=mean,
        chance_of_top=chance,
    )


def trial_event(spec: SweepSpec, train_rows: int, noise_multiplier: float) -> Event:
    """The event of one trial: training and its score, on the same rows or on disjoint ones."""
    training = spec.trainer.event(train_rows, noise_multiplier)
    score = DiscreteLaplace(spec.score.epsilon)
    return Disjoint((training, score)) if spec.score.split == "holdout" else Composed((training, score))


def _counts(spec: SweepSpec) -> tuple[float, float]:
    """(expected number of candidates, chance that one is among the best TOP of the space)."""
    protocol = spec.protocol
    if hasattr(protocol, "run_counts"):
        law = protocol.run_counts()
        return law.mean_trials(), law.chance(TOP)
    trials = protocol.max_trials
    return float(trials), 1.0 - (1.0 - TOP) ** trials if not protocol.runs_one else TOP


def _dimensions(spec: SweepSpec) -> list[DimensionRow]:
    """How each setting is paid for."""
    how = {
        "select-best": "selected: part of the tuning bill",
        "release-all": "released with every trial: each is paid for",
        "public-proxy": "free: chosen on public data",
    }.get(spec.protocol.kind, "fixed beforehand: free")
    coupled = ", coupled to clip: the two are nearly one dimension" if spec.space.step.policy.kind == "coupled" else ""
    rows = [
        DimensionRow(name=name, values=str(domain), paid_as=how + (coupled if name.startswith("step.") else ""))
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


def _alternatives(spec: SweepSpec, one: Event, epsilon_one: float, mean: float) -> list[Alternative]:
    """The same number of runs at the same noise under the other protocols, and what naive arithmetic says."""
    delta = spec.privacy.delta
    runs = max(2, round(mean)) if not spec.protocol.runs_one else 12
    rows = []
    if spec.protocol.kind != "select-best":
        law = run_count_law("geometric", mean=float(runs), max_trials=5 * runs)
        bill = accountant.epsilon(SelectBest(one, law), delta)
        rows.append(
            Alternative(name="select-best", epsilon=bill, delta=delta, note=f"mean {runs} secret runs, only the winner visible")
        )
    if spec.protocol.kind != "release-all":
        bill = accountant.epsilon(Repeated(one, runs), delta)
        rows.append(Alternative(name="release-all", epsilon=bill, delta=delta, note=f"{runs} runs, every score visible"))
    naive = f"{runs} x the epsilon of one run, at delta {runs * delta:.2g}"
    rows.append(Alternative(name="naive composition", epsilon=runs * epsilon_one, delta=min(1.0, runs * delta), note=naive))
    if spec.protocol.kind != "public-proxy":
        note = "settings chosen on public data, one private run"
        rows.append(Alternative(name="public-proxy", epsilon=epsilon_one, delta=delta, note=note))
    if spec.protocol.kind != "no-tuning":
        rows.append(Alternative(name="no-tuning", epsilon=epsilon_one, delta=delta, note="one setting fixed beforehand"))
    return rows


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
