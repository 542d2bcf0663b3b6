"""The price of select-best: never below what any ranking of any pair costs, and hardly above what the worst one does."""

from __future__ import annotations

import math
from collections.abc import Iterator

import best_of_k as oracle
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant
from run_counts import CASES, Case, binomial, fixed, poisson, tnb
from scipy import optimize
from scipy.stats import norm

from sweeper.privacy import accountant, selection
from sweeper.privacy.events import NOTHING, Composed, Gaussian, PoissonSubsampled, Repeated, SelectBest
from sweeper.privacy.laws import RunCountLaw, TruncatedNegativeBinomial, run_count_law
from sweeper.privacy.loss import LossPmf, PrivacyLoss, from_points, point, subsampled_gaussian
from sweeper.privacy.selection import closed_form_epsilon, select_best

EPSILONS = np.array([-2.0, -0.5, 0.0, 0.1, 0.3, 0.7, 1.0, 1.5, 2.2, 3.0, 4.5, 7.0])
PAIRS = 30
MANY = 4_000


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


def pairs(count: int = PAIRS) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(2)
    for number in range(count):
        yield random_pair(rng, 2 + number % 5)


def loss_of(p: np.ndarray, q: np.ndarray, interval: float = 1e-3) -> LossPmf:
    both = (p > 0) & (q > 0)
    return from_points(interval, np.log(p[both] / q[both]), p[both], float(p[(p > 0) & (q == 0)].sum()))


def price(p: np.ndarray, q: np.ndarray, law: object, interval: float = 1e-3) -> LossPmf:
    """The package's price of one direction of a pair."""
    pmf = loss_of(p, q, interval)
    ((selected, _),) = select_best(PrivacyLoss(((pmf, pmf),)), law).parts  # type: ignore[arg-type]
    return selected


def law_of(case: Case) -> RunCountLaw:
    return run_count_law(case.name, **case.arguments)  # type: ignore[arg-type]


each = pytest.mark.parametrize("case", CASES, ids=str)
some = pytest.mark.parametrize("case", [tnb(0.0, 10.0), tnb(1.0, 10.0, 12), tnb(2.0, 12.0, 64), binomial(20, 0.5)], ids=str)
STRICT = {n: oracle.Rankings(list(oracle.strict_orders(n))) for n in range(2, 7)}
WEAK = {n: oracle.Rankings(list(oracle.weak_orders(range(n)))) for n in range(2, 5)}


def worst(p: np.ndarray, q: np.ndarray, case: Case, rankings: oracle.Rankings) -> np.ndarray:
    """The largest divergence over all rankings, at each of EPSILONS."""
    winners = (rankings.winners(mass, case) for mass in (p, q))
    return oracle.hockey_stick(*winners, EPSILONS, case.nothing).max(axis=1)


@each
def test_no_ranking_of_any_pair_costs_more_than_the_price(case):
    """All rankings of 30 pairs, one by one, 12 epsilons, both directions: 720 maxima a law over strict rankings, 432 with ties."""
    law = law_of(case)
    close = 0
    for p, q in pairs():
        for present, absent in ((p, q), (q, p)):
            priced = price(present, absent, law)
            bounds = np.array([priced.delta(float(eps)) for eps in EPSILONS])
            for rankings in (STRICT[len(p)], WEAK.get(len(p))):
                if rankings is not None:
                    found = worst(present, absent, case, rankings)
                    assert (found <= bounds + 1e-9).all(), (present, absent, found - bounds)
                    close += int(((found > 0.99 * bounds) & (bounds < 0.99)).sum())
    assert close >= 10  # some rankings nearly reach it


