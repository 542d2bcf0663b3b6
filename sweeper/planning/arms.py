"""Arms: several selections in one sweep. On private data they compose to one bill; on public data each is billed alone.

An arm's sweep (SweepSpec.of_arm) is priced as any sweep. What this module adds is the event of all of them together, and the bill
that each may have for all of them to cost what the user allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sweeper.checks import FieldError
from sweeper.planning.dimensions import DimensionRow
from sweeper.planning.trial import noise_for, trial_event
from sweeper.privacy import accountant
from sweeper.privacy.events import Composed, Disjoint, Event, Repeated, SelectBest
from sweeper.spec.sweep import SweepSpec

LEAST, AIM = 0.995, 0.998  # of privacy.epsilon: the least that is taken, and what is tried for
GROWTH = 0.6  # first guess: the bill of n arms is n^GROWTH times that of one
NARROW = 1e-4  # relative: a bracket narrower than this ends the search, where the price jumps
ATTEMPTS = 40

Total = Callable[[Event], Event]


@dataclass(frozen=True, kw_only=True)
class ArmPlan:
    """One arm with its price. In a sweep without arms there is one, with the name ""."""

    name: str
    noise_multiplier: float
    sampling_probability: float
    steps: int
    batch_size: int
    trial_event: Event
    event: Event  # of all that this arm releases
    relation: str
    epsilon_one_trial: float
    epsilon: float  # this arm's bill, alone
    expected_trials: float
    chance_of_top: float | None
    dimensions: tuple[DimensionRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON. Infinite epsilons are null."""
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        data |= {name: finite(data[name]) for name in ("epsilon", "epsilon_one_trial")}
        data |= {"trial_event": self.trial_event.to_dict(), "event": self.event.to_dict()}
        return data | {"dimensions": [asdict(row) for row in self.dimensions]}


def whole(events: Sequence[Event], delta: float, *, public: bool) -> Event:
    """The event that a sweep with arms is billed as: all of its arms' `events`, or on public data the dearest of them."""
    if len(events) == 1:
        return events[0]
    return max(events, key=lambda event: accountant.epsilon(event, delta)) if public else together(events)


def together(events: Sequence[Event]) -> Event:
    """The composition of the arms' events.

    Guarantee: the arms split the rows in the same way, so a record is a training record of all of them or a held-out one of all;
    each kind is charged for the composition of what every arm asks of it, and the sweep for the larger of the two.
    Relation: that of the arms, which is one.
    """
    columns = [_parts(event) for event in events]
    if len({len(parts) for parts in columns}) > 1:
        return Composed(tuple(events))  # a record in any part of each: dearer, never cheaper
    seen = tuple(Composed(parts) for parts in zip(*columns, strict=True))
    return seen[0] if len(seen) == 1 else Disjoint(seen)


def _parts(event: Event) -> tuple[Event, ...]:
    """What a record of each part of the table sees of an event."""
    if isinstance(event, Disjoint):
        return event.parts
    if isinstance(event, SelectBest):
        return tuple(SelectBest(part, event.law) for part in _parts(event.trial))
    if isinstance(event, Repeated):
        return tuple(Repeated(part, event.count) for part in _parts(event.event))
    return (event,)


def noises(spec: SweepSpec, train_rows: int) -> dict[str, float]:
    """Name of the arm -> its noise multiplier: given, or calibrated so that every arm has the same bill.

    That bill is privacy.epsilon on public data and in a sweep without arms. On private data it is the largest that lets the
    composition of all arms cost at most privacy.epsilon: what is found costs 0.995 of it or more, unless the price jumps there.

    Raises:
      FieldError: no noise reaches it.
    """
    if not spec.arms or spec.data.public or spec.privacy.noise_multiplier is not None:
        return {name: _noise(name, own, train_rows) for name, own in spec.by_arm().items()}
    assert spec.privacy.epsilon is not None
    target, delta = spec.privacy.epsilon, spec.privacy.delta
    found: dict[float, dict[str, float]] = {}

    def price(bill: float) -> float:
        own = {name: replace(arm, privacy=replace(arm.privacy, epsilon=bill)) for name, arm in spec.by_arm().items()}
        found[bill] = {name: _noise(name, arm, train_rows, target) for name, arm in own.items()}
        events = [arm.protocol.total(trial_event(arm, train_rows, found[bill][name])) for name, arm in own.items()]
        return accountant.epsilon(together(events), delta)

    return found[_root(price, target, target / len(spec.arms) ** GROWTH)]


def _noise(name: str, own: SweepSpec, train_rows: int, target: float | None = None) -> float:
    """One arm's noise. `target`: the whole bill, of which this arm's is a share."""
    try:
        return noise_for(own, train_rows)
    except FieldError as error:
        if not name:
            raise
        share = f"leaves arm {name} a bill of {error.value:.3g}, which" if target is not None else f"of arm {name}"
        value = error.value if target is None else target
        raise FieldError(error.field, value, f"{share} {error.rule}", error.hint) from None


def _root(price: Callable[[float], float], target: float, guess: float) -> float:
    """A bill whose price is in [LEAST, 1] of the target, by secants in logs inside a bracket.

    A bill that no noise reaches is too small: the score of a trial has a price of its own.
    """
    little, much, slope, x = -math.inf, math.log(target) + 1e-9, 1.0, math.log(guess)
    priced: dict[float, float] = {}
    refused: FieldError | None = None
    for _ in range(ATTEMPTS):
        try:
            gap = math.log(price(math.exp(x)) / target)
        except FieldError as error:
            refused, little = error, x
            if much - x < NARROW:
                break
            x = 0.5 * (x + much)
            continue
        if math.log(LEAST) <= gap <= 0:
            return math.exp(x)
        if gap > 0:
            much = min(much, x)
        else:
            little = max(little, x)
        if priced:
            last = min(priced, key=lambda other: abs(other - x))
            if math.isfinite(gap - priced[last]) and last != x:
                slope = min(max((gap - priced[last]) / (x - last), 0.2), 5.0)
        priced[x] = gap
        if much - little < NARROW:
            break
        step = (math.log(AIM) - gap) / slope if math.isfinite(gap) else -1.0
        wanted = x + step
        x = wanted if little < wanted < much else 0.5 * (max(little, much - 2.0) + much)
    under = [x for x, gap in priced.items() if gap <= 0]
    if not under:
        raise refused or FieldError("privacy.epsilon", target, "is met by no bill of an arm", "Raise it.")
    return math.exp(max(under))


def per_arm(spec: SweepSpec, noise: float | Mapping[str, float]) -> dict[str, float]:
    """Noise multipliers by arm, of a sweep with or without arms."""
    return dict(noise) if isinstance(noise, Mapping) else dict.fromkeys(spec.by_arm(), noise)


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
