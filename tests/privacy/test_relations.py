"""Neighbour relations by brute force: every event's profile against the exact laws of mechanisms on all tiny tables.

Nothing is assumed of the theory of sampling here. All pairs of neighbouring tables are gone through, all batches enumerated, and
the hockey-stick divergence of the two exact laws is computed at many epsilons, negative ones too (select-best reads those).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
import tiny_tables as tiny
from pairs import hockey_stick
from scipy.special import ndtr

from sweeper.checks import FieldError
from sweeper.privacy.accountant import privacy_loss
from sweeper.privacy.events import (
    AdaptiveQuantileStep,
    ApproximateDp,
    Composed,
    DiscreteLaplace,
    Disjoint,
    Event,
    ExponentialMechanism,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    NoisyMin,
    PoissonSubsampled,
    PrivateQuantile,
    RandomPart,
    Repeated,
    ReplaceOne,
    SelectBest,
)
from sweeper.privacy.exponential import pure
from sweeper.privacy.laws import TruncatedNegativeBinomial
from sweeper.privacy.loss import PrivacyLoss, discrete_laplace
from sweeper.privacy.subsampled import _present, fixed_size_sampled

EPSILONS = np.array([-2.5, -1.2, -0.6, -0.3, -0.15, -0.05, 0.0, 0.03, 0.1, 0.2, 0.4, 0.7, 1.1, 1.7, 2.6])
FINE = 1e-3
LAW = TruncatedNegativeBinomial(eta=1.0, mean=10.0, max_trials=64)


def worst(release: tiny.Release, neighbours: Iterable[tuple[tiny.Table, tiny.Table]]) -> np.ndarray:
    """The largest exact divergence at each epsilon: [table with the record against the other, the reverse]."""
    laws: dict[tiny.Table, np.ndarray] = {}
    found = np.zeros((2, len(EPSILONS)))
    for pair in neighbours:
        p, q = (laws.setdefault(table, release(table)) if table not in laws else laws[table] for table in pair)
        assert p.sum() == pytest.approx(1, abs=1e-9)
        found[0] = np.maximum(found[0], [hockey_stick(p, q, e) for e in EPSILONS])
        found[1] = np.maximum(found[1], [hockey_stick(q, p, e) for e in EPSILONS])
    return found


def priced(loss: PrivacyLoss) -> np.ndarray:
    return np.array([[max(part[side].delta(float(e)) for part in loss.parts) for e in EPSILONS] for side in (0, 1)])


def check(truth: np.ndarray, event: Event | PrivacyLoss, within: float, wrong: Iterable[Event | PrivacyLoss]) -> None:
    """Never below the truth, in either direction, at any epsilon; `within` a factor of it somewhere; wrong prices are caught."""
    prices = [priced(one if isinstance(one, PrivacyLoss) else privacy_loss(one, FINE)) for one in (event, *wrong)]
    assert (prices[0] >= truth - 1e-12).all()
    assert (truth[:, EPSILONS > 0] >= within * prices[0][:, EPSILONS > 0]).any()
    for price in prices[1:]:
        assert (price < truth * 0.995 - 1e-12).any()


ZERO_OUT, REPLACED = list(tiny.zero_out_neighbours()), list(tiny.replace_one_neighbours())


@pytest.mark.parametrize("q", [0.1, 0.4, 1.0])
def test_noisy_counts_on_poisson_batches(q):
    truth = worst(tiny.on_poisson_batches(tiny.geometric_sum(0.8), q), ZERO_OUT)
    wrong = [PoissonSubsampled(2 * q / 3, DiscreteLaplace(0.8)), PoissonSubsampled(q, DiscreteLaplace(0.8 / 1.5))]
    check(truth, PoissonSubsampled(q, DiscreteLaplace(0.8)), 0.99, wrong)


@pytest.mark.parametrize(("q", "noise"), [(0.1, 1.0), (0.5, 0.7), (1.0, 2.0)])
def test_gaussian_sums_on_poisson_batches(q, noise):
    release = tiny.on_poisson_batches(tiny.gaussian_sum(noise), q)
    wrong = [PoissonSubsampled(2 * q / 3, Gaussian(noise)), PoissonSubsampled(q, Gaussian(1.5 * noise))]
    check(worst(release, ZERO_OUT), PoissonSubsampled(q, Gaussian(noise)), 0.98, wrong)
    two = tiny.twice(tiny.on_poisson_batches(tiny.gaussian_sum(noise, cells=60), q))
    check(worst(two, ZERO_OUT), Repeated(PoissonSubsampled(q, Gaussian(noise)), 2), 0.95, [PoissonSubsampled(q, Gaussian(noise))])


def test_a_vote_and_a_choice_on_one_poisson_batch():
    """The choice sees the vote. Amplified one by one, the two would show too little."""
    q, epsilon = 0.2, 1.0
    release = tiny.on_poisson_batches(tiny.in_turn(tiny.vote(epsilon), tiny.most_frequent(epsilon)), q)
    event = PoissonSubsampled(q, Composed((ApproximateDp(epsilon), ExponentialMechanism(epsilon))))
    apart = Composed((PoissonSubsampled(q, ApproximateDp(epsilon)), PoissonSubsampled(q, ExponentialMechanism(epsilon / 2))))
    check(worst(release, ZERO_OUT), event, 0.6, [apart, PoissonSubsampled(q, ApproximateDp(epsilon))])


def test_a_replaced_record_is_not_covered_by_the_zero_out_price_of_a_poisson_batch():
    """Why PoissonSubsampled of a replace-one event is refused: its pair is another one."""
    truth = worst(tiny.on_poisson_batches(tiny.gaussian_sum(1.0), 0.3), REPLACED)
    assert (truth > 1.3 * priced(privacy_loss(PoissonSubsampled(0.3, Gaussian(1.0)), FINE))).any()


@pytest.mark.parametrize(("size", "noise"), [(1, 1.0), (2, 2.0), (3, 1.5), (4, 1.5)])
def test_gaussian_sums_on_batches_of_fixed_size(size, noise):
    """One run attains the price at every epsilon (four records at -1, one of them raised to 1). Wrong: the multiplier not halved,
    the pair of one direction, the zero-out pair of a Poisson batch, a sampling rate of two thirds."""
    truth = worst(tiny.on_fixed_size_batches(tiny.gaussian_sum(noise), size), REPLACED)
    event, q = FixedSizeSampled(4, size, Gaussian(noise)), size / 4
    halved = privacy_loss(Gaussian(noise / 2), FINE).parts[0][0]
    one_sided = _present(halved, q, FINE)
    wrong = [
        FixedSizeSampled(4, size, Gaussian(2 * noise)),
        PoissonSubsampled(q, Gaussian(noise)),
        FixedSizeSampled(6, size, Gaussian(noise)),
    ]
    check(truth, event, 0.98, [*wrong, PrivacyLoss(((one_sided, one_sided),))] if size < 4 else wrong)
    assert (np.maximum(*truth) >= 0.97 * priced(privacy_loss(event, FINE))).all()


@pytest.mark.parametrize(("size", "noise"), [(1, 1.0), (2, 2.0), (3, 1.5)])
def test_two_batches_of_fixed_size(size, noise):
    """Composed, no one pair attains the price (the worst pair of one step is not its own mirror image), and it is never below."""
    two = tiny.twice(tiny.on_fixed_size_batches(tiny.gaussian_sum(noise, cells=60), size))
    event = FixedSizeSampled(4, size, Gaussian(noise))
    check(worst(two, REPLACED), Repeated(event, 2), 0.85, [event, Repeated(FixedSizeSampled(4, size, Gaussian(2 * noise)), 2)])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_any_mechanism_on_batches_of_fixed_size(size):
    """The theorem of subsampled.py for noise that is no Gaussian, once and twice: a replaced record moves a count by up to 2."""
    q = size / 4
    for release, inner in ((tiny.geometric_sum(0.5), discrete_laplace(1.0, FINE)), (tiny.vote(0.9), pure(0.9, FINE))):
        sampled = tiny.on_fixed_size_batches(release, size)
        loss = fixed_size_sampled(inner, q, FINE)
        less = fixed_size_sampled(inner, 2 * q / 3, FINE)
        check(worst(sampled, REPLACED), loss, 0.95, [less])
        check(worst(tiny.twice(sampled), REPLACED), loss.self_compose(2), 0.8, [loss, less.self_compose(2)])


def test_a_count_and_a_choice_under_replace_one():
    """Counts of two values move by one each way at once, which the exponential mechanism's B of 1 covers."""
    epsilon = 0.7
    release = tiny.in_turn(tiny.geometric_sum(epsilon / 2), tiny.most_frequent(epsilon))
    event = ReplaceOne(Composed((DiscreteLaplace(epsilon), ExponentialMechanism(epsilon))))
    undoubled = ReplaceOne(Composed((DiscreteLaplace(epsilon / 2), ExponentialMechanism(epsilon))))
    check(worst(release, REPLACED), event, 0.7, [undoubled])


