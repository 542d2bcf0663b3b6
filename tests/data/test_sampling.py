"""Each sampler's law, batch by batch, and that it declares the event of that law."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from sweeper.checks import FieldError
from sweeper.data.sampling import SAMPLERS, FixedSizeSampler, PoissonSampler
from sweeper.privacy.events import FixedSizeSampled, Gaussian, PoissonSubsampled

SMALL = PoissonSampler(rows=20, batch_size=5)
FIXED = FixedSizeSampler(rows=20, batch_size=5)
DRAWS = 60_000


@pytest.fixture(scope="module")
def inclusion() -> np.ndarray:
    """[DRAWS, 20]: who is in which batch."""
    return inclusions(SMALL)


@pytest.fixture(scope="module")
def fixed_inclusion() -> np.ndarray:
    return inclusions(FIXED)


def inclusions(sampler: PoissonSampler | FixedSizeSampler) -> np.ndarray:
    generator, table = np.random.default_rng(20), np.zeros((DRAWS, sampler.rows), dtype=bool)
    for draw in range(DRAWS):
        table[draw, sampler.draw(generator)] = True
    return table


def p_value(count: int, draws: int, chance: float) -> float:
    return stats.binomtest(int(count), draws, chance).pvalue


def test_batch_sizes_follow_the_binomial_law(inclusion):
    sizes = np.bincount(inclusion.sum(axis=1), minlength=21)

    def p(q: float) -> float:
        law = stats.binom.pmf(np.arange(21), 20, q) * DRAWS
        tail = law < 20  # rare sizes together, for chi-square to hold
        seen, expected = (np.append(counts[~tail], counts[tail].sum()) for counts in (sizes, law))
        return stats.chisquare(seen, expected).pvalue

    assert p(0.25) > 1e-6
    assert p(0.25 * 1.5) < 1e-12
    assert p(0.25 / 1.5) < 1e-12


def test_every_row_is_included_with_probability_q(inclusion):
    for count in inclusion.sum(axis=0):
        assert p_value(count, DRAWS, 0.25) > 1e-6 / 20
        assert p_value(count, DRAWS, 0.25 * 1.5) < 1e-12
        assert p_value(count, DRAWS, 0.25 / 1.5) < 1e-12


def test_every_pair_is_included_with_probability_q_squared(inclusion):
    pairs = list(combinations(range(20), 2))
    for i, j in pairs:
        count = (inclusion[:, i] & inclusion[:, j]).sum()
        assert p_value(count, DRAWS, 0.25**2) > 1e-6 / len(pairs)
        assert p_value(count, DRAWS, 0.25**2 * 1.5) < 1e-12
        assert p_value(count, DRAWS, 0.25**2 / 1.5) < 1e-12


def test_every_set_of_a_tiny_table_has_its_own_probability():
    """The whole law: 32 subsets of 5 rows at q = 0.4. A sampler of fixed size 2 has the right q and fails here."""
    sampler, generator = PoissonSampler(rows=5, batch_size=2), np.random.default_rng(5)
    seen = np.zeros(32)
    for _ in range(20_000):
        seen[sum(1 << int(row) for row in sampler.draw(generator))] += 1
    sizes = np.array([bin(subset).count("1") for subset in range(32)])
    assert stats.chisquare(seen, 20_000 * 0.4**sizes * 0.6 ** (5 - sizes)).pvalue > 1e-6
    assert stats.chisquare(seen, 20_000 * 0.6**sizes * 0.4 ** (5 - sizes)).pvalue < 1e-12


@pytest.mark.parametrize(("rows", "batch_size"), [(60_000, 500), (60_000, 6_000), (9_000, 450)])
def test_large_tables_are_drawn_evenly_and_without_repeats(rows, batch_size):
    """numpy draws by another method for each of these; each must be even over positions and never draw a row twice."""
    sampler, generator = PoissonSampler(rows=rows, batch_size=batch_size), np.random.default_rng(rows + batch_size)
    places = np.zeros(60)
    sizes = []
    for _ in range(300):
        batch = sampler.draw(generator)
        assert batch.dtype == np.int64
        assert len(np.unique(batch)) == len(batch)
        assert batch.size == 0 or (batch.min() >= 0 and batch.max() < rows)
        places += np.bincount(batch * 60 // rows, minlength=60)
        sizes.append(len(batch))
    assert stats.chisquare(places).pvalue > 1e-6
    slanted = np.linspace(1, 1.5, 60)
    assert stats.chisquare(places, slanted / slanted.sum() * places.sum()).pvalue < 1e-12
    assert abs(np.mean(sizes) - batch_size) < 6 * (batch_size / 300) ** 0.5
    # The sizes' variance is that of a binomial, not 0: a chi-square with 300 degrees of freedom, 12 deviations wide.
    assert 0.5 < np.var(sizes) / (batch_size * (1 - batch_size / rows)) < 1.6


def test_empty_batches_happen_as_often_as_they_should():
    sampler, generator = PoissonSampler(rows=1_000, batch_size=1), np.random.default_rng(1)
    empty = sum(len(sampler.draw(generator)) == 0 for _ in range(20_000))
    expected = 0.999**1_000  # 0.3677
    assert p_value(empty, 20_000, expected) > 1e-6
    assert p_value(empty, 20_000, expected * 1.5) < 1e-12
    assert p_value(empty, 20_000, expected / 1.5) < 1e-12


def test_a_batch_of_everybody():
    sampler = PoissonSampler(rows=30, batch_size=30)
    assert sorted(sampler.draw(np.random.default_rng(0))) == list(range(30))
    assert sampler.sampling_probability == 1.0


def test_equal_generators_replay_equal_batches():
    one, two = np.random.default_rng(3), np.random.default_rng(3)
    for _ in range(5):
        np.testing.assert_array_equal(SMALL.draw(one), SMALL.draw(two))


def test_the_event_carries_the_probability_that_the_batches_have():
    event = PoissonSampler(rows=26_049, batch_size=256).event(Gaussian(1.5))
    assert event == PoissonSubsampled(sampling_probability=256 / 26_049, event=Gaussian(1.5))


def test_a_fixed_size_is_kept_by_every_batch_and_no_row_is_drawn_twice(fixed_inclusion):
    assert (fixed_inclusion.sum(axis=1) == 5).all()
    sampler, generator = FixedSizeSampler(rows=9_000, batch_size=450), np.random.default_rng(9)
    places = np.zeros(60)
    for _ in range(300):
        batch = sampler.draw(generator)
        assert batch.dtype == np.int64
        assert len(np.unique(batch)) == len(batch) == 450
        places += np.bincount(batch * 60 // 9_000, minlength=60)
    assert stats.chisquare(places).pvalue > 1e-6
    slanted = np.linspace(1, 1.5, 60)
    assert stats.chisquare(places, slanted / slanted.sum() * places.sum()).pvalue < 1e-12


def test_a_fixed_size_includes_rows_and_pairs_as_draws_without_replacement_do(fixed_inclusion):
    """A pair with b(b-1)/(n(n-1)) = 0.0526, where independent draws would give q^2 = 0.0625: that, too, is told apart."""
    pairs = list(combinations(range(20), 2))
    for count in fixed_inclusion.sum(axis=0):
        assert p_value(count, DRAWS, 0.25) > 1e-6 / 20
        assert max(p_value(count, DRAWS, 0.25 * wrong) for wrong in (2 / 3, 3 / 2)) < 1e-12
    together = 5 * 4 / (20 * 19)
    for i, j in pairs:
        count = (fixed_inclusion[:, i] & fixed_inclusion[:, j]).sum()
        assert p_value(count, DRAWS, together) > 1e-6 / len(pairs)
        assert max(p_value(count, DRAWS, wrong) for wrong in (together * 2 / 3, together * 3 / 2, 0.25**2)) < 1e-12


def test_every_set_of_the_fixed_size_is_as_likely_as_any_other():
    sampler, generator = FixedSizeSampler(rows=6, batch_size=3), np.random.default_rng(6)
    seen = dict.fromkeys(combinations(range(6), 3), 0)
    for _ in range(20_000):
        seen[tuple(sorted(sampler.draw(generator).tolist()))] += 1
    counts = np.array(list(seen.values()))
    assert stats.chisquare(counts).pvalue > 1e-6
    other = np.where([0 in subset for subset in seen], 1.5, 1.0)
    assert stats.chisquare(counts, other / other.sum() * 20_000).pvalue < 1e-12


def test_batches_of_different_steps_do_not_know_of_each_other(fixed_inclusion):
    """One shuffle per epoch would give a row to one of four batches in a row; independent draws give it to two with q^2."""
    both = (fixed_inclusion[:-1:2] & fixed_inclusion[1::2]).sum()
    draws = DRAWS // 2 * 20  # of a fixed size, rows of one draw are dependent, which only narrows the count's spread
    assert abs(both - draws * 0.0625) < 6 * (draws * 0.0625) ** 0.5
    assert abs(both - draws * 0.0625 * 1.5) > 40 * (draws * 0.0625) ** 0.5
    assert abs(both - draws * 0.0625 / 1.5) > 40 * (draws * 0.0625) ** 0.5


def test_each_sampler_declares_its_own_event_and_relation():
    assert set(SAMPLERS) == {"poisson", "without-replacement"}
    assert SAMPLERS["poisson"].relation == "zero-out"
    assert SAMPLERS["without-replacement"].relation == "replace-one"
    for kind, sampler in SAMPLERS.items():
        made = sampler(rows=26_049, batch_size=256)
        event = made.event(Gaussian(1.5))
        assert (made.kind, event.relation) == (kind, made.relation)
        assert made.sampling_probability == 256 / 26_049
    assert FIXED.event(Gaussian(1.5)) == FixedSizeSampled(20, 5, Gaussian(1.5))
    assert sorted(FixedSizeSampler(rows=7, batch_size=7).draw(np.random.default_rng(0))) == list(range(7))


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"batch_size": 21}, {"batch_size": 2.5}, {"rows": 0}])
def test_what_cannot_be_sampled_is_refused(sampler, wrong):
    with pytest.raises(FieldError, match="must be"):
        sampler(**{"rows": 20, "batch_size": 5, **wrong})
