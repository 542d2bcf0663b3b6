"""Cells become features by declared constants alone."""

from __future__ import annotations

import pytest

from sweeper.checks import FieldError
from sweeper.data.columns import Categorical, Ignored, Numeric, Unreadable


@pytest.mark.parametrize(("text", "feature"), [("17", 0.0), ("53.5", 0.5), ("90", 1.0), ("-3", 0.0), ("200", 1.0)])
def test_a_number_is_clipped_and_scaled(text, feature):
    assert Numeric(name="age", low=17, high=90).encode(text) == (feature,)


@pytest.mark.parametrize(("text", "feature"), [("0", 0.0), ("9", 0.5), ("99", 1.0), ("1e6", 1.0), ("-1", 0.0)])
def test_a_log_scale_maps_the_ends_to_0_and_1(text, feature):
    assert Numeric(name="gain", low=0, high=99, log=True).encode(text) == (pytest.approx(feature, abs=1e-12),)


@pytest.mark.parametrize("text", ["", "?", "forty", "nan", "inf", "-inf", "1e999", "4 0"])
def test_what_is_no_finite_number_is_unreadable(text):
    with pytest.raises(Unreadable):
        Numeric(name="age", low=17, high=90).encode(text)


def test_a_word_is_one_indicator_among_as_many_as_are_declared():
    colour = Categorical(name="colour", categories=("red", "green", "?"))
    assert [colour.encode(word) for word in colour.categories] == [(1, 0, 0), (0, 1, 0), (0, 0, 1)]
    assert colour.width == 3


def test_two_words_need_one_indicator():
    sex = Categorical(name="sex", categories=("Female", "Male"))
    assert (sex.width, sex.encode("Female"), sex.encode("Male")) == (1, (0.0,), (1.0,))


@pytest.mark.parametrize("text", ["", "Red", "blue", "?"])
def test_a_word_that_is_not_declared_is_unreadable(text):
    with pytest.raises(Unreadable):
        Categorical(name="colour", categories=("red", "green")).encode(text)


def test_an_ignored_column_is_never_read():
    assert Ignored(name="id", why="says nothing").encode("anything at all") == ()


@pytest.mark.parametrize(("low", "high"), [(1, 1), (2, 1)])
def test_a_range_must_not_be_empty(low, high):
    with pytest.raises(FieldError, match="below high"):
        Numeric(name="x", low=low, high=high)


@pytest.mark.parametrize("categories", [(), ("a",), ("a", "a")])
def test_categories_must_differ(categories):
    with pytest.raises(FieldError, match="different"):
        Categorical(name="x", categories=categories)