def by_size(count: int = MANY) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs, as tables [pairs, outcomes] of P and Q for each number of outcomes."""
    sizes: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    for p, q in pairs(count):
        sizes.setdefault(len(p), []).append((p, q))
    return [(np.array([p for p, _ in found]), np.array([q for _, q in found])) for found in sizes.values()]


def test_the_recursion_over_sets_is_the_maximum_over_all_rankings():
    for p_BN, q_BN in by_size():
        for case in (tnb(0.5, 5.0), poisson(0.3), fixed(2)):
            found = oracle.worst_of_all_orders(p_BN[:5], q_BN[:5], case, EPSILONS)
            listed = [worst(p, q, case, STRICT[len(p)]) for p, q in zip(p_BN[:5], q_BN[:5], strict=True)]
            assert found == pytest.approx(np.array(listed), rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("mistake", ["", "exchanged", "reversed", "wrong end"])
def test_no_ranking_of_four_thousand_pairs_exceeds_the_theorem_for_any_law(mistake):
    """All rankings of 4,000 pairs, both directions, every law, 6 epsilons; the same comparison catches each wrong theorem."""
    epsilons, beyond, compared = EPSILONS[::2], 0, 0
    for p_BN, q_BN in by_size():
        for case in CASES:
            for present, absent in ((p_BN, q_BN), (q_BN, p_BN)):
                bound = oracle.theorem_from_above(present, absent, case, epsilons, mistake=mistake)
                found = oracle.worst_of_all_orders(present, absent, case, epsilons)
                beyond += int((found > bound + 1e-9).sum())
                compared += found.size
    assert compared == 2 * MANY * len(CASES) * len(epsilons)
    assert beyond == 0 if not mistake else beyond > 1_000


@pytest.mark.parametrize("mistake", ["", "exchanged", "wrong end"])
def test_no_ranking_of_four_thousand_pairs_costs_more_than_the_price(mistake, monkeypatch):
    """The package's own price, the laws in turn; the same comparison of 800 catches it with its curve's ends mistaken."""
    lines, tails = selection._lines, selection._tails
    if mistake == "exchanged":
        monkeypatch.setattr(selection, "_lines", lambda pmf, law: lines(pmf, law)[::-1])
    if mistake == "wrong end":
        monkeypatch.setattr(selection, "_tails", lambda pmf: (np.append(tails(pmf)[0][1:], 0.0), tails(pmf)[1]))
    epsilons, count, beyond, compared = EPSILONS[::2], 800 if mistake else MANY, 0, 0
    for p_BN, q_BN in by_size(count):
        for number, case in enumerate(CASES):
            law, turn = law_of(case), slice(number, None, len(CASES))
            found = oracle.worst_of_all_orders(p_BN[turn], q_BN[turn], case, epsilons)
            for row, p, q in zip(found, p_BN[turn], q_BN[turn], strict=True):
                priced = price(p, q, law, interval=0.02)
                beyond += int((row > [priced.delta(float(eps)) + 1e-9 for eps in epsilons]).sum())
                compared += row.size
    assert compared == count * len(epsilons)
    assert beyond == 0 if not mistake else beyond > 200


@some
@pytest.mark.parametrize("order", [1.5, 4.0, 16.0])
def test_no_ranking_exceeds_the_renyi_cost(case, order):
    """What the ledger's filter adds up. Pairs whose outcomes all can happen under both; nothing cut off."""
    law, ratios = law_of(case), []
    for p, q in pairs(2 * PAIRS):
        if (p > 0).all() and (q > 0).all():
            rho, lost = price(p, q, law).renyi(order, cut=0.0)
            best_p, best_q = (STRICT[len(p)].winners(x, case) for x in (p, q))
            with np.errstate(divide="ignore"):
                moments = np.exp(order * np.log(best_p) + (1 - order) * np.log(best_q)).sum(axis=1)
            found = float(np.log(moments.max())) / (order - 1)
            assert lost < 1e-9
            assert found <= rho + 1e-9
            ratios.append(found / rho)
    assert len(ratios) > 20
    assert max(ratios) > 0.8


def test_the_rankings_would_catch_the_price_of_fewer_runs():
    """Priced at two thirds of the mean number of runs, with max_trials or without."""
    caught = 0
    for most in (None, 64):
        case, fewer = tnb(1.0, 12.0, most), law_of(tnb(1.0, 8.0, most))
        for p, q in pairs(2 * PAIRS):
            priced = price(p, q, fewer)
            bounds = np.array([priced.delta(float(eps)) for eps in EPSILONS])
            caught += int((worst(p, q, case, STRICT[len(p)]) > bounds + 1e-6).sum())
    assert caught > 50


