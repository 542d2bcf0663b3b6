"""Mechanisms of which Renyi divergences are known: no pair that keeps them costs more, and some pair costs as much.

Oracles: pairs of two outcomes on the border of what the divergences allow, written out here, and the Gaussian's exact profile.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from pairs import EPSILONS, hockey_stick, randomised_response, renyi
from scipy import optimize, stats

from sweeper.checks import FieldError
from sweeper.privacy import accountant, filter
from sweeper.privacy.events import (
    NOTHING,
    Composed,
    DiscreteLaplace,
    Disjoint,
    Event,
    Gaussian,
    PoissonSubsampled,
    RenyiBound,
    Repeated,
    ReplaceOne,
    SelectBest,
    ZeroConcentrated,
    event_from_dict,
)
from sweeper.privacy.laws import TruncatedNegativeBinomial
from sweeper.privacy.loss import LossPmf
from sweeper.privacy.simplify import simplified

KNOWN = [(1.01, 0.5), (1.5, 0.3), (2.0, 0.01), (4.0, 1e-6), (8.0, 0.3), (8.0, 3.0), (33.7, 0.1), (200.0, 1.0), (1e4, 0.4)]
GEOMETRIC = TruncatedNegativeBinomial(eta=1.0, mean=6.0)


def law(event: Event, interval: float = 1e-3) -> LossPmf:
    """Both directions are one law."""
    ((removing, adding),) = accountant.privacy_loss(event, interval).parts
    assert removing is adding
    return removing


def chances(logit: np.ndarray) -> np.ndarray:
    """[2, ...]: of the two outcomes, each right to the last digit."""
    return np.exp(-np.logaddexp(0.0, np.stack([-logit, logit])))


def larger(logit: np.ndarray, gap: np.ndarray, order: float) -> np.ndarray:
    """The larger of the divergences of two-outcome laws whose log odds are `logit` and logit - gap."""
    p, q = (-np.logaddexp(0.0, np.stack([-x, x])) for x in (logit, logit - gap))
    moments = [np.logaddexp.reduce(order * a + (1 - order) * b, axis=0) for a, b in ((p, q), (q, p))]
    return np.maximum(*moments) / (order - 1)


def pairs(order: float, rho: float, count: int = 2_001) -> tuple[np.ndarray, np.ndarray]:
    """Two-outcome pairs [2, count] whose divergence of the order, the larger direction, is rho: found by bisection."""
    around = np.sinh(np.linspace(-6.0, 6.0, count)) / 6  # log odds up to 34, close near 0
    logit = np.append(around + response(order, rho) / 2, response(order, rho) / 2)
    low, high = np.zeros(len(logit)), np.full(len(logit), 700.0)
    for _ in range(80):
        gap = (low + high) / 2
        low, high = np.where(larger(logit, gap, order) <= rho, gap, low), np.where(larger(logit, gap, order) <= rho, high, gap)
    p, q = chances(logit), chances(logit - low)
    return np.concatenate([p, q[::-1]], axis=1), np.concatenate([q, p[::-1]], axis=1)


def response(order: float, rho: float) -> float:
    """Epsilon of the randomised response whose divergence of the order is rho."""
    found = optimize.brentq(lambda e: float(larger(np.array(e / 2), np.array(e), order)) - rho, 0.0, 700.0, xtol=1e-15)
    return float(found) * (1 - 1e-12)


def divergence(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    """The largest hockey-stick divergence, of all pairs, of the first from the second."""
    return float(np.maximum(p - np.exp(epsilon) * q, 0.0).sum(axis=0).max())


def true_epsilon(p: np.ndarray, q: np.ndarray, delta: float) -> float:
    """The smallest epsilon >= 0 of all pairs' (epsilon, delta)-DP: that of their likelier outcome."""
    some = p[0] > delta
    return max(0.0, float(np.max(np.log((p[0][some] - delta) / q[0][some]), initial=0.0)))


def gaussian_profile(rho: float, e: float) -> float:
    """Balle and Wang 2018, Theorem 8, for the Gaussian of zCDP cost rho."""
    mu = math.sqrt(2 * rho)
    return float(stats.norm.cdf(mu / 2 - e / mu) - math.exp(e) * stats.norm.cdf(-mu / 2 - e / mu))


@pytest.mark.parametrize(("order", "rho"), KNOWN)
def test_no_pair_of_that_divergence_costs_more_and_the_worst_as_much(order, rho):
    scale = response(order, rho)
    pmf, smaller = (law(RenyiBound(order, by * rho), min(scale / 100, 1e-3)) for by in (1.0, 1 / 1.5))
    p, q = pairs(order, rho)
    caught = 0
    for e in np.concatenate([EPSILONS, scale * np.linspace(-2.0, 2.0, 21)]).tolist():
        exact, priced = divergence(p, q, e), pmf.delta(e)
        assert priced >= exact * (1 - 1e-12)
        caught += smaller.delta(e) < exact * 0.999
        if e + 1e-3 * scale < scale + 8 / (order - 1):
            assert priced <= exact + 2e-3 * divergence(p, q, 0.0)
    assert caught


