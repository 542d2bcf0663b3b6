"""The exact discrete Laplace sampler against its exact law."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from oracles import FALSE_ALARM, REJECTED, frequency_p_value

from sweeper.checks import FieldError
from sweeper.privacy.discrete_laplace import discrete_laplace
from sweeper.seeds import Streams, secret_from_seed

DRAWS = 20_000


def sample(epsilon: float, draws: int = DRAWS) -> np.ndarray:
    bits = Streams(secret_from_seed("discrete laplace"), int(epsilon * 1000)).bits("score")
    return np.array([discrete_laplace(bits, epsilon) for _ in range(draws)])


def law_p_value(drawn: np.ndarray, epsilon: float) -> float:
    """Against P[x] = (1 - a)/(1 + a) a^|x|, a = exp(-epsilon), with both tails as cells of their own."""
    a = math.exp(-epsilon)
    reach = math.ceil(9 / epsilon)
    cells = np.arange(-reach, reach + 1)
    tail = a ** (reach + 1) / (1 + a)
    probabilities = np.concatenate([[tail], (1 - a) / (1 + a) * a ** np.abs(cells), [tail]])
    counts = np.bincount(np.clip(drawn, -reach - 1, reach + 1) + reach + 1, minlength=len(probabilities))
    return frequency_p_value(counts, probabilities)


@pytest.mark.parametrize("epsilon", [0.1, 0.35, 1.0, 2.5])
def test_law_is_exact_and_another_epsilon_is_rejected(epsilon):
    drawn = sample(epsilon)
    assert law_p_value(drawn, epsilon) > FALSE_ALARM
    assert law_p_value(drawn, epsilon * 1.5) < REJECTED
    assert law_p_value(drawn, epsilon * 2 / 3) < REJECTED


def test_zero_is_not_drawn_twice_as_often():
    drawn = sample(1.0)
    doubled = np.concatenate([drawn, drawn[drawn == 0]])
    assert law_p_value(doubled, 1.0) < REJECTED


def test_small_epsilon_keeps_its_scale():
    """Mean of |X| is 2a/(1 - a^2), about 1/epsilon; the mean of 2,000 draws is off by 2.2% (one standard deviation)."""
    epsilon = 1e-6
    a = math.exp(-epsilon)
    mean = 2 * a / (1 - a * a)
    assert np.abs(sample(epsilon, 2000)).mean() == pytest.approx(mean, rel=0.12)


def test_large_epsilon_draws_zero():
    assert not sample(60.0, 1000).any()  # P[X != 0] = 2e-26


def test_epsilon_is_taken_as_the_fraction_that_the_float_is():
    """0.1 is 3602879701896397/2^55: the sampler draws below that denominator, so nothing was rounded."""
    asked = []

    class Recorder:
        def __init__(self) -> None:
            self.bits = Streams(secret_from_seed("fraction"), 0).bits("score")

        def randbelow(self, n: int) -> int:
            asked.append(n)
            return self.bits.randbelow(n)

        def randbits(self, k: int) -> int:
            return self.bits.randbits(k)

    discrete_laplace(Recorder(), 0.1)
    assert asked[0] == Fraction(0.1).denominator == 2**55


def test_replay_gives_the_same_noise():
    assert np.array_equal(sample(0.35, 100), sample(0.35, 100))


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf, "0.1", True])
def test_epsilon_must_be_positive(wrong):
    with pytest.raises(FieldError, match="epsilon"):
        discrete_laplace(Streams(secret_from_seed(0), 0).bits("score"), wrong)
