"""The laws of the number of runs: what they draw is what they price."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import best_of_k as oracle
import numpy as np
import pytest
from oracles import FALSE_ALARM, REJECTED, frequency_p_value

from sweeper.checks import FieldError
from sweeper.privacy.laws import TruncatedNegativeBinomial, law_from_dict, run_count_law

CASES = [
    (0.0, 10.0, None),
    (0.5, 5.0, None),
    (1.0, 10.0, None),
    (2.0, 12.0, None),
    (0.0, 30.0, 40),
    (1.0, 10.0, 12),
    (2.0, 12.0, 64),
]
POINTS = np.array([0.0, 1e-4, 0.01, 0.2, 0.5, 0.9, 1.0])


def law_of(eta: float, mean: float, max_trials: int | None = None) -> TruncatedNegativeBinomial:
    return TruncatedNegativeBinomial(eta=eta, mean=mean, max_trials=max_trials)


def masses_of(law: TruncatedNegativeBinomial, count: int) -> np.ndarray:
    found = law.table if law.max_trials is not None else [mass for mass, _ in zip(law.masses(), range(count), strict=False)]
    return np.array(found)


@pytest.mark.parametrize(("eta", "mean", "max_trials"), CASES)
def test_the_masses_are_those_of_the_law(eta, mean, max_trials):
    """Oracle: scipy's logarithmic and negative binomial laws, gamma found by another bisection."""
    wanted = oracle.count_masses(eta, mean, max_trials)
    found = masses_of(law_of(eta, mean, max_trials), len(wanted))
    assert found == pytest.approx(wanted, rel=1e-9, abs=1e-18)
    assert found.sum() == pytest.approx(1.0, abs=1e-12)
    assert len(found) == len(wanted)


@pytest.mark.parametrize(("eta", "mean", "max_trials"), CASES)
def test_slope_bend_and_chance_belong_to_the_masses(eta, mean, max_trials):
    law, masses = law_of(eta, mean, max_trials), oracle.count_masses(eta, mean, max_trials)
    k = np.arange(1, len(masses) + 1)
    slopes = [float(masses * k @ (1 - s) ** (k - 1)) for s in POINTS]
    assert law.slope(POINTS) == pytest.approx(slopes, rel=1e-9)
    bends = [-float((masses * k * (k - 1))[1:] @ (1 - s) ** (k - 2)[1:]) for s in POINTS]
    assert law.bend(POINTS) == pytest.approx(bends, rel=1e-9, abs=1e-12)
    for s in (0.01, 0.2, 0.5, 0.9):  # the derivative of the generating function, by differences
        step = 1e-6
        difference = float(oracle.generating(masses, np.array(1 - s + step)) - oracle.generating(masses, np.array(1 - s - step)))
        assert float(law.slope(np.array([s]))[0]) == pytest.approx(difference / (2 * step), rel=1e-7)
        bent = float(np.diff(law.slope(np.array([s - step, s + step])))[0]) / (2 * step)
        assert float(law.bend(np.array([s]))[0]) == pytest.approx(bent, rel=1e-6)
    for fraction in (0.01, 0.1, 0.5, 1.0):
        assert law.chance(fraction) == pytest.approx(1 - float(masses @ (1 - fraction) ** k), rel=1e-9)
    assert law.chance(0.0) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(("eta", "mean", "max_trials"), CASES)
def test_the_mean_is_stated_before_conditioning_and_known_after(eta, mean, max_trials):
    law, masses = law_of(eta, mean, max_trials), oracle.count_masses(eta, mean, max_trials)
    exact = float(masses @ np.arange(1, len(masses) + 1))
    assert law.mean_trials() == pytest.approx(exact, rel=1e-9)
    assert float(law.slope(np.zeros(1))[0]) == pytest.approx(exact, rel=1e-9)
    assert law.mean_trials() < mean if max_trials is not None else law.mean_trials() == mean


def test_chances_of_a_top_tenth_as_published():
    """ALGORITHMS.md section 8: mean 10, p = 0.1."""
    assert law_of(0.0, 10.0).chance(0.1) == pytest.approx(0.42, abs=0.005)
    assert law_of(1.0, 10.0).chance(0.1) == pytest.approx(0.53, abs=0.005)


def uniforms(seed: int) -> Iterator[float]:
    rng = np.random.default_rng(seed)
    while True:
        yield from rng.random(10_000).tolist()


@pytest.mark.parametrize(
    ("eta", "mean", "max_trials"), [(0.0, 10.0, None), (1.0, 10.0, None), (2.0, 12.0, 64), (20.0, 200.0, None)]
)
def test_draws_follow_the_law_and_no_other(eta, mean, max_trials):
    """(20, 200) begins with masses of 1e-20, which must not be taken for the end of the law."""
    law, stream = law_of(eta, mean, max_trials), uniforms(11)
    draws = np.array([law.draw(stream) for _ in range(50_000 if mean > 100 else 200_000)])
    counts = np.bincount(draws, minlength=oracle.LONGEST + 1)[1:]

    def p_value(stated: float) -> float:
        masses = oracle.count_masses(eta, stated, max_trials)
        seen = np.append(counts[: len(masses)], counts[len(masses) :].sum())
        return frequency_p_value(seen, np.append(masses, 1e-9))  # the last cell: what the law cannot give

    assert p_value(mean) > FALSE_ALARM
    assert p_value(mean * 1.5) < REJECTED
    assert p_value(mean * 2 / 3) < REJECTED


