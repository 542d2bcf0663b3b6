"""The price of select-best: never below what any ranking of any pair costs, and hardly above what the worst one does."""

from __future__ import annotations

import math
from collections.abc import Iterator

import best_of_k as oracle
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant
from scipy import optimize

from sweeper.privacy import accountant
from sweeper.privacy.events import NOTHING, Composed, Gaussian, PoissonSubsampled, Repeated, SelectBest
from sweeper.privacy.laws import TruncatedNegativeBinomial
from sweeper.privacy.loss import LossPmf, PrivacyLoss, from_points, point, subsampled_gaussian
from sweeper.privacy.selection import closed_form_epsilon, select_best

LAWS = [(0.0, 2.0, None), (0.0, 10.0, None), (0.5, 5.0, None), (1.0, 10.0, None), (2.0, 30.0, None)]
LAWS += [(0.0, 10.0, 25), (0.5, 30.0, 40), (1.0, 10.0, 12), (2.0, 12.0, 64), (1.0, 10.0, 1)]
EPSILONS = np.array([-2.0, -0.5, 0.0, 0.1, 0.3, 0.7, 1.0, 1.5, 2.2, 3.0, 4.5, 7.0])
PAIRS = 60


def random_pair(rng: np.random.Generator, outcomes: int) -> tuple[np.ndarray, np.ndarray]:
    """Masses of P and Q: from nearly equal to nearly disjoint, some with outcomes that one of them never gives."""
    p = rng.dirichlet(np.full(outcomes, rng.choice([0.3, 1.0, 5.0])))
    q = p * np.exp(rng.choice([0.1, 1.0, 3.0]) * rng.standard_normal(outcomes))
    if outcomes > 2 and rng.random() < 0.4:
        q[rng.integers(outcomes)] = 0.0
    if outcomes > 2 and rng.random() < 0.4:
        p[rng.integers(outcomes)] = 0.0
    if not (p * q).any():
        return random_pair(rng, outcomes)
    if outcomes > 3 and rng.random() < 0.3:  # one outcome split by a coin: what a randomised score can tell apart
        i, j = rng.choice(outcomes, 2, replace=False)
        p[j], q[j] = p[i], q[i]
    return p / p.sum(), q / q.sum()


def pairs() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(2)
    for number in range(PAIRS):
        yield random_pair(rng, 2 + number % 5)


def loss_of(p: np.ndarray, q: np.ndarray, interval: float = 1e-3) -> LossPmf:
    both = (p > 0) & (q > 0)
    return from_points(interval, np.log(p[both] / q[both]), p[both], float(p[(p > 0) & (q == 0)].sum()))


def price(p: np.ndarray, q: np.ndarray, law: object) -> LossPmf:
    """The package's price of one direction of a pair."""
    pmf = loss_of(p, q)
    ((selected, _),) = select_best(PrivacyLoss(((pmf, pmf),)), law).parts  # type: ignore[arg-type]
    return selected


def law_of(eta: float, mean: float, max_trials: int | None) -> TruncatedNegativeBinomial:
    return TruncatedNegativeBinomial(eta=eta, mean=mean, max_trials=max_trials)


STRICT = {n: oracle.Rankings(list(oracle.strict_orders(n))) for n in range(2, 7)}
WEAK = {n: oracle.Rankings(list(oracle.weak_orders(range(n)))) for n in range(2, 5)}


def worst(p: np.ndarray, q: np.ndarray, masses: np.ndarray, rankings: oracle.Rankings) -> np.ndarray:
    """The largest divergence over all rankings, at each of EPSILONS."""
    return oracle.hockey_stick(rankings.winners(p, masses), rankings.winners(q, masses), EPSILONS).max(axis=1)


@pytest.mark.parametrize(("eta", "mean", "max_trials"), LAWS)
def test_no_ranking_of_any_pair_costs_more_than_the_price(eta, mean, max_trials):
    """All rankings of 60 pairs, 12 epsilons, 10 laws, both directions: 14,400 maxima over strict rankings, 8,640 with ties."""
    law, masses = law_of(eta, mean, max_trials), oracle.count_masses(eta, mean, max_trials)
    close = 0
    for p, q in pairs():
        for present, absent in ((p, q), (q, p)):
            priced = price(present, absent, law)
            bounds = np.array([priced.delta(float(eps)) for eps in EPSILONS])
            for rankings in (STRICT[len(p)], WEAK.get(len(p))):
                if rankings is not None:
                    found = worst(present, absent, masses, rankings)
                    assert (found <= bounds + 1e-9).all(), (present, absent, found - bounds)
                    close += int(((found > 0.99 * bounds) & (bounds < 0.99)).sum())
    assert close >= 20  # some rankings nearly reach it


