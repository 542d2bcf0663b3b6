"""Clip norms from a moment: the theorems' numbers by hand and at the paper's own T, and the private estimate of the moment."""

from __future__ import annotations

import math

import numpy as np
import pytest
from constants import Constants, facts, spread
from oracles import FALSE_ALARM, REJECTED, frequency_p_value
from scipy import stats
from small import blobs, without
from tiny_sweeps import FIXED, spec_of

from sweeper.backends.closed_form import LinearProblem
from sweeper.checks import FieldError
from sweeper.clip.heavy_tail import HeavyTailClip, floored_laplace
from sweeper.models.linear import Logistic
from sweeper.privacy.events import REPLACE_ONE, ZERO_OUT, Laplace, ReplaceOne
from sweeper.seeds import Streams, secret_from_seed
from sweeper.spec.theory_numbers import phi_squared, s_of

SECRET = secret_from_seed("heavy tail")
NONE = Constants()
FULL = {"gamma": 0.5, "distance": 2.0, "smoothness": 4.0}


def norm(known, **fields) -> float:
    return HeavyTailClip(**fields).prepare(known, NONE, Streams(SECRET, 0)).clip_norm


def estimates(policy: HeavyTailClip, problem, count: int) -> np.ndarray:
    """G of `count` runs, taken back out of the norm."""
    s = s_of(facts())
    norms = [policy.prepare(facts(rows=problem.rows), problem, Streams(SECRET, trial)).clip_norm for trial in range(count)]
    return np.array(norms) / policy.norm(1.0, s)


def test_phi_and_s_by_hand():
    """sigma 5, d 4, b 10, T 100: phi^2 = 100 / 10,000, S = 0.01 + 0.01."""
    assert phi_squared(facts()) == pytest.approx(0.01, rel=1e-15)
    assert s_of(facts()) == pytest.approx(0.02, rel=1e-15)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"theorem": "6.2", "moment": 3.0, "gamma": 0.25}, 22.10419),  # 3 * 2 * 50^(1/3)
        ({"theorem": "6.2", "moment": 3.0, "gamma": 0.25, "moment_order": 4.0}, 9.277485),  # 3 * 4^(1/4) * 50^(1/5)
        ({"theorem": "6.5", "moment": 3.0}, 7.977444),  # 3 * 50^(1/4)
        ({"theorem": "6.5", "moment": 3.0, "moment_order": 5.0}, 4.436273),  # 3 * 50^(1/10)
        ({"theorem": "N.1", "moment": 3.0, **FULL}, 8.304688),  # 3 * (3 / (0.25 * 2 * 2))^(1/3) * 50^(1/6)
        ({"theorem": "N.1", "moment": 3.0, "moment_order": 3.0, **FULL}, 5.526402),  # 3 * 3^(1/5) * 50^(1/10)
    ],
)
def test_norms_by_hand(fields, expected):
    assert norm(facts(), **fields) == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize("k", [2.0, 3.5, 8.0])
@pytest.mark.parametrize("phi", [0.03, 0.3])
def test_at_the_papers_own_length_they_are_the_papers_forms(k, phi):
    """At T = 1/phi^2 (sigma = b / sqrt(d)), S = 2 phi^2; at theorem 5.4's T = 1/(3 phi^2), S = 4 phi^2."""
    steps = round(phi**-2)
    own = facts(batch_size=12.0, parameters=9, steps=steps, noise_multiplier=4.0)  # b / sqrt(d) = 4
    phi = math.sqrt(phi_squared(own))
    assert phi**-2 == pytest.approx(steps, rel=1e-12)
    root = math.sqrt(2) * phi
    assert norm(own, theorem="6.2", moment=3.0, gamma=0.25, moment_order=k) == pytest.approx(
        3.0 * 4 ** (1 / k) * root ** (-2 / (k + 1)), rel=1e-12
    )
    assert norm(own, theorem="6.5", moment=3.0, moment_order=k) == pytest.approx(3.0 * root ** (-1 / k), rel=1e-12)
    n1 = 3.0 * 3.0 ** (1 / (2 * k - 1)) * root ** (-1 / (2 * k - 1))
    assert norm(own, theorem="N.1", moment=3.0, moment_order=k, **FULL) == pytest.approx(n1, rel=1e-12)
    shorter = facts(batch_size=12.0, parameters=12, steps=steps, noise_multiplier=2.0)  # b / sqrt(3 d) = 2
    assert steps == pytest.approx(1 / (3 * phi_squared(shorter)), rel=1e-12)
    assert norm(shorter, theorem="6.5", moment=3.0, moment_order=k) == pytest.approx(
        3.0 * (2 * math.sqrt(phi_squared(shorter))) ** (-1 / k), rel=1e-12
    )


