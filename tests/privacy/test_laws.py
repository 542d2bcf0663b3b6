"""The laws of the number of runs by name, and what is special about each. Rules that all keep: tests/contracts."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from oracles import FALSE_ALARM, REJECTED, frequency_p_value
from run_counts import LONGEST, conditioned, count_masses
from scipy import stats

from sweeper.checks import FieldError
from sweeper.privacy.laws import (
    BinomialAtLeastOne,
    FixedCount,
    PoissonCount,
    TruncatedNegativeBinomial,
    law_from_dict,
    run_count_law,
)

TNB = [
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
    found = law.table.masses if law.max_trials is not None else [m for m, _ in zip(law.masses(), range(count), strict=False)]
    return np.array(found)


@pytest.mark.parametrize(("eta", "mean", "max_trials"), TNB)
def test_the_masses_are_those_of_the_law(eta, mean, max_trials):
    """Oracle: scipy's logarithmic and negative binomial laws, gamma found by another bisection."""
    wanted = count_masses(eta, mean, max_trials)
    found = masses_of(law_of(eta, mean, max_trials), len(wanted))
    assert found == pytest.approx(wanted, rel=1e-9, abs=1e-18)
    assert found.sum() == pytest.approx(1.0, abs=1e-12)
    assert len(found) == len(wanted)


@pytest.mark.parametrize(("eta", "mean", "max_trials"), TNB)
def test_the_mean_is_stated_before_conditioning_and_known_after(eta, mean, max_trials):
    law, masses = law_of(eta, mean, max_trials), count_masses(eta, mean, max_trials)
    assert law.mean_trials() == pytest.approx(float(masses @ np.arange(1, len(masses) + 1)), rel=1e-9)
    assert law.mean_trials() < mean if max_trials is not None else law.mean_trials() == mean


def test_chances_of_a_top_tenth_as_published():
    """ALGORITHMS.md section 8: mean 10, p = 0.1."""
    assert law_of(0.0, 10.0).chance(0.1) == pytest.approx(0.42, abs=0.005)
    assert law_of(1.0, 10.0).chance(0.1) == pytest.approx(0.53, abs=0.005)
    assert BinomialAtLeastOne(trials=20, probability=0.5).chance(0.1) == pytest.approx(0.64, abs=0.005)


def uniforms(seed: int) -> Iterator[float]:
    rng = np.random.default_rng(seed)
    while True:
        yield from rng.random(10_000).tolist()


def test_a_law_that_begins_with_masses_of_1e_20_is_drawn_to_its_end():
    """They must not be taken for the end of the law. The million draws of every other law: tests/statistical."""
    law, stream = law_of(20.0, 200.0), uniforms(11)
    counts = np.bincount([law.draw(stream) for _ in range(50_000)], minlength=LONGEST + 1)[1:]

    def p_value(stated: float) -> float:
        masses = count_masses(20.0, stated)
        seen = np.append(counts[: len(masses)], counts[len(masses) :].sum())
        return frequency_p_value(seen, np.append(masses, 1e-9))  # the last cell: what the law cannot give

    assert p_value(200.0) > FALSE_ALARM
    assert p_value(300.0) < REJECTED
    assert p_value(200.0 * 2 / 3) < REJECTED


@pytest.mark.parametrize(("eta", "mean", "max_trials"), [*TNB, (100.0, 1e4, None), (20.0, 200.0, 1_000), (0.0, 1e4, 50_000)])
def test_a_draw_is_the_quantile_of_its_uniform(eta, mean, max_trials):
    law = law_of(eta, mean, max_trials)
    cumulated = np.cumsum(masses_of(law, 40_000))
    for uniform in (0.0, 0.01, 0.3, 0.5, 0.9, 0.999):
        assert law.draw(iter([uniform])) == int(np.searchsorted(cumulated, uniform, side="right")) + 1


