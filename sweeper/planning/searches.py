"""Searches that a protocol cannot pay for are refused here, with what the alternative costs in this very sweep."""

from __future__ import annotations

import math
from dataclasses import replace

from sweeper.checks import MISSING, FieldError
from sweeper.planning.trial import noise_for, trial_event
from sweeper.privacy import accountant
from sweeper.privacy.events import Repeated, SelectBest
from sweeper.privacy.laws import run_count_law
from sweeper.spec.search import ADAPTIVE, RandomSearch
from sweeper.spec.sweep import SweepSpec


def refuse_search(spec: SweepSpec, train_rows: int, *, quote: bool = True) -> None:
    """Refuse a search whose candidates are not what the price of the protocol counts on.

    Also on public data: the bill that is shown "as if private" would not be that of what ran. `quote`: say what others cost.

    Raises:
      FieldError: the reason, and what to use instead.
    """
    kind, protocol = spec.search.kind, spec.protocol
    if protocol.drawn and not spec.search.iid:
        raise _not_drawn(spec, train_rows, quote)
    if kind in ADAPTIVE:
        rule = f"{protocol.kind} cannot use search {kind} in this version: only random and grid run"
        hint = "Use search: {kind: random}; every candidate is then drawn beforehand, and the bill is the same."
        raise FieldError("protocol", MISSING, rule, hint)


def _not_drawn(spec: SweepSpec, train_rows: int, quote: bool) -> FieldError:
    """An adaptive search or a grid where the price counts on i.i.d. draws."""
    kind, protocol = spec.search.kind, spec.protocol
    trials = spec.search.trials(spec.space) or max(2, round(protocol.run_counts().mean_trials()))
    released, selected, fixed = _bills(spec, train_rows, trials) if quote else ("", "", "")
    if kind in ADAPTIVE:
        rule = f"it reads scores while trials run, which {protocol.kind} does not pay for"
        bills = f" (bill {released} instead of {selected} for {trials} trials)" if released else ""
        hint = f"Use protocol release-all{bills}, or put the search on public data"
        hint += ". In this version both run with search random or grid"
    else:
        rule = f"its candidates are not independent draws from one law, which the price of {protocol.kind} counts on"
        bills = f" (bill {released} for {trials} trials)" if released else ""
        dear = f", and dear: bill {fixed} for {trials} trials" if fixed else ", and dear"
        hint = f"Use protocol release-all{bills}, or search random with law: fixed, trials: {trials}, which is priced{dear}"
    return FieldError("protocol", MISSING, f"{protocol.kind} cannot use search {kind}: {rule}", hint + ".")


def _bills(spec: SweepSpec, train_rows: int, trials: int) -> tuple[str, str, str]:
    """Epsilon of so many trials under release-all, of the sweep with random candidates, and of select-best with a fixed number.

    Empty texts where the sweep has no finite price at all, or no noise meets it.
    """
    allowed, delta = replace(spec, search=RandomSearch()), spec.privacy.delta
    try:
        one = trial_event(allowed, train_rows, noise_for(allowed, train_rows))
        events = [Repeated(one, trials), allowed.protocol.total(one), SelectBest(one, run_count_law("fixed", trials=trials))]
        bills = [accountant.epsilon(event, delta) for event in events]
    except FieldError:
        return "", "", ""
    return tuple(f"{bill:.2f}" for bill in bills) if all(map(math.isfinite, bills)) else ("", "", "")  # type: ignore[return-value]
