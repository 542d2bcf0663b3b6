"""Odometers for `release-all` with adaptive search: they admit trials while the bill keeps a target, and then stop.

Every trial's model and score are released, and a search (TPE, ASHA, ...) picks the next candidate after reading them. Two bills
hold whatever the search does; which one is used is fixed before the first trial.

    state = odometer.start()
    while (after := odometer.admit(state, event)) is not None:
        state = after            # saved before the trial opens data: a crash leaves a charge, never a hole
        ...                      # run the trial, release it, let the search read it

`Reserved`: all trials ask ONE event, and their largest number is fixed. Theorem: let (P, Q) dominate every mechanism that a trial
may be, whatever its settings. Then a run of at most n trials, each chosen after the earlier answers, is dominated by n independent
draws of (P, Q). Proof: by Blackwell each trial's release is a random map of one draw from P (table D) or Q (neighbour D'); which
map may depend on the earlier answers, because these are known when it is applied. So the whole transcript is one random map of n
independent draws, P^n on D and Q^n on D', and processing only lowers divergences. QED (Zhu, Dong, Wang 2022, Theorem 10, for
profiles.) Settings that change nothing about the pair (clip norm with noise scaled to it, step size, schedule) are covered: the
event is the same. Each direction has its own pair, and so has each part of the table, if the split is the same for all trials.
Stopping after k < n trials is a map of the same n draws, so it is charged for n: the bill is that of n from the start, and the bill
of k promises nothing to somebody who stopped because of what they saw.

`Filtered`: every trial may have its own event, and trials that are not run cost nothing. Then no pair is common to all choices, and
the composed loss distribution of the trials that happened is a bound for lists fixed beforehand only
(tests/privacy/test_odometer.py builds a search that passes it). The Renyi filter of filter.py governs instead, at one order fixed
before the run.

Trials may run at the same time: one that was admitted asks what its event says whatever others answer, so its answers may be
thought given when it was admitted. Stopping a trial early is processing of its full run and is charged in full. A trial that was
lost to the infrastructure is replayed with the same streams under the same admission; nothing is given back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, cast

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy.budget import APPROXIMATE_SHARE, Accountant
from sweeper.privacy.events import REPLACE_ONE, ZERO_OUT, Event, Repeated
from sweeper.privacy.filter import FilterState, RenyiFilter, RoundCost, best_order, resumed, saved

MOST_TRIALS = 1_000_000


class Odometer(Protocol):
    """What a launcher asks of either mode."""

    def start(self) -> FilterState: ...

    def admit(self, state: FilterState, event: Event) -> FilterState | None:
        """The state with the trial charged, to be saved before the trial starts; None where it does not fit."""
        ...

    def reading(self, state: FilterState) -> float:
        """The current bill, epsilon at the odometer's delta."""
        ...

    def save(self, state: FilterState) -> dict[str, Any]:
        """A JSON object from which the search goes on exactly where it was."""
        ...

    def resume(self, data: Mapping[str, Any]) -> FilterState:
        """The state that `save` wrote; refused under other settings."""
        ...