@each
def test_the_profile_of_a_discrete_pair_is_the_theorems(case):
    """Above the losses that were cut to make a law of the measure (of mass E[K]); the grid of 0.001 nats adds next to nothing."""
    law = law_of(case)
    for p, q in pairs():
        priced = price(p, q, law)
        kept = EPSILONS[priced.losses[0] <= EPSILONS]
        ours = np.array([priced.delta(float(eps)) for eps in kept])
        exact = np.minimum(oracle.theorem(p, q, case, kept), 1.0)
        assert (ours >= exact - 1e-12).all()
        assert (ours <= exact + 2e-3).all()


@pytest.mark.parametrize(
    "case", [tnb(0.0, 10.0), tnb(1.0, 30.0), tnb(2.0, 12.0, 64), binomial(20, 0.5), fixed(10), poisson(5.0)], ids=str
)
@pytest.mark.parametrize("sampling_probability", [1.0, 0.1])
def test_the_profile_on_a_fine_grid_is_the_theorems_to_a_thousandth(case, sampling_probability):
    """Against sum_i p_i max_j [h(a_j) - e^(eps - l_i) h(b_j)]_+ with the cells' ends as nodes, which is exact from below."""
    trial = subsampled_gaussian(noise_multiplier=1.0, sampling_probability=sampling_probability, interval=4e-3)
    for pmf, priced in zip(trial.parts[0], select_best(trial, law_of(case)).parts[0], strict=True):
        q = pmf.mass * np.exp(-pmf.losses)
        x, y = (np.append(np.cumsum(np.append(top, z[::-1]))[::-1], 0.0) for z, top in ((pmf.mass, pmf.infinity), (q, 0.0)))
        h_a, h_b = case.derivative(np.minimum(x, 1.0)), case.derivative(np.minimum(y, 1.0))
        for eps in (0.3, 1.0, 2.0, 4.0):
            gain = h_a[None] - np.exp(np.minimum(eps - pmf.losses, 300.0))[:, None] * h_b[None]
            exact = float(pmf.mass @ np.maximum(gain.max(axis=1), 0.0)) + float(h_a[0]) * pmf.infinity
            if exact > 1e-12 and eps >= priced.losses[0]:
                assert exact <= priced.delta(eps)
                assert priced.epsilon(exact) <= eps * 1.001 + 1e-4


GAUSSIAN_CASES = [
    (0.3, tnb(0.0, 10.0)),
    (1.0, tnb(1.0, 10.0)),
    (1.0, tnb(2.0, 12.0, 64)),
    (2.0, tnb(0.5, 100.0)),
    (5.0, tnb(0.0, 10.0)),
]


@pytest.mark.parametrize(("sigma", "case"), GAUSSIAN_CASES, ids=str)
def test_an_explicit_score_really_costs_the_price_to_three_thousandths(sigma, case):
    priced = accountant.epsilon(SelectBest(Gaussian(sigma), law_of(case)), 1e-6)
    trial = oracle.GaussianTrial(1 / sigma, case)
    assert trial.attained(0.997 * priced) > 1e-6
    assert trial.attained(1.003 * priced) < 1e-6


@pytest.mark.parametrize("delta", [1e-5, 1e-9, 1e-12])
@pytest.mark.parametrize(
    ("sigma", "case"),
    [
        *((sigma, tnb(1.0, 10.0)) for sigma in (0.1, 0.3, 1.0, 5.0, 50.0)),
        *((sigma, case) for sigma in (0.3, 5.0) for case in (binomial(20, 0.5), fixed(2), fixed(10), poisson(5.0))),
    ],
    ids=str,
)
def test_the_price_of_a_gaussian_trial_is_sound_from_tiny_to_huge_epsilons(sigma, case, delta):
    """Epsilon from 0.1 to 128; at delta 1e-12 the noise of an FFT would show, and did, as would lost digits of h near its zero."""
    priced = accountant.epsilon(SelectBest(Gaussian(sigma), law_of(case)), delta)
    exact = best_or_all(1 / sigma, case)
    assert exact(priced) <= delta * (1 + 1e-4)
    assert exact(priced / 1.001) > delta


def best_or_all(mu, case):
    """delta(epsilon): the theorem's, or where it is less that of showing a few runs, which are one Gaussian of shift mu sqrt(k)."""
    trial, runs = oracle.GaussianTrial(mu, case, nodes=3_000, points=8_000), law_of(case).max_trials
    if runs is None or runs > 8:
        return trial.delta
    far = mu * math.sqrt(runs)

    def all_of_them(epsilon):
        return float(norm.sf(epsilon / far - far / 2) - np.exp(epsilon + norm.logsf(epsilon / far + far / 2)))

    return lambda epsilon: min(trial.delta(epsilon), all_of_them(epsilon))


