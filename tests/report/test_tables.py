import math

import numpy as np
import pytest

from sweeper.report.tables import human_epsilon, sig, table


def test_numbers_stand_right_and_text_left():
    text = table(["clip policy", "n", "score"], [["fixed", 12, 0.841], ["per-layer", 1200, None]])
    assert text.splitlines() == [
        "clip policy      n  score",
        "-----------  -----  -----",
        "fixed           12  0.841",
        "per-layer    1,200      -",
    ]


def test_alignment_can_be_given_and_rows_must_fit():
    assert table(["a", "b"], [["x", "yy"], ["long", "z"]], align="rl").splitlines()[2:] == ["   x  yy", "long  z"]
    with pytest.raises(ValueError, match="a row of 1 cells in a table of 2"):
        table(["a", "b"], [["x"]])
    with pytest.raises(ValueError, match="align 'rx'"):
        table(["a", "b"], [], align="rx")


@pytest.mark.parametrize("width", [80, 100])
def test_a_long_text_is_cut_to_the_terminal_and_numbers_are_kept(width):
    text = table(["what", "why", "epsilon"], [["x" * 150, "y" * 60, 2.125], ["a", "b", 1.0]], width=width)
    assert max(len(line) for line in text.splitlines()) == width
    assert "…" in text
    assert text.splitlines()[2].endswith("2.125")


def test_wide_letters_and_accents_take_the_columns_they_take():
    lines = table(["名", "n"], [["日本", 1], ["cafe\u0301", 2]]).splitlines()
    assert lines == ["名    n", "----  -", "日本  1", "cafe\u0301  2"]


def test_a_cell_never_breaks_the_line_and_numpy_numbers_are_numbers():
    assert table(["a", "b", "c"], [["two\nlines", np.int64(1234), np.float64(0.5)]]).splitlines()[2] == "two lines  1,234  0.5"
    assert table(["a"], [[True], [False]]).splitlines()[2:] == ["yes", "no"]
    assert table(["a", "b"], []).splitlines() == ["a  b", "-  -"]


@pytest.mark.parametrize(
    ("x", "digits", "text"),
    [
        (0.0015, 2, "0.0015"),
        (14.26, 3, "14.3"),
        (999.96, 4, "1,000"),
        (9.9999, 2, "10"),
        (2000.0, 3, "2,000"),
        (12345.0, 3, "12,300"),
        (1e-5, 3, "1e-05"),
        (3.14159e10, 3, "3.14e+10"),
        (-0.25, 4, "-0.25"),
        (0.0, 3, "0"),
        (math.inf, 3, "infinite"),
        (-math.inf, 3, "-infinite"),
        (math.nan, 3, "-"),
    ],
)
def test_significant_digits(x, digits, text):
    assert sig(x, digits) == text


def test_a_number_reads_back_as_itself_to_its_digits():
    for exponent in range(-12, 13):
        for mantissa in (1.0, 1.23456, 9.87654):
            x = mantissa * 10.0**exponent
            assert float(sig(x, 4).replace(",", "")) == pytest.approx(x, rel=5.1e-4)


@pytest.mark.parametrize(
    ("x", "text"),
    [(2.0, "2.00"), (1.999, "2.00"), (0.0, "0.00"), (0.004, "<0.01"), (0.006, "0.01"), (None, "infinite"), (math.inf, "infinite")],
)
def test_an_epsilon_is_two_decimals_and_never_free_by_rounding(x, text):
    assert human_epsilon(x) == text


@pytest.mark.parametrize("x", [-1.0, math.nan])
def test_what_is_no_epsilon_is_refused(x):
    with pytest.raises(ValueError, match="is no epsilon"):
        human_epsilon(x)
