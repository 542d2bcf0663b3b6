"""A million K from every law against the law that was priced: the masses are scipy's, the test is Pearson's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from oracles import FALSE_ALARM, REJECTED, frequency_p_value
from run_counts import CASES, LONGEST, Case

from sweeper.privacy.laws import run_count_law

DRAWS = 1_000_000


def drawn(case: Case) -> np.ndarray:
    """How often each K came."""
    law: Any = run_count_law(case.name, **case.arguments)  # type: ignore[arg-type]
    stream = iter(np.random.default_rng(13).random(DRAWS).tolist())
    counts = np.bincount([law.draw(stream) for _ in range(DRAWS)], minlength=LONGEST)
    assert next(stream, None) is None  # one uniform each
    return counts


def p_value(counts: np.ndarray, masses: np.ndarray) -> float:
    """The last cell is what the law cannot give."""
    seen = np.append(counts[: len(masses)], counts[len(masses) :].sum())
    possible = np.append(masses > 0, True)
    assert masses.sum() == pytest.approx(1.0, abs=1e-12)
    impossible = seen[~possible].sum()
    return frequency_p_value(np.append(seen[possible], impossible), np.append(masses[masses > 0], [1e-9, 1e-9]))


@pytest.mark.parametrize("case", [case for case in CASES if case.masses.max() < 1], ids=str)
def test_draws_follow_the_law_and_no_other(case):
    counts = drawn(case)
    assert p_value(counts, case.masses) > FALSE_ALARM
    for wrong in (1.5, 2 / 3):
        assert p_value(counts, case.at(wrong)) < REJECTED


def test_a_fixed_count_is_never_another():
    for case in (case for case in CASES if case.masses.max() == 1.0):
        assert np.flatnonzero(drawn(case)).tolist() == [int(case.masses.argmax())]


def test_ten_draws_in_a_million_that_the_law_cannot_give_are_seen():
    case = next(case for case in CASES if case.name == "binomial" and "max_trials" in case.arguments)
    counts = drawn(case)
    counts[len(case.masses)] += 10
    assert p_value(counts, case.masses) < REJECTED