@pytest.mark.parametrize(("order", "rho"), KNOWN)
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-8])
def test_epsilon_is_that_of_the_worst_pair_and_at_most_what_the_order_converts_to(order, rho, delta):
    found, smaller = (accountant.epsilon(RenyiBound(order, by * rho), delta) for by in (1.0, 1 / 1.5))
    converted = rho + filter.conversion(order, delta)
    exact = true_epsilon(*pairs(order, rho), delta)
    assert found >= exact
    if converted < 550:  # losses beyond 600 nats are infinite here
        assert found <= max(0.0, converted) * (1 + 1e-3) + 1e-5
        assert found <= exact * (1 + 4e-3) + 1e-5
        assert smaller < exact * 0.999 or exact == 0.0


@pytest.mark.parametrize("rho", [1e-4, 0.02, 0.5, 4.0, 60.0])
def test_a_gaussian_costs_no_more_than_its_zcdp_and_its_renyi_bounds(rho):
    spread = math.sqrt(2 * rho)
    interval = spread / 100
    pmf, smaller = law(ZeroConcentrated(rho), interval), law(ZeroConcentrated(rho / 1.5), interval)
    orders = [law(RenyiBound(order, order * rho), interval) for order in (1.1, 2.0, 1 + 4 / spread)]
    caught = 0
    for e in rho + spread * np.linspace(-6.0, 7.0, 40):
        exact, priced = gaussian_profile(rho, float(e)), pmf.delta(float(e))
        assert priced >= exact
        caught += smaller.delta(float(e)) < exact * 0.999
        assert all(one.delta(float(e)) >= exact for one in orders)
        assert all(one.delta(float(e)) >= priced * (1 - 3e-2) for one in orders)
    assert caught >= 10
    gaussian = accountant.epsilon(Gaussian(1 / spread), 1e-6)
    assert gaussian < accountant.epsilon(ZeroConcentrated(rho), 1e-6) < 1.2 * gaussian


@pytest.mark.parametrize("rho", [1e-8, 1e-4, 0.03, 0.5, 10.0, 200.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-9])
def test_zcdp_is_at_most_what_the_best_order_converts_to(rho, delta):
    orders = 1 + np.geomspace(1e-3, 1e7, 20_000)
    best = max(0.0, min(a * rho + filter.conversion(a, delta) for a in orders.tolist()))
    assert accountant.epsilon(ZeroConcentrated(rho), delta) <= best * (1 + 2e-3) + 1e-5


@pytest.mark.parametrize("rho", [0.01, 0.3, 2.0])
def test_pure_dp_of_that_zcdp_costs_no_more(rho):
    """eps-DP is eps^2/2-zCDP (Bun and Steinke 2016); a smaller rho is caught."""
    p, q = randomised_response(math.sqrt(2 * rho))
    pmf, smaller = law(ZeroConcentrated(rho)), law(ZeroConcentrated(rho / 2.25))
    places = np.linspace(-1.0, 1.0, 41) * math.sqrt(2 * rho)
    assert all(pmf.delta(float(e)) >= hockey_stick(p, q, e) for e in places)
    assert any(smaller.delta(float(e)) < hockey_stick(p, q, e) * 0.99 for e in places)


@pytest.mark.parametrize("event", [RenyiBound(6.0, 0.4), ZeroConcentrated(0.3)])
def test_the_law_is_its_own_mirror_image_and_a_profile(event):
    pmf = law(event, 1e-2)
    for e in np.arange(1, 300) * 1e-2:
        assert pmf.delta(-float(e)) == pytest.approx(1 - math.exp(-e) + math.exp(-e) * pmf.delta(float(e)), abs=1e-13)
    other_mass = float(np.sum(pmf.mass * np.exp(-pmf.losses)))
    assert other_mass == pytest.approx(1.0, abs=1e-9)
    assert np.all(pmf.mass >= 0)