def test_the_best_of_two_or_three_never_costs_more_than_showing_them():
    """It is read off them. The theorem alone says more there, and less from four runs on."""
    for runs in (2, 3, 4):
        best = accountant.epsilon(SelectBest(DP_SGD, run_count_law("fixed", trials=runs)), 1e-5)
        everything = accountant.epsilon(Repeated(DP_SGD, runs), 1e-5)
        theorem = select_best(accountant.privacy_loss(DP_SGD, 1e-3), run_count_law("fixed", trials=runs)).epsilon(1e-5)
        assert best == pytest.approx(min(everything, theorem), rel=3e-3)
        assert (theorem > everything * 1.01) == (runs < 4)


@pytest.mark.parametrize("delta", [1e-5, 1e-9])
@pytest.mark.parametrize("case", [tnb(2.0, 12.0, 64), fixed(3)], ids=str)
def test_a_trial_composed_of_many_steps_is_priced_like_the_gaussian_it_is(case, delta):
    """2,000 Gaussian steps of noise 44.72 are one of noise 1; what the FFT of the composition may lose counts against us."""
    priced = accountant.epsilon(SelectBest(Repeated(Gaussian(2000**0.5), 2000), law_of(case)), delta)
    exact = best_or_all(1.0, case)
    assert exact(priced) <= delta
    assert exact(priced / 1.001) > delta


def test_a_delta_near_the_rounding_of_floats_never_costs_too_little():
    priced = accountant.epsilon(SelectBest(Repeated(Gaussian(2000**0.5), 2000), law_of(tnb(1.0, 10.0))), 1e-15)
    assert oracle.GaussianTrial(1.0, tnb(1.0, 10.0), nodes=3_000, points=8_000).delta(min(priced, 500.0)) <= 1e-15


DP_SGD = Repeated(PoissonSubsampled(0.01, Gaussian(1.0)), 2000)


@pytest.mark.parametrize(
    ("law", "published"),
    [
        (run_count_law("logarithmic", mean=10.0), 3.595),
        (run_count_law("geometric", mean=10.0), 3.780),
        (run_count_law("geometric", mean=30.0), 4.333),
        (run_count_law("logarithmic", mean=100.0), 4.39),
        (run_count_law("binomial", trials=20, probability=0.5), 5.22),
        (run_count_law("fixed", trials=10), 8.25),
    ],
    ids=lambda value: "-".join(str(v) for v in value.to_dict().values()) if isinstance(value, RunCountLaw) else "",
)
def test_prices_of_a_dp_sgd_trial_as_published(law, published):
    """ALGORITHMS.md section 8 and vectors/accounting.json: one trial costs 2.584, ten released runs 9.268."""
    found = accountant.epsilon(SelectBest(DP_SGD, law), 1e-5)
    assert found == pytest.approx(published, rel=2e-3)
    assert 1.3 * 2.584 < found < 9.268


def test_no_answer_is_released_for_free_and_only_that():
    """With mean 1e-9 next to nothing ever runs; the best of few Poisson runs costs at least its chance to be one run."""
    trial = subsampled_gaussian(noise_multiplier=1.0, sampling_probability=1.0, interval=1e-3)
    rare = select_best(trial, run_count_law("poisson", mean=1e-9, may_be_empty=True))
    assert rare.delta(0.0) < 1.1e-9
    assert rare.delta(-1.0) == pytest.approx(-math.expm1(-1.0), rel=1e-6)  # "nothing" is no secret-keeper at epsilon below 0
    mean = 0.3
    few = select_best(trial, run_count_law("poisson", mean=mean, may_be_empty=True))
    for epsilon in (0.5, 1.0, 2.0):
        once = mean * math.exp(-mean) * trial.delta(epsilon)  # a score that ranks at random, seen only when K = 1
        assert once < few.delta(epsilon) < 2 * mean * trial.delta(epsilon)


TRIALS = [Gaussian(1.0), Gaussian(4.0), Repeated(PoissonSubsampled(0.01, Gaussian(1.0)), 500)]


