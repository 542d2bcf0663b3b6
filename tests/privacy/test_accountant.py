"""Event -> epsilon -> noise multiplier, against closed forms; the cache; what must be refused."""

from __future__ import annotations

import json
import math
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import log_ndtr, ndtr

from sweeper.checks import FieldError
from sweeper.privacy import accountant, cache
from sweeper.privacy.event_renyi import CUT
from sweeper.privacy.events import (
    Composed,
    DiscreteLaplace,
    Disjoint,
    Event,
    Gaussian,
    PoissonSubsampled,
    Repeated,
    SelectBest,
)
from sweeper.privacy.laws import TruncatedNegativeBinomial
from sweeper.privacy.loss import LossPmf

LAW = TruncatedNegativeBinomial(eta=2.0, mean=12.0, max_trials=64)


def analytic_gaussian(sigma: float, delta: float) -> float:
    """Balle and Wang 2018, Theorem 8: delta = Phi(1/2s - e s) - e^e Phi(-1/2s - e s), solved for e."""

    def excess(eps: float) -> float:
        first, second = log_ndtr(0.5 / sigma - eps * sigma), eps + log_ndtr(-0.5 / sigma - eps * sigma)
        return float(first + math.log(max(-math.expm1(min(second - first, 0.0)), 1e-300))) - math.log(delta)

    return 0.0 if excess(0.0) <= 0 else float(optimize.brentq(excess, 0.0, 0.5 / sigma**2 + 50 / sigma, xtol=1e-12))


def subsampled_gaussian(sigma: float, q: float, delta: float) -> float:
    """One step: the likelihood ratio grows with x, so that both directions' worst sets are half lines."""

    def excess(eps: float) -> float:
        present = absent = 0.0
        if math.exp(eps) > 1 - q:
            x = 0.5 + sigma**2 * math.log((math.exp(eps) - (1 - q)) / q)
            present = q * ndtr((1 - x) / sigma) + (1 - q) * ndtr(-x / sigma) - math.exp(eps) * ndtr(-x / sigma)
        if math.exp(-eps) > 1 - q:
            x = 0.5 + sigma**2 * math.log((math.exp(-eps) - (1 - q)) / q)
            absent = ndtr(x / sigma) - math.exp(eps) * (q * ndtr((x - 1) / sigma) + (1 - q) * ndtr(x / sigma))
        return max(present, absent) - delta

    return 0.0 if excess(0.0) <= 0 else float(optimize.brentq(excess, 0.0, 0.5 / sigma**2 + 50 / sigma, xtol=1e-12))


def randomised_response(epsilon: float, count: int, delta: float) -> float:
    """`count` independent answers, each right with odds e^epsilon: the loss is epsilon (2 j - count), j binomial."""
    j = np.arange(count + 1)
    mass, losses = stats.binom.pmf(j, count, 1 / (1 + math.exp(-epsilon))), epsilon * (2 * j - count)

    def excess(eps: float) -> float:
        return float(mass @ -np.expm1(np.minimum(eps - losses, 0.0))) - delta

    return 0.0 if excess(0.0) <= 0 else float(optimize.brentq(excess, 0.0, epsilon * count, xtol=1e-12))


def tight(found: float, exact: float, slack: float = 1e-3) -> bool:
    """Never below the truth, and hardly above. (Where both are tiny, a grid cell counts.)"""
    return exact * (1 - 1e-9) <= found <= exact * (1 + slack) + 1e-5


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9, 1e-12])
@pytest.mark.parametrize("sigma", [0.05, 0.3, 1.0, 5.0, 50.0, 1000.0])
def test_a_gaussian_costs_its_closed_form(sigma, delta):
    """Epsilon from 0 to 327. A subsample of everybody is the whole."""
    exact = analytic_gaussian(sigma, delta)
    assert tight(accountant.epsilon(Gaussian(sigma), delta), exact)
    assert accountant.epsilon(PoissonSubsampled(1.0, Gaussian(sigma)), delta) == accountant.epsilon(Gaussian(sigma), delta)
    if exact > 0.01:
        assert not tight(accountant.epsilon(Gaussian(sigma * 1.5), delta), exact)
        assert not tight(accountant.epsilon(Gaussian(sigma / 1.5), delta), exact)


