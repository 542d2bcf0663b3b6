"""A function of the user's own that returns arrays."""

from __future__ import annotations

import gc
import pickle
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweeper.catalog import sweep_from_dict
from sweeper.checks import FieldError, RequestError
from sweeper.data.module_table import ModuleTable
from sweeper.spec.codec import spec_to_dict

SECRET = "Zaphod-7310"
CODE = f'''
import numpy as np

X = np.array([[0.5, 1.0], [2.0, -3.0], [0.0, 0.25]])

def load(scale=1.0):
    return X * scale, np.array([0, 1, 1])

def keyed():
    return X, np.array([0, 1, 1]), np.array(["a", "b", "c"])

def broken():
    return np.array([[np.nan, 1], [1e300, 0], [1, 2], [1, 2], [1, 2]]), np.array([0.0, 1.0, 2.0, 0.5, 1.0])

def shapes():
    return X, np.array([[0], [1], [1]])

def words():
    return X, np.array(["{SECRET}", "no", "no"])

def lonely():
    return X

def no_id():
    return X, np.array([0, 1, 1]), np.array(["a", "", "c"])

def ragged():
    return [[1.0, "{SECRET}"], [2.0]], np.array([0, 1, 1])

def leaves():
    raise SystemExit("row 3 says {SECRET}")

calls = []

def counted():
    import lazily_imported
    calls.append(1)
    print("a word of the user's")
    return X + len(calls), np.array([0, 1, 1]), np.array(["a", "b", "c"])

def fails():
    raise ValueError("row 3 says {SECRET}")

number = 3
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of its own in the current folder, which is not on Python's path."""
    name = f"own_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    yield name
    sys.modules.pop(name, None)


def source(own: str, function: str = "load", **changed: Any) -> ModuleTable:
    return ModuleTable(**({"module": f"{own}:{function}", "rows": 3, "features": 2, "classes": 2} | changed))


def test_arrays_become_a_table(own):
    path = list(sys.path)
    table = source(own).load("")
    np.testing.assert_array_equal(table.features, np.array([[0.5, 1], [2, -3], [0, 0.25]], np.float32))
    assert table.labels.tolist() == [0, 1, 1]
    assert table.valid.all()
    assert table.ids is None
    assert sys.path == path
    np.testing.assert_array_equal(source(own, args={"scale": 2.0}).load("").features, 2 * table.features)
    assert source(own, "keyed", ids=True).load("").ids == ("a", "b", "c")


def test_broken_rows_are_null_records_in_their_place(own):
    table = source(own, "broken", rows=5).load("")
    assert table.valid.tolist() == [False, False, False, False, True]
    assert not table.features[:4].any()
    assert table.labels.tolist() == [0, 0, 0, 0, 1]


def test_the_function_is_called_once_for_a_source_and_only_the_last_table_is_held(own, tmp_path):
    """What is digested is what is loaded, though each call of this function returns another table."""
    (tmp_path / f"{own}.py").write_text((tmp_path / f"{own}.py").read_text().replace("lazily_imported", f"{own}_lazily"))
    (tmp_path / f"{own}_lazily.py").write_text("")
    one = source(own, "counted", ids=True)
    digest, table = one.digest(""), one.load("")
    assert (one.digest(""), one.load(""), one.row_ids("")) == (digest, table, ("a", "b", "c"))
    assert sys.modules[own].calls == [1]
    np.testing.assert_array_equal(table.features, np.array([[1.5, 2], [3, -2], [1, 1.25]], np.float32))

    sent = pickle.loads(pickle.dumps(one))  # to a worker: the statement without the table
    assert sent == one
    assert sent.digest("") != digest
    assert sys.modules[own].calls == [1, 1]
    held = weakref.ref(sent.load(""))
    del sent
    gc.collect()
    assert held() is None


def test_what_the_function_prints_is_no_result(own, capsys, tmp_path):
    (tmp_path / "lazily_imported.py").write_text("")
    source(own, "counted", ids=True).load("")
    assert capsys.readouterr() == ("", "a word of the user's\n")
    sys.modules.pop("lazily_imported")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import nowhere_at_all", "cannot be imported (ModuleNotFoundError: no nowhere_at_all)"),
        ("this is no Python", "cannot be imported (SyntaxError)"),
        (f"open('{SECRET}')", "cannot be imported (FileNotFoundError)"),
        (f"raise SystemExit('{SECRET}')", "cannot be imported (SystemExit)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_refused_by_the_kind_of_its_error(own, tmp_path, code, words):
    (tmp_path / f"{own}_broken.py").write_text(code)
    with pytest.raises(FieldError) as caught:
        source(f"{own}_broken").load("")
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


def test_the_digest_is_that_of_the_arrays(own):
    one = source(own).digest("")
    assert one == source(own).digest("")
    assert one != source(own, args={"scale": 2.0}).digest("")
    assert one != source(own, "keyed", ids=True).digest("")
    assert len(one) == 64


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"module": "nowhere_at_all:load"}, "cannot be imported (ModuleNotFoundError). Install its package"),
        ({"function": "absent"}, "cannot be imported (AttributeError)"),
        ({"function": "number"}, "raised TypeError, whose words may quote rows"),
        ({"function": "fails"}, "raised ValueError, whose words may quote rows and are not shown"),
        ({"args": {"nothing": 1}}, "raised TypeError"),
        ({"function": "leaves"}, "raised SystemExit, whose words may quote rows"),
        ({"function": "ragged"}, "must return (features [n, d], labels [n]) as numpy arrays"),
        ({"function": "keyed"}, "as numpy arrays; with a third array of row keys, say ids: true"),
        ({"function": "lonely"}, "must return (features [n, d], labels [n]) as numpy arrays"),
        ({"ids": True}, "must return (features [n, d], labels [n], ids [n]) as numpy arrays"),
        ({"function": "shapes"}, "must return (features [n, d], labels [n])"),
        ({"function": "words"}, "features and labels as numbers"),
        ({"function": "no_id", "ids": True}, "returns a row without an id"),
        ({"rows": 4}, "does not return the 4 rows that data.source.rows states"),
        ({"features": 3}, "data.source.features = 3 is not what"),
    ],
)
def test_what_does_not_keep_its_word_is_refused_without_a_word_of_any_row(own, changed, words):
    with pytest.raises(RequestError) as caught:
        source(own, **changed).load("")
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"module": "load"}, "module = 'load' must be package.module:function"),
        ({"module": "a b:load"}, "must be package.module:function"),
        ({"module": "a:1"}, "must be package.module:function"),
        ({"rows": 1}, "rows = 1 must be"),
        ({"classes": 1}, "classes = 1 must be"),
        ({"args": {"not a name": 1}}, "args = {'not a name': 1} must be a mapping"),
    ],
)
def test_a_statement_that_is_none(changed, words):
    with pytest.raises(FieldError) as caught:
        source("own", **changed)
    assert words in str(caught.value)


def test_a_sweep_names_it_by_module_alone_and_plans_without_importing_it():
    from sweeper import planning

    spec = sweep_from_dict(
        {
            "name": "own",
            "data": {"source": {"module": "nowhere_at_all.data:load", "rows": 4000, "features": 5, "classes": 2, "args": {"a": 1}}},
            "model": {"kind": "logistic"},
            "trainer": {"kind": "dp-sgd", "batch_size": 200, "steps": 20},
            "privacy": {"noise_multiplier": 1.0, "delta": 1e-5},
            "protocol": {"kind": "no-tuning"},
            "space": {"clip": {"policy": "fixed", "value": 1.0}, "step": {"policy": "fixed", "value": 1.0}},
        }
    )
    assert spec.data.source.kind == "module"
    assert spec.budget_of == "nowhere_at_all.data-load"
    assert sweep_from_dict(spec_to_dict(spec)) == spec
    assert planning.plan(spec).train_rows + planning.plan(spec).holdout_rows == 4000
