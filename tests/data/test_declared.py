"""A declaration in YAML: what it may say, and that every fault names its field."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sweeper.checks import FieldError
from sweeper.data.columns import Categorical, Ignored, Numeric, Unreadable
from sweeper.data.declared import columns_to_list, read_classes, read_columns, text_of

DECLARED = {
    "age": {"low": 17, "high": 90},
    "gain": {"low": 0, "high": 99_999, "log": True},
    "pixels": {"low": 0, "high": 255, "width": 784},
    "vector": {"low": -1, "high": 1, "width": 3, "scaled": False},
    "sex": ["Female", "Male"],
    "grade": {"categories": [1, 2, 3, ""]},
    "weight": "ignored",
    "note": {"ignored": "free text"},
}


def test_every_form_is_read_in_order():
    assert read_columns(DECLARED) == (
        Numeric(name="age", low=17, high=90),
        Numeric(name="gain", low=0, high=99_999, log=True),
        Numeric(name="pixels", low=0, high=255, width=784),
        Numeric(name="vector", low=-1, high=1, width=3, scaled=False),
        Categorical(name="sex", categories=("Female", "Male")),
        Categorical(name="grade", categories=("1", "2", "3", "")),
        Ignored(name="weight", why="the sweep's file says so"),
        Ignored(name="note", why="free text"),
    )


def test_what_is_written_is_read_back_in_the_same_order():
    columns = read_columns(DECLARED)
    assert read_columns(columns_to_list(columns)) == read_columns(columns) == columns
    assert [column["name"] for column in columns_to_list(columns)] == list(DECLARED)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (None, "columns = None must be a mapping from column name to declaration"),
        ({}, "columns declares no column that is used"),
        ({"a": "ignored"}, "columns declares no column that is used"),
        ({1: {"low": 0, "high": 1}}, "columns = 1 is a name, and names must be text"),
        ({"a": 3}, "columns.a = 3 must be {low: 0, high: 100}, a list of categories, or ignored"),
        ({"a": {}}, "columns.a = {} must be"),
        ({"a": {"low": 0}}, "columns.a.high is missing. State it from public knowledge"),
        (
            {"a": {"low": 0, "hihg": 1}},
            "columns.a.hihg is not one of low, high, log, width, scaled, categories, ignored; did you mean h",
        ),
        ({"a": {"low": 2, "high": 1}}, "columns.a.low = 2 must be below high = 1"),
        ({"a": {"low": "0", "high": 1}}, "columns.a.low = '0' must be a number"),
        ({"a": {"low": -math.inf, "high": 1}}, "columns.a.low = -inf must be a finite number"),
        ({"a": {"low": -1.7e308, "high": 1.7e308}}, "columns.a.low = -1.7e+308 is too far below"),
        ({"a": {"low": 0, "high": 1, "log": 1}}, "columns.a.log = 1 must be true or false"),
        ({"a": {"low": 0, "high": 1, "width": 0}}, "columns.a.width = 0 must be a whole number"),
        ({"a": {"low": 0, "high": 1, "log": True, "scaled": False}}, "columns.a.log = True belongs to a scaled column"),
        ({"a": ["x"]}, "columns.a = ['x'] must be at least two different words"),
        ({"a": [1, "1"]}, "must be at least two different words"),
        ({"a": [{"x": 1}, "y"]}, "columns.a = {'x': 1} is no word"),
        ({"a": {"categories": "x"}}, "columns.a = 'x' must be a list of words"),
        ([{"name": "a", "low": 0, "high": 1}, {"name": "a", "low": 0, "high": 1}], "columns.a is declared twice"),
        ([{"low": 0, "high": 1}], "columns[0] = {'low': 0, 'high': 1} must be a mapping with the column's name"),
        ([7], "columns[0] = 7 must be a mapping"),
    ],
)
def test_a_fault_names_its_field(declared, words):
    with pytest.raises(FieldError) as caught:
        read_columns(declared)
    assert words in str(caught.value)


def test_classes_are_words_or_their_number():
    assert read_classes(3) == ("0", "1", "2")
    assert read_classes([True, False]) == ("true", "false")
    assert read_classes(["<=50K", ">50K"]) == ("<=50K", ">50K")
    for wrong in (1, True, "yes", ["one"], ["one", "one"], None):
        with pytest.raises(FieldError):
            read_classes(wrong)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        (1.0, "1"),
        (np.float32(2), "2"),
        (1.5, "1.5"),
        (True, "true"),
        (np.bool_(False), "false"),
        (None, ""),
        (math.nan, ""),
    ],
)
def test_a_word_is_the_same_whatever_the_file_format_made_of_it(value, text):
    assert text_of(value) == text


@pytest.mark.parametrize(
    "column",
    [
        Numeric(name="x", low=-3, high=11),
        Numeric(name="x", low=2, high=9_000, log=True),
        Numeric(name="x", low=-1, high=1, scaled=False),
    ],
)
def test_whole_columns_are_encoded_as_single_cells_are(column):
    values = np.array([-1e9, -3, -0.5, 0, 0.7, 2, 11, 500, 1e12, np.nan, np.inf, -np.inf])
    features, readable = column.encode_all(values.reshape(-1, 1))
    for value, feature, good in zip(values, features[:, 0], readable, strict=True):
        if good:
            assert feature == pytest.approx(column.encode(repr(float(value)))[0], rel=1e-6)
        else:
            with pytest.raises(Unreadable):
                column.encode(repr(float(value)))
    assert readable.tolist() == [True] * 9 + [False] * 3


def test_a_row_of_many_numbers_is_read_whole_or_not_at_all():
    column = Numeric(name="x", low=0, high=10, width=3)
    features, readable = column.encode_all(np.array([[0, 5, 10], [0, np.nan, 10]]))
    assert readable.tolist() == [True, False]
    np.testing.assert_allclose(features[0], [0, 0.5, 1])