@pytest.mark.parametrize(("sigma", "steps"), [(2.0, 4), (10.0, 100), (2000**0.5, 2000), (20.0, 10_000)])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_many_gaussians_cost_the_one_they_are(sigma, steps, delta):
    exact = analytic_gaussian(sigma / steps**0.5, delta)
    assert tight(accountant.epsilon(Repeated(Gaussian(sigma), steps), delta), exact)
    different = Composed((Repeated(Gaussian(sigma), steps - 1), Gaussian(sigma * 1.0001)))
    assert accountant.epsilon(different, delta) == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize("delta", [1e-4, 1e-6, 1e-9])
@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.01), (0.5, 0.1), (2.0, 0.5), (0.3, 0.001), (1.0, 0.999), (5.0, 0.01)])
def test_one_subsampled_step_costs_its_closed_form(sigma, q, delta):
    exact = subsampled_gaussian(sigma, q, delta)
    assert tight(accountant.epsilon(PoissonSubsampled(q, Gaussian(sigma)), delta), exact)
    if exact > 0.02:
        assert not tight(accountant.epsilon(PoissonSubsampled(q / 1.5, Gaussian(sigma)), delta), exact)


def test_a_subsample_of_nobody_is_free_and_the_price_goes_there():
    delta = 1e-6
    costs = [accountant.epsilon(PoissonSubsampled(q, Gaussian(1.0)), delta) for q in (1.0, 0.3, 0.1, 1e-2, 1e-3, 1e-5, 1e-7, 0.0)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == costs[-2] == 0.0  # a delta of 1e-6 covers a record drawn with probability 1e-7
    assert costs[-3] < 0.01 * costs[0]


@pytest.mark.parametrize("epsilon", [0.02, 0.1, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("count", [1, 3, 40])
def test_discrete_laplace_costs_randomised_response(epsilon, count):
    for delta in (1e-12, 1e-6, 1e-3):
        exact = randomised_response(epsilon, count, delta)
        assert tight(accountant.epsilon(Repeated(DiscreteLaplace(epsilon), count), delta), exact, slack=2e-3)
    assert accountant.epsilon(DiscreteLaplace(epsilon), 1e-15) <= epsilon * (1 + 1e-12)


@pytest.mark.parametrize("order", [1.5, 4.0, 200.0])
@pytest.mark.parametrize("epsilon", [0.1, 3.0, 50.0])
def test_renyi_costs_of_the_closed_forms(order, epsilon):
    """Large orders of large epsilons overflow a plain exponential."""
    high = 1 / (1 + math.exp(-epsilon))
    moment = np.logaddexp((order - 1) * epsilon + math.log(high), -order * epsilon + math.log(high))
    assert accountant.renyi(DiscreteLaplace(epsilon), order) == (pytest.approx(moment / (order - 1), rel=1e-9), 0.0)
    assert accountant.renyi(Gaussian(epsilon), order) == (pytest.approx(order / (2 * epsilon**2), rel=1e-9), 0.0)
    q = PoissonSubsampled(1.0, Gaussian(epsilon))
    assert accountant.renyi(Repeated(q, 7), order)[0] == pytest.approx(7 * order / (2 * epsilon**2), rel=1e-9)


@pytest.mark.parametrize("order", [8.0, 20.0])
def test_the_renyi_cost_of_the_best_is_that_of_the_dearest_part_and_direction(order):
    a, b = Repeated(PoissonSubsampled(0.02, Gaussian(1.0)), 100), DiscreteLaplace(0.7)
    rho, lost = accountant.renyi(SelectBest(Disjoint((a, b)), LAW), order)
    assert rho == pytest.approx(max(accountant.renyi(SelectBest(x, LAW), order)[0] for x in (a, b)), rel=1e-2)
    assert lost < 1e-9
    ((removing, adding),) = accountant.privacy_loss(SelectBest(a, LAW), 1e-3).parts
    dearer = max(removing.renyi(order, CUT)[0], adding.renyi(order, CUT)[0])
    assert removing.renyi(order, CUT)[0] != pytest.approx(adding.renyi(order, CUT)[0], rel=0.05)
    assert accountant.renyi(SelectBest(a, LAW), order)[0] == pytest.approx(dearer, rel=1e-2)


def test_disjoint_parts_cost_the_largest():
    a, b, c = Repeated(PoissonSubsampled(0.02, Gaussian(1.0)), 100), DiscreteLaplace(0.7), Gaussian(2.0)
    for delta in (1e-9, 1e-5, 1e-2):
        whole = accountant.epsilon(Disjoint((a, b)), delta)
        assert whole == pytest.approx(max(accountant.epsilon(a, delta), accountant.epsilon(b, delta)), rel=1e-3)
        also = accountant.epsilon(Composed((Disjoint((a, b)), c)), delta)
        assert also == pytest.approx(max(accountant.epsilon(Composed((x, c)), delta) for x in (a, b)), rel=2e-3)
        best = accountant.epsilon(SelectBest(Disjoint((a, b)), LAW), delta)
        assert best == pytest.approx(max(accountant.epsilon(SelectBest(x, LAW), delta) for x in (a, b)), rel=2e-3)


def test_curves_that_cross_are_both_kept():
    """The score costs more at large delta, training at small: which one counts depends on delta and on what is composed."""
    training, score = Gaussian(4.0), DiscreteLaplace(0.9)
    small, large = 1e-9, 1e-2
    assert accountant.epsilon(training, small) > accountant.epsilon(score, small)
    assert accountant.epsilon(training, large) < accountant.epsilon(score, large)
    many = Repeated(Disjoint((training, score)), 30)
    for delta in (small, large):
        parts = [accountant.epsilon(Repeated(part, 30), delta) for part in (training, score)]
        assert accountant.epsilon(many, delta) == pytest.approx(max(parts), rel=1e-3)


@pytest.mark.parametrize("protocol", [lambda e: e, lambda e: SelectBest(e, LAW)], ids=["one", "best"])
def test_prices_rise_with_steps_and_probability_and_fall_with_noise(protocol):
    def price(sigma: float = 1.0, q: float = 0.02, steps: int = 100) -> float:
        return accountant.epsilon(protocol(Repeated(PoissonSubsampled(q, Gaussian(sigma)), steps)), 1e-6)

    for costs in (
        [price(steps=n) for n in (0, 1, 2, 10, 100, 1000)],
        [price(q=q) for q in (0.0, 0.001, 0.02, 0.3, 1.0)],
        [price(sigma=s) for s in (30.0, 3.0, 1.0, 0.5, 0.1, 0.0)],
    ):
        assert costs == sorted(costs)
        assert len(set(costs)) == len(costs)
    assert price(steps=0) == price(q=0.0) == 0.0
    assert price(sigma=0.0) == math.inf


@pytest.mark.parametrize("event", [Gaussian(1e-3), Repeated(Gaussian(1e-9), 10), PoissonSubsampled(0.1, Gaussian(1e-5))])
def test_next_to_no_noise_is_no_noise_and_answers_at_once(event):
    start = time.perf_counter()
    assert accountant.epsilon(event, 1e-5) == math.inf
    assert time.perf_counter() - start < 5.0


@pytest.mark.parametrize(
    "event",
    [
        Repeated(PoissonSubsampled(0.9, Gaussian(2000**0.5)), 2000),
        SelectBest(Repeated(PoissonSubsampled(0.9, Gaussian(45.0)), 2000), TruncatedNegativeBinomial(eta=0.0, mean=1e4)),
    ],
)
def test_a_delta_below_what_compositions_keep_costs_infinity(event):
    assert accountant.epsilon(event, 1e-16) == math.inf
    assert math.isfinite(accountant.epsilon(event, 1e-10))


def test_one_gaussian_has_a_price_at_tiny_deltas():
    for delta in (1e-15, 1e-18, 1e-21):
        assert tight(accountant.epsilon(Repeated(Gaussian(2000**0.5), 2000), delta), analytic_gaussian(1.0, delta), slack=2e-2)


def training(sigma: float) -> Event:
    return Repeated(PoissonSubsampled(1 / 120, Gaussian(sigma)), 300)


def whole_bill(sigma: float) -> Event:
    return SelectBest(Disjoint((training(sigma), DiscreteLaplace(0.1))), LAW)


@pytest.mark.parametrize(
    ("make", "target", "delta"),
    [
        (training, 0.02, 1e-5),
        (training, 2.0, 1e-5),
        (training, 20.0, 1e-9),
        (training, 200.0, 1e-5),
        (whole_bill, 0.5, 1e-5),
        (whole_bill, 2.0, 1e-5),
        (lambda s: Disjoint((training(s), DiscreteLaplace(0.1))), 0.1, 1e-5),  # the score alone costs 0.09998
        (lambda s: Repeated(Composed((Repeated(Gaussian(s), 10), DiscreteLaplace(0.05))), 12), 3.0, 1e-6),
    ],
)
def test_the_noise_is_the_least_that_reaches_the_target(make, target, delta):
    sigma = accountant.calibrate(make, target, delta)
    assert 0.997 * target <= accountant.epsilon(make(sigma), delta) <= target
    assert accountant.epsilon(make(sigma * 0.99), delta) > target


SETTINGS = [(1e-4, 1), (1e-4, 1200), (1 / 120, 100), (1 / 120, 1200), (0.05, 20_000), (0.5, 1), (0.5, 20_000), (1.0, 1200)]


@pytest.mark.parametrize("place", range(len(SETTINGS)), ids=lambda place: "q {:.2g} steps {}".format(*SETTINGS[place]))
@pytest.mark.parametrize("target", [0.02, 0.1, 1.0, 2.0, 8.0, 30.0, 100.0, 200.0])
def test_calibrations_meet_the_target_from_below_on_a_finer_grid_too(target, place):
    """At every target from 0.02 to 200: at most the target, and at least 0.995 of it on a grid that was not used."""
    (q, steps), delta = SETTINGS[place], 1e-5 if place % 2 else 1e-9

    def make(sigma: float) -> Event:
        return Repeated(PoissonSubsampled(q, Gaussian(sigma)), steps)

    sigma = accountant.calibrate(make, target, delta)
    assert 0.997 * target <= accountant.epsilon(make(sigma), delta) <= target
    finer = accountant.settled_interval(make(sigma), delta, 8e-4) * 0.37
    assert 0.995 * target <= accountant.privacy_loss(make(sigma), finer).epsilon(delta) <= 1.0003 * target
    if steps == 1 and target <= 30:  # beyond, the closed form loses its digits
        assert 0.995 * target <= subsampled_gaussian(sigma, q, delta) <= target


@pytest.mark.parametrize("target", [0.02, 1.0, 20.0, 200.0])
def test_the_noise_of_one_gaussian_is_its_closed_form(target):
    exact = optimize.brentq(lambda s: analytic_gaussian(s, 1e-5) - target, 0.01, 1000.0, xtol=1e-9)
    assert exact <= accountant.calibrate(Gaussian, target, 1e-5) <= exact * 1.003


@pytest.mark.parametrize(
    ("make", "target", "delta", "words"),
    [
        (whole_bill, 0.05, 1e-5, r"cannot be reached: .* \(the score\) cost 0\.3"),
        (lambda s: Composed((Gaussian(s), DiscreteLaplace(1.0))), 0.9, 1e-5, "cannot be reached"),
        (Gaussian, 1e9, 1e-5, "no noise would be needed"),
        (training, 1.0, 1e-16, "delta = 1e-16 is too small"),
        (lambda s: SelectBest(Repeated(PoissonSubsampled(0.01, Gaussian(s)), 2000), LAW), 2.0, 1e-16, "delta = 1e-16 is too small"),
        (training, -1.0, 1e-5, "epsilon = -1 must be above 0"),
        (training, math.inf, 1e-5, "finite"),
        (training, 1.0, 0.0, "delta = 0 must be above 0"),
        (training, 1.0, 1.0, "delta = 1 must be above 0 and below 1"),
    ],
)
def test_targets_that_no_noise_meets_are_refused(make, target, delta, words):
    with pytest.raises(FieldError, match=words):
        accountant.calibrate(make, target, delta)


def test_an_epsilon_below_all_losses_is_found():
    """A loss law may have all its mass above the answer: the best of many runs does."""
    pmf = LossPmf(interval=0.5, lowest=2, mass=np.array([0.6, 0.4]), infinity=0.0)
    for delta in (0.05, 0.2, 0.36, 0.4, 0.5):
        assert pmf.delta(pmf.epsilon(delta)) == pytest.approx(delta, abs=1e-12)
    assert pmf.epsilon(0.9) == 0.0


# --- the cache


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def files(home: Path) -> list[Path]:
    return sorted((home / "cache" / "prices").glob("*"))


def test_an_answer_is_kept_and_read_back(home, monkeypatch):
    first = accountant.epsilon(Gaussian(1.7), 1e-6)
    assert len(files(home)) == 1
    monkeypatch.setattr(accountant, "privacy_loss", lambda *_: pytest.fail("computed again"))
    assert accountant.epsilon(Gaussian(1.7), 1e-6) == first
    assert accountant.epsilon(Gaussian(0.0), 1e-6) == math.inf
    assert accountant.epsilon(Gaussian(0.0), 1e-6) == math.inf  # JSON has no infinity: null comes back as one


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"null",
        b"\xff\xfe\x00",
        b'{"question": "another", "answer": 0.1}',
        b'{"answer": 0.1}',
        b'{"question": 1}',
    ],
)
def test_a_file_that_does_not_hold_its_question_is_computed_again(home, content):
    right = accountant.epsilon(Gaussian(1.7), 1e-6)
    (path,) = files(home)
    path.write_bytes(content)
    assert accountant.epsilon(Gaussian(1.7), 1e-6) == right
    assert json.loads(path.read_text())["answer"] == right
    assert files(home) == [path]


def test_a_home_that_cannot_be_written_still_answers(tmp_path, monkeypatch):
    right = accountant.epsilon(Gaussian(1.7), 1e-6)
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("SWEEPER_HOME", str(blocked))
    assert accountant.epsilon(Gaussian(1.7), 1e-6) == right
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(stat.S_IRUSR | stat.S_IXUSR)
    monkeypatch.setenv("SWEEPER_HOME", str(closed))
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(PermissionError("read-only")))  # root may write anywhere
    assert accountant.epsilon(Gaussian(1.7), 1e-6) == right


