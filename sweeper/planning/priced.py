"""A sweep with its price: the Plan, and how it is made from a spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sweeper.checks import FieldError
from sweeper.data.split import split_sizes
from sweeper.planning.alternatives import Alternative, alternatives
from sweeper.planning.arms import ArmPlan, finite, noises, per_arm, whole
from sweeper.planning.chosen import Choice, with_law_chosen
from sweeper.planning.dimensions import DimensionRow, dimensions
from sweeper.planning.searches import refuse_search
from sweeper.planning.trial import trial_event
from sweeper.privacy import accountant
from sweeper.privacy.events import ZERO_OUT, Event
from sweeper.privacy.guarantee import Guarantee
from sweeper.privacy.release import DrawnRuns
from sweeper.spec.codec import fingerprint, spec_to_dict
from sweeper.spec.sweep import SweepSpec, in_arm

TOP = 0.1  # the share of the space whose discovery is quoted


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A priced sweep. Calibrated; exists before data is opened.

    With arms, what is None here is each arm's own: see `arms`.
    """

    spec: SweepSpec  # with the law that law: auto chose
    fingerprint: str
    train_rows: int
    holdout_rows: int
    sampling_probability: float | None
    noise_multiplier: float | None
    calibrated: bool  # the noise was chosen to meet privacy.epsilon
    trial_event: Event | None
    event: Event  # of everything the sweep releases; with arms on public data, of the dearest arm
    guarantee: Guarantee
    epsilon_one_trial: float  # with arms, of the dearest
    epsilon_unsealed: float  # the bill if every run of the longest possible sweep were released
    dimensions: tuple[DimensionRow, ...]
    alternatives: tuple[Alternative, ...]
    expected_trials: float  # of all arms
    chance_of_top: float | None  # that a candidate lies in the best TOP of the space; None: candidates are no random draws
    choice: Choice | None = None  # why this law, where the file says law: auto
    arms: tuple[ArmPlan, ...] = ()

    @property
    def noises(self) -> dict[str, float]:
        """Name of the arm -> its noise multiplier; {"": the sweep's} without arms."""
        if self.noise_multiplier is not None:
            return {"": self.noise_multiplier}
        return {arm.name: arm.noise_multiplier for arm in self.arms}

    def arm(self, name: str) -> ArmPlan | None:
        """The arm of a name; None without arms."""
        return next((found for found in self.arms if found.name == name), None)

    def everything(self, runs: Mapping[str, int]) -> Event:
        """The event of so many runs of each arm, the final ones not counted, if every one of them is released."""
        events = [self.unsealed(arm, count) for arm, count in runs.items()]
        return whole(events, self.guarantee.delta, public=self.spec.data.public)

    def unsealed(self, arm: str, runs: int) -> Event:
        """The same of one arm."""
        found = self.arm(arm)
        return self.spec.protocol.unsealed(found.trial_event if found else self.trial_event, runs)

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
            "table": getattr(self.spec.data.source, "budget_name", self.spec.data.source.kind),
            "budget_of": self.spec.budget_of,
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
            "steps": self.spec.trainer.steps if self.spec.trainer else None,
            "batch_size": self.spec.trainer.expected_batch(self.train_rows) if self.spec.trainer else None,
            "noise_multiplier": self.noise_multiplier,
            "calibrated": self.calibrated,
            "epsilon": finite(self.guarantee.epsilon),
            "delta": self.guarantee.delta,
            "epsilon_one_trial": finite(self.epsilon_one_trial),
            "unseal_epsilon": finite(self.epsilon_unsealed),
            "guarantee": self.guarantee.to_dict(),
            "dimensions": [asdict(row) for row in self.dimensions],
            "alternatives": [asdict(row) | {"epsilon": finite(row.epsilon)} for row in self.alternatives],
            "trial_event": None if self.trial_event is None else self.trial_event.to_dict(),
            "event": self.event.to_dict(),
            "arms": [arm.to_dict() for arm in self.arms],
        }


