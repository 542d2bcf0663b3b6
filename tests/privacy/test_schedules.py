"""Runs whose noise multiplier changes from step to step: the theorem of schedule.py, and prices against direct composition."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom

from sweeper.privacy import accountant, schedule
from sweeper.privacy.accountant import privacy_loss
from sweeper.privacy.event_loss import composed
from sweeper.privacy.events import (
    Composed,
    Event,
    ExponentialMechanism,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    PoissonSubsampled,
    Repeated,
    event_from_dict,
    in_turn,
)
from sweeper.privacy.loss import subsampled_gaussian
from sweeper.privacy.simplify import simplified

Q = 0.05


def linear(steps: int, start: float = 3.0, end: float = 0.9) -> np.ndarray:
    return np.linspace(start, end, steps)


def cosine(steps: int, start: float = 3.0, end: float = 0.9) -> np.ndarray:
    return end + (start - end) * (1 + np.cos(np.pi * np.arange(steps) / (steps - 1))) / 2


def run(multipliers: np.ndarray, q: float = Q) -> Event:
    return Composed(tuple(PoissonSubsampled(q, Gaussian(float(s))) for s in multipliers))


def profile(m: float, e: float) -> float:
    return float(ndtr(m / 2 - e / m) - math.exp(e) * ndtr(-m / 2 - e / m))


def test_the_profile_of_a_gaussian_is_convex_in_its_total_variation():
    """At every epsilon of both signs. In 1/s itself it is not, nor in any power of it: rounding by a chord there is unsound."""
    rng = np.random.default_rng(1)
    broken = dict.fromkeys((0.5, 1.0, 2.0), 0)
    for _ in range(3_000):
        a, m, b = np.sort(np.exp(rng.uniform(-4, 2, 3)))
        e = rng.normal() * rng.choice([0.1, 1.0, 4.0])
        low, middle, high = (profile(x, e) for x in (a, m, b))
        variations = [profile(x, 0.0) for x in (a, m, b)]
        share = (variations[1] - variations[0]) / (variations[2] - variations[0])
        assert middle <= (1 - share) * low + share * high + 1e-12
        for power in broken:
            chord = (m**power - a**power) / (b**power - a**power)
            broken[power] += middle > (1 - chord) * low + chord * high + 1e-9
    assert broken[0.5] > 0
    assert broken[1.0] > 0


def test_the_share_is_that_of_the_total_variations():
    for quiet, s, loud in ((1.2, 1.1, 0.9), (50.0, 49.0, 45.0), (0.11, 0.105, 0.1), (1.0, 1.0, 0.5)):
        variations = [profile(1 / x, 0.0) for x in (quiet, s, loud)]
        exact = (variations[1] - variations[0]) / (variations[2] - variations[0])
        assert exact * (1 - 1e-6) <= schedule._share(quiet, s, loud) <= exact * (1 + 1e-6) + 1e-9
    assert schedule._share(1.0, 1.0 - 1e-9, 1.0 - 2e-9) == 1.0  # too near to tell apart
    assert schedule._share(0.013, 0.012, 0.011) == 1.0  # total variations that are all 1


def test_one_larger_coin_stands_for_many():
    """Poisson-binomial against binomial of the geometric mean of (1 - share): stochastically larger, and the mean is not enough."""
    rng = np.random.default_rng(2)
    for _ in range(50):
        shares = rng.uniform(0, 0.5, 12)
        law = np.array([1.0])
        for share in shares:
            law = np.convolve(law, [1 - share, share])
        above = np.cumsum(law[::-1])[::-1]
        larger = 1 - np.prod(1 - shares) ** (1 / 12)
        assert (above <= binom.sf(np.arange(13) - 1, 12, larger) + 1e-12).all()
        assert (above > binom.sf(np.arange(13) - 1, 12, shares.mean()) + 1e-6).any()


@pytest.mark.parametrize("decay", [linear, cosine])
def test_fifty_steps_cost_what_their_direct_composition_does(decay):
    """From above, within 0.5% at every delta; steps of a third less noise, or a price that drops the dearest five, are caught."""
    multipliers, interval = decay(50), 1e-3
    found = privacy_loss(run(multipliers), interval)
    exact = composed([subsampled_gaussian(float(s), Q, interval) for s in multipliers], interval)
    assert len(schedule.families(simplified(run(multipliers)).events)[0]) == 1
    for delta in (1e-2, 1e-4, 1e-6, 1e-8):
        assert exact.epsilon(delta) * (1 - 1e-6) <= found.epsilon(delta) <= exact.epsilon(delta) * 1.005
    for e in (-0.5, -0.1, 0.0, 0.3, 1.0):
        for side in (0, 1):
            true, bound = (loss.parts[0][side].delta(e) for loss in (exact, found))
            assert true * (1 - 1e-6) <= bound <= true * 1.01 + 1e-4
    assert privacy_loss(run(multipliers * 1.5), interval).epsilon(1e-6) < 0.8 * exact.epsilon(1e-6)
    assert privacy_loss(run(np.sort(multipliers)[5:]), interval).epsilon(1e-6) < 0.97 * exact.epsilon(1e-6)


def test_a_schedule_with_a_line_search_on_each_batch():
    """The same coin for whatever runs on the batch with the Gaussian; other parts of the run are composed as they are."""
    search, interval = ExponentialMechanism(0.2), 2e-3
    steps = [PoissonSubsampled(0.1, Composed((Gaussian(float(s)), search))) for s in linear(30, 2.0, 1.0)]
    extra = (Laplace(4.0), Repeated(PoissonSubsampled(0.1, Gaussian(2.0)), 3))
    found = privacy_loss(Composed((*steps, *extra)), interval)
    exact = composed([privacy_loss(event, interval) for event in (*steps, *extra)], interval)
    for delta in (1e-3, 1e-6):
        assert exact.epsilon(delta) * (1 - 1e-6) <= found.epsilon(delta) <= exact.epsilon(delta) * 1.005


def test_a_schedule_of_batches_of_fixed_size():
    steps = [FixedSizeSampled(1_000, 50, Gaussian(float(s))) for s in cosine(40, 6.0, 2.0)]
    found = privacy_loss(Composed(tuple(steps)), 2e-3)
    exact = composed([privacy_loss(step, 2e-3) for step in steps], 2e-3)
    for delta in (1e-3, 1e-6):
        assert exact.epsilon(delta) * (1 - 1e-6) <= found.epsilon(delta) <= exact.epsilon(delta) * 1.005


def test_two_thousand_steps_in_seconds():
    """Time of this process alone, so that a busy machine does not count. The limit is 1.4452: at 400 nodes 1.4457, at 1,500 nodes
    and a grid of 1e-4 1.44526, and what nodes add falls with the square of their number."""
    event = run(linear(2_000, 4.0, 0.8), 0.01)
    begun = time.process_time()
    found = accountant.epsilon(event, 1e-5)
    assert time.process_time() - begun < 4.0
    assert 1.4452 <= found <= 1.4452 * 1.005


def test_less_noise_at_any_time_costs_more():
    """All of it, one stretch of it, and the last step of it; order does not matter."""
    multipliers = cosine(60)

    def price(changed: np.ndarray) -> float:
        return privacy_loss(run(changed), 4e-3).epsilon(1e-5)

    costs = [price(multipliers * factor) for factor in (1.2, 1.01, 1.0, 0.99, 0.9)]
    assert costs == sorted(costs)
    base = costs[2]
    for stretch in (slice(0, 20), slice(20, 40), slice(50, 60)):
        lower = multipliers.copy()
        lower[stretch] *= 0.85
        assert price(lower) > base
    assert price(multipliers[::-1]) == pytest.approx(base, rel=1e-9)
    assert price(np.append(multipliers, [0.9] * 5)) > base


def test_few_multipliers_are_priced_as_they_are():
    levels = [0.8 + 0.1 * i for i in range(schedule.FEW)]
    event = Composed(tuple(Repeated(PoissonSubsampled(0.02, Gaussian(s)), 10) for s in levels))
    families, others = schedule.families(event.events)
    assert families == []
    assert len(others) == schedule.FEW
    families, others = schedule.families((*event.events, PoissonSubsampled(0.02, Gaussian(7.0)), Laplace(1.0), Gaussian(2.0)))
    assert len(families) == 1
    assert others == [Laplace(1.0), Gaussian(2.0)]
    assert sum(count for _, count in families[0].counts) == 10 * schedule.FEW + 1


@pytest.mark.parametrize(
    "multipliers",
    [
        np.geomspace(0.02, 1e4, 300),
        np.geomspace(1.0, 1.0 + 1e-13, 40),
        np.append(np.full(500, 1.0), np.linspace(0.5, 0.50001, 30)),
        np.linspace(0.0101, 0.0102, 30),
        np.linspace(1e8, 1e9, 30),
    ],
)
def test_every_step_is_between_its_nodes(multipliers):
    """However the multipliers lie: quiet at or above, loud at or below, no step lost."""
    family = schedule.families(run(multipliers).events)[0]
    assert len(family) <= 1
    for one in family:
        steps = schedule.bracketed(one)
        assert sum(some.count for some in steps) == len(multipliers)
        assert len(steps) <= schedule.NODES
        assert all(some.loud <= some.quiet and 0 <= some.share <= 1 for some in steps)
        smallest = min(s for s, _ in one.counts)
        assert min(some.quiet for some in steps) >= smallest
        lowered = schedule.rounded_down(one)
        assert sum(event.count for event in lowered) == len(multipliers)
        assert min(event.event.event.noise_multiplier for event in lowered) == smallest


def test_the_renyi_cross_check_of_a_long_schedule_is_rounded_down():
    """The Renyi cost at one order is the exact sum: at a whole order a binomial sum for each step."""
    multipliers = linear(200)
    sums = [
        sum(math.comb(8, k) * (1 - Q) ** (8 - k) * Q**k * math.exp(k * (k - 1) / (2 * s * s)) for k in range(9))
        for s in multipliers
    ]
    assert accountant.renyi(run(multipliers), 8.0)[0] == pytest.approx(float(np.sum(np.log(sums))) / 7, rel=1e-9)
    found = accountant.renyi_epsilon(run(multipliers), 1e-5)
    assert accountant.epsilon(run(multipliers), 1e-5) < found < 1.4 * accountant.epsilon(run(multipliers), 1e-5)


def test_the_json_of_a_schedule_is_short_where_noise_repeats():
    multipliers = np.round(cosine(2_000), 1)
    event = in_turn(PoissonSubsampled(0.01, Gaussian(float(s))) for s in multipliers)
    assert len(event.canonical()) < 5_000 < len(run(multipliers, 0.01).canonical())
    assert event_from_dict(event.to_dict()) == event
    assert simplified(event) == simplified(run(multipliers, 0.01))
