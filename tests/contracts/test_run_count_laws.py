"""Every law of the number of runs: one row in tests/run_counts.py, and the rules that all of them keep.

Masses come from scipy; f' and f'' are compared with sums over them, and with differences of f.
"""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields
from typing import Any

import numpy as np
import pytest
from run_counts import CASES, Case

from sweeper.checks import FieldError
from sweeper.privacy.laws import LAWS, RunCountLaw, law_from_dict, run_count_law
from sweeper.privacy.laws_base import MassTable, power_series

POINTS = np.array([0.0, 1e-12, 1e-3, 0.1, 0.5, 0.8, 0.99, 0.9999, 1.0])
each = pytest.mark.parametrize("case", CASES, ids=str)


def law_of(case: Case) -> Any:
    return run_count_law(case.name, **case.arguments)  # type: ignore[arg-type]


def sums(case: Case, falling: int) -> np.ndarray:
    """sum_k P[K = k] k (k-1) ... x^(k - falling) at POINTS, by numpy in the order of k."""
    k = np.arange(len(case.masses), dtype=float)
    factor = np.prod([k - j for j in range(falling)], axis=0)[falling:]
    return np.array([float((case.masses[falling:] * factor) @ x ** (k[falling:] - falling)) for x in POINTS])


def test_every_name_and_every_written_form_has_a_row():
    assert {case.name for case in CASES} == set(LAWS)
    assert {type(law_of(case)) for case in CASES} == set(RunCountLaw.__subclasses__())
    with_most = {type(law_of(case)).__name__ for case in CASES if "max_trials" in case.arguments}
    assert with_most == {"TruncatedNegativeBinomial", "BinomialAtLeastOne", "PoissonCount"}


@each
def test_the_oracles_closed_forms_belong_to_its_masses(case):
    assert case.masses.sum() == pytest.approx(1.0, abs=1e-12)
    k = np.arange(len(case.masses))
    assert case.generating(POINTS) == pytest.approx([float(case.masses @ x**k) for x in POINTS], abs=1e-12)
    assert case.derivative(POINTS) == pytest.approx(sums(case, 1), rel=1e-9)


@each
def test_derivative_and_curvature_belong_to_the_masses(case):
    """Also near x = 0, where the f' of a fixed count falls to nothing and must keep its digits."""
    law = law_of(case)
    assert law.derivative(POINTS) == pytest.approx(sums(case, 1), rel=1e-9, abs=0.0)
    assert law.curvature(POINTS) == pytest.approx(sums(case, 2), rel=1e-9, abs=1e-300)
    for x in (0.1, 0.5, 0.8):
        step = 1e-5
        low, high = (float(case.generating(np.array(x + d))) for d in (-step, step))
        assert float(law.derivative(np.array([x]))[0]) == pytest.approx((high - low) / (2 * step), rel=1e-5, abs=1e-9)
        low, high = (float(law.derivative(np.array([x + d]))[0]) for d in (-step, step))
        assert float(law.curvature(np.array([x]))[0]) == pytest.approx((high - low) / (2 * step), rel=1e-5, abs=1e-9)


@each
def test_slope_and_bend_are_the_same_functions_of_one_minus_x(case):
    law, s = law_of(case), np.array([0.0, 1e-3, 0.2, 0.5, 1.0])
    assert np.array_equal(law.slope(s), law.derivative(1 - s))
    assert np.array_equal(law.bend(s), -law.curvature(1 - s))
    fine = np.linspace(0.0, 1.0, 200)
    assert (np.diff(law.slope(fine)) <= 1e-12).all()  # h falls
    assert (np.diff(law.bend(fine)) >= -1e-9 * law.curvature(np.ones(1))).all()  # and is convex


@each
def test_arrays_keep_their_shape(case):
    law, grid = law_of(case), np.linspace(0.0, 1.0, 6)
    for function in (law.derivative, law.curvature, law.slope, law.bend):
        assert function(grid.reshape(2, 3)) == pytest.approx(function(grid).reshape(2, 3), rel=1e-13)
        assert function(np.zeros(0)).shape == (0,)


@each
def test_mean_chance_and_nothing_belong_to_the_masses(case):
    law, k = law_of(case), np.arange(len(case.masses))
    assert law.mean_trials() == pytest.approx(float(case.masses @ k), rel=1e-9)
    assert float(law.slope(np.zeros(1))[0]) == pytest.approx(law.mean_trials(), rel=1e-12)
    assert law.nothing == pytest.approx(case.nothing, rel=1e-9, abs=1e-15)
    assert law.mean_trials() + law.nothing >= 1.0 - 1e-12  # what selection's measure weighs
    for fraction in (1e-6, 0.01, 0.1, 0.5):
        assert law.chance(fraction) == pytest.approx(float(case.masses @ -np.expm1(k * np.log1p(-fraction))), rel=1e-7)
    assert law.chance(0.0) == pytest.approx(0.0, abs=1e-12)
    assert law.chance(1.0) == pytest.approx(1 - case.nothing, rel=1e-12)


@each
def test_a_draw_is_the_quantile_of_one_uniform(case):
    law, cumulated = law_of(case), np.cumsum(case.masses)
    for uniform in (0.0, 0.01, 0.3, 0.51, 0.9, 0.999):
        stream = iter([uniform, 0.123])
        assert law.draw(stream) == int(np.searchsorted(cumulated, uniform, side="right"))
        assert next(stream) == 0.123
    top = law.draw(iter([1 - 2**-53]))
    if law.max_trials is not None:
        assert top <= law.max_trials == len(np.trim_zeros(case.masses, "b")) - 1
    else:
        assert case.masses[top:].sum() < 1e-12 < cumulated[-1]


@each
def test_json_round_trip(case):
    law = law_of(case)
    written = json.dumps(law.to_dict())
    read = law_from_dict(json.loads(written))
    assert read == law
    assert hash(read) == hash(law)
    assert type(read) is type(law)
    assert json.dumps(read.to_dict()) == written
    assert "sweeper" not in written


@each
def test_broken_records_are_refused_in_words(case):
    good = law_of(case).to_dict()
    for key in good:
        with pytest.raises(FieldError, match=f"{key} is missing in a law"):
            law_from_dict({k: value for k, value in good.items() if k != key})
    for broken, word in (
        ({**good, "sigma": 1.0}, "sigma is not a field of a law"),
        ({**good, "law": good["law"] + "x"}, f"did you mean {good['law']}?"),
        ({**good, "law": ["tnb"]}, "must be one of"),
        ({key: "many" if key != "law" else value for key, value in good.items()}, "must be"),
    ):
        with pytest.raises(FieldError) as caught:
            law_from_dict(broken)
        assert word in str(caught.value)


@each
def test_laws_are_frozen(case):
    law = law_of(case)
    with pytest.raises(FrozenInstanceError):
        setattr(law, fields(law)[0].name, 3)


@pytest.mark.parametrize("terms", [1, 2, 3, 16, 17, 250])
def test_a_power_series_is_the_sum_of_its_powers(terms):
    """Oracle: numpy's own Horner rule."""
    coefficients = np.random.default_rng(terms).random(terms)
    x = np.array([0.0, 1e-9, 0.3, 0.999, 1.0])
    wanted = np.polynomial.polynomial.polyval(x, coefficients)
    assert power_series(coefficients.tolist(), x) == pytest.approx(wanted, rel=1e-13)


def test_a_table_that_rounding_leaves_below_one_still_draws_its_largest():
    assert MassTable(masses=(0.5, 0.5 - 1e-15)).quantile(1 - 2**-53) == 2
