"""The discretised Gaussian against its closed form in 50 digits; divergences and epsilons of a law against their definitions."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.special import ndtr

from sweeper.privacy.loss import FARTHEST, NUDGE, REACH, LossPmf, divergences, subsampled_gaussian

CASES = [
    (1.0, 1.0, 1e-2),
    (0.05, 1.0, 0.2),
    (1000.0, 1.0, 1e-5),
    (1.0, 0.01, 1e-3),
    (0.3, 1e-4, 1e-2),
    (0.02, 0.3, 2.0),
    (5.0, 0.5, 1e-3),
    (40.0, 1 / 120, 1e-5),
    (1.0, 0.999, 1e-2),
]


def exact(sigma: float, q: float, epsilon: float) -> tuple[float, float]:
    """Divergences of (present, absent) and of (absent, present): the likelihood ratio grows with the sum x."""
    with mpmath.workdps(50):
        s, share, growth = mpmath.mpf(sigma), mpmath.mpf(q), mpmath.e ** mpmath.mpf(epsilon)

        def score(ratio: mpmath.mpf) -> mpmath.mpf | None:
            inside = (ratio - (1 - share)) / share
            return s * mpmath.log(inside) + 1 / (2 * s) if inside > 0 else None

        removing, adding = mpmath.mpf(1) - growth, mpmath.mpf(0)
        if (at := score(growth)) is not None:
            present = share * mpmath.ncdf(1 / s - at) + (1 - share) * mpmath.ncdf(-at)
            removing = present - growth * mpmath.ncdf(-at)
        if (at := score(1 / growth)) is not None:
            adding = mpmath.ncdf(at) - growth * (share * mpmath.ncdf(at - 1 / s) + (1 - share) * mpmath.ncdf(at))
        return float(removing), float(adding)


@pytest.mark.parametrize(("sigma", "q", "interval"), CASES)
def test_the_gaussian_is_never_below_its_closed_form_and_meets_it_on_the_grid(sigma, q, interval):
    ((removing, adding),) = subsampled_gaussian(sigma, q, interval).parts
    for side, pmf in enumerate((removing, adding)):
        assert pmf.mass.min() >= 0
        assert float(pmf.mass.sum()) + pmf.infinity == pytest.approx(1.0, abs=1e-14)
        for place in np.linspace(0, len(pmf.mass) - 2, 25).astype(int):
            loss = float(pmf.losses[place])
            true = exact(sigma, q, loss)[side]
            if true > 1e-15:  # the law is cut at 1e-23
                assert true * (1 - 1e-12) <= pmf.delta(loss)
                assert pmf.delta(loss) <= true * (1 + 1e-6) or pmf.losses[-1] > FARTHEST  # e^-600 Q-mass is left out
            between = loss + 0.37 * interval
            assert pmf.delta(between) >= exact(sigma, q, between)[side] * (1 - 1e-12)


@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_another_noise_is_told_apart(factor):
    ((removing, adding),) = subsampled_gaussian(factor, 0.01, 1e-3).parts
    for side, pmf in enumerate((removing, adding)):
        ratios = [pmf.delta(loss) / exact(1.0, 0.01, loss)[side] for loss in (0.0, 2e-3, 5e-3)]
        assert all(ratio < 0.95 or ratio > 1.05 for ratio in ratios)


def test_scipys_normal_tails_are_right_to_what_is_added_for_them():
    scores = np.concatenate([np.linspace(-35, -REACH, 200), np.linspace(-REACH, 8, 800)])
    with mpmath.workdps(40):
        true = [mpmath.ncdf(mpmath.mpf(z)) for z in scores.tolist()]
        wrong = np.array([float(abs(found / t - 1)) for found, t in zip(ndtr(scores).tolist(), true, strict=True)])
    assert (wrong < NUDGE * (4 + scores**2) / 2).all()
    assert wrong.max() > 1e-16


def test_steps_of_a_trial_cost_what_dp_accounting_says():
    sigma, q, steps, delta = 0.8, 0.02, 300, 1e-6
    theirs = pld.from_gaussian_mechanism(sigma, sampling_prob=q, value_discretization_interval=2e-4).self_compose(steps)
    ours = subsampled_gaussian(sigma, q, 2e-4).self_compose(steps)
    assert ours.epsilon(delta) == pytest.approx(theirs.get_epsilon_for_delta(delta), rel=1e-6)
    assert subsampled_gaussian(sigma, q, 1e-3).self_compose(steps).epsilon(delta) > ours.epsilon(delta)


@pytest.mark.parametrize(("interval", "cells"), [(0.01, 300), (1.0, 900), (400.0, 7)])
def test_divergences_are_the_sums_they_stand_for(interval, cells):
    """Also where losses are so far apart that their exponentials leave float64."""
    mass = np.random.default_rng(3).random(cells)
    mass *= 0.9 / mass.sum()
    found = divergences(interval, mass, 0.1)
    for j in range(0, cells, max(1, cells // 20)):
        terms = (mass[i] * -math.expm1((j - i) * interval) for i in range(j + 1, cells))
        assert found[j] == pytest.approx(0.1 + math.fsum(terms), rel=1e-12)
    assert found[-1] == 0.1


@pytest.mark.parametrize("delta", [0.9, 0.3, 0.1, 1e-3, 1e-9])
def test_an_epsilon_is_where_the_divergence_meets_delta(delta):
    mass = np.random.default_rng(4).random(4000) * np.exp(-(np.linspace(-8, 8, 4000) ** 2))
    pmf = LossPmf(interval=1e-2, lowest=-1500, mass=mass / mass.sum(), infinity=0.0)
    assert pmf.delta(pmf.epsilon(delta)) == pytest.approx(delta, rel=1e-9)
    assert pmf.epsilon(delta) == 0.0 or pmf.delta(pmf.epsilon(delta) * (1 - 1e-6)) > delta
    certain = LossPmf(interval=1e-2, lowest=5, mass=np.array([0.5]), infinity=0.5)
    assert certain.epsilon(0.4) == math.inf
    assert certain.epsilon(0.5) == pytest.approx(0.05)