@pytest.mark.parametrize("trial", TRIALS, ids=lambda event: event.canonical()[:60])
@pytest.mark.parametrize(("eta", "mean"), [(0.0, 10.0), (0.5, 30.0), (1.0, 10.0), (2.0, 12.0)])
def test_looser_bounds_are_never_smaller(trial, eta, mean):
    """The closed form of ALGORITHMS.md section 8 (a), and Papernot and Steinke's Renyi bound from dp_accounting's own events."""
    delta, law = 1e-6, TruncatedNegativeBinomial(eta=eta, mean=mean)
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
    law, high = TruncatedNegativeBinomial(eta=eta, mean=mean), 1 / (1 + math.exp(-epsilon))
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


@each
def test_the_best_of_trials_that_tell_nothing_tells_nothing(case):
    assert select_best(point(1e-3), law_of(case)).delta(0.0) == 0.0
    never = Composed((Repeated(Gaussian(1.0), 0), NOTHING, Repeated(PoissonSubsampled(0.0, Gaussian(1.0)), 50)))
    assert accountant.epsilon(SelectBest(never, law_of(case)), 1e-12) == 0.0


@pytest.mark.parametrize("case", [tnb(1.0, 10.0, 1), fixed(1), binomial(20, 0.5, 1)], ids=str)
def test_one_run_for_sure_costs_one_run(case):
    trial = subsampled_gaussian(noise_multiplier=1.0, sampling_probability=1.0, interval=1e-3)
    once = select_best(trial, law_of(case))
    assert once.epsilon(1e-6) == pytest.approx(trial.epsilon(1e-6), rel=1e-6)


@each
def test_a_trial_that_tells_all_costs_all(case):
    """Two outcomes, each given by one table only: some run shows it unless none is made."""
    all_told = LossPmf(interval=1e-3, lowest=0, mass=np.zeros(1), infinity=1.0)
    priced = select_best(PrivacyLoss(((all_told, all_told),)), law_of(case))
    assert priced.delta(50.0) == pytest.approx(min(1.0, float(case.masses @ np.arange(len(case.masses)))), rel=1e-9)
    assert priced.delta(50.0) >= 1 - case.nothing - 1e-12


def test_a_fixed_count_of_a_leaky_trial_pays_for_its_leak():
    """One outcome in 1e6 is infinite: it is seen among ten runs with 1 - (1 - 1e-6)^10, and no fewer."""
    leaky = LossPmf(interval=1e-3, lowest=-1000, mass=np.array([0.5, *np.zeros(1999), 0.5 - 1e-6]), infinity=1e-6)
    priced = select_best(PrivacyLoss(((leaky, leaky),)), run_count_law("fixed", trials=10))
    assert -math.expm1(10 * math.log1p(-1e-6)) <= priced.delta(40.0) < 1.01e-5


def test_odd_pairs_and_odd_laws_make_laws_of_mass_one():
    """Few losses far apart, hardly any finite mass, means of 1e-12 and 1e5: a law comes out, and no warning."""
    rng = np.random.default_rng(0)
    laws = [law_of(case) for case in (fixed(3), poisson(1e-12), binomial(100_000, 0.999))]
    for number in range(60):
        outcomes = int(rng.integers(1, 6))
        mass = np.zeros(3_000)
        mass[rng.integers(0, 3_000, outcomes)] += rng.dirichlet(np.full(outcomes, 0.2)) * rng.choice([1.0, 0.5, 1e-3, 1e-12])
        pmf = LossPmf(interval=1e-2, lowest=int(rng.integers(-2_000, 100)), mass=mass, infinity=max(0.0, 1 - mass.sum()))
        law = laws[number % 3]
        ((priced, _),) = select_best(PrivacyLoss(((pmf, pmf),)), law).parts
        assert priced.mass.sum() + priced.infinity == pytest.approx(1.0, abs=1e-9)
        assert (priced.mass >= 0).all()
        once = law.derivative(np.zeros(1))[0]  # P[K = 1]: its releases are those of the trial, seen by a score of one value
        assert all(priced.delta(eps) >= once * pmf.delta(eps) - 1e-12 for eps in (-1.0, 0.0, 2.0, 9.0))