@pytest.mark.parametrize("fraction", [0.15, 0.6])
@pytest.mark.parametrize("told", [True, False])
def test_two_random_parts(fraction, told):
    """A noisy count of the first part, and a vote of the rest whose question depends on that count. Who is where may be told."""

    def later(table: tiny.Table, answer: int) -> np.ndarray:
        return tiny.vote(0.3)((*table, answer % 3 - 1))

    truth = worst(tiny.on_random_parts(tiny.geometric_sum(1.2), later, fraction, told), ZERO_OUT)
    less = RandomPart(2 * fraction / 3, DiscreteLaplace(1.2), ApproximateDp(0.3))
    check(truth, RandomPart(fraction, DiscreteLaplace(1.2), ApproximateDp(0.3)), 0.95 if told else 0.4, [less] if told else [])


def test_one_step_of_fixed_size_has_the_profile_of_the_theorem():
    """q delta(log(1 + (e^e - 1)/q)) of the Gaussian of half the multiplier above 0, and what duality makes of it below."""
    rows, size, noise = 1_000, 30, 1.4
    q, mu = size / rows, 2 / noise

    def above(odds: float) -> float:
        e = math.log1p((odds - 1) / q)
        return q * float(ndtr(mu / 2 - e / mu) - math.exp(e) * ndtr(-mu / 2 - e / mu))

    loss = privacy_loss(FixedSizeSampled(rows, size, Gaussian(noise)), 1e-4)
    for e in (-0.3, -0.05, -0.01, 0.0, 0.01, 0.05, 0.3, 1.0):
        odds = math.exp(e)
        true = above(odds) if odds >= 1 else 1 - odds + odds * above(1 / odds)
        assert true - 1e-12 <= loss.delta(e) <= true + 2e-5 * q
    everyone = privacy_loss(FixedSizeSampled(rows, rows, Gaussian(noise)), 1e-3)
    assert everyone.epsilon(1e-6) == pytest.approx(privacy_loss(Gaussian(noise / 2), 1e-3).epsilon(1e-6), rel=1e-9)


