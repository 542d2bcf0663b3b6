"""Losses beyond what e^loss can tell apart: prices are infinite there, and nothing is refused, mixed up or too large to hold."""

from __future__ import annotations

import math
import random
import tracemalloc

import numpy as np
import pytest

from sweeper.privacy import accountant
from sweeper.privacy.accountant import privacy_loss
from sweeper.privacy.event_loss import FEW
from sweeper.privacy.events import (
    Composed,
    DiscreteLaplace,
    Disjoint,
    Event,
    Gaussian,
    PoissonSubsampled,
    PrivateQuantile,
    RandomPart,
    Repeated,
    SelectBest,
)
from sweeper.privacy.laws import BinomialAtLeastOne, FixedCount, PoissonCount, TruncatedNegativeBinomial
from sweeper.privacy.loss import FARTHEST, LossPmf, PrivacyLoss, normalised
from sweeper.privacy.profile import folded, from_profile, fused, largest, mixed, smallest

LAWS = [
    TruncatedNegativeBinomial(eta=0.0, mean=1.5),
    TruncatedNegativeBinomial(eta=1.0, mean=10.0),
    TruncatedNegativeBinomial(eta=2.0, mean=12.0, max_trials=64),
    TruncatedNegativeBinomial(eta=1.0, mean=5.0, max_trials=8),
    BinomialAtLeastOne(trials=8, probability=0.5),
    BinomialAtLeastOne(trials=8, probability=0.5, max_trials=3),
    FixedCount(trials=1),
    FixedCount(trials=2),
    FixedCount(trials=9),
    PoissonCount(mean=3.0),
    PoissonCount(mean=3.0, max_trials=5),
]


def law(*places: float, interval: float = 0.5, infinity: float = 0.0) -> LossPmf:
    """Equal masses at these losses, nats."""
    cells = [round(place / interval) for place in places]
    mass = np.zeros(max(cells) - min(cells) + 1)
    for cell in cells:
        mass[cell - min(cells)] += (1 - infinity) / len(cells)
    return LossPmf(interval=interval, lowest=min(cells), mass=mass, infinity=infinity)


WAYS = {"above": (700.0, 2_000.0), "below": (-2_000.0, -700.0), "across": (-900.0, 0.0, 3.0, 900.0), "near": (1.0, 2.0)}


