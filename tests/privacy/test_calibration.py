"""The search for the least noise, on prices whose answer is known, and how many prices it asks for."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from random_events import random_make

from sweeper.checks import FieldError
from sweeper.privacy import accountant, event_loss
from sweeper.privacy.calibration import MOST_NOISE, least_noise
from sweeper.privacy.event import LEAST_NOISE, Event

Price = Callable[[float], float]


def counted(price: Price) -> tuple[Price, list[float]]:
    asked: list[float] = []

    def ask(sigma: float) -> float:
        asked.append(sigma)
        return price(sigma)

    return ask, asked


def gaussian_like(sigma: float) -> float:
    return 0.5 / sigma**2 + 4.3 / sigma


@pytest.mark.parametrize("target", [1e-5, 0.02, 1.0, 4.8, 30.0, 200.0, 4000.0])
@pytest.mark.parametrize("off", [1.0, 0.98, 1.02], ids=["exact", "low", "high"])
def test_the_least_noise_of_a_smooth_price_is_found_in_a_few_steps(target, off):
    """A guess from prices that are 2% off costs no more than a few of the dear ones."""
    price, asked = counted(gaussian_like)
    coarse, guessed = counted(lambda sigma: off * gaussian_like(sigma))
    sigma = least_noise(coarse, price, target)
    exact = (4.3 + math.sqrt(4.3**2 + 2 * target)) / (2 * target)
    assert exact <= sigma <= 1.004 * exact
    assert 0.9993 * target <= gaussian_like(sigma) <= target
    assert len(asked) <= 4
    assert len(guessed) <= 12


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 0.999, 0.99999])
@pytest.mark.parametrize("join", [lambda a, b: a + b, max, lambda a, b: math.hypot(a, b)], ids=["sum", "max", "root"])
def test_a_price_with_a_floor_gets_the_least_noise_to_one_per_cent(share, join):
    """What carries its own noise is `share` of the target: the price is nearly flat there."""

    def price(sigma: float) -> float:
        return join(2.0 * share, gaussian_like(sigma))

    sigma = least_noise(price, price, 2.0)
    assert price(sigma) <= 2.0
    assert price(sigma * 0.99) > 2.0
    assert sigma < MOST_NOISE


def test_a_price_that_jumps_is_bracketed():
    def price(sigma: float) -> float:
        return math.inf if sigma < 3.0 else 0.1 / sigma

    assert 3.0 <= least_noise(price, price, 1.0) <= 3.001


def test_a_price_of_nothing_until_the_noise_is_small_is_found():
    """A small sampling probability and a delta above it: free, then suddenly not."""

    def price(sigma: float) -> float:
        return max(0.0, 2.0 / sigma - 9.0)

    sigma = least_noise(price, price, 1.0)
    assert 0.2 <= sigma <= 0.2 * 1.01


def test_what_no_noise_reaches_is_infinite_and_what_none_is_needed_for_is_zero():
    assert least_noise(lambda s: 1.0 + 1 / s, lambda s: 1.0 + 1 / s, 0.9) == math.inf
    assert least_noise(lambda s: math.inf, lambda s: math.inf, 1.0) == math.inf
    assert least_noise(lambda s: 1 / s, lambda s: 1 / s, 1.01 / LEAST_NOISE) == 0.0


def fresh(event: Event, delta: float) -> float:
    """The price, with nothing remembered."""
    accountant.forget()
    event_loss._simplified.cache_clear()
    return accountant._epsilon(event, delta)


@pytest.mark.parametrize("number", range(14))
def test_calibrations_of_events_of_all_kinds_meet_their_target(number):
    """Never above it; and near it, or 1% less noise costs more. What is refused is out of reach. The disk cache is not asked."""
    rng, sigma = random.Random(number), None
    while sigma is None:
        words, make = random_make(rng)
        delta, target = 10 ** rng.uniform(-12.0, -0.5), 10 ** rng.uniform(-1.3, 1.7)
        sigma = calibrated_or_out_of_reach(make, target, delta)
    found = fresh(make(sigma), delta)
    assert found <= target, words
    assert found >= 0.99 * target or fresh(make(0.99 * sigma), delta) > target, words


def calibrated_or_out_of_reach(make: Callable[[float], Event], target: float, delta: float) -> float | None:
    rule = ""
    try:
        return accountant._calibrate(make, target, delta)
    except FieldError as error:
        rule = error.rule
    if "cannot be reached" in rule:
        assert fresh(make(MOST_NOISE), delta) > target
    elif "no noise" in rule:
        assert fresh(make(2.05 * LEAST_NOISE), delta) <= target  # sampled without replacement, half of it is none
    else:
        assert "too small" in rule
        assert delta < 1e-11
    return None