@pytest.mark.parametrize("k", [1.0, 2.0, 3.5])
def test_the_estimate_is_the_clipped_moment(k):
    values = spread(5_000)
    expected = np.mean(np.minimum(values, 20.0) ** k) ** (1 / k)
    (found,) = estimates(HeavyTailClip(theorem="6.5", moment_order=k, cap=20.0, epsilon=500.0), Constants(*values), 1)
    assert found == pytest.approx(expected, rel=5e-4)
    assert np.mean(np.array(values) ** k) ** (1 / k) > 1.05 * expected  # the cap did bite


def test_the_noise_of_the_estimate_is_laplace_of_the_stated_scale():
    """Scale cap^k / epsilon on the sum over the public n; 2/3 and 3/2 of it are rejected."""
    values = [1.0, 2.0, 3.0, 9.0] * 250
    policy = HeavyTailClip(theorem="6.5", cap=5.0, epsilon=0.5)
    noise = estimates(policy, Constants(*values), 600) ** 2 * 1_000 - 250 * (1 + 4 + 9 + 25)
    for factor, right in ((1.0, True), (2 / 3, False), (1.5, False)):
        scaled = np.abs(noise).sum() / (25 / 0.5 * factor)  # a sum of unit exponentials
        law = stats.gamma(600)
        assert (2 * min(law.cdf(scaled), law.sf(scaled)) > (FALSE_ALARM if right else REJECTED)) == right
    assert stats.kstest(noise, stats.laplace(scale=50).cdf).pvalue > FALSE_ALARM


def test_a_record_moves_the_sum_by_at_most_the_cap():
    """Zero-out and replace-one alike: with the same stream, the noisy sums of neighbours are at most cap^k apart."""
    policy, rng = HeavyTailClip(theorem="6.5", moment_order=3.0, cap=2.0, epsilon=0.2), np.random.default_rng(0)
    widest = 0.0
    for trial in range(25):
        values = np.exp(rng.normal(0, 1, 300)).tolist()
        sums = []
        for last in (0.0, 1e9, float(np.exp(rng.normal()))):
            problem = Constants(*values[:-1], last)
            norm = policy.prepare(facts(rows=300), problem, Streams(SECRET, trial)).clip_norm
            sums.append((norm / policy.norm(1.0, s_of(facts(rows=300)))) ** 3 * 300)
        widest = max(widest, np.ptp(sums))
    assert 8.0 * (1 - 1e-9) < widest < 8.0 * (1 + 1e-9)


def test_null_records_add_nothing_and_n_stays_public():
    full, description = blobs(200, 6, 2)
    gone = np.arange(0, 200, 4)
    problem = LinearProblem(model=Logistic(), description=description, table=without(full, *gone), rows=np.arange(200))
    norms = np.delete(np.sqrt(np.square(full.features.astype(np.float64)).sum(axis=1) + 1), gone)
    (found,) = estimates(HeavyTailClip(theorem="6.5", cap=100.0, epsilon=500.0), problem, 1)
    assert found == pytest.approx(math.sqrt(np.square(norms).sum() / 200), rel=0.02)
    assert found < 0.95 * math.sqrt(np.square(norms).mean())


