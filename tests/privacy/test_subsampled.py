"""What runs on one batch, amplified once: against enumeration of all batches, exact profiles and outside values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from pairs import EPSILONS, both, exponential_mechanism, hockey_stick, randomised_response, renyi, subsampled_releases
from scipy.special import ndtr
from test_vectors import GOLDEN

from sweeper.checks import FieldError
from sweeper.privacy.exponential import approximate, bounded_range, laplace, pure
from sweeper.privacy.loss import LossPmf, PrivacyLoss, from_points, point, subsampled_gaussian
from sweeper.privacy.subsampled import inner_interval, poisson_subsampled

FINE = 1e-4
SAME_BATCH = GOLDEN["same_minibatch"]


def one_batch(row: dict[str, float], line_search: object, interval: float) -> PrivacyLoss:
    """Gradient and line search on one batch."""
    inner = inner_interval(SAME_BATCH["q"], interval)
    search = line_search(row["eps_line_search"], inner)  # type: ignore[operator]
    return poisson_subsampled(subsampled_gaussian(SAME_BATCH["sigma"], 1.0, inner).compose(search), SAME_BATCH["q"], interval)


@pytest.mark.parametrize("row", SAME_BATCH["rows"])
def test_a_line_search_on_the_gradients_batch(row):
    ranged = one_batch(row, bounded_range, FINE).self_compose(SAME_BATCH["steps"]).epsilon(SAME_BATCH["delta"])
    assert row["bounded_range_never_below"] <= ranged <= row["epsilon_bounded_range"] * 1.003
    assert ranged == pytest.approx(row["epsilon_bounded_range"], rel=1e-4)
    plain = one_batch(row, pure, FINE).self_compose(SAME_BATCH["steps"]).epsilon(SAME_BATCH["delta"])
    assert plain == pytest.approx(row["epsilon_pure"], rel=3e-4)


@pytest.mark.parametrize("row", SAME_BATCH["rows"])
def test_amplifying_each_call_by_itself_would_show_less(row):
    """The invalid sum of two amplified losses, which the package must not give."""
    inner = inner_interval(SAME_BATCH["q"], FINE)
    apart = subsampled_gaussian(SAME_BATCH["sigma"], SAME_BATCH["q"], FINE)
    apart = apart.compose(poisson_subsampled(pure(row["eps_line_search"], inner), SAME_BATCH["q"], FINE))
    shown = apart.self_compose(SAME_BATCH["steps"]).epsilon(SAME_BATCH["delta"])
    assert shown == pytest.approx(row["invalid_separate_amplification_pld"], rel=3e-4)
    truth = one_batch(row, pure, FINE).self_compose(SAME_BATCH["steps"]).epsilon(SAME_BATCH["delta"])
    assert shown < 0.97 * truth


def test_coarser_grids_only_cost_more():
    row = SAME_BATCH["rows"][0]
    found = [
        one_batch(row, bounded_range, x).self_compose(SAME_BATCH["steps"]).epsilon(SAME_BATCH["delta"]) for x in (2e-3, 5e-4, FINE)
    ]
    assert found == sorted(found, reverse=True)
    assert found[-1] >= 2.6370


def test_ten_gaussian_queries_on_one_batch():
    """Composed as losses, they cost what one Gaussian of the joint multiplier does."""
    expected, inner = SAME_BATCH["ten_gaussian_queries_of_sigma_10"], inner_interval(SAME_BATCH["q"], FINE)
    loss = subsampled_gaussian(1.0, 1.0, inner).compose(subsampled_gaussian(10.0, 1.0, inner).self_compose(10))
    found = poisson_subsampled(loss, SAME_BATCH["q"], FINE).self_compose(SAME_BATCH["steps"]).epsilon(SAME_BATCH["delta"])
    assert found == pytest.approx(expected["epsilon_pld"], rel=3e-4)
    joint = subsampled_gaussian((1 + 10 / 100) ** -0.5, SAME_BATCH["q"], FINE).self_compose(SAME_BATCH["steps"])
    assert pytest.approx(expected["sigma_effective"], rel=1e-6) == (1 + 10 / 100) ** -0.5
    assert found >= joint.epsilon(SAME_BATCH["delta"]) - 1e-6


def test_two_randomised_responses_of_one_batch():
    """TRAPS.md, "Two calls on one minibatch": at q = 0.1, order 8, the sum of amplified costs shows 0.094, under half the truth."""
    q, order, (p, r) = 0.1, 8.0, randomised_response(1.0)
    alone, together = (renyi(q * a + (1 - q) * b, b, order) for a, b in ((p, r), (both(p, p), both(r, r))))
    assert 2 * alone == pytest.approx(0.0941, abs=1e-4)
    assert together > 0.179
    one, two = pure(1.0, 1e-3), pure(1.0, 1e-3).self_compose(2)
    priced = [poisson_subsampled(loss, q, 1e-4).parts[0][0].renyi(order, 0.0)[0] for loss in (one, two)]
    assert alone <= priced[0] <= alone * 1.001
    assert together <= priced[1] <= together * 1.001


def random_law(rng: np.random.Generator) -> tuple[LossPmf, np.ndarray, np.ndarray]:
    """A law on a coarse grid and the pair it stands for, with outcomes that one of the tables never gives."""
    steps, mass = np.unique(rng.integers(-30, 30, 6)), rng.dirichlet(np.full(6, 0.7))
    mass = mass[: len(steps)]
    mass = mass / mass.sum()
    other = float(np.sum(mass * np.exp(-0.1 * steps)))
    mass = mass * (0.9 / other if other > 0.9 else 1.0) * rng.choice([1.0, 0.8])
    infinity = 1.0 - float(mass.sum())
    pmf = from_points(0.1, 0.1 * steps, mass, infinity)
    q = mass * np.exp(-0.1 * steps)
    return pmf, np.append(mass, [infinity, 0.0]), np.append(q, [0.0, 1.0 - q.sum()])


@pytest.mark.parametrize("q", [1e-3, 0.1, 0.6, 1.0])
def test_any_pair_in_both_directions(q):
    """Losses from -3 to 3, at minus and at plus infinity: never below the mixture's divergence, and right within the grid."""
    rng = np.random.default_rng(3)
    for _ in range(40):
        (a, p, r), (b, s, t) = random_law(rng), random_law(rng)
        ((removing, adding),) = poisson_subsampled(PrivacyLoss(((a, b),)), q, 1e-4).parts
        for e in EPSILONS:
            for pmf, x, y in ((removing, q * p + (1 - q) * r, r), (adding, s, (1 - q) * s + q * t)):
                true = hockey_stick(x, y, e)
                assert true - 1e-12 <= pmf.delta(float(e)) <= true + 3e-5


