"""The events of a sweep's trials, and the noise that meets its bill."""

from __future__ import annotations

from typing import Any

from sweeper.checks import FieldError
from sweeper.privacy import accountant
from sweeper.privacy.events import REPLACE_ONE, Composed, DiscreteLaplace, Disjoint, Event, ReplaceOne
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
    try:
        return accountant.calibrate(
            lambda noise: spec.protocol.total(trial_event(spec, train_rows, noise)), privacy.epsilon, privacy.delta
        )
    except FieldError as error:
        raise error.within("privacy") from None
