"""law: auto becomes a law here, before anything else is priced: plan, fingerprint, vault and resume know the chosen one only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sweeper.checks import FieldError
from sweeper.planning.trial import noise_for, trial_event
from sweeper.privacy import accountant
from sweeper.privacy.cache import cached
from sweeper.privacy.events import Event
from sweeper.privacy.release import AUTO, DrawnRuns
from sweeper.spec.sweep import SweepSpec

SHOWN = 5  # laws in the table
ATTEMPTS = 5  # at a limit: the search's grid is coarser than the account's


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One law that was weighed: its JSON, its chance to see a candidate of the best `top`, its bill, its expected runs."""

    law: Mapping[str, Any]
    chance: float
    epsilon: float
    mean_trials: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What law: auto was asked, at which noise, and the laws that came nearest, the chosen one first."""

    top: float
    chance: float | None  # asked for, at the smallest bill
    max_epsilon: float | None  # asked for, at the largest chance
    noise_multiplier: float
    table: tuple[Tried, ...]


def with_law_chosen(spec: SweepSpec, train_rows: int) -> tuple[SweepSpec, Choice | None]:
    """The spec with a law in the place of auto, and why that one.

    Where the noise is calibrated, the laws are weighed at the noise of a geometric law of the chance asked for: which law wins
    hardly depends on the noise, and the bill of the one chosen is then met to the usual precision.

    Raises:
      FieldError: no law has the chance, or none costs as little as the limit.
    """
    protocol = spec.protocol
    if not isinstance(protocol, DrawnRuns) or protocol.law != AUTO:
        return spec, None
    if spec.arms:
        rule = "weighs the bill of one selection, and every arm here makes one of its own"
        raise FieldError("protocol.law", AUTO, rule, "Name a law; sweeper plan on one arm's clip and step, as space, says which.")
    assert protocol.top is not None
    if protocol.chance is not None:
        geometric = {"law": "geometric", "mean_trials": _geometric_mean(protocol.chance, protocol.top), "max_trials": None}
        noise = noise_for(replace(spec, protocol=protocol.with_law(geometric)), train_rows)
    else:
        assert spec.privacy.noise_multiplier is not None  # a fault otherwise
        noise = spec.privacy.noise_multiplier
    one, limit = trial_event(spec, train_rows, noise), protocol.max_epsilon
    if one.unprotected:
        rule = f"has no finite bill to weigh at noise multiplier {noise:g}"
        raise FieldError("protocol.law", AUTO, rule, "Give more noise, or name a law.")
    for _ in range(ATTEMPTS):
        table = weighed(one, spec.privacy.delta, protocol, limit)
        chosen = replace(spec, protocol=protocol.with_law(fields_of(table[0].law)))
        if limit is None or protocol.max_epsilon is None:
            break
        bill = accountant.epsilon(chosen.protocol.total(one), spec.privacy.delta)
        if bill <= protocol.max_epsilon:
            break
        limit *= 0.9999 * protocol.max_epsilon / bill
    else:
        raise FieldError("protocol.max_epsilon", protocol.max_epsilon, "is met by no law that was tried", "Raise it a little.")
    choice = Choice(
        top=protocol.top,
        chance=protocol.chance,
        max_epsilon=protocol.max_epsilon,
        noise_multiplier=noise,
        table=table[:SHOWN],
    )
    return chosen, choice


def _geometric_mean(chance: float, top: float) -> float:
    """The mean of the geometric law with this chance: it misses with probability (1 - p) / (1 - p + mean p)."""
    return min(max(chance * (1 - top) / ((1 - chance) * top), 1.001), 1_000.0)


def weighed(one: Event, delta: float, protocol: DrawnRuns, limit: float | None) -> tuple[Tried, ...]:
    """The laws that `auto_law.choose` weighed, from the disk where the same was asked before."""
    asked = {"top": protocol.top, "chance": protocol.chance, "epsilon": limit, "max_trials": protocol.max_trials}
    try:
        rows = cached({"what": "auto-law", "event": one.to_dict(), "delta": delta, **asked}, lambda: _choose(one, delta, asked))
    except FieldError as error:
        field = {"epsilon": "max_epsilon", "trial": "max_epsilon"}.get(error.field, error.field)
        raise FieldError(f"protocol.{field}", error.value, error.rule, error.hint) from None
    return tuple(Tried(**row) for row in rows)


def _choose(one: Event, delta: float, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    from sweeper.privacy.auto_law import choose

    found = choose(one, delta=delta, **asked)
    rows = ((row.law.to_dict(), row.chance, row.epsilon, row.mean_trials) for row in found.table)
    return [dict(zip(("law", "chance", "epsilon", "mean_trials"), row, strict=True)) for row in rows]


def fields_of(law: Mapping[str, Any]) -> dict[str, Any]:
    """A law's JSON as fields of a protocol."""
    names = {"mean": "mean_trials"}
    return {names.get(key, key): value for key, value in law.items()}