@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.01), (0.5, 0.2), (4.0, 0.5), (0.3, 0.001)])
def test_a_gaussian_has_the_exact_profile_of_its_mixtures(sigma, q):
    """delta of the mixture is q delta_0 at a shifted epsilon, and the reverse by symmetry of the Gaussian pair."""

    def plain(odds: float) -> float:
        e, mu = math.log(odds), 1 / sigma
        return float(ndtr(mu / 2 - e / mu) - odds * ndtr(-mu / 2 - e / mu))

    interval = 1e-3
    ((removing, adding),) = poisson_subsampled(subsampled_gaussian(sigma, 1.0, 5e-4), q, interval).parts
    for e in [-0.1, 0.0, 1e-3, 0.01, 0.1, 0.5, 1.0, 3.0, 8.0]:
        odds = math.exp(e)
        present = q * plain((odds - 1 + q) / q) if odds > 1 - q else 1 - odds
        rest = 1 - odds * (1 - q)
        absent = rest * plain(odds * q / rest) if rest > 0 else 0.0
        assert present - 1e-12 <= removing.delta(e) <= present * 1.001 + interval**2 / 2 + interval * q / 50
        assert absent - 1e-12 <= adding.delta(e) <= absent * 1.001 + interval**2 / 2 + interval * q / 50


@pytest.mark.parametrize(("scale", "q", "steps"), [(2.0, 0.05, 300), (0.5, 0.005, 1_000)])
def test_subsampled_laplace_noise_agrees_with_another_library(scale, q, steps):
    interval = 2e-4
    theirs = pld.from_laplace_mechanism(scale, value_discretization_interval=interval, sampling_prob=q).self_compose(steps)
    ours = poisson_subsampled(laplace(scale, inner_interval(q, interval)), q, interval).self_compose(steps)
    wrong = poisson_subsampled(laplace(scale * 1.5, inner_interval(q, interval)), q, interval).self_compose(steps)
    for delta in (1e-3, 1e-6):
        assert ours.epsilon(delta) == pytest.approx(theirs.get_epsilon_for_delta(delta), rel=2e-3)
        assert wrong.epsilon(delta) < 0.9 * ours.epsilon(delta)


