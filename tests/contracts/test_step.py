"""What every step policy must keep. A new policy is one row of POLICIES."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from oracles import FALSE_ALARM, REJECTED, frequency_p_value
from small import blobs, spoilt, table, without
from toy_line import STREAMS, given, look_at, quadratic

from sweeper.backends.closed_form import LinearProblem
from sweeper.checks import FieldError
from sweeper.clip.fixed import FixedClip
from sweeper.launch.part import PartProblem
from sweeper.models.linear import Logistic, Softmax, Svm
from sweeper.privacy import accountant
from sweeper.privacy.events import REPLACE_ONE, Composed, Event, Gaussian, PoissonSubsampled, Repeated
from sweeper.seeds import Streams
from sweeper.spec.protocols import Facts
from sweeper.step.backtracking import Backtracking
from sweeper.step.coupled import CoupledStep
from sweeper.step.exponential_search import ExponentialSearch
from sweeper.step.fixed import FixedStep
from sweeper.step.noisy_min import NoisyMinSearch
from sweeper.step.none import NoStep
from sweeper.step.search import MOST_EPSILON, LineSearch
from sweeper.step.theory import TheoryStep
from sweeper.trainers.dp_sgd import DpSgd
from sweeper.trainers.minibatch import minibatch_event

SCHEDULES = ("constant", "cosine", "linear")
SCHEDULED = [
    *(FixedStep(learning_rate=0.5, schedule=s, warmup=w) for s, w in itertools.product(SCHEDULES, (0.0, 0.1, 0.99))),
    *(CoupledStep(c=2.0, schedule=s, warmup=w) for s, w in itertools.product(SCHEDULES, (0.0, 0.1, 0.99))),
]
THEORIES = [
    TheoryStep(distance=2.0),
    TheoryStep(theorem="6.2", distance=0.1),
    TheoryStep(theorem="6.5", distance=1.0),
    TheoryStep(theorem="N.1", distance=3.0, smoothness=0.25),
]
SEARCHES = [
    ExponentialSearch(),
    ExponentialSearch(bound=0.3, share=0.5, candidates=5),
    NoisyMinSearch(),
    NoisyMinSearch(noise="laplace", bound=5.0),
    Backtracking(),
    Backtracking(alpha=1e-3, bound=3.0, never_zero=True, share=0.1),
    Backtracking(noise="gaussian", candidates=6),
    Backtracking(noise="gaussian", candidates=6, never_zero=True, epsilon=0.7),
]
POLICIES = [*SCHEDULED, *THEORIES, *SEARCHES]
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=repr)
every_schedule = pytest.mark.parametrize("policy", SCHEDULED, ids=repr)
every_search = pytest.mark.parametrize("policy", SEARCHES, ids=repr)
CLIP = FixedClip(clip_norm=0.25)
FACTS = Facts(rows=1000, batch_size=100, steps=300, parameters=400, noise_multiplier=1.0)


@every_schedule
@pytest.mark.parametrize("steps", [1, 2, 3, 10, 1000])
def test_every_step_has_a_positive_size_and_the_peak_is_reached(policy, steps):
    sizes = [policy.learning_rate_at(CLIP, t, steps) for t in range(steps)]
    assert all(math.isfinite(s) and s > 0 for s in sizes)
    peak = dataclasses.replace(policy, schedule="constant", warmup=0.0).learning_rate_at(CLIP, 0, steps)
    assert max(sizes) == pytest.approx(peak, rel=1e-12)


@every_policy
def test_a_policy_is_a_frozen_noun_with_a_searched_field(policy):
    assert policy.searched in {f.name for f in dataclasses.fields(policy)}
    for wrong in (0.0, -1.0, math.nan, math.inf, "1", True):
        with pytest.raises(FieldError, match=policy.searched):
            dataclasses.replace(policy, **{policy.searched: wrong})
    assert policy == dataclasses.replace(policy)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(policy, policy.searched, 1.0)


@every_schedule
def test_a_schedule_is_one_of_those_there_are(policy):
    with pytest.raises(FieldError, match="did you mean cosine"):
        dataclasses.replace(policy, schedule="cosin")
    for wrong in (-0.1, 1.0, "0.1"):
        with pytest.raises(FieldError, match="warmup"):
            dataclasses.replace(policy, warmup=wrong)


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0.0, [1, 1, 1, 1, 1, 1, 1, 1]),
        ("constant", 0.5, [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]),
        ("linear", 0.0, [1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
        ("linear", 0.5, [0.25, 0.5, 0.75, 1, 1, 0.75, 0.5, 0.25]),
        ("cosine", 0.0, [1, 0.96194, 0.85355, 0.69134, 0.5, 0.30866, 0.14645, 0.03806]),
        ("cosine", 0.25, [0.5, 1, 1, 0.93301, 0.75, 0.5, 0.25, 0.06699]),
    ],
)
def test_schedules_by_hand(schedule, warmup, expected):
    policy = FixedStep(learning_rate=3.0, schedule=schedule, warmup=warmup)
    assert [policy.learning_rate_at(CLIP, t, 8) / 3 for t in range(8)] == pytest.approx(expected, abs=5e-6)


@pytest.mark.parametrize("clip_norm", [0.01, 0.25, 30.0])
def test_coupled_keeps_the_product_with_the_sensitivity(clip_norm):
    clip = FixedClip(clip_norm=clip_norm)
    assert CoupledStep(c=2.0).learning_rate_at(clip, 5, 10) * clip.sensitivity == pytest.approx(2.0, rel=1e-15)
    assert FixedStep(learning_rate=0.5).learning_rate_at(clip, 5, 10) == 0.5


# ---- what it asks of data ----


@every_policy
@pytest.mark.parametrize("noise_multiplier", [0.01, 0.1, 1.0, 10.0, 1e7])
def test_it_declares_an_event_if_and_only_if_it_searches(policy, noise_multiplier):
    """At every multiplier that a calibration tries: no event raises, and what is left for the gradient is a multiplier too."""
    event, left = policy.event(noise_multiplier), policy.gradient_noise(noise_multiplier)
    assert (event is not None) == policy.searches == isinstance(policy, LineSearch)
    whole = minibatch_event(CLIP, policy, noise_multiplier)
    if event is None:
        assert left == noise_multiplier
        assert whole == Gaussian(noise_multiplier)
    else:
        assert isinstance(event, Event)
        assert left >= noise_multiplier
        assert whole == Composed((Gaussian(left), event))
        assert PoissonSubsampled(0.01, whole).relation == "zero-out"


@every_search
def test_a_search_can_be_calibrated(policy):
    """The noise that a whole bill wants, found over all multipliers; a search of a fixed epsilon must leave some of the bill."""
    rows, trainer = 10_000, DpSgd(batch_size=100, steps=50)
    asked = dataclasses.replace(policy, epsilon=None)
    noise = accountant.calibrate(lambda z: trainer.event(rows, z, CLIP, asked), 1.0, 1e-6)
    assert 0.1 < noise < 10
    assert 0.95 < accountant.epsilon(trainer.event(rows, noise, CLIP, asked), 1e-6) <= 1.0


@every_search
@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 20.0])
def test_a_share_divides_the_steps_zcdp(policy, noise_multiplier):
    """rho: 1/(2 z^2) of a Gaussian; epsilon^2/8 of a bounded range; epsilon^2/2 of pure DP and of the two Gaussians together."""
    left, searched = policy.gradient_noise(noise_multiplier), policy.event(noise_multiplier)
    rho = {
        "exponential-mechanism": lambda: searched.epsilon**2 / 8,
        "noisy-min": lambda: searched.epsilon**2 / (8 if searched.noise == "gumbel" else 2),
        "above-threshold-laplace": lambda: searched.epsilon**2 / 2,
        "above-threshold-gaussian": lambda: 1 / (2 * searched.threshold_noise**2) + 2 / searched.query_noise**2,
    }[searched.kind]()
    whole = 1 / (2 * noise_multiplier**2)
    if policy.epsilon is None:
        assert rho == pytest.approx(policy.share * whole, rel=1e-9)
        assert 1 / (2 * left**2) + rho == pytest.approx(whole, rel=1e-9)
    else:
        assert left == noise_multiplier
        assert rho == pytest.approx(policy.epsilon**2 / 2, rel=1e-9)


@every_search
def test_costs_say_what_makes_a_search_dearer(policy):
    assert set(policy.costs) <= {f.name for f in dataclasses.fields(policy)}
    assert policy.costs["share"] == 0
    dearer = dataclasses.replace(policy, epsilon=0.8), dataclasses.replace(policy, epsilon=0.4)
    assert accountant.epsilon(dearer[0].event(1.0), 1e-6) > accountant.epsilon(dearer[1].event(1.0), 1e-6)
    for field in ("initial", "ratio", "bound", "alpha", "never_zero"):
        if field in {f.name for f in dataclasses.fields(policy)}:
            changed = dataclasses.replace(policy, **{field: not policy.never_zero if field == "never_zero" else 0.123})
            assert changed.event(1.0) == policy.event(1.0)
            assert field not in policy.costs
    fewer = dataclasses.replace(policy, candidates=3)
    assert (fewer.event(1.0) != policy.event(1.0)) == (getattr(policy, "noise", "") == "gaussian")
    assert policy.costs.get("candidates") == (1 if policy.kind == "backtracking" else None)
    if policy.kind == "backtracking":
        assert accountant.epsilon(fewer.event(1.0), 1e-6) <= accountant.epsilon(policy.event(1.0), 1e-6)


@every_search
def test_a_search_prices_above_its_gradient_and_above_itself(policy):
    rows, trainer = 10_000, DpSgd(batch_size=100, steps=50)
    each = policy.event(1.0), Gaussian(policy.gradient_noise(1.0))
    alone = [accountant.epsilon(Repeated(PoissonSubsampled(0.01, event), 50), 1e-6) for event in each]
    assert accountant.epsilon(trainer.event(rows, 1.0, CLIP, policy), 1e-6) > max(alone)


@every_search
def test_a_batch_of_fixed_size_is_refused(policy):
    trainer = DpSgd(batch_size=8, steps=5, sampling="without-replacement")
    assert trainer.relation == REPLACE_ONE
    assert any(policy.kind in fault.rule for fault in trainer.faults(CLIP, policy))
    assert not list(DpSgd(batch_size=8, steps=5).faults(CLIP, policy))


# ---- sizes ----


def broken_looks(problem) -> list:
    """Looks at a problem where everything is as it should be, is huge, is not finite, is uphill, or is not there."""
    length = sum(problem.layers)
    ones, rows = torch.ones(length), np.arange(problem.rows)
    pairs = [(0.0, 0.1), (1e30, 1.0), (0.0, 1e35), (math.inf, 1.0), (0.0, math.nan), (math.nan, -math.inf), (0.5, 0.0), (0.1, -1.0)]
    return [
        look_at(problem.batch(rows[:count]), problem, params_P=ones * at, direction_P=ones * along, trial=trial)
        for trial, ((at, along), count) in enumerate(itertools.product(pairs, (0, 1, len(rows))))
    ]


@every_policy
def test_a_size_is_finite_and_at_least_0_whatever_it_sees(policy):
    full, description = blobs(20, 4, 2)
    changed = spoilt(without(table(full.features * 1e3, full.labels), 3), 4, math.nan)
    problem = LinearProblem(model=Logistic(l2=0.1), description=description, table=changed, rows=np.arange(20))
    ready = policy.prepare(FACTS, CLIP)
    for look in broken_looks(problem):
        size = ready.size(look)
        assert isinstance(size, float)
        assert math.isfinite(size)
        assert size >= 0
        if isinstance(policy, LineSearch):
            last = policy.initial * policy.ratio**policy.candidates
            assert size in {*policy.sizes, *([0.0] if policy.may_fail else []), *([last] if policy.kind == "backtracking" else [])}
        else:
            assert size > 0


@every_policy
def test_the_same_streams_give_the_same_sizes_and_others_give_others(policy):
    ready, line = policy.prepare(FACTS, CLIP), given(np.zeros((3, 21)), policy.sizes if policy.searches else ())

    def sizes(trial: int) -> list[float]:
        look = look_at(line, trial=trial, gradient_P=torch.zeros(1))
        return [ready.size(look) for _ in range(40)]

    assert sizes(0) == sizes(0)
    assert (sizes(0) != sizes(1)) == policy.searches


@every_policy
@pytest.mark.parametrize("model", [Logistic(l2=0.01), Svm(), Softmax()], ids=lambda m: m.kind)
def test_it_runs(policy, model):
    """A run again is the same bits; on a part of the rows it takes the sizes that the table without the others gives."""
    full, description = blobs(60, 5, 2)
    trainer, streams = DpSgd(batch_size=20, steps=6), Streams(STREAMS.secret, 3)

    def problem(one) -> LinearProblem:
        return LinearProblem(model=model, description=description, table=one, rows=np.arange(60))

    fitted = trainer.fit(problem(full), CLIP, policy, 1.0, streams)
    assert fitted.params_P.isfinite().all()
    assert torch.equal(fitted.params_P, trainer.fit(problem(full), CLIP, policy, 1.0, streams).params_P)
    inside = np.random.default_rng(0).random(60) < 0.5
    part, hidden = PartProblem(problem(full), inside), problem(without(full, *np.flatnonzero(~inside)))
    runs = [trainer.fit(p, CLIP, policy, 1.0, streams, share=0.5) for p in (part, hidden)]
    assert runs[0].trace["step_size"] == pytest.approx(runs[1].trace["step_size"], rel=1e-12)
    if isinstance(policy, LineSearch):
        assert len(set(fitted.trace["step_size"])) > 1


# ---- searches: what is compared, and how surely ----


@every_search
def test_without_noise_the_right_candidate_wins(policy):
    """Records around 3.5: the smallest sum is at the candidate nearest to it; backtracking takes the first that passes."""
    records, changed = 10_000, dataclasses.replace(policy, initial=16.0, ratio=0.5, bound=200.0, candidates=8, epsilon=None)
    line = quadratic(np.linspace(3.0, 4.0, records))
    look = look_at(line, gradient_P=torch.tensor([3.5]), divisor=float(records))  # minus the slope at 0 is 3.5 a record
    passes = next(s for s in (16.0, 8.0, 4.0, 2.0) if 3.5 * s - s * s / 2 >= getattr(policy, "alpha", 0.0) * s * 3.5)
    assert passes == (2.0 if getattr(policy, "alpha", 0.0) == 0.5 else 4.0)
    for _ in range(20):
        assert changed.search(look, MOST_EPSILON, 200.0) == passes


@every_search
def test_where_nothing_helps_a_search_that_may_fail_stays(policy):
    """Every step away is worse. One that may not fail takes the smallest step it has, or the next."""
    changed = dataclasses.replace(policy, initial=16.0, ratio=0.5, bound=200.0, candidates=8, epsilon=None)
    look = look_at(quadratic(np.full(10_000, -1.0)), divisor=10_000.0)
    expected = {"exponential-search": 0.125, "noisy-min": 0.0, "backtracking": 0.0 if changed.may_fail else 0.0625}
    assert {changed.search(look, MOST_EPSILON, 200.0) for _ in range(20)} == {expected[policy.kind]}
    assert changed.may_fail == (expected[policy.kind] == 0.0)


@every_search
def test_one_record_moves_every_score_by_at_most_the_bound(policy):
    """Every record of small tables made a null record: outliers, broken ones, parameters near and far, every model. And one record
    does move one by nearly all of it, or the noise would be wasted."""
    most = 0.0
    for (model, classes), spread in itertools.product([(Logistic(l2=0.1), 2), (Svm(), 2), (Softmax(), 3)], [1.0, 1e4]):
        full, description = blobs(9, 4, classes)
        base = without(table(full.features * np.float32(spread), full.labels), 5)
        tables = [spoilt(t, 4, math.nan) for t in (base, *(without(base, row) for row in range(9)))]
        problems = [LinearProblem(model=model, description=description, table=t, rows=np.arange(9)) for t in tables]
        length = sum(problems[0].layers)
        line_P = torch.from_numpy(np.random.default_rng(1).standard_normal(length).astype(np.float32))
        for at, along in itertools.product((0.0, 1.0, 1e37), (1e-3, 1.0, 1e36)):
            scores = [
                policy.scores(
                    look_at(p.batch(np.arange(9)), p, params_P=at * line_P.flip(0), direction_P=along * line_P), policy.bound
                )
                for p in problems
            ]
            moved = np.array([scores[0] - other for other in scores[1:]])
            rounding = 1e-15 * np.abs(scores[0]).max() + 1e-12
            assert (np.abs(moved) <= policy.bound + rounding).all()
            assert not moved[[4, 5]].any()  # who is not there
            if policy.kind == "noisy-min":
                assert (moved >= -rounding).all()  # a record only raises sums: half the noise counts on it
            most = max(most, np.abs(moved).max())
    assert most > 0.99 * policy.bound


@every_search
def test_the_penalty_is_in_the_scores_and_moves_nobodys_part(policy):
    """divisor times its rise, once, against the losses; where it is not finite, as bad as can be, and scores stay numbers."""
    losses_BJ = np.abs(np.random.default_rng(0).standard_normal((6, 1 + policy.candidates)))

    def scores(penalty, records_BJ=losses_BJ) -> np.ndarray:
        line = given(records_BJ, policy.sizes)
        line.of_size = penalty
        return policy.scores(look_at(line, divisor=8.0), policy.bound)

    plain, with_penalty = scores(lambda size: 0.0), scores(lambda size: 5.0 + 0.25 * size)
    sign, zero = (-1.0 if policy.kind == "backtracking" else 1.0), [0.0] * (policy.kind == "noisy-min")
    assert with_penalty - plain == pytest.approx(sign * 8 * 0.25 * np.array([*zero, *policy.sizes]), rel=1e-5)
    for broken in (math.inf, math.nan, 1e300):
        bad = scores(lambda size, broken=broken: broken if size > 0.999 * policy.initial else 0.0)
        at = len(zero)
        assert np.isfinite(bad).all()
        assert sign * bad[at] > 1e8 * policy.bound
        assert np.delete(bad, at) == pytest.approx(np.delete(plain, at), rel=1e-12)
    for penalty in (lambda size: 0.0, lambda size: 1e30 * (1 + size)):  # however large, a record's part keeps its digits
        one, other = scores(penalty), scores(penalty, losses_BJ[1:])
        assert one - other == pytest.approx(plain - scores(lambda size: 0.0, losses_BJ[1:]), abs=1e-6 * policy.bound)


@every_search
def test_with_next_to_no_budget_a_search_says_nothing(policy):
    """Two tables whose losses tell every candidate apart: sizes come as often from the one as from the other."""
    changed = dataclasses.replace(policy, candidates=4)
    tables = [np.outer(np.ones(5), column) for column in ([0, -1, 1, 0, 2], [0, 1, 3, 2, -1])]

    def counts(losses_BJ: np.ndarray, epsilon: float, trial: int) -> np.ndarray:
        look = look_at(given(losses_BJ, changed.sizes), trial=trial, gradient_P=torch.zeros(1))
        drawn = [changed.search(look, epsilon, changed.bound) for _ in range(1500)]
        return np.array([drawn.count(s) for s in (*changed.sizes, 0.0, changed.initial * changed.ratio**4)])

    def differ(epsilon: float) -> float:
        pair = np.array([counts(losses_BJ, epsilon, trial) for trial, losses_BJ in enumerate(tables)])
        seen = pair[:, pair.sum(axis=0) > 0]
        return frequency_p_value(seen.ravel(), np.tile(seen.sum(axis=0) / seen.sum() / 2, 2)) if seen.shape[1] > 1 else 1.0

    assert differ(1e-6) > FALSE_ALARM
    assert differ(3.0) < REJECTED


def test_no_policy_has_no_size_and_asks_nothing():
    policy = NoStep()
    assert policy == NoStep()
    assert policy.absent
    assert not FixedStep(learning_rate=1.0).absent
    assert policy.event(1.0) is None
    assert policy.prepare(FACTS, CLIP) == policy
    with pytest.raises(RuntimeError, match="has no size"):
        policy.size(look_at(quadratic(np.array([1.0]))))
