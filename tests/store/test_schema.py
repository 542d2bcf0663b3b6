import json
import math

import numpy as np
import pytest
from mlflow.utils.validation import _validate_metric_name, _validate_param_name, _validate_tag_name  # MLflow's own rules

from sweeper.store import schema

ODD = [
    "acc(top=5)",
    "a=b",
    "",
    ".",
    "..",
    "/x",
    "a//b",
    "a/../b",
    "x" * 400,
    "ä",
    "a:b",
    "a\nb",
    "'; drop table runs",
    "a/",
    "\ud800",
]


@pytest.mark.parametrize("name", [*ODD, "clip_norm", "privacy.epsilon", "score/accuracy"])
def test_every_name_becomes_one_that_mlflow_accepts(name):
    for prefix in ("", schema.SCORE_PREFIX, schema.SPEC_PREFIX):
        for accepts in (_validate_metric_name, _validate_param_name, _validate_tag_name):
            accepts(prefix + schema.key(name))
        assert len(prefix + schema.key(name)) <= 250


def test_good_names_stay_and_different_names_stay_different():
    assert schema.key("clip.clip_norm") == "clip.clip_norm"
    names = [*ODD, "a b", "a_b", "a(b", "a)b", "x" * 401]
    assert len({schema.key(name) for name in names}) == len(names)


def test_json_holds_no_infinity_and_no_nan():
    value = {"a": math.inf, "b": [math.nan, np.float32(0.5), np.int64(3), True, None, (1, "x")]}
    assert json.loads(schema.to_json(value)) == {"a": None, "b": [None, 0.5, 3, True, None, [1, "x"]]}


def test_json_refuses_what_it_cannot_write_instead_of_guessing():
    with pytest.raises(TypeError, match="object cannot be written"):
        schema.plain(object())


@pytest.mark.parametrize(
    ("value", "good"), [(1, True), (0.5, True), (True, False), (math.inf, False), (math.nan, False), ("1", False)]
)
def test_only_finite_numbers_become_metrics(value, good):
    assert schema.finite(value) is good


def test_a_nested_spec_becomes_one_parameter_per_leaf():
    spec = {"privacy": {"epsilon": 2.0, "unit": "record"}, "space": {"range": [0.05, 2.0]}, "arms": {}, "note": None}
    assert schema.flat(spec, "spec/") == {
        "spec/privacy.epsilon": "2.0",
        "spec/privacy.unit": "record",
        "spec/space.range": "[0.05, 2.0]",
        "spec/arms": "{}",
        "spec/note": "null",
    }


def test_a_cut_text_says_so_and_fits():
    assert schema.cut("x" * 20, 20) == "x" * 20
    assert schema.cut("x" * 21, 20) == "x" * 10 + " [cut ...]"