@pytest.mark.parametrize("order", [1.01, 1.3, 2.0, 17.0, 300.0, 1e4, 1e6])
@pytest.mark.parametrize("rho", [1e-300, 1e-13, 1e-7, 1e-2, 1.0, 30.0, 600.0])
def test_extremes_are_numbers_and_dominate_a_randomised_response(order, rho):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for event in (RenyiBound(order, rho), ZeroConcentrated(rho)):
            pmf = law(event, 2e-2)
            assert np.isfinite(pmf.mass).all()
            assert pmf.mass.sum() + pmf.infinity == pytest.approx(1.0, abs=1e-11)
    if 1e-7 <= rho <= 30:
        scale = response(order, rho)
        pmf, (p, q) = law(RenyiBound(order, rho), 2e-2), (chances(np.array([x])) for x in (scale / 2, -scale / 2))
        assert all(pmf.delta(e) >= divergence(p, q, e) * (1 - 1e-12) for e in (scale * np.linspace(-1.2, 1.2, 25)).tolist())


def test_nothing_is_free_and_more_than_600_nats_protect_nothing():
    for event in (RenyiBound(8.0, 0.0), ZeroConcentrated(0.0)):
        assert accountant.epsilon(event, 1e-6) == accountant.renyi(event, 4.0)[0] == accountant.renyi(event, 40.0)[0] == 0.0
        assert simplified(event) == NOTHING
        assert law(event).delta(-1.0) == pytest.approx(1 - math.exp(-1.0))
    for event in (RenyiBound(8.0, 601.0), ZeroConcentrated(601.0), Repeated(RenyiBound(8.0, 1.0), 700)):
        assert accountant.epsilon(event, 1e-6) == math.inf
    assert law(Repeated(ZeroConcentrated(1.0), 700)).infinity == 1.0


def test_bounds_of_one_order_add_up_and_others_do_not_mix():
    one, zcdp = RenyiBound(8.0, 0.1), ZeroConcentrated(0.02)
    merged = simplified(Composed((one, zcdp, RenyiBound(8.0, 0.3), Repeated(one, 2), RenyiBound(9.0, 0.1), Repeated(zcdp, 3))))
    assert [(event.kind, getattr(event, "order", None)) for event in merged.events] == [
        ("renyi-bound", 8.0),
        ("zcdp", None),
        ("renyi-bound", 9.0),
    ]
    assert [event.rho for event in merged.events] == pytest.approx([0.6, 0.08, 0.1], rel=1e-12)
    assert merged.events[0].rho >= 0.6
    assert simplified(merged) == merged
    assert simplified(Repeated(RenyiBound(8.0, 0.1), 10)).rho >= 1.0
    apart = Disjoint((one, one))
    assert simplified(apart) == apart
    assert accountant.epsilon(apart, 1e-6) == pytest.approx(accountant.epsilon(one, 1e-6), rel=1e-3)
    many = accountant.epsilon(Composed((one,) * 12), 1e-6)
    assert many == pytest.approx(1.2 + filter.conversion(8.0, 1e-6), rel=4e-3)
    assert many < accountant.epsilon(Composed((one, DiscreteLaplace(3.0))), 1e-6)


@pytest.mark.parametrize(("order", "rho"), [(3.0, 0.2), (8.0, 0.3), (40.0, 1.0)])
def test_with_a_noisy_score_it_costs_what_the_worst_pair_does(order, rho):
    """The product of a two-outcome pair and randomised response is exact for them; adding the epsilons is more than enough."""
    delta, score = 1e-4, 0.5
    together = accountant.epsilon(Composed((RenyiBound(order, rho), DiscreteLaplace(score))), delta)
    p, q = randomised_response(score)
    a, b = pairs(order, rho)
    products = tuple((x[:, None, :] * y[None, :, None]).reshape(4, -1) for x, y in ((a, p), (b, q)))
    exact = optimize.brentq(lambda e: divergence(*products, e) - delta, 0.0, 60.0)
    assert exact <= together <= accountant.epsilon(RenyiBound(order, rho), delta) + score + 1e-3
    assert together <= exact * 1.05
    assert accountant.epsilon(Composed((RenyiBound(order, rho / 1.5), DiscreteLaplace(score))), delta) < exact


def best_of(chance: np.ndarray) -> np.ndarray:
    """Each outcome falls into 200 equally likely settings; a later one wins. K geometric of mean 6, by its generating function."""
    below = np.append(0.0, np.cumsum(np.repeat(chance / 200, 200)))
    return np.diff(below / 6 / (1 - (1 - 1 / 6) * below))


def test_the_best_of_several_runs_costs_at_least_what_runs_of_two_outcomes_do():
    order, rho, delta = 40.0, 2.0, 1e-3
    found, smaller = (accountant.epsilon(SelectBest(RenyiBound(order, by * rho), GEOMETRIC), delta) for by in (1.0, 1 / 1.5))
    both = [(best_of(a)[:, None], best_of(b)[:, None]) for a, b in zip(*(x.T for x in pairs(order, rho, 201)), strict=True)]
    exact = max(float(optimize.brentq(lambda e, p=p, q=q: divergence(p, q, e) - delta, -1.0, 60.0)) for p, q in both)
    assert smaller < exact <= found < 1.05 * exact
    gaussian, zcdp = (accountant.epsilon(SelectBest(trial, GEOMETRIC), 1e-6) for trial in (Gaussian(5**0.5), ZeroConcentrated(0.1)))
    assert gaussian < zcdp < 1.25 * gaussian