def test_the_last_uniform_ends_the_walk_where_no_mass_is_left():
    top = 1 - 2**-53
    assert law_of(1.0, 10.0).draw(iter([top])) > math.log(1e-14) / math.log(0.9)  # the geometric tail is 0.9^k
    assert law_of(1.0, 10.0, 40).draw(iter([top])) == 40
    assert law_of(0.0, 1e4).draw(iter([top])) < 1e7
    assert PoissonCount(mean=5.0).draw(iter([top])) == int(stats.poisson.isf(2**-53, 5.0)) + 1
    assert 700 < PoissonCount(mean=500.0).draw(iter([top])) < 750
    assert 600 < BinomialAtLeastOne(trials=1_000, probability=0.5).draw(iter([top])) < 650


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


@pytest.mark.parametrize(("trials", "probability"), [(20, 0.5), (100_000, 0.5), (100_000, 1e-12), (2, 1 - 1e-12), (1, 0.3)])
def test_extreme_binomials(trials, probability):
    """Masses that underflow at one end or both: oracle scipy's log masses."""
    law = BinomialAtLeastOne(trials=trials, probability=probability)
    k = np.arange(1, trials + 1)
    log_masses = stats.binom.logpmf(k, trials, probability) - math.log(law.any_run)
    large = log_masses > -600
    assert np.log(np.array(law.table.masses)[large]) == pytest.approx(log_masses[large], rel=1e-7, abs=1e-7)
    assert law.mean_trials() == pytest.approx(float(np.exp(log_masses) @ k), rel=1e-8)
    assert law.chance(1e-3) == pytest.approx(float(np.exp(log_masses) @ -np.expm1(k * math.log1p(-1e-3))), rel=1e-7)
    assert law.table.mean_trials() == pytest.approx(law.mean_trials(), rel=1e-8)


@pytest.mark.parametrize(("trials", "mean"), [(20, 10.00001), (20, 1.0001), (20, 19.999), (1000, 30.0)])
def test_a_binomial_law_of_a_given_mean(trials, mean):
    law = run_count_law("binomial", trials=trials, mean=mean)
    assert isinstance(law, BinomialAtLeastOne)
    given = conditioned(stats.binom.pmf(np.arange(trials + 1), trials, law.probability), 1, None)
    assert float(given @ np.arange(trials + 1)) == pytest.approx(mean, rel=1e-9)
    assert law.max_trials == trials
    assert run_count_law("binomial", trials=trials, mean=mean, max_trials=10).max_trials == 10


def test_names_and_equal_laws():
    assert run_count_law("logarithmic", mean=10.0) == law_of(0.0, 10.0)
    assert run_count_law("geometric", mean=10.0, eta=1.0, max_trials=7) == law_of(1.0, 10.0, 7)
    assert run_count_law("tnb", mean=10, eta=0) == law_of(0.0, 10.0)
    assert run_count_law("fixed", trials=3) == run_count_law("fixed", trials=3, mean=3.0, max_trials=9) == FixedCount(trials=3)
    half = run_count_law("binomial", trials=20, probability=0.5)
    assert half == run_count_law("binomial", trials=20, probability=0.5, max_trials=20)
    assert half == run_count_law("binomial", trials=20, probability=0.5, max_trials=99)
    assert half != run_count_law("binomial", trials=20, probability=0.5, max_trials=19)
    assert len({half, run_count_law("binomial", trials=20, probability=0.5, max_trials=20)}) == 1


def test_the_form_that_ledgers_hold_has_not_changed():
    assert json.dumps(law_of(2, 12, 64).to_dict()) == '{"law": "tnb", "eta": 2.0, "mean": 12.0, "max_trials": 64}'
    assert json.dumps(law_of(1.0, 10.0).to_dict()) == '{"law": "tnb", "eta": 1.0, "mean": 10.0, "max_trials": null}'


