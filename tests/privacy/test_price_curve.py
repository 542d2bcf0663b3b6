"""The points of `sweeper price --curve`: every one is the bill that `price` gives, and what everybody's arithmetic gives."""

from __future__ import annotations

import math

import pytest
from scipy import optimize
from scipy.special import ndtr

from sweeper.privacy import accountant
from sweeper.privacy.events import Gaussian, RandomPart
from sweeper.privacy.price import Question, answer, settle
from sweeper.privacy.price_curve import MEANS, Curve, curves, mixed_epsilon

FLAGS = {"sampling_probability": 0.01, "steps": 2000, "delta": 1e-5, "noise_multiplier": 1.0}


@pytest.fixture(scope="module")
def golden() -> list[Curve]:
    return curves(settle(Question(**FLAGS)))


def at(found: list[Curve], protocol: str, law: str | None, mean: int) -> float:
    (curve,) = [curve for curve in found if (curve.protocol, curve.law) == (protocol, law)]
    epsilon = curve.points[MEANS.index(mean)].epsilon
    assert epsilon is not None
    return epsilon


@pytest.mark.parametrize(
    ("protocol", "law", "mean", "epsilon"),
    [
        ("no-tuning", None, 10, 2.5839),
        ("select-best", "logarithmic", 10, 3.595),
        ("select-best", "geometric", 10, 3.78),
        ("select-best", "geometric", 30, 4.333),
        ("select-best", "logarithmic", 100, 4.39),
        ("select-best", "binomial", 10, 5.22),
        ("select-best", "fixed", 10, 8.25),
        ("release-all", None, 2, 3.723),
        ("release-all", None, 5, 6.188),
        ("release-all", None, 10, 9.268),
        ("subsample-tune", "geometric", 10, 3.4007),
    ],
)
def test_points_of_the_reference_run(golden, protocol, law, mean, epsilon):
    """ALGORITHMS section 8 and tests/golden/accounting.json; a bill wrong by half as much again, or a third, is seen."""
    found = at(golden, protocol, law, mean)
    assert found == pytest.approx(epsilon, rel=6e-3)
    for wrong in (2 / 3, 3 / 2):
        assert found != pytest.approx(epsilon * wrong, rel=6e-3)


def test_one_grid_serves_all_points_at_little_cost(golden):
    for flags in ({"protocol": "select-best", "law": "tnb", "eta": 2, "mean": 50}, {"protocol": "release-all", "trials": 50}):
        priced = answer(Question(**FLAGS, **flags))["epsilon"]
        found = at(golden, flags["protocol"], flags.get("law"), 50)
        assert priced * (1 - 1e-3) <= found <= priced * 1.006


def test_bills_grow_with_the_expected_runs_and_chances_are_those_of_the_law(golden):
    for curve in golden:
        bills = [point.epsilon for point in curve.points]
        assert bills == sorted(bills)
        assert [point.expected_trials for point in curve.points] == pytest.approx(list(MEANS))
    (geometric,) = [curve for curve in golden if (curve.protocol, curve.law) == ("select-best", "geometric")]
    for mean, point in zip(MEANS, geometric.points, strict=True):
        assert point.chance == pytest.approx(1 - 0.9 / (mean - (mean - 1) * 0.9))  # f(x) = x / (m - (m - 1) x)
    (every,) = [curve for curve in golden if curve.protocol == "release-all"]
    assert [point.chance for point in every.points] == pytest.approx([1 - 0.9**mean for mean in MEANS])
    assert golden[0].points[3].chance == pytest.approx(0.1)
    assert {curve.label for curve in golden} == {curve.to_dict()["label"] for curve in golden}


def test_a_random_part_is_mixed_as_its_event_is():
    """delta(e) = 0.3 delta_a(e) + 0.7 delta_b(e), the Gaussian profiles in closed form; and the package's own event."""
    first, second, delta = Gaussian(0.7), Gaussian(1.5), 1e-6

    def profile(sigma: float, e: float) -> float:
        return float(ndtr(0.5 / sigma - e * sigma) - math.exp(e) * ndtr(-0.5 / sigma - e * sigma))

    exact = optimize.brentq(lambda e: 0.3 * profile(0.7, e) + 0.7 * profile(1.5, e) - delta, 0, 50)
    losses = [accountant.privacy_loss(event, 1e-3) for event in (first, second)]
    found = mixed_epsilon(0.3, *losses, delta)
    assert exact <= found <= exact * 1.001
    assert found == pytest.approx(accountant.epsilon(RandomPart(0.3, first, second), delta), rel=1e-3)
    assert mixed_epsilon(0.7, *losses, delta) > found
    assert mixed_epsilon(0.3, *losses, 1e-300) == math.inf


def test_what_a_question_says_is_in_its_curves():
    """The score bounds tuning from below where training is nearly free; poisson only if accepted; no subsample without zero-out."""
    cheap = {"noise_multiplier": 1e4, "steps": 10, "score_epsilon": 0.5}
    found = curves(
        settle(Question(**{**FLAGS, **cheap, "protocol": "subsample-tune", "tune_fraction": 0.2, "mean": 3, "eta": 0.5}))
    )
    tuned = [curve for curve in found if curve.protocol == "subsample-tune"]
    assert tuned[0].label.startswith("subsample-tune 0.2")
    assert at(found, "subsample-tune", "geometric", 10) > at(found, "select-best", "geometric", 10) > 0.5
    assert [curve.label for curve in found if curve.law == "tnb"] == ["select-best, tnb eta 0.5"]
    assert not [curve for curve in found if curve.law == "poisson"]
    poisson = Question(**{**FLAGS, **cheap}, protocol="select-best", law="poisson", mean=3.0, may_return_nothing=True)
    assert [curve for curve in curves(settle(poisson)) if curve.law == "poisson"]
    fixed = {"sampling": "without-replacement", "rows": 1000, "steps": 10, "noise_multiplier": 10.0}
    kinds = {curve.protocol for curve in curves(settle(Question(**{**FLAGS, **fixed})))}
    assert kinds == {"no-tuning", "select-best", "release-all"}


def test_quantiles_in_runs_of_a_selection_are_one_law():
    """A quantile's places may differ from run to run; the price of the event says so too."""
    flags = {**FLAGS, "steps": 100, "quantile_epsilon": 0.5}
    priced = answer(Question(**flags, protocol="select-best", law="geometric", mean=10))["epsilon"]
    assert at(curves(settle(Question(**flags))), "select-best", "geometric", 10) == pytest.approx(priced, rel=6e-3)


def test_nothing_protected_and_nothing_released():
    assert {p.epsilon for c in curves(settle(Question(**{**FLAGS, "noise_multiplier": 0.0}))) for p in c.points} == {None}
    assert {p.epsilon for c in curves(settle(Question(**{**FLAGS, "steps": 0}))) for p in c.points} == {0.0}


def test_it_says_how_far_it_is():
    said: list[tuple[int, int]] = []
    found = curves(settle(Question(**{**FLAGS, "steps": 5})), lambda done, count: said.append((done, count)))
    points = sum(len(curve.points) for curve in found)
    assert said == [(done, points) for done in range(points + 1)]