@pytest.mark.parametrize(("eta", "mean", "max_trials"), [(0.0, 10.0, None), (1.0, 10.0, 12), (2.0, 12.0, 64)])
@pytest.mark.parametrize("order", [1.5, 4.0, 16.0])
def test_no_ranking_exceeds_the_renyi_cost(eta, mean, max_trials, order):
    """What the ledger's filter adds up. Pairs whose outcomes all can happen under both; nothing cut off."""
    law, masses = law_of(eta, mean, max_trials), oracle.count_masses(eta, mean, max_trials)
    ratios = []
    for p, q in pairs():
        if (p > 0).all() and (q > 0).all():
            rho, lost = price(p, q, law).renyi(order, cut=0.0)
            best_p, best_q = (STRICT[len(p)].winners(x, masses) for x in (p, q))
            with np.errstate(divide="ignore"):
                moments = np.exp(order * np.log(best_p) + (1 - order) * np.log(best_q)).sum(axis=1)
            found = float(np.log(moments.max())) / (order - 1)
            assert lost < 1e-9
            assert found <= rho + 1e-9
            ratios.append(found / rho)
    assert len(ratios) > 20
    assert max(ratios) > 0.8


@pytest.mark.parametrize("mistake", ["exchanged", "wrong end"])
@pytest.mark.parametrize(("eta", "mean", "max_trials"), [(0.0, 10.0, None), (1.0, 10.0, 12), (2.0, 12.0, 64)])
def test_the_rankings_would_catch_a_wrong_theorem(eta, mean, max_trials, mistake):
    masses, caught = oracle.count_masses(eta, mean, max_trials), 0
    for p, q in pairs():
        claimed = oracle.theorem(p, q, masses, EPSILONS, mistake=mistake)
        caught += int((worst(p, q, masses, STRICT[len(p)]) > claimed + 1e-6).sum())
    assert caught > 20


def test_the_rankings_would_catch_the_price_of_fewer_runs():
    """Priced at two thirds of the mean number of runs, with max_trials or without."""
    caught = 0
    for mean, max_trials in ((12.0, None), (12.0, 64)):
        masses, fewer = oracle.count_masses(1.0, mean, max_trials), law_of(1.0, mean * 2 / 3, max_trials)
        for p, q in pairs():
            priced = price(p, q, fewer)
            bounds = np.array([priced.delta(float(eps)) for eps in EPSILONS])
            caught += int((worst(p, q, masses, STRICT[len(p)]) > bounds + 1e-6).sum())
    assert caught > 50


@pytest.mark.parametrize(("eta", "mean", "max_trials"), LAWS)
def test_the_profile_of_a_discrete_pair_is_the_theorems(eta, mean, max_trials):
    """Above the losses that were cut to make a law of the measure (of mass E[K]); the grid of 0.001 nats adds next to nothing."""
    law, masses = law_of(eta, mean, max_trials), oracle.count_masses(eta, mean, max_trials)
    for p, q in pairs():
        priced = price(p, q, law)
        kept = EPSILONS[priced.losses[0] <= EPSILONS]
        ours = np.array([priced.delta(float(eps)) for eps in kept])
        exact = np.minimum(oracle.theorem(p, q, masses, kept), 1.0)
        assert (ours >= exact - 1e-12).all()
        assert (ours <= exact + 2e-3).all()