def test_all_of_the_loss_at_infinity():
    ((removing, adding),) = poisson_subsampled(approximate(1.0, 1.0, 1e-3), 1.0, 1e-3).parts
    assert removing.infinity == adding.infinity == 1.0


def test_never_below_the_enumeration_of_all_batches():
    """Three records, all 8 batches: a noisy vote, then an exponential mechanism whose scores depend on the batch and the vote."""
    rng, q, epsilon = np.random.default_rng(4), 0.1, 1.2
    high = 1 / (1 + math.exp(-1.2))  # the vote is 1.2-DP: the majority of the batch, flipped with probability 1 - high
    inner = pure(1.2, 1e-3).compose(bounded_range(epsilon, 1e-3))
    ((removing, adding),) = poisson_subsampled(inner, q, 1e-4).parts
    apart = poisson_subsampled(pure(1.2, 1e-3), q, 1e-4).compose(poisson_subsampled(bounded_range(epsilon, 1e-3), q, 1e-4))
    exceeded, tightest = 0, 0.0
    for number in range(60):
        moves = rng.choice([-1.0, 1.0], size=(2, 3, 8))  # [vote, record, candidate]: what a record adds to a score
        if number < 8:
            moves[:, 1:], moves[:, 0] = 0.0, np.where(np.arange(8) <= number, 1.0, -1.0)

        def release(batch: np.ndarray, moves: np.ndarray = moves) -> np.ndarray:
            yes = high if batch[0] or batch.sum() > 1 else 1 - high
            laws = [exponential_mechanism(batch @ moves[vote], epsilon, 1.0) for vote in (0, 1)]
            return np.concatenate([yes * laws[0], (1 - yes) * laws[1]])

        present, absent = subsampled_releases(3, q, release)
        for e in EPSILONS:
            found = hockey_stick(present, absent, e), hockey_stick(absent, present, e)
            bounds = removing.delta(float(e)), adding.delta(float(e))
            assert found[0] <= bounds[0] + 1e-12
            assert found[1] <= bounds[1] + 1e-12
            exceeded += found[0] > apart.parts[0][0].delta(float(e))
            tightest = max(tightest, found[0] / bounds[0] if 0.05 < e < 0.5 else 0.0)
    assert exceeded > 0  # amplifying the two calls separately is caught
    assert tightest > 0.5


def test_the_ends_of_the_sampling_probability():
    inner = approximate(0.7, 0.01, 1e-3)
    assert poisson_subsampled(inner, 0.0, 1e-3) == point(1e-3)
    everyone = poisson_subsampled(inner, 1.0, 1e-3)
    assert all(everyone.delta(float(e)) == pytest.approx(inner.delta(float(e)), abs=1e-12) for e in EPSILONS)
    with pytest.raises(FieldError, match="sampling_probability"):
        poisson_subsampled(inner, 1.01, 1e-3)


def test_infinite_losses_of_a_rare_record():
    """A batch that holds the record shows it with probability 0.01: delta is q / 100, and finite the other way."""
    ((removing, adding),) = poisson_subsampled(approximate(1e-9, 0.01, 1e-3), 0.1, 1e-3).parts
    assert removing.infinity == pytest.approx(1e-3, rel=1e-9)
    assert adding.infinity == pytest.approx(0.0, abs=1e-15)
    assert adding.epsilon(0.0099) == pytest.approx(0.0, abs=1e-3)
    assert adding.losses[-1] == pytest.approx(-math.log(0.9), abs=2e-3)


@pytest.mark.parametrize("q", [1e-3, 0.1, 0.5])
def test_more_sampling_costs_more(q):
    inner = laplace(2.0, 1e-3)
    less, more = (poisson_subsampled(inner, x, 1e-3).epsilon(1e-4) for x in (q, 1.2 * q))
    assert less < more < inner.epsilon(1e-4) + 1e-3
