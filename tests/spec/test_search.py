"""Searches: what they try, in which order, and that they see nothing but the public space and public randomness."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from sweeper.catalog import sweep_from_dict
from sweeper.spec.search import ADAPTIVE, AdaptiveSearch, GridSearch, RandomSearch
from sweeper.spec.space import Space

BASE: dict[str, Any] = {
    "name": "search",
    "data": {"source": "adult"},
    "model": {"kind": "logistic"},
    "trainer": {"kind": "dp-sgd", "batch_size": 256, "steps": 20},
    "privacy": {"epsilon": 2.0, "delta": 1e-5},
    "protocol": {"kind": "select-best"},
}


def space(clip: dict[str, Any], step: dict[str, Any]) -> Space:
    parts = {"clip": {"policy": "fixed", **clip}, "step": {"policy": "coupled", **step}}
    return sweep_from_dict(BASE | {"space": parts}).space


SPACE = space({"range": [0.1, 10.0], "scale": "log"}, {"range": [1.0, 3.0]})


def uniforms(seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    while True:
        yield float(rng.random())


def test_a_grid_is_every_point_once_in_order_with_both_ends():
    found = GridSearch(points=3).candidates(SPACE, 9, uniforms())
    values = [(point["clip.clip_norm"], point["step.c"]) for point in found]
    assert [v for _, v in values] == [1.0, 2.0, 3.0] * 3
    assert [v for v, _ in values] == pytest.approx([0.1] * 3 + [1.0] * 3 + [10.0] * 3)
    assert {values[0], values[-1]} == {(0.1, 1.0), (10.0, 3.0)}  # the ends to the digit
    assert GridSearch(points=2).trials(SPACE) == 4
    for point in found:
        SPACE.build(point)


def test_a_grid_takes_all_of_a_list_and_nothing_of_what_is_fixed():
    mixed = space({"values": [0.5, 0.1, 2.0]}, {"range": [1.0, 3.0], "warmup": 0.1})
    found = GridSearch(points=2).candidates(mixed, 6, uniforms())
    assert [tuple(point.values()) for point in found] == [(c, s) for c in (0.5, 0.1, 2.0) for s in (1.0, 3.0)]
    assert GridSearch(points=2).values(mixed.clip.settings["clip_norm"]) == "0.5 | 0.1 | 2"
    assert GridSearch(points=5).values(SPACE.step.settings["c"]) == "1 .. 3, 5 points"


def test_a_grid_uses_no_randomness_and_refuses_another_number():
    def nothing() -> Any:
        raise AssertionError("a grid asked for randomness")
        yield

    assert len(GridSearch(points=3).candidates(SPACE, 9, nothing())) == 9
    with pytest.raises(ValueError, match="a grid of 9 points cannot give 12"):
        GridSearch(points=3).candidates(SPACE, 12, nothing())


def test_random_candidates_are_those_of_the_space_with_replacement():
    found = RandomSearch().candidates(SPACE, 3_000, uniforms())
    stream = uniforms()
    assert found == [SPACE.draw(stream) for _ in range(3_000)]
    assert RandomSearch().trials(SPACE) is None
    c = np.array([point["step.c"] for point in found])
    assert stats.kstest((c - 1) / 2, "uniform").pvalue > 1e-6
    assert stats.kstest(((c - 1) / 2) ** 1.5, "uniform").pvalue < 1e-12
    few = space({"values": [0.1, 0.2]}, {"value": 1.0})
    assert len(RandomSearch().candidates(few, 5, uniforms())) == 5  # more than there are: with replacement


def test_only_random_candidates_are_iid():
    assert RandomSearch().iid
    assert not GridSearch().iid
    fixed = {"clip": {"policy": "fixed", "range": [1, 2]}, "step": {"policy": "fixed", "value": 1}}
    for kind in ADAPTIVE:
        search = sweep_from_dict(BASE | {"space": fixed, "search": {"kind": kind, "grace_period": 3}}).search
        assert search == AdaptiveSearch(kind=kind)
        assert not search.iid
        with pytest.raises(ValueError, match="not in this version"):
            search.candidates(SPACE, 3, uniforms())