def plan(spec: SweepSpec, *, seeded: bool = False, noise_multiplier: float | Mapping[str, float] | None = None) -> Plan:
    """Price a sweep; calibrate its noise when the spec gives epsilon; choose the law where it is auto. Opens no data.

    `noise_multiplier`: one that was calibrated before for this spec, or one for each arm, so that a resumed sweep keeps it to the
    digit.

    Raises:
      FieldError: the spec asks for more rows than it has, for an epsilon that no noise can reach, or for a search that its
        protocol does not pay for.
    """
    train_rows, holdout_rows = split_sizes(spec.data)
    for name, own in spec.by_arm().items():
        if (batch_size := own.trainer.expected_batch(train_rows)) > train_rows:
            rule = f"must be at most the {train_rows:,} training rows"
            raise FieldError(in_arm(name, "trainer.batch_size"), batch_size, rule)
    spec, choice = with_law_chosen(spec, train_rows)
    for own in spec.by_arm().values():
        refuse_search(own, train_rows, quote=not spec.arms)
    noise = noises(spec, train_rows) if noise_multiplier is None else per_arm(spec, noise_multiplier)
    arms = tuple(_arm(name, own, train_rows, noise[name]) for name, own in spec.by_arm().items())
    only, delta, protocol = None if spec.arms else arms[0], spec.privacy.delta, spec.protocol
    event = whole([arm.event for arm in arms], delta, public=spec.data.public)
    unsealed = [protocol.unsealed(arm.trial_event, protocol.max_trials) for arm in arms]
    return Plan(
        spec=spec,
        fingerprint=fingerprint(spec),
        train_rows=train_rows,
        holdout_rows=holdout_rows,
        sampling_probability=only.sampling_probability if only else None,
        noise_multiplier=only.noise_multiplier if only else None,
        calibrated=spec.privacy.noise_multiplier is None,
        trial_event=only.trial_event if only else None,
        event=event,
        guarantee=Guarantee(
            epsilon=accountant.epsilon(event, delta),
            delta=delta,
            relation=event.relation or ZERO_OUT,
            unit=spec.privacy.unit,
            seeded=seeded,
        ),
        epsilon_one_trial=max(arm.epsilon_one_trial for arm in arms),
        epsilon_unsealed=accountant.epsilon(whole(unsealed, delta, public=spec.data.public), delta),
        dimensions=only.dimensions if only else (),
        alternatives=tuple(alternatives(spec, arms)),
        expected_trials=sum(arm.expected_trials for arm in arms),
        chance_of_top=arms[0].chance_of_top,
        choice=choice,
        arms=arms if spec.arms else (),
    )


def _arm(name: str, spec: SweepSpec, train_rows: int, noise_multiplier: float) -> ArmPlan:
    """One arm, or a sweep without arms, at this noise."""
    delta, batch_size = spec.privacy.delta, spec.trainer.expected_batch(train_rows)
    one = trial_event(spec, train_rows, noise_multiplier)
    _runs_at(name, spec, noise_multiplier)
    event = spec.protocol.total(one)
    epsilon, epsilon_one = accountant.epsilon(event, delta), accountant.epsilon(one, delta)
    mean, chance = _counts(spec)
    return ArmPlan(
        name=name,
        noise_multiplier=noise_multiplier,
        sampling_probability=batch_size / train_rows,
        steps=spec.trainer.steps,
        batch_size=batch_size,
        trial_event=one,
        event=event,
        relation=event.relation or ZERO_OUT,
        epsilon_one_trial=epsilon_one,
        epsilon=epsilon,
        expected_trials=mean,
        chance_of_top=chance,
        dimensions=tuple(dimensions(spec, train_rows, noise_multiplier, one, epsilon, epsilon_one)),
    )


def _runs_at(name: str, spec: SweepSpec, noise_multiplier: float) -> None:
    """Refuse now what a policy would refuse in every trial: noise of its own that is too small beside that of the gradient."""
    for end in (False, True):
        clip, step = spec.space.clip.dearest(end), spec.space.step.dearest(end)
        try:
            clip.sum_noise(step.gradient_noise(noise_multiplier))
        except FieldError as error:
            found = error.within("space.clip")
            raise FieldError(in_arm(name, found.field), found.value, found.rule, found.hint) from None


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