def test_an_estimate_lost_in_noise_is_at_least_the_noises_scale():
    found = estimates(HeavyTailClip(theorem="6.5", cap=10.0, epsilon=0.01), Constants(*[1e-3] * 100), 200)
    least = 10.0 * math.sqrt(1 / (0.01 * 1e2))
    assert found.min() == pytest.approx(least, rel=1e-9)
    assert 0.3 < np.mean(found == found.min()) < 0.95  # noise below its scale: 1 - 1/(2e) = 0.82


def test_floored_laplace_is_exact():
    """Floor of a Laplace draw: chances 1/2 (1 - e^-r) e^(-r m) at m and at -m - 1."""
    bits, rate = Streams(SECRET, 1).bits("prepare"), 0.4
    draws = np.array([floored_laplace(bits, rate) for _ in range(20_000)])
    cells = np.arange(-30, 30)
    chances = 0.5 * -math.expm1(-rate) * np.exp(-rate * np.where(cells >= 0, cells, -cells - 1))
    counts = np.array([(draws == cell).sum() for cell in cells])
    assert frequency_p_value(counts, chances / chances.sum()) > FALSE_ALARM
    for wrong in (rate * 1.5, rate / 1.5):
        other = np.exp(-wrong * np.where(cells >= 0, cells, -cells - 1))
        assert frequency_p_value(counts, other / other.sum()) < REJECTED


def test_what_it_asks():
    estimated, public = HeavyTailClip(theorem="6.5", cap=5.0, epsilon=0.2), HeavyTailClip(theorem="6.5", moment=2.0)
    assert estimated.asks(100, ZERO_OUT) == Laplace(5.0)
    assert estimated.asks(100, REPLACE_ONE) == ReplaceOne(Laplace(5.0))
    assert public.asks(100, ZERO_OUT) is None
    assert estimated.lipschitz
    assert not public.lipschitz
    clip = {"policy": "heavy-tail", "values": [2, 4], "theorem": "6.5", "cap": 9.0, "epsilon": {"range": [0.1, 0.5]}}
    assert spec_of(space=FIXED | {"clip": clip}).space.clip.dearest().asks(100, ZERO_OUT) == Laplace(2.0)


def test_whether_it_asks_cannot_be_searched():
    """A candidate with a public moment and one that estimates it would be priced alike."""
    clip = {"policy": "heavy-tail", "value": 2, "theorem": "6.5", "cap": 9.0, "moment": {"values": [None, 3.0]}}
    with pytest.raises(FieldError, match=r"space.clip.moment cannot be searched"):
        spec_of(space=FIXED | {"clip": clip})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"theorem": "6.3", "moment": 1.0}, "theorem = '6.3' must be one of 6.2, 6.5, N.1"),
        ({"theorem": "6.2", "moment": 1.0}, "gamma is missing: theorem 6.2 needs it"),
        ({"theorem": "N.1", "moment": 1.0, "gamma": 1.0}, "distance is missing: theorem N.1 needs it"),
        ({"theorem": "N.1", "moment": 1.0, "gamma": 1.0, "distance": 1.0}, "smoothness is missing"),
        ({"theorem": "6.5"}, "cap is missing: a moment estimated from the rows needs a bound"),
        ({"theorem": "6.5", "moment": 0.0}, "moment = 0 must be above 0"),
        ({"theorem": "6.5", "cap": -1.0}, "cap = -1 must be above 0"),
        ({"theorem": "6.5", "cap": 1.0, "epsilon": 0.0}, "epsilon"),
        ({"theorem": "6.5", "moment": 1.0, "moment_order": 0.5}, "moment_order = 0.5 must be at least 1"),
        ({"theorem": "6.2", "moment": 1.0, "gamma": 0.0}, "gamma"),
    ],
)
def test_fields(fields, said):
    with pytest.raises(FieldError, match=said):
        HeavyTailClip(**fields)
