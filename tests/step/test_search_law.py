"""How often each candidate is taken, against the exact law of the mechanism that was priced; a budget off by 3/2 is rejected."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from oracles import FALSE_ALARM, REJECTED, frequency_p_value, stopping_law
from scipy import stats
from small import blobs
from toy_line import STREAMS, Line, given, look_at

from sweeper.backends.closed_form import LinearProblem
from sweeper.models.linear import Logistic
from sweeper.seeds import SEARCH
from sweeper.step.backtracking import Backtracking
from sweeper.step.exponential_search import ExponentialSearch
from sweeper.step.noisy_min import NoisyMinSearch
from sweeper.step.search import clipped_losses

EPSILON, BOUND, DRAWS = 1.2, 3.0, 12_000
WRONG = (2 / 3, 3 / 2)
# Losses of 6 records where the step starts (first column) and at 4 candidates; one beyond the bound, one NaN, one infinite.
LOSSES_BJ = np.array(
    [
        [2.0, 0.5, 1.5, 2.5, 2.0],
        [1.0, 0.5, 0.0, 2.5, 3.0],
        [2.5, 9.0, 0.5, 0.0, 1.0],
        [2.0, 0.0, 1.0, math.nan, 0.5],
        [1.5, math.inf, 2.0, 1.0, 0.0],
        [3.0, 0.0, 1.5, 2.5, 1.5],
    ]
)


def counts(policy, line: Line) -> np.ndarray:
    """How many of DRAWS searches took each candidate, and how many none of them."""
    look = look_at(line, gradient_P=torch.zeros(1))
    taken = np.array([policy.search(look, EPSILON, BOUND) for _ in range(DRAWS)])
    none = policy.initial * policy.ratio**4 if getattr(policy, "never_zero", False) else 0.0
    found = np.array([(taken == size).sum() for size in (*policy.sizes, none)])
    assert found.sum() == DRAWS
    return found


def assert_law(found: np.ndarray, law) -> None:
    """`law` of a factor on the budget: accepted at 1, rejected at 2/3 and 3/2."""
    assert law(1.0).sum() == pytest.approx(1.0, abs=1e-6)
    assert frequency_p_value(found, law(1.0)) > FALSE_ALARM
    for factor in WRONG:
        assert frequency_p_value(found, law(factor)) < REJECTED


def test_exponential_search_is_the_exponential_mechanism_on_clipped_changes():
    """By hand: changes of each record clipped to [-3, 3], those that are no number as 3."""
    policy = ExponentialSearch(candidates=4)
    scores = np.array(
        [-1.5 - 0.5 + 3 - 2 + 3 - 3, -0.5 - 1 - 2 - 1 + 0.5 - 1.5, 0.5 + 1.5 - 2.5 + 3 - 0.5 - 0.5, 0 + 2 - 1.5 - 1.5 - 1.5 - 1.5]
    )
    line = given(LOSSES_BJ, policy.sizes)
    assert policy.scores(look_at(line), BOUND) == pytest.approx(scores, abs=1e-12)

    def law(factor: float) -> np.ndarray:
        weights = np.exp(-factor * EPSILON * scores / (2 * BOUND))
        return weights / weights.sum()

    assert_law(counts(policy, line)[:4], law)


@pytest.mark.parametrize("noise", ["gumbel", "laplace"])
def test_noisy_min_takes_the_smallest_noisy_sum_of_clipped_losses(noise):
    """By hand: losses clipped to [0, 3], those that are no number as 3; staying is a candidate."""
    policy = NoisyMinSearch(candidates=4, noise=noise)
    sums = np.array(
        [2 + 1 + 2.5 + 2 + 1.5 + 3, 0.5 + 0.5 + 3 + 0 + 3 + 0, 6.5, 2.5 + 2.5 + 0 + 3 + 1 + 2.5, 2 + 3 + 1 + 0.5 + 0 + 1.5]
    )
    line = given(LOSSES_BJ, policy.sizes)
    assert policy.scores(look_at(line), BOUND) == pytest.approx(sums, abs=1e-12)

    def law(factor: float) -> np.ndarray:
        scaled = factor * EPSILON * sums / BOUND
        if noise == "gumbel":
            weights = np.exp(-scaled)
            return np.roll(weights / weights.sum(), -1)
        at = np.linspace(scaled.min() - 40, scaled.max() + 40, 400_001)  # where the smallest one lies
        later = np.array([stats.laplace(score).sf(at) for score in scaled])
        found = [np.trapezoid(stats.laplace(s).pdf(at) * np.delete(later, j, 0).prod(0), at) for j, s in enumerate(scaled)]
        return np.roll(found, -1)

    assert_law(counts(policy, line), law)


@pytest.mark.parametrize("never_zero", [False, True])
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_backtracking_stops_as_a_noisy_threshold_does(noise, never_zero):
    """By hand: falls of losses clipped to [0, 3]; scales by hand; the law by integration over the threshold."""
    policy = Backtracking(candidates=4, noise=noise, never_zero=never_zero)
    falls = 12.0 - np.array([7.0, 6.5, 11.5, 8.0]) - np.array([9.0, 6.0, 0.0, 2.0])  # what the penalty adds
    line = given(LOSSES_BJ, policy.sizes)
    line.of_size = dict(zip([0.0, *np.float32(policy.sizes).tolist()], [0.0, 9.0 / 8, 6.0 / 8, 0.0, 2.0 / 8], strict=True)).get
    assert policy.scores(look_at(line, gradient_P=torch.zeros(1)), BOUND) == pytest.approx(falls, abs=1e-12)

    def law(factor: float) -> np.ndarray:
        epsilon = factor * EPSILON
        if noise == "laplace":  # 1/b1 = epsilon / (1 + 2^(2/3)), 2/b2 = the rest
            part = epsilon / (1 + 2 ** (2 / 3))
            return stopping_law(falls / BOUND, stats.laplace(scale=1 / part), stats.laplace(scale=2 / (epsilon - part)))
        return stopping_law(falls / BOUND, stats.norm(scale=math.sqrt(2) / epsilon), stats.norm(scale=math.sqrt(8) / epsilon))

    assert_law(counts(policy, line), law)


def test_the_scales_are_what_the_event_prices():
    """Chosen as Lyu, Su and Li advise: of all (b1, b2) of one epsilon, b1^2 + b2^2 is smallest."""
    laplace = Backtracking()
    threshold, query = laplace.noises(0.9)
    assert (laplace.event_of(0.9).threshold_noise, laplace.event_of(0.9).query_noise) == (threshold, query)
    assert laplace.event_of(0.9).epsilon == pytest.approx(0.9, rel=1e-12)
    parts = np.linspace(0.01, 0.89, 2000)
    assert threshold**2 + query**2 <= (parts**-2.0 + (2 / (0.9 - parts)) ** 2).min() + 1e-9
    gaussian = Backtracking(noise="gaussian", candidates=7)
    for epsilon in (1e-9, 0.9, 500.0):
        event = gaussian.event_of(epsilon)
        assert (event.threshold_noise, event.query_noise) == gaussian.noises(epsilon)
        assert event.searches == 7
    assert gaussian.noises(500.0) == (0.01, 0.2)  # what has a price, and what is drawn with
    assert laplace.noises(1e-12) == (1e9, 1e9)


def test_the_armijo_test_asks_for_what_the_gradient_promises():
    """q_j = fall - alpha eta b <g, d>; uphill directions must fall too."""
    policy = Backtracking(initial=2.0, ratio=0.5, candidates=2, alpha=0.25)
    line = Line(lambda size: np.array([2.0 - size / 2, 3.0 - size]))
    for gradient, promised in ((4.0, 4.0), (-4.0, 0.0)):
        scores = policy.scores(look_at(line, gradient_P=torch.tensor([gradient]), divisor=8.0), 10.0)
        assert scores == pytest.approx([3.0 - 0.25 * 2 * 8 * promised, 1.5 - 0.25 * 8 * promised], abs=1e-12)
    assert (policy.scores(look_at(line, gradient_P=torch.tensor([math.nan])), 10.0) < -1e9).all()  # a broken gradient never passes


def test_size_draws_with_the_steps_own_budget():
    """`size` at multiplier z is `search` at the budget that the event states, whatever the batch."""
    line = given(LOSSES_BJ, ExponentialSearch(candidates=4).sizes)
    for policy in (ExponentialSearch(candidates=4, bound=BOUND), ExponentialSearch(candidates=4, bound=BOUND, epsilon=0.4)):
        looks = [look_at(line, noise_multiplier=0.5) for _ in range(2)]
        epsilon = 0.4 if policy.epsilon else math.sqrt(8 * 0.2 / (2 * 0.5**2))
        assert policy.event(0.5).epsilon == pytest.approx(epsilon, rel=1e-12)
        taken = [[policy.size(looks[0]), policy.search(looks[1], epsilon, BOUND)] for _ in range(200)]
        assert all(one == other for one, other in taken)


def test_one_uniform_decides_an_exponential_search():
    """Candidates take consecutive stretches of [0, 1): the stream alone decides, and the next search reads the next number."""
    policy = ExponentialSearch(candidates=4)
    look = look_at(given(np.zeros((2, 5)), policy.sizes))
    taken = [policy.search(look, EPSILON, BOUND) for _ in range(100)]
    uniforms = STREAMS.generator(SEARCH).random(100)
    assert taken == [policy.sizes[int(4 * u)] for u in uniforms]


def test_losses_are_held_to_the_bound_in_double_precision():
    """0.1 is more in float32 than in float64: a record would move a sum by more than the noise is scaled to."""
    losses = torch.tensor([9.0, math.nan, math.inf, -3.0, -math.inf, 0.0625])
    assert clipped_losses(losses, 0.1).tolist() == [0.1, 0.1, 0.1, 0.0, 0.0, 0.0625]


@pytest.mark.parametrize("policy", [NoisyMinSearch(candidates=3), Backtracking(candidates=3, alpha=0.01)], ids=lambda p: p.kind)
def test_the_loss_where_the_step_starts_does_not_hang_on_the_direction(policy):
    """A direction beyond float32 makes every candidate as bad as the bound, and leaves the loss here as it is."""
    full, description = blobs(20, 4, 2)
    problem = LinearProblem(model=Logistic(), description=description, table=full, rows=np.arange(20))
    direction_P = torch.full((5,), 3e38)
    look = look_at(
        problem.batch(np.arange(20)), problem, params_P=torch.zeros(5), direction_P=direction_P, gradient_P=torch.zeros(5)
    )
    scores = policy.scores(look, 5.0)
    if policy.kind == "noisy-min":
        assert scores[0] == pytest.approx(20 * math.log(2), rel=1e-6)
    else:  # minus infinity times a label's sign: a loss of 0 for label 0, the bound for label 1
        assert scores == pytest.approx(20 * math.log(2) - 5.0 * (full.labels == 1).sum(), rel=1e-6)
