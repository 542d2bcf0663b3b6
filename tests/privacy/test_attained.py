"""The worst score: a real ranking (so a lower bound), as dear as any ranking, and nearly as dear as the price."""

from __future__ import annotations

import math

import best_of_k as oracle
import numpy as np
import pytest
from run_counts import CASES, binomial, fixed, poisson, tnb
from scipy.special import ndtr
from test_selection import STRICT, law_of
from test_vectors import law_of as law_of_row
from test_vectors import vectors

from sweeper.checks import FieldError
from sweeper.privacy.attained import attained_delta, attained_epsilon
from sweeper.privacy.laws import TruncatedNegativeBinomial
from sweeper.privacy.loss import LossPmf, PrivacyLoss, point, subsampled_gaussian
from sweeper.privacy.selection import select_best

STEP = 0.05
EPSILONS = np.array([-1.0, 0.0, 0.3, 1.0, 2.0, 4.0])


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


@pytest.fixture(scope="module")
def dp_sgd() -> PrivacyLoss:
    return subsampled_gaussian(1.0, 0.01, 2.5e-3).self_compose(2000)


@pytest.mark.parametrize(
    ("case", "gap"),
    [
        *((case, 0.003) for case in (tnb(0.0, 10.0, 25), tnb(2.0, 12.0, 64), binomial(20, 0.5), binomial(20, 0.5, 12))),
        *((case, 0.003) for case in (binomial(60, 0.1), poisson(5.0), poisson(6.0, 8), fixed(1))),
        *((fixed(2), 0.045), (fixed(10), 0.09)),  # the price of a fixed K is the theorem's, and the theorem is not attained there
    ],
    ids=str,
)
def test_how_near_to_attained_the_price_of_a_dp_sgd_trial_is_for_every_law(case, gap, dp_sgd):
    attained, price = attained_epsilon(dp_sgd, law_of(case), 1e-5), select_best(dp_sgd, law_of(case)).epsilon(1e-5)
    assert attained <= price <= attained * (1 + gap)
    assert gap < 0.01 or price > attained * (1 + gap / 2)


def atoms(mu: float, outcomes: int) -> tuple[LossPmf, np.ndarray, np.ndarray]:
    """N(mu, 1) against N(0, 1) cut into few outcomes, losses moved up to the grid: a law on the grid and the pair it stands for."""
    edges = np.concatenate([[-np.inf], np.linspace(-2.5, mu + 2.5, outcomes - 1), [np.inf]])
    p, q = np.diff(ndtr(edges - mu)), np.diff(ndtr(edges))
    cell = np.ceil(np.log(p / q) / STEP).astype(int)
    mass = np.zeros(cell[-1] - cell[0] + 1)
    mass[cell - cell[0]] = p
    q = p * np.exp(-cell * STEP)
    pmf = LossPmf(interval=STEP, lowest=int(cell[0]), mass=mass, infinity=0.0)
    return pmf, np.append(p, 0.0), np.append(q, 1 - q.sum())


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_no_ranking_of_twelve_outcomes_is_worse(case, mu):
    """All 12! rankings, by recursion over the sets of outcomes: taking from the two ends is the worst there is, for every law."""
    pmf, p, q = atoms(mu, 11)
    worst = oracle.worst_of_all_orders(p[None], q[None], case, EPSILONS)[0]
    found = np.array([attained_delta(PrivacyLoss(((pmf, pmf),)), law_of(case), float(e)) for e in EPSILONS])
    assert (found <= worst + 1e-12).all()
    assert found == pytest.approx(worst, rel=1e-5, abs=1e-12)
    assert worst[2] > 0.01


def test_many_cells_in_few_groups_lose_little():
    """Oracle: the threshold score of the fixed count, all losses above a threshold last, on the Gaussian's exact masses."""
    law, epsilon = law_of(fixed(2)), 6.0
    found = attained_delta(subsampled_gaussian(1.0, 1.0, 5e-4), law, epsilon)
    best = 0.0
    for low in np.linspace(1.0, 4.0, 61):  # outcomes above `low` rank last, the highest of them first
        top = np.append(np.linspace(low, 12.0, 4_000), np.inf)
        p, q = (np.square(ndtr(m - low) - ndtr(m - top)) for m in (1.0, 0.0))
        best = max(best, float(np.maximum(np.diff(p) - math.exp(epsilon) * np.diff(q), 0.0).sum()))
    assert best < found < 2 * best


@pytest.mark.parametrize(
    ("mu", "case", "epsilon"), [(1.0, tnb(0.0, 10.0), 4.0), (1.0, tnb(1.0, 10.0), 2.0), (0.5, poisson(5.0), 1.5)]
)
def test_another_score_costs_less_and_the_theorem_more(mu, case, epsilon):
    """The tests' own ranking of the Gaussian's exact outcomes, and the theorem's integral."""
    trial = oracle.GaussianTrial(mu, case)
    ours = attained_delta(subsampled_gaussian(1 / mu, 1.0, 5e-4), law_of(case), epsilon)
    assert trial.attained(epsilon, cells=20_000) < ours < trial.delta(epsilon)


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


@pytest.mark.parametrize("case", CASES[::2], ids=str)
def test_never_above_the_worst_of_all_rankings(case):
    """Two to four finite outcomes, one at each infinity: every ranking of up to six outcomes, by enumeration."""
    rng, law = np.random.default_rng(8), law_of(case)
    close = 0
    for number in range(40):
        pmf, p, q = random_trial(rng, 2 + number % 3)
        rankings = STRICT[len(p)]
        worst = oracle.hockey_stick(rankings.winners(p, case), rankings.winners(q, case), EPSILONS, case.nothing).max(axis=1)
        trial = PrivacyLoss(((pmf, pmf),))
        found = np.array([attained_delta(trial, law, float(e)) for e in EPSILONS])
        priced = select_best(trial, law)
        assert (found <= worst + 1e-12).all()
        assert (found <= [priced.delta(float(e)) + 1e-12 for e in EPSILONS]).all()
        close += int((found > 0.99 * worst - 1e-15).sum())
    assert close > 0.9 * 40 * len(EPSILONS)


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
