"""The explicit score: a real ranking (so a lower bound), and nearly as dear as the price."""

from __future__ import annotations

import math

import best_of_k as oracle
import numpy as np
import pytest
from test_selection import LAWS, STRICT, law_of
from test_vectors import law_of as law_of_row
from test_vectors import vectors

from sweeper.checks import FieldError
from sweeper.privacy.attained import attained_delta, attained_epsilon
from sweeper.privacy.laws import TruncatedNegativeBinomial
from sweeper.privacy.loss import LossPmf, PrivacyLoss, point, subsampled_gaussian
from sweeper.privacy.selection import select_best

STEP = 0.05
EPSILONS = [-1.0, 0.0, 0.3, 1.0, 2.0, 4.0]


def trial_of(row: dict[str, float], interval: float) -> PrivacyLoss:
    loss = subsampled_gaussian(row["sigma"], row.get("q", 1.0), interval)
    return loss.self_compose(row["steps"]) if "steps" in row else loss  # type: ignore[arg-type]


@pytest.mark.parametrize("row", vectors("select_best_gaussian_trial", "select_best_dpsgd_trial"))
def test_the_price_is_within_three_thousandths_of_what_is_attained(row):
    """And what is attained lies above the outside lower bounds, so the price could not be much lower."""
    trial, law = trial_of(row, 5e-4), law_of_row(row)
    attained, price = attained_epsilon(trial, law, row["delta"]), select_best(trial, law).epsilon(row["delta"])
    assert attained <= price <= attained * 1.003
    assert attained >= row["never_below"]
    assert attained <= row["epsilon"]
    for epsilon in (0.3 * price, price):
        assert attained_delta(trial, law, epsilon) <= select_best(trial, law).delta(epsilon)
    assert attained_delta(trial, law, attained) > row["delta"]
    single = trial.epsilon(row["delta"])
    assert attained > 1.2 * single  # one run's report would be refuted


@pytest.mark.parametrize(("mu", "eta", "mean", "epsilon"), [(1.0, 0.0, 10.0, 4.0), (1.0, 1.0, 10.0, 2.0), (0.5, 1.0, 30.0, 1.5)])
def test_another_program_finds_the_same_score(mu, eta, mean, epsilon):
    """The tests' own evaluation on the Gaussian's exact curve, on another set of cells."""
    masses = oracle.count_masses(eta, mean)
    trial = oracle.GaussianTrial(mu, lambda s: oracle.slope(masses, s))
    ours = attained_delta(subsampled_gaussian(1 / mu, 1.0, 5e-4), TruncatedNegativeBinomial(eta=eta, mean=mean), epsilon)
    theirs = trial.attained(epsilon, cells=20_000)
    assert ours == pytest.approx(theirs, rel=5e-3)
    assert theirs * 0.999 < ours


def random_trial(rng: np.random.Generator, outcomes: int) -> tuple[LossPmf, np.ndarray, np.ndarray]:
    """A law on the grid and exactly the pair it stands for, some with outcomes that one table never gives."""
    losses = np.sort(rng.choice(np.arange(-40, 41), outcomes, replace=False)) * STEP
    p = rng.dirichlet(np.full(outcomes, rng.choice([0.5, 3.0])))
    scale = min(1.0, 1.0 / float(np.sum(p * np.exp(-losses)))) * rng.choice([0.9, 1.0])
    mass = np.zeros(round((losses[-1] - losses[0]) / STEP) + 1)
    mass[np.rint((losses - losses[0]) / STEP).astype(int)] = scale * p
    q = scale * p * np.exp(-losses)
    pmf = LossPmf(interval=STEP, lowest=round(losses[0] / STEP), mass=mass, infinity=1 - scale)
    return pmf, np.append(scale * p, [1 - scale, 0.0]), np.append(q, [0.0, 1 - q.sum()])


@pytest.mark.parametrize(("eta", "mean", "max_trials"), LAWS[::2])
def test_never_above_the_worst_of_all_rankings(eta, mean, max_trials):
    """Two to four finite outcomes, one at each infinity: every ranking of up to six outcomes, by enumeration."""
    rng, law, masses = np.random.default_rng(8), law_of(eta, mean, max_trials), oracle.count_masses(eta, mean, max_trials)
    close = 0
    for number in range(60):
        pmf, p, q = random_trial(rng, 2 + number % 3)
        rankings = STRICT[len(p)]
        worst = oracle.hockey_stick(rankings.winners(p, masses), rankings.winners(q, masses), np.array(EPSILONS)).max(axis=1)
        trial = PrivacyLoss(((pmf, pmf),))
        found = np.array([attained_delta(trial, law, e) for e in EPSILONS])
        assert (found <= worst + 1e-12).all()
        assert (found <= [select_best(trial, law).delta(e) + 1e-12 for e in EPSILONS]).all()
        close += int((found > 0.9 * worst).sum())
    assert close > 60


def test_the_dearer_direction_and_part_count():
    cheap, dear = subsampled_gaussian(4.0, 1.0, 1e-3), subsampled_gaussian(2.0, 1.0, 1e-3)
    law = TruncatedNegativeBinomial(eta=1.0, mean=5.0)
    together = attained_epsilon(PrivacyLoss(cheap.parts + dear.parts), law, 1e-5)
    assert together == pytest.approx(attained_epsilon(dear, law, 1e-5), rel=1e-4)
    assert together > 1.5 * attained_epsilon(cheap, law, 1e-5)
    for swapped in (((dear.parts[0][0], cheap.parts[0][0]),), ((cheap.parts[0][0], dear.parts[0][0]),)):
        assert attained_epsilon(PrivacyLoss(swapped), law, 1e-5) == pytest.approx(together, rel=1e-4)


def test_ends():
    law = TruncatedNegativeBinomial(eta=1.0, mean=5.0)
    assert attained_epsilon(point(1e-3), law, 1e-5) == 0.0
    assert attained_delta(point(1e-3), law, 0.0) == pytest.approx(0.0, abs=1e-12)
    leaky = LossPmf(interval=1e-3, lowest=0, mass=np.array([0.9]), infinity=0.1)
    assert attained_epsilon(PrivacyLoss(((leaky, leaky),)), law, 0.2) == math.inf  # the best of five shows it more often
    assert attained_epsilon(PrivacyLoss(((leaky, leaky),)), law, 0.9) < 1.0
    one = TruncatedNegativeBinomial(eta=1.0, mean=10.0, max_trials=1)  # a single run: its own price, to the grid
    trial = subsampled_gaussian(1.0, 1.0, 1e-3)
    assert attained_epsilon(trial, one, 1e-6) == pytest.approx(trial.epsilon(1e-6), rel=1e-4)
    with pytest.raises(FieldError, match="delta"):
        attained_epsilon(trial, law, 0.0)