@dataclass(frozen=True, kw_only=True)
class Reserved:
    """At most `max_trials` trials of one event, billed as that many from the start.

    Guarantee: all that is released is (bill, delta)-DP, and bill is at most epsilon, for every adaptive choice of the trials'
      settings and every way to stop.
    Relation: that of the event. Units: nats.
    Exactness: the tight composition of the event; attained by a search that uses all trials.
    Source: the theorem at the top of this file.
    """

    kind: ClassVar[str] = "reserved-odometer"

    event: Event
    max_trials: int
    epsilon: float
    delta: float
    accountant: Accountant | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        checks.whole(1, MOST_TRIALS, max_trials=self.max_trials)
        checks.positive(epsilon=self.epsilon)
        checks.probability(delta=self.delta)
        if not self.bill <= self.epsilon:
            raise FieldError(
                "max_trials",
                self.max_trials,
                f"would cost {self.bill:.4g}, above epsilon = {self.epsilon:.6g} at delta = {self.delta:.6g}",
                "Reserve fewer trials, or give every trial more noise.",
            )

    @classmethod
    def largest(cls, event: Event, epsilon: float, delta: float, accountant: Accountant | None = None) -> Reserved:
        """The reservation of as many trials as (epsilon, delta) allows, found before the first one.

        Raises:
          FieldError: not even one trial fits.
        """
        chosen = _accountant(accountant)

        def fits(trials: int) -> bool:
            return chosen.epsilon(Repeated(event, trials), delta) <= epsilon

        low, high = 1, 2
        while high <= MOST_TRIALS and fits(high):
            low, high = high, 2 * high
        high = min(high, MOST_TRIALS + 1)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return cls(event=event, max_trials=low, epsilon=epsilon, delta=delta, accountant=accountant)

    @cached_property
    def bill(self) -> float:
        return float(_accountant(self.accountant).epsilon(Repeated(self.event, self.max_trials), self.delta))

    def start(self) -> FilterState:
        return FilterState()

    def admit(self, state: FilterState, event: Event) -> FilterState | None:
        """The state with one trial more; None when all reserved trials were admitted.

        Raises:
          FieldError: another event than the reserved one, which no theorem here covers.
        """
        if event.canonical() != self.event.canonical():
            raise FieldError(
                "event",
                event.to_dict(),
                "is not the event that was reserved",
                "Keep noise, sampling and steps the same for all trials, or use the filtered odometer.",
            )
        return replace(state, admitted=state.admitted + 1) if state.admitted < self.max_trials else None

    def reading(self, state: FilterState) -> float:
        """The bill of the reservation, whatever was admitted of it."""
        return self.bill

    def save(self, state: FilterState) -> dict[str, Any]:
        return saved(self, state)

    def resume(self, data: Mapping[str, Any]) -> FilterState:
        return resumed(self, data)

    def to_dict(self) -> dict[str, Any]:
        numbers = {"max_trials": self.max_trials, "epsilon": self.epsilon, "delta": self.delta}
        return {"kind": self.kind, "event": self.event.to_dict()} | numbers


@dataclass(frozen=True, kw_only=True)
class Filtered:
    """Trials of any events, each charged when it is admitted, under one Renyi filter.

    Guarantee: all that is released is (epsilon, delta)-DP, for every adaptive choice of events and settings and every way to stop.
      `reading` is what trials of these costs would have cost had they been fixed beforehand: for display, not a promise.
    Relation: `relation`, of all events; one of another is refused. Units: nats.
    Settings: `order` is fixed before the first trial; `Filtered.of(epsilon, delta)` takes the one that suits Gaussian trials.
    Source: filter.py; costs from accountant.renyi, delta0 within a fixed share of delta.
    """

    kind: ClassVar[str] = "filtered-odometer"

    order: float
    epsilon: float
    delta: float
    approximate_share: float = APPROXIMATE_SHARE
    relation: str = ZERO_OUT
    accountant: Accountant | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        checks.one_of((ZERO_OUT, REPLACE_ONE), relation=self.relation)
        _ = self.filter  # checks the numbers

    @classmethod
    def of(cls, epsilon: float, delta: float, accountant: Accountant | None = None) -> Filtered:
        order = best_order(epsilon, delta, approximate_share=APPROXIMATE_SHARE)
        return cls(order=order, epsilon=epsilon, delta=delta, accountant=accountant)

    @cached_property
    def filter(self) -> RenyiFilter:
        return RenyiFilter(order=self.order, epsilon=self.epsilon, delta=self.delta, approximate_share=self.approximate_share)

    def start(self) -> FilterState:
        return self.filter.start()

    def admit(self, state: FilterState, event: Event) -> FilterState | None:
        """The state with the trial's Renyi cost charged; None where it does not fit.

        Raises:
          FieldError: the event speaks of another relation, or the accountant has no Renyi cost for it.
        """
        if event.relation not in (None, self.relation):
            raise FieldError("event", event.to_dict(), f"speaks of {event.relation}, and this bill of {self.relation}")
        rho, delta0 = _accountant(self.accountant).renyi(event, self.order)
        return self.filter.admit(state, RoundCost(rho=rho, delta0=delta0))

    def reading(self, state: FilterState) -> float:
        return self.filter.reading(state)

    def save(self, state: FilterState) -> dict[str, Any]:
        return saved(self, state)

    def resume(self, data: Mapping[str, Any]) -> FilterState:
        return resumed(self, data)

    def to_dict(self) -> dict[str, Any]:
        return {"relation": self.relation} | asdict(self.filter) | {"kind": self.kind}


def _accountant(given: Accountant | None) -> Accountant:
    if given is not None:
        return given
    from sweeper.privacy import accountant  # loads numpy when a price is not in its cache

    return cast(Accountant, accountant)