@pytest.mark.parametrize(("eta", "mean", "max_trials"), [(0.0, 10.0, None), (1.0, 30.0, None), (2.0, 12.0, 64)])
@pytest.mark.parametrize("sampling_probability", [1.0, 0.1])
def test_the_profile_on_a_fine_grid_is_the_theorems_to_a_thousandth(eta, mean, max_trials, sampling_probability):
    """Against sum_i p_i max_j [h(a_j) - e^(eps - l_i) h(b_j)]_+ with the cells' ends as nodes, which is exact from below."""
    trial = subsampled_gaussian(noise_multiplier=1.0, sampling_probability=sampling_probability, interval=4e-3)
    masses = oracle.count_masses(eta, mean, max_trials)
    for pmf, priced in zip(trial.parts[0], select_best(trial, law_of(eta, mean, max_trials)).parts[0], strict=True):
        q = pmf.mass * np.exp(-pmf.losses)
        a, b = np.append(0.0, np.cumsum(pmf.mass)), 1.0 - np.append(np.cumsum(q[::-1])[::-1], 0.0)
        h_a, h_b = oracle.slope(masses, np.minimum(a, 1.0)), oracle.slope(masses, np.maximum(b, 0.0))
        for eps in (0.3, 1.0, 2.0, 4.0):
            gain = h_a[None] - np.exp(np.minimum(eps - pmf.losses, 300.0))[:, None] * h_b[None]
            exact = float(pmf.mass @ np.maximum(gain.max(axis=1), 0.0)) + float(h_a[0]) * pmf.infinity
            if exact > 1e-12 and eps >= priced.losses[0]:
                assert exact <= priced.delta(eps)
                assert priced.epsilon(exact) <= eps * 1.001 + 1e-4


GAUSSIAN_CASES = [
    (0.3, 0.0, 10.0, None),
    (1.0, 1.0, 10.0, None),
    (1.0, 2.0, 12.0, 64),
    (2.0, 0.5, 100.0, None),
    (5.0, 0.0, 10.0, None),
]


@pytest.mark.parametrize(("sigma", "eta", "mean", "max_trials"), GAUSSIAN_CASES)
def test_an_explicit_score_really_costs_the_price_to_three_thousandths(sigma, eta, mean, max_trials):
    masses = oracle.count_masses(eta, mean, max_trials)
    priced = accountant.epsilon(SelectBest(Gaussian(sigma), law_of(eta, mean, max_trials)), 1e-6)
    trial = oracle.GaussianTrial(1 / sigma, lambda s: oracle.slope(masses, s))
    assert trial.attained(0.997 * priced) > 1e-6
    assert trial.attained(1.003 * priced) < 1e-6


@pytest.mark.parametrize("delta", [1e-5, 1e-9, 1e-12])
@pytest.mark.parametrize("sigma", [0.1, 0.3, 1.0, 5.0, 50.0])
def test_the_price_of_a_gaussian_trial_is_sound_from_tiny_to_huge_epsilons(sigma, delta):
    """Epsilon from 0.1 to 128; at delta 1e-12 the noise of an FFT would show, and did."""
    masses = oracle.count_masses(1.0, 10.0)
    priced = accountant.epsilon(SelectBest(Gaussian(sigma), law_of(1.0, 10.0, None)), delta)
    trial = oracle.GaussianTrial(1 / sigma, lambda s: oracle.slope(masses, s), nodes=3_000, points=8_000)
    assert trial.delta(priced) <= delta * (1 + 1e-4)
    assert trial.delta(priced / 1.001) > delta


@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_a_trial_composed_of_many_steps_is_priced_like_the_gaussian_it_is(delta):
    """2,000 Gaussian steps of noise 44.72 are one of noise 1; what the FFT of the composition may lose counts against us."""
    masses = oracle.count_masses(2.0, 12.0, 64)
    priced = accountant.epsilon(SelectBest(Repeated(Gaussian(2000**0.5), 2000), law_of(2.0, 12.0, 64)), delta)
    trial = oracle.GaussianTrial(1.0, lambda s: oracle.slope(masses, s), nodes=3_000, points=8_000)
    assert trial.delta(priced) <= delta
    assert trial.delta(priced / 1.001) > delta


def test_a_delta_that_rounding_drowns_costs_infinity_and_not_too_little():
    trial = Repeated(Gaussian(2000**0.5), 2000)
    assert accountant.epsilon(SelectBest(trial, law_of(1.0, 10.0, None)), 1e-15) == math.inf


TRIALS = [Gaussian(1.0), Gaussian(4.0), Repeated(PoissonSubsampled(0.01, Gaussian(1.0)), 500)]