def test_the_key_holds_everything_that_changes_the_answer(home):
    def ask(q: float = 0.02, sigma: float = 1.0, steps: int = 50, delta: float = 1e-6, **law: float) -> float:
        counts = TruncatedNegativeBinomial(**{"eta": 1.0, "mean": 10.0, "max_trials": None, **law})  # type: ignore[arg-type]
        return accountant.epsilon(SelectBest(Repeated(PoissonSubsampled(q, Gaussian(sigma)), steps), counts), delta)

    changes: list[dict[str, float]] = [{}, {"q": 0.03}, {"sigma": 1.1}, {"steps": 60}, {"delta": 1e-7}]
    changes += [{"eta": 2.0}, {"mean": 11.0}, {"max_trials": 20}]
    answers = [ask(**change) for change in changes]
    assert len(set(answers)) == len(changes) == len(files(home))
    assert [ask(**change) for change in changes] == answers
    accountant.renyi(Gaussian(1.0), 4.0)
    accountant.renyi(Gaussian(1.0), 5.0)
    accountant.renyi_epsilon(Gaussian(1.0), 1e-6)
    accountant.epsilon(Gaussian(1.0), 1e-6)
    assert len(files(home)) == len(changes) + 4


def test_calibrations_are_kept_by_target_and_event(home):
    makes: list[Callable[[float], Event]] = [Gaussian, lambda s: Repeated(Gaussian(s), 2)]
    answers = [accountant.calibrate(make, target, 1e-6) for make in makes for target in (1.0, 2.0)]
    assert len(set(answers)) == 4
    assert [accountant.calibrate(make, target, 1e-6) for make in makes for target in (1.0, 2.0)] == answers