@pytest.mark.parametrize("make", [lambda scale: RenyiBound(8.0, 0.5 * scale), lambda scale: ZeroConcentrated(0.1 * scale)])
def test_a_poisson_batch_costs_less_and_at_least_what_a_pair_does(make):
    costs = [accountant.epsilon(PoissonSubsampled(q, make(1.0)), 1e-6) for q in (0.0, 0.01, 0.1, 0.5, 1.0)]
    assert costs == sorted(set(costs))
    assert costs[0] == 0.0
    assert costs[-1] == pytest.approx(accountant.epsilon(make(1.0), 1e-6), rel=1e-6)
    event, q = make(1.0), 0.1
    a, b = pairs(8.0, 0.5) if isinstance(event, RenyiBound) else (x[:, None] for x in randomised_response(math.sqrt(0.2)))
    whole, smaller = (accountant.privacy_loss(PoissonSubsampled(q, make(by)), 5e-4) for by in (1.0, 1 / 2.25))
    caught = 0
    for e in np.linspace(-0.08, 0.3, 39).tolist():
        exact = divergence(q * a + (1 - q) * b, b, e), divergence(b, q * a + (1 - q) * b, e)
        assert all(pmf.delta(e) >= true * (1 - 1e-12) for pmf, true in zip(whole.parts[0], exact, strict=True))
        caught += smaller.delta(e) < max(exact) * 0.999
    assert caught


def test_renyi_costs():
    event = RenyiBound(7.5, 0.3)
    assert accountant.renyi(event, 7.5) == accountant.renyi(event, 1.5) == (0.3, 0.0)
    assert accountant.renyi(ZeroConcentrated(0.04), 7.5) == (pytest.approx(0.3), 0.0)
    p, q = pairs(7.5, 0.3)
    likely = p.min(axis=0) > 1e-7
    for order in (7.6, 9.0, 32.0):
        rho, lost = accountant.renyi(event, order)
        assert 0.3 <= rho < 27.7 / 6.5 + 0.3  # losses above that have mass 1e-12, the lost mass
        assert 0 < lost < 1e-11
        assert rho >= max(renyi(a, b, order) for a, b in zip(p.T[likely], q.T[likely], strict=True)) > 0.3
    assert accountant.renyi(event, 32.0)[0] > accountant.renyi(event, 9.0)[0]


def test_renyi_costs_on_a_poisson_batch():
    """At whole orders the amplified curve; where the sum would read an order that is not known, the pair's own divergence."""
    event, q = RenyiBound(7.5, 0.3), 0.1
    for order, known in ((7.0, True), (7.5, False)):
        rho, lost = accountant.renyi(PoissonSubsampled(q, event), order)
        assert (lost == 0) == known
        for a, b in zip(*(x.T for x in pairs(7.5, 0.3, 201)), strict=True):
            if a.min() > 1e-9:
                assert rho >= max(renyi(q * a + (1 - q) * b, b, order), renyi(b, q * a + (1 - q) * b, order))
        assert rho < 0.1
    step = PoissonSubsampled(q, ZeroConcentrated(0.04))
    theirs = accountant.renyi(PoissonSubsampled(q, Gaussian(1 / math.sqrt(0.08))), 7.0)[0]
    assert theirs <= accountant.renyi(step, 7.0)[0] <= theirs * 1.01


def test_what_they_state_is_zero_out():
    for event in (RenyiBound(8.0, 0.3), ZeroConcentrated(0.1)):
        with pytest.raises(FieldError, match="rests on zero-out"):
            ReplaceOne(event)
        with pytest.raises(FieldError, match="two neighbour relations"):
            Composed((event, ReplaceOne(Gaussian(1.0))))
        assert event_from_dict(event.to_dict()) == event
        assert accountant.renyi_epsilon(event, 1e-6) is None


def test_a_filtered_run_promises_what_its_filter_does():
    settings = filter.RenyiFilter(order=12.0, epsilon=2.0, delta=1e-5)
    assert accountant.epsilon(RenyiBound(12.0, settings.capacity), 1e-5) == pytest.approx(2.0, rel=3e-3)
    full_batch = filter.RhoFilter(epsilon=1.0, delta=1e-5)
    assert accountant.epsilon(ZeroConcentrated(full_batch.rho_max), 1e-5) == pytest.approx(1.0, rel=2e-3)