TWO = r"replace-one and zero-out.* are two neighbour relations, and a bill speaks of one"
BATCH, ALL = FixedSizeSampled(100, 10, Gaussian(1.0)), Gaussian(1.0)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Composed((BATCH, DiscreteLaplace(0.1))), TWO),
        (lambda: Composed((ALL, Repeated(BATCH, 3))), TWO),
        (lambda: Disjoint((BATCH, DiscreteLaplace(0.1))), TWO),
        (lambda: Disjoint((ReplaceOne(ALL), ALL)), TWO),
        (lambda: SelectBest(Composed((BATCH, ALL)), LAW), TWO),
        (lambda: Composed((SelectBest(BATCH, LAW), ALL)), TWO),
        (lambda: RandomPart(0.1, ReplaceOne(ALL), ALL), TWO),
        (lambda: RandomPart(0.1, BATCH, BATCH), "first = 'fixed-size-sampled' must be stated for zero-out"),
        (
            lambda: PoissonSubsampled(0.1, ReplaceOne(ALL)),
            "event = 'replace-one' is stated for replace-one, and Poisson sampling is priced",
        ),
        (lambda: PoissonSubsampled(0.1, BATCH), "event = 'fixed-size-sampled' is stated for replace-one"),
        (
            lambda: FixedSizeSampled(100, 10, Composed((ALL, ExponentialMechanism(0.1)))),
            "must be gaussian.* sampling: poisson for line",
        ),
        (lambda: FixedSizeSampled(100, 10, ReplaceOne(ALL)), "must be gaussian"),
        (lambda: ReplaceOne(PoissonSubsampled(0.1, ALL)), "cannot be stated for replace-one: its price rests on zero-out"),
        (lambda: ReplaceOne(Repeated(NoisyMin(0.1), 2)), "event = 'noisy-min' cannot be stated"),
        (lambda: ReplaceOne(Composed((ALL, PrivateQuantile(0.1)))), "event = 'private-quantile' cannot be stated"),
        (lambda: ReplaceOne(RandomPart(0.1, ALL, ALL)), "event = 'random-part' cannot be stated"),
        (lambda: ReplaceOne(AdaptiveQuantileStep(1.0, 5.0)), "event = 'adaptive-quantile-step' cannot be stated"),
        (lambda: ReplaceOne(BATCH), "event = 'fixed-size-sampled' is stated for replace-one by itself"),
    ],
)
def test_two_relations_do_not_meet_in_one_bill(build, words):
    with pytest.raises(FieldError, match=words):
        build()


def test_what_one_relation_allows():
    score, none = ReplaceOne(DiscreteLaplace(0.1)), Repeated(ALL, 0)
    whole = Disjoint((SelectBest(Composed((Repeated(BATCH, 5), none)), LAW), Composed((score, ReplaceOne(Laplace(3.0))))))
    assert whole.relation == "replace-one"
    assert Composed((PoissonSubsampled(0.0, ALL), none)).relation is None
    assert Composed((Disjoint((ALL, ALL)), none)).relation == "zero-out"
    assert RandomPart(1.0, ALL, BATCH).relation == "zero-out"  # nobody is in the second part