def test_makes_that_agree_at_one_multiplier_have_an_answer_each(home):
    """Two Gaussians of the noise, or one of them of noise 1 always: the same event at 1, and at 6 nats 10% apart."""
    moving, steady = lambda s: Composed((Gaussian(s), Gaussian(s))), lambda s: Composed((Gaussian(s), Gaussian(1.0)))
    assert moving(1.0) == steady(1.0)
    answers = [accountant.calibrate(make, 6.0, 1e-5) for make in (moving, steady) * 2]
    assert answers[:2] == answers[2:]
    for make, sigma in zip((moving, steady), answers[:2], strict=True):
        assert 0.997 * 6.0 <= accountant.epsilon(make(sigma), 1e-5) <= 6.0
    assert accountant.epsilon(steady(answers[0]), 1e-5) > 6.2


def test_makes_that_agree_wherever_the_key_looks_have_an_answer_each(home, monkeypatch):
    """The answer on disk names the event that was priced: another event there is calibrated by itself. The right one is not."""
    floor = max(accountant.PROBES) + 0.1

    def floored(s: float) -> Event:
        return Gaussian(min(s, floor))

    free = accountant.calibrate(Gaussian, 0.5, 1e-5)
    assert free > floor
    assert floored(accountant.PROBES[0]) == Gaussian(accountant.PROBES[0])
    with pytest.raises(FieldError, match="cannot be reached"):
        accountant.calibrate(floored, 0.5, 1e-5)
    assert len(files(home)) == 1
    monkeypatch.setattr(accountant, "_calibrate", lambda *_: pytest.fail("computed again"))
    assert accountant.calibrate(Gaussian, 0.5, 1e-5) == free


def test_a_new_version_asks_again(home, monkeypatch):
    accountant.epsilon(Gaussian(1.7), 1e-6)
    monkeypatch.setattr(cache, "VERSION", cache.VERSION + 1)
    accountant.epsilon(Gaussian(1.7), 1e-6)
    assert len(files(home)) == 2
