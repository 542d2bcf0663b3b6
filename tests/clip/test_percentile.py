"""The percentile of Lipschitz constants, against sorting."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from constants import Constants, facts, spread
from small import blobs, spoilt, without
from tiny_sweeps import FIXED, spec_of

from sweeper.backends.closed_form import LinearProblem
from sweeper.checks import FieldError
from sweeper.clip.fixed import FixedClip
from sweeper.clip.percentile import PercentileClip, order_statistic
from sweeper.launch.part import PartProblem
from sweeper.models.linear import Logistic, Softmax
from sweeper.seeds import Streams, secret_from_seed

STREAMS = Streams(secret_from_seed("percentile"), 0)


def found(percentile: float, problem) -> float:
    return PercentileClip(percentile=percentile).prepare(facts(rows=problem.rows), problem, STREAMS).clip_norm


@pytest.mark.parametrize("count", [1, 2, 7, 100, 1001])
def test_it_is_the_value_that_sorting_gives(count):
    values = spread(count)
    for percentile in (0, 0.1, 7, 14.3, 25, 50, 70, 99.9, 100):
        rank = max(1, math.ceil(Fraction(str(percentile)) * count / 100))
        assert found(float(percentile), Constants(*values)) == sorted(values)[rank - 1]
    assert found(0.0, Constants(*values)) == min(values)
    assert found(100.0, Constants(*values)) == max(values)


@pytest.mark.parametrize("value", [5e-324, 1e-12, 0.1, 1.0, math.nextafter(1.0, 2.0), 1e30, 1.7976931348623157e308])
def test_it_is_exact_to_the_last_bit(value):
    assert order_statistic(Constants(value), 1) == value
    neighbours = [math.nextafter(value, 0), value, math.nextafter(value, math.inf)]
    assert order_statistic(Constants(*neighbours), 2) == value or neighbours[0] == 0


@pytest.mark.parametrize(("model", "factor", "classes"), [(Logistic(), 1.0, 2), (Softmax(), math.sqrt(2), 10)])
def test_constants_are_the_norms_of_the_extended_rows(model, factor, classes):
    """Das et al. 2023, appendix D. Null records, broken ones and rows outside a part are not counted."""
    full, description = blobs(200, 6, classes)
    problem = LinearProblem(model=model, description=description, table=full, rows=np.arange(200))
    norms = factor * np.sqrt(np.square(full.features.astype(np.float64)).sum(axis=1) + 1)
    assert found(30.0, problem) == pytest.approx(np.sort(norms)[59], rel=1e-7)
    low = np.argsort(norms)[:20]
    fewer = LinearProblem(model=model, description=description, table=without(full, *low), rows=np.arange(200))
    assert found(0.0, fewer) == pytest.approx(np.sort(norms)[20], rel=1e-7)
    broken = LinearProblem(model=model, description=description, table=spoilt(full, int(low[0]), math.nan), rows=np.arange(200))
    assert found(0.0, broken) == pytest.approx(np.sort(norms)[1], rel=1e-7)
    inside = np.ones(200, np.bool_)
    inside[low] = False
    assert found(0.0, PartProblem(problem, inside)) == pytest.approx(np.sort(norms)[20], rel=1e-7)


def test_at_100_nothing_is_clipped():
    full, description = blobs(50, 4, 3)
    problem = LinearProblem(model=Softmax(), description=description, table=full, rows=np.arange(50))
    policy = PercentileClip(percentile=100.0).prepare(facts(rows=50), problem, STREAMS)
    assert isinstance(policy, FixedClip)
    seen = []
    problem.batch(np.arange(50)).sum(problem.start(STREAMS), lambda s: seen.append(s) or policy.factors(s))
    assert seen[0].sqrt().max() <= policy.clip_norm


def test_no_rows_to_take_it_of():
    full, description = blobs(5, 4, 3)
    problem = LinearProblem(model=Softmax(), description=description, table=without(full, *range(5)), rows=np.arange(5))
    with pytest.raises(FieldError, match="percentile = 50 is of the training rows, and none of them has"):
        found(50.0, problem)


@pytest.mark.parametrize("wrong", [-0.1, 100.1, math.nan, "50"])
def test_only_percentiles(wrong):
    with pytest.raises(FieldError, match="percentile"):
        PercentileClip(percentile=wrong)


def test_it_is_for_public_rows():
    clip = {"policy": "percentile", "values": [10, 50]}
    with pytest.raises(
        FieldError, match=r"space.clip.policy = 'percentile' is refused: it is computed from the rows.*private-quantile"
    ):
        spec_of(space=FIXED | {"clip": clip})
    public = spec_of(space=FIXED | {"clip": clip}, data={"source": "adult", "public": True})
    assert public.space.clip.middle() == PercentileClip(percentile=50.0)