@pytest.mark.parametrize(("eta", "mean", "max_trials"), [*CASES, (100.0, 1e4, None), (20.0, 200.0, 1_000), (0.0, 1e4, 50_000)])
def test_a_draw_is_the_quantile_of_its_uniform(eta, mean, max_trials):
    law = law_of(eta, mean, max_trials)
    cumulated = np.cumsum(masses_of(law, 40_000))
    for uniform in (0.0, 0.01, 0.3, 0.5, 0.9, 0.999):
        assert law.draw(iter([uniform])) == int(np.searchsorted(cumulated, uniform, side="right")) + 1


def test_the_last_uniform_ends_the_walk_where_no_mass_is_left():
    top = 1 - 2**-53
    law = law_of(1.0, 10.0)
    assert law.draw(iter([top])) > math.log(1e-14) / math.log(0.9)  # the geometric tail is 0.9^k
    assert law_of(1.0, 10.0, 40).draw(iter([top])) == 40
    assert law_of(0.0, 1e4).draw(iter([top])) < 1e7


@pytest.mark.parametrize(("eta", "mean"), [(1.0, 1.0001), (0.0, 1e4), (1.0, 1e6), (100.0, 1e4), (1000.0, 12.0), (0.0, 1.0001)])
def test_extremes(eta, mean):
    """The mean comes back from the masses, or, where they are too many to add up, from the closed forms of the law."""
    law = law_of(eta, mean)
    gamma = law.gamma
    assert 0 < gamma < 1
    closed = (1 - gamma) / gamma / -math.log(gamma) if eta == 0 else eta * (1 - gamma) / gamma / -math.expm1(eta * math.log(gamma))
    assert closed == pytest.approx(mean, rel=1e-8)
    assert float(law.slope(np.zeros(1))[0]) == pytest.approx(mean, rel=1e-8)
    assert float(law.slope(np.ones(1))[0]) == pytest.approx(law.first, rel=1e-12)
    assert 0 <= law.chance(0.1) <= 1


@pytest.mark.parametrize("mean", [1.5, 10.0, 1000.0])
def test_a_tiny_eta_is_the_logarithmic_law(mean):
    tiny, zero = law_of(1e-9, mean), law_of(0.0, mean)
    assert tiny.gamma == pytest.approx(zero.gamma, rel=1e-7)
    assert tiny.slope(POINTS) == pytest.approx(zero.slope(POINTS), rel=1e-6)
    assert tiny.chance(0.1) == pytest.approx(zero.chance(0.1), rel=1e-6)


def test_names_and_round_trip():
    assert run_count_law("logarithmic", mean=10.0) == law_of(0.0, 10.0)
    assert run_count_law("geometric", mean=10.0, eta=1.0, max_trials=7) == law_of(1.0, 10.0, 7)
    for law in (law_of(0.5, 3.0), law_of(2.0, 12.0, 64)):
        assert law_from_dict(json.loads(json.dumps(law.to_dict()))) == law


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: run_count_law("tnb", mean=10.0), "eta is missing"),
        (lambda: run_count_law("geometrik", mean=10.0), "did you mean geometric?"),
        (lambda: run_count_law("geometric", eta=2.0, mean=10.0), "contradicts law geometric"),
        (lambda: law_of(-0.1, 10.0), "eta = -0.1 must be at least 0"),
        (lambda: law_of(1.0, 1.0), "mean_trials = 1 must be above 1"),
        (lambda: law_of(1.0, 2e6), "at most 1e+06"),
        (lambda: law_of(math.nan, 10.0), "finite"),
        (lambda: law_of(1.0, 10.0, 0), "max_trials = 0"),
        (lambda: law_of(1.0, 10.0, 200_000), "at most 100000"),
        (lambda: law_of(1000.0, 5000.0), "too concentrated"),
        (lambda: law_from_dict({"law": "tnb", "eta": 1.0, "mean": 10.0}), "max_trials is missing in a law"),
        (lambda: law_from_dict({"law": "zipf", "eta": 1.0, "mean": 10.0, "max_trials": None}), "must be one of tnb"),
        (lambda: law_from_dict({"law": "tnb", "eta": 1.0, "mean": 10.0, "max_trials": None, "x": 1}), "x is not a field of a law"),
    ],
)
def test_what_no_law_is(build, words):
    with pytest.raises(FieldError) as caught:
        build()
    assert words in str(caught.value)
