"""The events of a sweep's trials, and the noise that meets its bill."""

from __future__ import annotations

from typing import Any

from sweeper.checks import FieldError
from sweeper.privacy import accountant
from sweeper.privacy.events import REPLACE_ONE, Composed, DiscreteLaplace, Disjoint, Event, Repeated, ReplaceOne
from sweeper.spec.sweep import SweepSpec


def trial_event(spec: SweepSpec, train_rows: int, noise_multiplier: float) -> Event:
    """The event of one trial: training and its score, on the same rows or on disjoint ones.

    Relation: the sampler's. The score is a count of right answers, which one record moves by at most 1, whether it vanishes or is
    replaced: its noise is the same for both. Searched settings that change what is asked stand at their dearest value, which
    dominates the others.
    """
    return event_with(spec, train_rows, noise_multiplier, spec.space.clip.dearest(), spec.space.step.dearest())


def event_with(spec: SweepSpec, train_rows: int, noise_multiplier: float, clip: Any, step: Any) -> Event:
    """`trial_event` with these policies in the place of the spec's own."""
    training = spec.trainer.event(train_rows, noise_multiplier, clip, step)
    score: Event = DiscreteLaplace(spec.score.epsilon)
    if spec.trainer.relation == REPLACE_ONE:
        score = ReplaceOne(score)
    return Disjoint((training, score)) if spec.score.split == "holdout" else Composed((training, score))


def noise_for(spec: SweepSpec, train_rows: int) -> float:
    """The noise multiplier that the spec gives, or the one that makes the whole bill privacy.epsilon.

    Raises:
      FieldError: no noise reaches it.
    """
    privacy = spec.privacy
    if privacy.noise_multiplier is not None:
        return privacy.noise_multiplier
    assert privacy.epsilon is not None
    if getattr(spec.trainer, "unprotected", False):  # on public data alone: no noise makes it private
        return 1.0
    _asks(spec, train_rows)
    try:
        return accountant.calibrate(
            lambda noise: spec.protocol.total(trial_event(spec, train_rows, noise)), privacy.epsilon, privacy.delta
        )
    except FieldError as error:
        raise _named(spec, train_rows, error) from None


def _asks(spec: SweepSpec, train_rows: int) -> None:
    """What a clip policy refuses to ask of so many rows, under the name of its own field."""
    try:
        spec.space.clip.dearest().asks(train_rows, spec.trainer.relation)
    except FieldError as error:
        raise error.within("space.clip") from None


def _named(spec: SweepSpec, train_rows: int, error: FieldError) -> FieldError:
    """A calibration's refusal, naming the field whose own noise costs most where that is why."""
    own = "the parts that carry their own noise (the score)"
    if own not in error.rule:
        return error.within("privacy")
    costs = {field: accountant.epsilon(event, spec.privacy.delta) for field, event in _own_noise(spec, train_rows).items()}
    dearest = max(costs, key=lambda field: costs[field])
    rule = error.rule.replace(own, "the parts that carry their own noise, " + ", ".join(costs) + ",")
    way = "Raise" if dearest.endswith("count_noise") else "Lower"
    return FieldError("privacy.epsilon", error.value, rule, f"{way} {dearest}, or raise privacy.epsilon.")


def _own_noise(spec: SweepSpec, train_rows: int) -> dict[str, Event]:
    """Field -> what it pays for in one trial, of all that does not depend on the noise multiplier."""
    found: dict[str, Event] = {"score.epsilon": DiscreteLaplace(spec.score.epsilon)}
    clip, step, much = spec.space.clip.dearest(), spec.space.step.dearest(), accountant.MOST_NOISE
    asked, searched = clip.asks(train_rows, spec.trainer.relation), step.event(much)
    if asked is not None:
        found["space.clip.epsilon"] = asked
    if getattr(clip, "count_noise", None) is not None:
        found["space.clip.count_noise"] = Repeated(clip.sum_event(much), spec.trainer.steps)
    if searched is not None and step.epsilon is not None:
        found["space.step.epsilon"] = Repeated(searched, spec.trainer.steps)
    return found
