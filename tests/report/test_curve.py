"""The plot of `price --curve`: where its marks stand, and that any terminal can show it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sweeper.report.curve import ASKED, FRAMES, HEIGHT, LEFT, curve_text, mark

MEANS = (2, 3, 5, 10, 20, 30, 50, 100)


def curve(protocol: str, law: str | None, epsilon_of: Any, label: str | None = None) -> dict[str, Any]:
    points = [{"expected_trials": float(m), "epsilon": epsilon_of(m), "chance": 1 - 0.9**m} for m in MEANS]
    return {"protocol": protocol, "law": law, "label": label or f"{protocol} {law or ''}".strip(), "points": points}


def price(*curves: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "epsilon": 2.5,
        "delta": 1e-5,
        "noise_multiplier": 1.0,
        "protocol": "no-tuning",
        "guarantee": {"relation": "zero-out", "unit": "record"},
        "curves": list(curves),
    } | changes


FLAT = curve("no-tuning", None, lambda m: 2.5)
STEEP = curve("release-all", None, lambda m: 2.5 * m / 2)
PART = curve("select-best", "geometric", lambda m: 2.5 * math.sqrt(m / 2))


def rows(text: str, unicode: bool = False) -> list[str]:
    """The plot's rows, highest first, without labels."""
    side, tick = FRAMES[unicode][:2]
    found = [line[LEFT + 1 :] for line in text.splitlines() if len(line) > LEFT and line[LEFT] in (side, tick)]
    assert len(found) == HEIGHT
    return found


def place(text: str, letter: str) -> list[tuple[int, int]]:
    """(row from below, column) of a letter."""
    return [(HEIGHT - 1 - r, c) for r, row in enumerate(rows(text)) for c, cell in enumerate(row) if cell == letter]


def test_a_power_of_the_runs_is_a_straight_line_between_its_ends():
    """On two logarithmic axes: linear growth from corner to corner, a square root to half the height, one price along the floor."""
    text = curve_text(price(FLAT, PART, STEEP), width=80, unicode=False)
    columns = 80 - LEFT - 1
    steep, half, flat = (place(text, letter) for letter in "Ago")
    assert (HEIGHT - 1, columns - 1) in steep
    assert (0, columns - 1) in flat
    assert {row for row, _ in flat} == {0}
    for row, column in steep:
        assert row == pytest.approx((HEIGHT - 1) * column / (columns - 1), abs=0.51)
    for row, column in half:
        assert row == pytest.approx((HEIGHT - 1) * 0.5 * column / (columns - 1), abs=0.51)


def test_every_column_has_its_curves_and_the_cheaper_lies_above():
    same = curve("select-best", "logarithmic", lambda m: 2.5)
    text = curve_text(price(FLAT, same, STEEP), width=80, unicode=False)
    assert len(place(text, "o")) == 80 - LEFT - 1
    assert not place(text, "l")


@pytest.mark.parametrize(("runs", "epsilon"), [(10.0, 5.0), (10.0, 7.5), (30.0, 5.0)])
def test_what_was_asked_stands_where_it_belongs(runs, epsilon):
    text = curve_text(price(FLAT, STEEP, mean_trials=runs, epsilon=epsilon, protocol="select-best"), width=80, unicode=False)
    ((row, column),) = place(text, ASKED)
    assert row == round((HEIGHT - 1) * math.log(epsilon / 2.5) / math.log(50))
    assert column == round((80 - LEFT - 2) * math.log(runs / 2) / math.log(50))
    assert f"asked ({ASKED}): select-best, epsilon {epsilon:.2f}" in text


def test_what_was_asked_may_lie_outside_or_have_no_number_of_runs():
    for asked in ({"mean_trials": 1000.0}, {"mean_trials": 10.0, "epsilon": None}, {"mean_trials": 10.0, "epsilon": 1e6}, {}):
        text = curve_text(price(FLAT, STEEP, **asked), width=80, unicode=False)
        assert not place(text, ASKED)
        assert "asked" in text


def test_the_legend_holds_the_bills():
    lines = curve_text(price(FLAT, PART, STEEP), width=100, unicode=False).splitlines()
    (every,) = [line for line in lines if line.startswith("A  ")]
    assert every.split() == ["A", "release-all", "2.50", "12.50", "37.50", "125.00", "65%"]
    assert lines[0].startswith("epsilon at delta 1e-05")
    assert "zero-out, unit record" in " ".join(lines[:2])


def test_letters_are_the_curves_own():
    laws = ("logarithmic", "geometric", "tnb", "binomial", "poisson", "fixed")
    letters = [mark({"protocol": "select-best", "law": law}) for law in laws]
    letters += [mark({"protocol": p, "law": None}) for p in ("no-tuning", "release-all")]
    letters += [mark({"protocol": "subsample-tune", "law": "geometric"}), ASKED]
    assert len(set(letters)) == len(letters)


@pytest.mark.parametrize("width", [10, 48, 60, 80, 100, 140, 400])
@pytest.mark.parametrize("unicode", [False, True])
def test_no_line_is_wider_than_the_terminal(width, unicode):
    label = "subsample-tune 0.1, geometric, with a long label"
    text = curve_text(price(FLAT, curve("subsample-tune", "geometric", lambda m: m, label), STEEP), width=width, unicode=unicode)
    plot = rows(text, unicode)
    assert max(map(len, plot)) + LEFT + 1 == min(max(width, 48), 140)
    assert max(map(len, text.splitlines())) <= max(width, 60)  # the table's numbers are never cut
    assert text.isascii() != unicode


def test_a_small_range_is_drawn_on_even_steps():
    """From 2.0 to 3.0: the middle of the axis is 2.5."""
    rising = curve("select-best", "geometric", lambda m: 2.0 + (m - 2) / 98)
    text = curve_text(price(rising, mean_trials=10.0, epsilon=2.5), width=80, unicode=False)
    ((row, _),) = place(text, ASKED)
    assert row == round((HEIGHT - 1) / 2)
    labels = [line[:LEFT].strip() for line in text.splitlines() if line[LEFT : LEFT + 1] == "+" and line[:LEFT].strip()]
    assert labels[0] == "3"
    assert labels[-1] == "2"
    assert [float(label) for label in labels] == sorted((float(label) for label in labels), reverse=True)


def test_nothing_to_draw_is_said():
    nothing = curve_text(price(curve("no-tuning", None, lambda m: None), epsilon=None), width=80, unicode=False)
    assert "nothing is protected" in nothing
    free = curve_text(price(curve("no-tuning", None, lambda m: 0.0), epsilon=0.0), width=80, unicode=False)
    assert "nothing is released" in free
    some = curve_text(price(FLAT, curve("release-all", None, lambda m: None if m > 20 else m)), width=80, unicode=False)
    assert "infinite" in some
    assert max(column for _, column in place(some, "A")) < 60
    assert place(curve_text(price(FLAT), width=80, unicode=False), "o")
