"""The private quantile: its law against the definition, its error against the stated bound, its price, and what it refuses."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from constants import Constants, facts, spread
from oracles import FALSE_ALARM, REJECTED, frequency_p_value
from scipy import stats
from small import blobs, table, without
from tiny_sweeps import FIXED, spec_of

from sweeper.backends.closed_form import LinearProblem
from sweeper.checks import FieldError
from sweeper.clip.private_quantile import PrivateQuantileClip, drawn
from sweeper.launch.part import PartProblem
from sweeper.models.linear import Logistic
from sweeper.privacy import accountant
from sweeper.privacy.events import REPLACE_ONE, ZERO_OUT, ExponentialMechanism, PrivateQuantile, ReplaceOne
from sweeper.seeds import Streams, secret_from_seed
from sweeper.spec.protocols import Description
from sweeper.step.fixed import FixedStep
from sweeper.trainers.dp_sgd import DpSgd

SECRET = secret_from_seed("private quantile")
TOY = [0.02, 0.05, 0.3, 0.3, 0.7, 1.0, 2.0, 2.5, 4.0, 4.0, 4.5, 6.0, 9.0, 20.0, 21.0, 300.0]


def law(values, grid, p, epsilon, bound) -> np.ndarray:
    """The definition, record by record."""
    utilities = []
    for g in grid:
        below, above = sum(v <= g for v in values), sum(v > g for v in values)
        utilities.append(-abs((1 - p) * below - p * above))
    weights = np.exp(epsilon * np.array(utilities) / (2 * bound))
    return weights / weights.sum()


def draws(policy: PrivateQuantileClip, problem, count: int, **changes) -> np.ndarray:
    """How often each grid point came out of `count` runs with streams of their own."""
    known = facts(**{"rows": problem.rows} | changes)
    norms = [policy.prepare(known, problem, Streams(SECRET, trial)).clip_norm for trial in range(count)]
    return np.array([norms.count(g) for g in policy.grid])


@pytest.mark.parametrize("relation", [ZERO_OUT, REPLACE_ONE])
@pytest.mark.parametrize("p", [0.3, 0.9])
def test_frequencies_follow_the_law(p, relation):
    """And not the law of an epsilon 1.5 times larger or smaller."""
    policy = PrivateQuantileClip(quantile=p, epsilon=1.5, points=9, low=1e-2, high=1e2)
    bound = {ZERO_OUT: max(p, 1 - p), REPLACE_ONE: 1.0}[relation]
    counts = draws(policy, Constants(*TOY), 8_000, relation=relation)
    assert frequency_p_value(counts, law(TOY, policy.grid, p, 1.5, bound)) > FALSE_ALARM
    for wrong in (1.5, 1 / 1.5):
        assert frequency_p_value(counts, law(TOY, policy.grid, p, 1.5 * wrong, bound)) < REJECTED


def test_the_grid_is_public_and_even_on_the_log_scale():
    grid = PrivateQuantileClip(quantile=0.5).grid
    assert len(grid) == 64
    assert grid[0] == 1e-3
    assert grid[-1] == pytest.approx(1e3, rel=1e-12)
    assert max(grid) <= 1e3
    assert grid[1:] == pytest.approx([g * 1e6 ** (1 / 63) for g in grid[:-1]], rel=1e-12)


@pytest.mark.parametrize("p", [0.05, 0.5, 0.8])
def test_a_record_moves_log_chances_by_at_most_epsilon(p):
    """Zero-out with B = max(p, 1 - p), replace-one with B = 1: all ratios lie in one stretch of epsilon. 2/3 of B is too little."""
    grid, rng, widest = PrivateQuantileClip(quantile=p, points=16).grid, np.random.default_rng(0), {}
    for bound, replaced in ((max(p, 1 - p), False), (1.0, True)):
        for scale in (1.0, 2 / 3):
            for _ in range(100):
                values = np.exp(rng.normal(0, 2, 60)).tolist()
                other = values[:-1] + ([float(np.exp(rng.normal(0, 4)))] if replaced else [])
                ratios = np.log(law(values, grid, p, 1.0, bound * scale) / law(other, grid, p, 1.0, bound * scale))
                widest[replaced, scale] = max(widest.get((replaced, scale), 0.0), np.ptp(ratios))
    for replaced in (False, True):
        assert 0.5 < widest[replaced, 1.0] <= 1 + 1e-9
    assert max(widest[replaced, 2 / 3] for replaced in (False, True)) > 1.1


@pytest.mark.parametrize("relation", [ZERO_OUT, REPLACE_ONE])
def test_the_error_stays_within_the_stated_ranks(relation):
    """The hardest case: one grid point is right, and all others miss by just the bound. The bound of 1.5 epsilon does not hold."""
    policy = PrivateQuantileClip(quantile=0.4, epsilon=1.0, points=64, low=1.0, high=1e3, beta=0.05)
    stated = policy.rank_error(200, relation)
    assert stated == pytest.approx(2 * {ZERO_OUT: 0.6, REPLACE_ONE: 1.0}[relation] * math.log(64 / 0.05), rel=1e-12)
    missed = math.ceil(stated)
    values = [0.5] * 80 + [1.05] * missed + [2e3] * (120 - missed)
    counts = draws(policy, Constants(*values), 4_000, relation=relation)
    errors = np.array([abs(sum(v <= g for v in values) - 80) for g in policy.grid])
    assert errors[0] == 0
    assert (errors[1:] == missed).all()
    beyond = int(counts[errors >= stated].sum())
    assert stats.binom.sf(beyond - 1, 4_000, policy.beta) > FALSE_ALARM  # beta or less
    assert beyond > 0.4 * policy.beta * 4_000  # and not idle: `missed` is the next whole rank
    dearer = draws(PrivateQuantileClip(**vars(policy) | {"epsilon": 1 / 1.5}), Constants(*values), 2_000, relation=relation)
    assert stats.binom.sf(int(dearer[errors >= stated].sum()) - 1, 2_000, policy.beta) < REJECTED


@pytest.mark.parametrize("seed", range(5))
def test_it_finds_the_quantile_of_many_records(seed):
    values = spread(20_000, seed)
    policy = PrivateQuantileClip(quantile=0.25, epsilon=0.3)
    norm = policy.prepare(facts(rows=20_000), Constants(*values), Streams(SECRET, seed)).clip_norm
    errors = [abs(sum(v <= g for v in values) - 5_000) for g in policy.grid]
    rank = sum(v <= norm for v in values)
    assert abs(rank - 5_000) <= min(errors) + policy.rank_error(20_000)  # fails with chance beta at most; these seeds do not


def test_g_min_is_as_many_ranks_up_as_the_choice_may_err():
    policy = PrivateQuantileClip(quantile="g-min")
    assert policy.chance(26_049) * 26_049 == pytest.approx(47.7, abs=0.05)  # (2 / 0.3) ln(64 / 0.05)
    assert policy.chance(1_000) == pytest.approx(2 / 0.3 * math.log(64 / 0.05) / 1_000, rel=1e-12)
    assert policy.rank_error(1_000) <= policy.chance(1_000) * 1_000  # so it cannot miss the least constant by more, below
    values = spread(5_000)
    norm = policy.prepare(facts(rows=5_000), Constants(*values), Streams(SECRET, 0)).clip_norm
    assert sum(v <= norm for v in values) < 150


def test_g_min_of_too_few_rows_is_refused_with_the_way_out():
    policy, few = PrivateQuantileClip(quantile="g-min"), Constants(1.0, 2.0, 3.0)
    said = "quantile = 'g-min' lies 48 ranks up at epsilon 0.3, and there are 47 training rows. Raise epsilon above 0.3, or use"
    for ask in (lambda: policy.asks(47, ZERO_OUT), lambda: policy.prepare(facts(rows=47), few, Streams(SECRET, 0))):
        with pytest.raises(FieldError, match=said):
            ask()
    assert policy.asks(48, ZERO_OUT) == PrivateQuantile(0.3)


def test_null_records_and_rows_outside_a_part_count_for_nothing():
    """Same draws with the records that are left, whatever stands in the rows that are not counted; n stays public."""
    full, description = blobs(120, 6, 2)
    gone = np.arange(0, 120, 3)
    policy = PrivateQuantileClip(quantile=0.3, epsilon=5.0, low=0.5, high=5.0)
    inside = np.ones(120, np.bool_)
    inside[gone] = False

    def built(table):
        return LinearProblem(model=Logistic(), description=description, table=table, rows=np.arange(120))

    norms = np.sqrt(np.square(full.features.astype(np.float64)).sum(axis=1) + 1)[inside]
    expected = draws(policy, Constants(*norms), 300, rows=120)
    assert (draws(policy, built(without(full, *gone)), 300) == expected).all()
    assert (draws(policy, PartProblem(built(full), inside), 300) == expected).all()
    assert (draws(policy, built(full), 300) != expected).any()


@pytest.mark.parametrize("weights", [[1.0], [0.0, 1.0, 0.0], [1e-300, 1.0], [0.2, 0.3, 0.5], [5e-324, 5e-324]])
def test_a_place_is_drawn_in_proportion_to_its_weight(weights):
    bits = Streams(SECRET, 5).bits("prepare")
    counts = np.bincount([drawn(weights, bits) for _ in range(4_000)], minlength=len(weights))
    chances = np.array(weights) / sum(weights) if sum(weights) > 1e-300 else np.array([0.5, 0.5])
    assert not counts[chances < 1e-200].any()
    if len(weights) > 1 and chances.max() < 1:
        assert frequency_p_value(counts, chances) > FALSE_ALARM


def test_what_it_asks_and_what_that_costs():
    policy = PrivateQuantileClip(quantile=0.5)
    assert policy.asks(1_000, ZERO_OUT) == PrivateQuantile(0.3)
    assert policy.asks(1_000, REPLACE_ONE) == ReplaceOne(ExponentialMechanism(0.3))
    step, prices = FixedStep(learning_rate=1.0), {}
    for epsilon in (0.1, 0.3, 1.0):
        event = DpSgd(batch_size=50, steps=100).event(5_000, 1.5, PrivateQuantileClip(quantile=0.5, epsilon=epsilon), step)
        prices[epsilon] = accountant.epsilon(event, 1e-5)
    alone = accountant.epsilon(event.inside[1], 1e-5)
    assert alone < prices[0.1] < prices[0.3] < prices[1.0] < alone + 1.0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"quantile": 0.0}, "quantile = 0 must be above 0"),
        ({"quantile": "min"}, "quantile = 'min' must be a number above 0 and below 1, or g-min"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": 1e9}, "epsilon"),
        ({"points": 1}, "points"),
        ({"low": 1.0, "high": 1.0}, "low = 1 must be below high = 1"),
        ({"low": 0.0}, "low"),
        ({"high": math.inf}, "high"),
        ({"beta": 1.0}, "beta"),
    ],
)
def test_fields(changes, field):
    with pytest.raises(FieldError, match=field):
        PrivateQuantileClip(**{"quantile": 0.5} | changes)


def test_in_a_sweep_file_on_private_rows():
    clip = {"policy": "private-quantile", "values": ["g-min", 0.1, 0.5], "epsilon": {"range": [0.1, 0.4]}}
    spec = spec_of(space=FIXED | {"clip": clip})
    assert spec.space.clip.dearest().epsilon == 0.4
    assert spec.space.clip.dearest(cheapest=True).epsilon == 0.1
    assert {policy.quantile for policy in map(spec.space.clip.draw, itertools.repeat(iter(np.linspace(0, 0.99, 60)), 30))} == {
        "g-min",
        0.1,
        0.5,
    }
    assert spec_of(space=FIXED | {"clip": {"policy": "private-quantile", "quantile": {"range": [0.1, 0.5]}}}).space.clip.policy


def test_the_grid_lies_within_the_public_bounds_on_the_constants():
    """One-hot rows have constants between 2 and 2.06: a grid from 0.001 to 1,000 has no point there and says nothing."""
    rows, width = 4_000, 12
    features = np.zeros((rows, width), np.float32)
    features[:, :3] = 1.0  # three categories, and a number in [0, 1]
    features[:, 3] = np.linspace(0, 0.5, rows)
    description = Description(rows=rows, features=width, classes=2, norm_bound=math.sqrt(5))
    built = LinearProblem(
        model=Logistic(), description=description, table=table(features, np.arange(rows) % 2), rows=np.arange(rows)
    )
    assert built.lipschitz_range == (1.0, math.sqrt(5))
    policy, constants = PrivateQuantileClip(quantile=0.5, epsilon=0.3), np.sqrt(4 + np.linspace(0, 0.5, rows) ** 2)
    within = policy.within(*built.lipschitz_range)
    assert (within.grid[0], within.grid[-1]) == pytest.approx((1.0, math.sqrt(5)), rel=1e-5)
    norms = [policy.prepare(facts(rows=rows), built, Streams(SECRET, trial)).clip_norm for trial in range(50)]
    misses = [abs((constants <= norm).mean() - 0.5) for norm in norms]
    best = min(abs((constants <= norm).mean() - 0.5) for norm in within.grid)
    assert max(misses) <= best + policy.rank_error(rows) / rows  # each fails with chance 0.05 at most; these draws do not
    blind = PrivateQuantileClip(quantile=0.5, epsilon=0.3, low=1e-3, high=1e3)
    spread_out = [blind.prepare(facts(rows=rows), built, Streams(SECRET, trial)).clip_norm for trial in range(50)]
    assert max(spread_out) > 10 * max(norms)
    assert policy.within(5.0, 4.0) == policy  # bounds that make no grid are left out
    assert PrivateQuantileClip(quantile=0.5, low=0.5).within(1.0, 2.0).low == 0.5
