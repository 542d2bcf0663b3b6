"""Convolutions against whole-number arithmetic: never below the exact tail, and close to it down to 1e-13."""

from __future__ import annotations

import numpy as np
import pytest

from sweeper.privacy import convolution
from sweeper.privacy.convolution import TAIL, convolved, self_convolved

SCALE = 2**30  # masses are whole numbers over this: they are exact in float64
EVEN = [3, 2, 5, 9, 20, 33, 20, 9, 5, 3]
HEAVY = [200_000_000, 500_000_000, *[0] * 10, 3, *[0] * 40, 2, *[0] * 60, 1]  # a narrow bulk and rare far jumps


def law(weights: list[int]) -> tuple[np.ndarray, list[int]]:
    """The law with these weights, as floats and as whole numbers over SCALE; what is left over goes to the first cell."""
    total = sum(weights)
    whole = [weight * SCALE // total for weight in weights]
    whole[0] += SCALE - sum(whole)
    return np.array(whole) / SCALE, whole


def power(whole: list[int], count: int) -> list[int]:
    """The exact coefficients of the count-th power of a polynomial, through one big number that holds them all."""
    width = 4 * count + 4  # bytes of one coefficient
    packed = sum(weight << (8 * width * place) for place, weight in enumerate(whole)) ** count
    size = count * (len(whole) - 1) + 1
    stored = packed.to_bytes(size * width, "little")
    return [int.from_bytes(stored[place * width : (place + 1) * width], "little") for place in range(size)]


def tails(masses: list[int], count: int) -> list[float]:
    """Sums from above, rounded once."""
    found: list[float] = []
    total, unit = 0, SCALE**count
    for mass in reversed(masses):
        total += mass
        found.append(total / unit)  # Python rounds the quotient of two whole numbers once
    return found[::-1]


def compared(first: int, masses: np.ndarray, lost: float, exact: list[float]) -> np.ndarray:
    """The found tail over the exact one at every index of the exact law, what is lost counted as lying above."""
    place = np.clip(np.arange(len(exact)) - first, 0, len(masses))
    above = np.append(np.cumsum(masses[::-1])[::-1], 0.0)[place] + lost
    return above / np.maximum(exact, 1e-300)


@pytest.mark.parametrize("count", [2, 7, 40, 100])
@pytest.mark.parametrize("weights", [EVEN, [1, 6, 2], [1, 0, 0, 0, 10]], ids=["even", "skew", "gaps"])
def test_copies_of_a_law_cost_no_less_than_they_do(weights, count):
    mass, whole = law(weights)
    exact = tails(power(whole, count), count)
    ratio = compared(*self_convolved(mass, count), exact)
    seen = np.array(exact) > 1e-13
    assert ratio.min() > 1 - 1e-12
    assert ratio[seen].max() < 1 + 1e-2
    assert ratio[np.array(exact) > 1e-9].max() < 1 + 1e-5
    for other in (round(1.5 * count), round(count / 1.5)):  # one law is above the other somewhere, one below
        wrong = compared(*self_convolved(mass, other), exact)[seen]
        assert wrong.max() > 1.1 if other > count else wrong.min() < 0.9


@pytest.mark.parametrize("count", [3, 60])
def test_rare_far_jumps_keep_their_mass(count):
    """Chernoff's exponents are far from a Gaussian's here, and the tilted law may not fit: its tail must stay right too."""
    mass, whole = law(HEAVY)
    exact = np.array(tails(power(whole, count), count))
    ratio = compared(*self_convolved(mass, count), exact.tolist())
    assert ratio.min() > 1 - 1e-12
    assert ratio[exact > 1e-10].max() < 1 + 5e-2
    assert compared(*self_convolved(mass, count * 2 // 3), exact.tolist()).min() < 0.9


@pytest.mark.parametrize("count", [10**6, 10**9])
def test_a_great_many_copies_keep_mean_and_spread(count):
    mass = np.array([0.1, 0.2, 0.4, 0.2, 0.1])
    first, masses, lost = self_convolved(mass, count)
    away = first + np.arange(len(masses)) - 2 * count
    assert lost <= TAIL
    assert masses.sum() == pytest.approx(1.0, abs=2e-3)
    assert abs(away @ masses) < 2e-3 * (1.2 * count) ** 0.5
    assert away**2 @ masses == pytest.approx(1.2 * count, rel=1e-2)


def test_the_range_is_cut_where_next_to_nothing_is_left():
    mass, whole = law(EVEN)
    first, masses, lost = self_convolved(mass, 150)
    exact = power(whole, 150)
    assert lost <= TAIL
    assert sum(exact[first + len(masses) :]) / SCALE**150 <= lost
    assert sum(exact[:first]) / SCALE**150 <= TAIL
    assert len(masses) < 0.7 * len(exact)


def test_one_copy_and_one_loss_are_themselves():
    mass = np.array([0.25, 0.75])
    assert self_convolved(mass, 1)[1] is mass
    first, masses, lost = self_convolved(np.array([1e-30, 1.0]), 50)
    assert (first, masses.tolist()) == (50, [1.0])
    assert lost == 0.0


@pytest.mark.parametrize("size", [(300, 200), (1500, 40)])
def test_a_transform_is_never_below_the_sum_of_products(size, monkeypatch):
    rng = np.random.default_rng(0)
    a, b = (np.exp(-(np.linspace(-9, 9, n) ** 2)) * rng.random(n) for n in size)
    b *= 12 / b.sum()  # the measures of a selection weigh its mean number of runs
    direct, nothing = convolved(a, b)
    monkeypatch.setattr(convolution, "DIRECT", 0)
    quick, lost = convolved(a, b)
    assert 0.0 <= nothing < 1e-130
    assert 0.0 <= lost < 1e-13 * direct.sum()
    exact, found = np.cumsum(direct[::-1]), np.cumsum(quick[::-1]) + lost
    assert (found >= exact * (1 - 1e-10)).all()
    seen = exact > 1e-12 * direct.sum()
    assert (found[seen] <= exact[seen] * (1 + 1e-3)).all()
    assert not (found[seen] >= 1.001 * exact[seen]).any()


def test_lengths_have_small_factors_and_are_not_wasteful():
    for least in (1, 2, 3, 7, 97, 1000, 4097, 123_457):
        size = convolution._fast_length(least)
        rest = size
        for factor in (2, 3, 5):
            while rest % factor == 0:
                rest //= factor
        assert rest == 1
        assert size % 2 == 0
        assert max(least, 2) <= size <= max(2, 1.2 * least + 2)