@pytest.mark.parametrize("places", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("infinity", [0.0, 0.25, 1.0])
def test_a_folded_law_has_the_same_profile_up_to_600_nats(places, infinity):
    given = law(*places, infinity=infinity)
    found = folded(given)
    assert abs(found.losses[0]) <= FARTHEST
    assert abs(found.losses[-1]) <= FARTHEST
    assert found.mass.sum() + found.infinity == pytest.approx(1.0, abs=1e-12)
    for e in (-599.5, -10.0, 0.0, 0.7, 1.5, 30.0, 550.0, 599.9):
        assert found.delta(e) == pytest.approx(given.delta(e), rel=1e-9, abs=1e-14)
    for e in (-3_000.0, -650.0, 650.0, 1_500.0, 3_000.0):
        assert found.delta(e) >= given.delta(e) * (1 - 1e-12)


@pytest.mark.parametrize("first", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("second", WAYS.values(), ids=WAYS)
def test_profiles_are_joined_wherever_the_losses_lie(first, second):
    a, b = law(*first, infinity=0.1), law(*second, infinity=0.2)
    both = PrivacyLoss(((a, b), (b, a)))
    for e in (-700.0, -500.0, -1.0, 0.0, 0.5, 1.0, 1.5, 100.0, 599.5, 600.0, 800.0, 3_000.0):
        high, low = max(a.delta(e), b.delta(e)), min(a.delta(e), b.delta(e))
        for dear in (largest([a, b]), fused(both).parts[0][0], fused(both).parts[0][1]):
            assert dear.delta(e) >= high * (1 - 1e-9)
        assert smallest([a, b]).delta(e) <= (low if -600 < e <= 600 and (e * 2).is_integer() else 1.0) * (1 + 1e-9)
        assert mixed(0.3, a, b).delta(e) == pytest.approx(0.3 * a.delta(e) + 0.7 * b.delta(e), rel=1e-9, abs=1e-14)
    if "near" in (first, second):
        assert largest([a, b]).delta(1.5) < 1.0


def test_a_profile_with_no_value_in_reach_promises_nothing():
    for lowest in (1_300, -1_500):
        found = from_profile(0.5, lowest, np.linspace(0.9, 0.1, 20))
        assert (found.infinity, found.delta(500.0), found.epsilon(0.5)) == (1.0, 1.0, math.inf)


def test_a_law_that_lost_all_its_mass_has_no_place():
    assert normalised(0.5, 10**12, np.zeros(5), 1.0).lowest == 0


def test_the_average_of_laws_too_far_apart_to_hold_is_kept_up_to_600_nats():
    near, far = law(1.0, 2.0, interval=1e-4), LossPmf(interval=1e-4, lowest=10**13, mass=np.ones(1), infinity=0.0)
    found = mixed(0.25, near, far)
    for e in (-2.0, 0.0, 1.5, 500.0):
        assert found.delta(e) == pytest.approx(0.25 * near.delta(e) + 0.75, rel=1e-9)
    pair = PrivacyLoss(((near, near), (far, far)))
    assert len(pair.pruned().parts) == 2
    assert fused(pair).delta(500.0) == pytest.approx(1.0)


def dear_events(number: int) -> list[Event]:
    rng, found = random.Random(number), []
    for _ in range(6):
        noise, law = rng.choice([0.0100001, 0.0101, 0.015, 0.02, 0.022, 0.025, 0.03, 0.05]), rng.choice(LAWS)
        one = rng.choice(
            [
                Gaussian(noise),
                Composed((PrivateQuantile(0.1), Gaussian(noise))),
                Composed((PrivateQuantile(3.0), PoissonSubsampled(0.3, Gaussian(noise)))),
                Repeated(PoissonSubsampled(0.5, Gaussian(noise)), 3),
                Disjoint((Composed((PrivateQuantile(0.1), Gaussian(noise))), DiscreteLaplace(1.0))),
            ]
        )
        best, tuned = SelectBest(one, law), SelectBest(Gaussian(noise), law)
        after = Composed((PrivateQuantile(0.1), Gaussian(noise)))
        whole = Composed((PoissonSubsampled(0.1, tuned), after))
        found.append(rng.choice([best, best, best, RandomPart(0.1, tuned, after), whole]))
    return found


@pytest.mark.parametrize("number", range(3))
def test_dear_selections_have_a_price_at_every_grid(number):
    """Never below that of one run, which is above 1 / (2 s^2) for a Gaussian: finite or not."""
    for event in dear_events(number):
        gaussian = _bare_gaussian(event)
        least = 0.0 if gaussian is None else 1 / (2 * gaussian.noise_multiplier**2)
        for interval in (0.32, 0.06):
            assert privacy_loss(event, interval).epsilon(1e-5) >= least, event


@pytest.mark.parametrize("noise", [0.0100001, 0.0215, 0.025])
def test_a_dear_selection_of_few_runs_takes_little_memory(noise):
    """At most 1 GB. Two of these once asked for 40 and for 600."""
    event = SelectBest(
        Composed((PrivateQuantile(0.1), Gaussian(noise))), TruncatedNegativeBinomial(eta=1.0, mean=5.0, max_trials=8)
    )
    tracemalloc.start()
    try:
        assert [privacy_loss(event, interval).epsilon(1e-5) for interval in (0.32, 0.08, 0.02, 0.005)] == [math.inf] * 4
        assert tracemalloc.get_traced_memory()[1] < 1e9
    finally:
        tracemalloc.stop()


def _bare_gaussian(event: Event) -> Gaussian | None:
    """The Gaussian of which every run of a selection consists, where it sees every record."""
    if isinstance(event, SelectBest):
        trial = event.trial.parts[0] if isinstance(event.trial, Disjoint) else event.trial
        last = trial.events[-1] if isinstance(trial, Composed) else trial
        return last if isinstance(last, Gaussian) else None
    return None


def test_dear_selections_through_the_accountant():
    """One run costs 1250 and 200 nats at least. Of few runs no price beyond 600 is told."""
    for law in LAWS[::3]:
        found = accountant._epsilon(SelectBest(Gaussian(0.02), law), 1e-5)
        assert found >= 1250
        assert found == math.inf or law.max_trials is None or law.max_trials > FEW
        assert accountant._epsilon(SelectBest(Composed((PrivateQuantile(0.1), Gaussian(0.05))), law), 1e-5) > 200