@pytest.mark.parametrize("trial", TRIALS, ids=lambda event: event.canonical()[:60])
@pytest.mark.parametrize(("eta", "mean"), [(0.0, 10.0), (0.5, 30.0), (1.0, 10.0), (2.0, 12.0)])
def test_looser_bounds_are_never_smaller(trial, eta, mean):
    """The closed form of ALGORITHMS.md section 8 (a), and Papernot and Steinke's Renyi bound from dp_accounting's own events."""
    delta, law = 1e-6, law_of(eta, mean, None)
    priced = accountant.epsilon(SelectBest(trial, law), delta)
    closed = closed_form_epsilon(accountant.privacy_loss(trial, 1e-3), law, delta)
    assert priced <= closed <= 1.25 * priced
    inner = trial if isinstance(trial, Gaussian) else trial.event
    event = dp_event.GaussianDpEvent(inner.noise_multiplier if isinstance(inner, Gaussian) else inner.event.noise_multiplier)
    if isinstance(trial, Repeated):
        event = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.01, event), trial.count)
    renyi = rdp_privacy_accountant.RdpAccountant().compose(dp_event.RepeatAndSelectDpEvent(event, mean, eta)).get_epsilon(delta)
    assert priced <= renyi
    assert accountant.renyi_epsilon(SelectBest(trial, law), delta) == pytest.approx(renyi, rel=1e-12)


@pytest.mark.parametrize(("eta", "mean"), [(0.0, 100.0), (0.5, 1000.0), (0.0, 1e4)])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_a_trial_of_two_losses_is_priced_tightly_however_large_the_mean(eta, mean, epsilon):
    """The score's own part of the bill: two outcomes hold all the mass, h falls by thousands within one of them.

    Oracle: the theorem's maximum for randomised response, by a scalar search within each outcome.
    """
    law, high = law_of(eta, mean, None), 1 / (1 + math.exp(-epsilon))
    gamma = law.gamma

    def h(s: float) -> float:
        return (gamma + (1 - gamma) * s) ** -(eta + 1)

    def excess(eps: float) -> float:
        total = 0.0
        for mass, loss in ((1 - high, -epsilon), (high, epsilon)):
            best = 0.0
            for a0, b0, slope_b in ((0.0, 0.0, math.exp(epsilon)), (1 - high, high, math.exp(-epsilon))):
                width = high if a0 else 1 - high

                def lost(log_share: float, a0=a0, b0=b0, slope_b=slope_b, width=width, loss=loss) -> float:
                    a = width * math.exp(log_share)
                    return math.exp(eps - loss) * h(b0 + slope_b * a) - h(a0 + a)

                found = optimize.minimize_scalar(lost, bounds=(-25.0, 0.0), method="bounded", options={"xatol": 1e-9})
                best = max(best, -found.fun, -lost(-40.0), -lost(0.0))
            total += mass * best
        return total * law.first - 1e-6

    exact = optimize.brentq(excess, 0.0, 4 * epsilon * (eta + 1))
    ours = select_best(accountant.privacy_loss(Repeated(Gaussian(1.0), 0), 1e-3).compose(two_losses(epsilon)), law).epsilon(1e-6)
    assert exact * (1 - 1e-6) <= ours <= exact * 1.01


def two_losses(epsilon: float) -> PrivacyLoss:
    high = 1 / (1 + math.exp(-epsilon))
    pmf = from_points(1e-3, np.array([-epsilon, epsilon]), np.array([1 - high, high]), 0.0)
    return PrivacyLoss(((pmf, pmf),))


def test_the_best_of_trials_that_tell_nothing_tells_nothing():
    assert select_best(point(1e-3), law_of(0.0, 1e6, None)).delta(0.0) == 0.0
    never = Composed((Repeated(Gaussian(1.0), 0), NOTHING, Repeated(PoissonSubsampled(0.0, Gaussian(1.0)), 50)))
    assert accountant.epsilon(SelectBest(never, law_of(0.0, 1e4, None)), 1e-12) == 0.0


def test_one_run_for_sure_costs_one_run():
    trial = subsampled_gaussian(noise_multiplier=1.0, sampling_probability=1.0, interval=1e-3)
    once = select_best(trial, law_of(1.0, 10.0, 1))
    assert once.epsilon(1e-6) == pytest.approx(trial.epsilon(1e-6), rel=1e-6)
