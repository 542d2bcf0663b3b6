"""The rows that subsample-tune tunes on: a Poisson sample by position, drawn from the sweep's secret, the same at every call."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from sweeper.checks import FieldError
from sweeper.data.split import secret_part
from sweeper.seeds import SUBSET, SWEEP, Streams, secret_from_seed

ROWS, SECRETS, Q = 12, 20_000, 0.2
STREAMS = Streams(secret_from_seed("a part"), 4)


@pytest.fixture(scope="module")
def parts() -> np.ndarray:
    """[SECRETS, ROWS]: the parts of many sweeps."""
    return np.array([secret_part(ROWS, Q, Streams(secret_from_seed(f"part {n}"), SWEEP)) for n in range(SECRETS)])


def p_value(count: int, chance: float, draws: int = SECRETS) -> float:
    return stats.binomtest(int(count), draws, chance).pvalue


def test_every_row_is_in_with_the_fraction_and_every_pair_with_its_square(parts):
    for count in parts.sum(axis=0):
        assert p_value(count, Q) > 1e-6 / ROWS
        assert max(p_value(count, Q * wrong) for wrong in (2 / 3, 3 / 2)) < 1e-12
    pairs = list(combinations(range(ROWS), 2))
    for i, j in pairs:
        count = (parts[:, i] & parts[:, j]).sum()
        assert p_value(count, Q**2) > 1e-6 / len(pairs)
        assert max(p_value(count, Q**2 * wrong) for wrong in (2 / 3, 3 / 2)) < 1e-12


def test_its_size_is_binomial_and_not_fixed(parts):
    sizes = np.bincount(parts.sum(axis=1), minlength=ROWS + 1)

    def p(q: float) -> float:
        law = stats.binom.pmf(np.arange(ROWS + 1), ROWS, q) * SECRETS
        tail = law < 20  # rare sizes together, for chi-square to hold
        seen, expected = (np.append(counts[~tail], counts[tail].sum()) for counts in (sizes, law))
        return stats.chisquare(seen, expected).pvalue

    assert p(Q) > 1e-6
    assert max(p(Q * wrong) for wrong in (2 / 3, 3 / 2)) < 1e-12


def test_one_large_part_is_even_over_positions():
    part = secret_part(200_000, 0.1, STREAMS)
    assert part.dtype == np.bool_
    places = part.reshape(100, 2_000).sum(axis=1)
    assert stats.chisquare(places).pvalue > 1e-6
    slanted = np.linspace(1, 1.5, 100)
    assert stats.chisquare(places, slanted / slanted.sum() * places.sum()).pvalue < 1e-12
    assert p_value(part.sum(), 0.1, 200_000) > 1e-6


def test_a_position_is_decided_for_itself():
    """Each word of the stream belongs to one position, so that a longer table moves nobody."""
    long = secret_part(5_000, 0.3, STREAMS)
    for rows in (1, 2, 999, 4_999):
        assert np.array_equal(secret_part(rows, 0.3, STREAMS), long[:rows])
    assert not (secret_part(5_000, 0.2, STREAMS) & ~long).any()  # a smaller fraction is a part of the part


def test_it_is_the_sweeps_and_not_a_trials_and_replays():
    other_trials = [Streams(STREAMS.secret, trial) for trial in (SWEEP, 0, 17)]
    assert all(np.array_equal(secret_part(1_000, 0.3, streams), secret_part(1_000, 0.3, STREAMS)) for streams in other_trials)
    another = secret_part(1_000, 0.3, Streams(secret_from_seed("another"), SWEEP))
    agree = (another == secret_part(1_000, 0.3, STREAMS)).sum()
    assert p_value(agree, 0.3**2 + 0.7**2, 1_000) > 1e-6  # as two independent sets do
    words = Streams(STREAMS.secret, SWEEP).generator(SUBSET).integers(0, 2**64, size=1_000, dtype=np.uint64)
    assert np.array_equal(secret_part(1_000, 0.5, STREAMS), words < np.uint64(2**63))


def test_nobody_and_everybody():
    assert not secret_part(1_000, 0.0, STREAMS).any()
    assert secret_part(1_000, 1.0, STREAMS).all()


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_a_fraction_is_a_chance(fraction):
    with pytest.raises(FieldError, match="fraction"):
        secret_part(10, fraction, STREAMS)
