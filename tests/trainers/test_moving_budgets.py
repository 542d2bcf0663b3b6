"""The budget rule and the angles that it reads, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from sweeper.checks import FieldError
from sweeper.trainers.budget_rule import AGAIN, ANEW, REFINE, Angles, BudgetRule, Budgets, angle


def test_what_follows_a_failure():
    adaptive = BudgetRule()
    phis = [None, 0.0, 0.49, 0.5, 0.8, 1.1, 1.11, math.pi]
    assert [adaptive.after_failure(phi) for phi in phis] == [ANEW, AGAIN, AGAIN, ANEW, ANEW, ANEW, REFINE, REFINE]
    assert {BudgetRule(budget="always").after_failure(phi) for phi in phis} == {REFINE}
    assert {BudgetRule(budget="never").after_failure(phi) for phi in phis} == {ANEW}


def test_budgets_by_hand():
    rule = BudgetRule()
    once = rule.raised(Budgets(), REFINE)
    twice = rule.raised(once, REFINE)
    assert (once, twice) == (Budgets(1.3, 1.0), Budgets(pytest.approx(1.69), 1.0))
    assert rule.raised(once, AGAIN) == Budgets(1.3, 1.2)
    assert rule.raised(once, ANEW) == once
    assert [rule.asked(Budgets(), ANEW), rule.asked(once, REFINE), rule.asked(twice, REFINE)] == pytest.approx([1.0, 0.3, 0.39])
    assert rule.asked(once, AGAIN) is None
    assert rule.relaxed(Budgets(1.69, 1.1)) == Budgets(pytest.approx(1.352), 1.0)
    assert rule.relaxed(Budgets()) == Budgets()


def test_looks_at_the_gradient_add_up_to_its_budget():
    rule, budgets, spent = BudgetRule(gradient_raise=0.7), Budgets(), 1.0
    for _ in range(6):
        budgets = rule.raised(budgets, REFINE)
        spent += rule.asked(budgets, REFINE)
        assert spent == pytest.approx(budgets.gradient)


def test_angles_between_consecutive_gradients():
    """Gradients that turn by 0.1, 0.2, ... radians; the mean is over the last three, the unfinished iteration's included."""
    turns = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    total, angles, known = 0.0, Angles(window=3), []
    for turn in turns:
        total += turn
        gradient_P = torch.tensor([math.cos(total), math.sin(total)])
        known.append(angles.mean(gradient_P))
        assert angles.mean(7 * gradient_P) == (pytest.approx(known[-1], abs=1e-6) if known[-1] is not None else None)
        angles.hear(gradient_P)
    assert known[0] is None
    assert known[1:] == pytest.approx([0.1, 0.15, 0.2, 0.3, 0.4], abs=1e-5)


def test_an_angle_is_defined_everywhere():
    ahead = torch.tensor([1.0, 0.0])
    assert angle(ahead, ahead) == pytest.approx(0.0, abs=1e-6)
    assert angle(ahead, -ahead) == pytest.approx(math.pi)
    assert angle(ahead, torch.zeros(2)) == angle(ahead, torch.tensor([math.nan, 1.0])) == math.pi / 2
    assert angle(1e30 * ahead, 1e-30 * torch.tensor([1.0, 1.0])) == pytest.approx(math.pi / 4)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("budget", "adap"), ("gradient_raise", 0.0), ("search_raise", 1.0), ("relax", 0.0), ("relax", 1.1), ("window", 0),
        ("angle_high", 4.0), ("angle_low", 1.2), ("angle_low", -0.1),
    ],
)  # fmt: skip
def test_fields_are_checked(field, wrong):
    with pytest.raises(FieldError, match=field):
        BudgetRule(**{field: wrong})
