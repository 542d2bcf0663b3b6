"""A bill derived step by step: from single mechanisms up to the whole protocol, with theorems, sources and numbers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from sweeper import checks
from sweeper.privacy import accountant
from sweeper.privacy.events import NOTHING, REPLACE_ONE, ZERO_OUT, Event, SelectBest
from sweeper.privacy.explain_rules import rule
from sweeper.privacy.laws import TruncatedNegativeBinomial
from sweeper.privacy.price import run_loss
from sweeper.privacy.renyi_check import renyi_check

Numbers = dict[str, float | None]  # None: infinite, or no such bound is known


@dataclass(frozen=True, kw_only=True)
class Step:
    """One line of a derivation. `uses`: the steps it is made of. numbers: at the bill's delta, unless their name says else."""

    number: int
    title: str
    theorem: str
    source: str
    uses: tuple[int, ...] = ()
    numbers: Numbers = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"uses": list(self.uses)}


def explain(event: Event, delta: float, trial: Event | None = None) -> list[Step]:
    """The derivation of an event's epsilon at delta. Every event inside is one step, equal ones once; `trial` is one run of it.

    Guarantee: every `epsilon` is an upper bound for the step named, in the event's relation; `attained` is a LOWER bound on what
    any analysis that knows the trial by its loss, and not the score, must charge for the selection (attained.py).
    """
    checks.probability(delta=delta)
    steps: list[Step] = []
    places: dict[str, int] = {}
    _walk(event, delta, steps, places)
    steps.append(_renyi(event, delta, len(steps) + 1))
    steps.append(_statement(event, delta, len(steps) + 1, places))
    if trial is not None and trial != event:
        steps.append(_single_run(trial, delta, len(steps) + 1))
    return steps


def _walk(event: Event, delta: float, steps: list[Step], places: dict[str, int]) -> None:
    if event.canonical() in places:
        return
    for part in event.inside:
        _walk(part, delta, steps, places)
    said = rule(event, lambda part: f"step {places[part.canonical()]}")
    number = places[event.canonical()] = len(steps) + 1
    numbers: Numbers = {"epsilon": _finite(accountant.epsilon(event, delta))}
    if isinstance(event, SelectBest):
        numbers |= selection_numbers(event, delta)
    steps.append(
        Step(
            number=number,
            title=said.title if event != NOTHING else "nothing",
            theorem=said.theorem,
            source=said.source,
            uses=tuple(places[part.canonical()] for part in event.inside),
            numbers=numbers,
        )
    )


def selection_numbers(event: SelectBest, delta: float) -> Numbers:
    """What goes into the price of a selection, what an explicit score attains, and the looser bounds that must lie above."""
    import numpy as np

    from sweeper.privacy.attained import attained_epsilon
    from sweeper.privacy.selection import closed_form_epsilon

    law = event.law
    ends = law.derivative(np.array([1.0, 0.0]))  # h(s) = f'(1 - s) at s = 0 and s = 1
    numbers: Numbers = {
        "epsilon_one_run": _finite(accountant.epsilon(event.trial, delta)),
        "expected_runs_m": float(ends[0]),
        "chance_of_one_run_h1": float(ends[1]),
        "chance_of_top_10_percent": law.chance(0.1),
    }
    if isinstance(law, TruncatedNegativeBinomial):
        numbers["gamma"] = law.gamma
    price = accountant.epsilon(event, delta)
    if not math.isfinite(price) or price == 0.0:
        return numbers
    grid = accountant.settled_interval(event, delta, accountant.TOLERANCE)
    loss = run_loss(event.trial, grid)
    attained = min(attained_epsilon(loss, law, delta), price)  # the price may be from another grid
    numbers["attained"] = _finite(attained)
    numbers["price_over_attained"] = price / attained if attained > 0 else None
    if isinstance(law, TruncatedNegativeBinomial) and law.max_trials is None:
        numbers["closed_form"] = _finite(closed_form_epsilon(loss, law, delta))
        numbers["renyi"] = renyi_check(event, delta)
    return numbers


def _renyi(event: Event, delta: float, number: int) -> Step:
    found = renyi_check(event, delta)
    known = "a second, looser bound that uses no loss law" if found is not None else "no Renyi bound of this protocol is known here"
    return Step(
        number=number,
        title=f"cross-check of the whole by Renyi accounting: {known}",
        theorem="Renyi costs add at each order; epsilon by the best order",
        source="Mironov 2017; selection: Papernot and Steinke 2022; conversion: Canonne, Kamath, Steinke 2020",
        numbers={"renyi": found},
    )


def _statement(event: Event, delta: float, number: int, places: dict[str, int]) -> Step:
    relations = {
        ZERO_OUT: "relation zero-out: one record replaced by a null record (costs equal add/remove-one)",
        REPLACE_ONE: "relation replace-one: one record replaced by any other",
        None: "any relation: nothing is released",
    }
    return Step(
        number=number,
        title=f"the whole bill, at delta {delta:g}",
        theorem=f"P[M(D) in S] <= e^epsilon P[M(D') in S] + delta for all S and neighbours D, D'; {relations[event.relation]}",
        source="definition; unit: one record",
        uses=(places[event.canonical()],),
        numbers={"epsilon": _finite(accountant.epsilon(event, delta)), "delta": delta},
    )


def _single_run(trial: Event, delta: float, number: int) -> Step:
    return Step(
        number=number,
        title="what a report of the final run alone would say; it leaves the choice out, so it is not the truth",
        theorem="the price of one run, fixed before any data was seen",
        source="for comparison",
        numbers={"epsilon": _finite(accountant.epsilon(trial, delta))},
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