def test_a_law_that_may_release_nothing_must_be_accepted():
    with pytest.raises(FieldError) as caught:
        run_count_law("poisson", mean=10.0)
    assert "law = 'poisson' may make no run at all, and then releases nothing. Use law tnb" in str(caught.value)
    law = run_count_law("poisson", mean=10.0, may_be_empty=True)
    assert law == PoissonCount(mean=10.0)
    assert law.nothing == pytest.approx(4.539993e-05, rel=1e-6)  # e^-10
    assert law.draw(iter([4.5e-5])) == 0
    assert law.draw(iter([4.6e-5])) == 1
    assert all(other.nothing == 0.0 for other in (law_of(1.0, 10.0), law_of(1.0, 10.0, 4), FixedCount(trials=2)))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: run_count_law("tnb", mean=10.0), "eta is missing"),
        (lambda: run_count_law("tnb", eta=1.0), "mean_trials is missing: law tnb needs the mean number of runs"),
        (lambda: run_count_law("geometrik", mean=10.0), "did you mean geometric?"),
        (lambda: run_count_law("geometric", eta=2.0, mean=10.0), "contradicts law geometric"),
        (
            lambda: run_count_law("geometric", mean=10.0, trials=3),
            "trials = 3 is not a parameter of law geometric, which takes eta",
        ),
        (lambda: run_count_law("binomial", eta=2.0, trials=20, probability=0.5), "eta = 2 is not a parameter of law binomial"),
        (lambda: run_count_law("binomial", probability=0.5), "trials is missing: law binomial needs the largest number of runs"),
        (lambda: run_count_law("binomial", trials=20), "probability is missing: law binomial needs it, or mean_trials"),
        (lambda: run_count_law("binomial", trials=20, probability=0.5, mean=10.0), "cannot be given with mean_trials"),
        (lambda: run_count_law("binomial", trials=20, mean=20.0), "must be below trials = 20 of law binomial. All of them"),
        (lambda: run_count_law("binomial", trials=20, mean=1.0), "mean_trials = 1 must be above 1"),
        (lambda: run_count_law("binomial", trials=20, probability=1.0), "must be between 0 and 1. Every run for sure is law fixed"),
        (lambda: run_count_law("binomial", trials=0, probability=0.5), "trials = 0 must be a whole number"),
        (lambda: run_count_law("binomial", trials=20, probability=0.5, max_trials=0), "max_trials = 0"),
        (lambda: run_count_law("fixed"), "trials is missing: law fixed makes exactly this many runs"),
        (lambda: run_count_law("fixed", trials=10, mean=12.0), "mean_trials = 12 contradicts trials = 10 of law fixed"),
        (lambda: run_count_law("fixed", trials=10, max_trials=5), "max_trials = 5 is below trials = 10 of law fixed"),
        (lambda: run_count_law("fixed", trials=10.5), "trials = 10.5 must be a whole number"),
        (lambda: run_count_law("poisson", mean=600.0, may_be_empty=True), "mean_trials = 600 must be above 0 and at most 500"),
        (lambda: run_count_law("poisson", mean=5.0, probability=0.5, may_be_empty=True), "is not a parameter of law poisson"),
        (lambda: law_of(-0.1, 10.0), "eta = -0.1 must be at least 0"),
        (lambda: law_of(1.0, 1.0), "mean_trials = 1 must be above 1"),
        (lambda: law_of(1.0, 2e6), "at most 1e+06"),
        (lambda: law_of(math.nan, 10.0), "finite"),
        (lambda: law_of(1.0, 10.0, 0), "max_trials = 0"),
        (lambda: law_of(1.0, 10.0, 200_000), "at most 100000"),
        (lambda: law_of(1000.0, 5000.0), "too concentrated"),
        (lambda: law_from_dict({}), "law is missing"),
        (
            lambda: law_from_dict({"law": "zipf", "eta": 1.0, "mean": 10.0, "max_trials": None}),
            "must be one of tnb, binomial, fixed",
        ),
    ],
)
def test_what_no_law_is(build, words):
    with pytest.raises(FieldError) as caught:
        build()
    assert words in str(caught.value)


def test_laws_draw_and_tell_their_chance_without_numpy():
    code = (
        "import sys; from sweeper.privacy.laws import run_count_law\n"
        "for law in (run_count_law('tnb', eta=2.0, mean=12.0, max_trials=64), run_count_law('binomial', trials=20, mean=9.0)):\n"
        "    law.draw(iter([0.5])), law.chance(0.1), law.mean_trials(), law.to_dict()\n"
        "assert not {'numpy', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
