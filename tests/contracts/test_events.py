"""Every event kind: one row here, and the rules that all of them keep."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, fields

import numpy as np
import pytest

from sweeper.checks import FieldError
from sweeper.privacy import accountant
from sweeper.privacy.events import (
    EVENTS,
    NOTHING,
    REPLACE_ONE,
    ZERO_OUT,
    AboveThresholdGaussian,
    AboveThresholdLaplace,
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
    RenyiBound,
    Repeated,
    ReplaceOne,
    SelectBest,
    ZeroConcentrated,
    event_from_dict,
)
from sweeper.privacy.laws import TruncatedNegativeBinomial

DELTA = 1e-6
LAW = TruncatedNegativeBinomial(eta=2.0, mean=12.0, max_trials=64)


@dataclass(frozen=True, kw_only=True)
class Row:
    """An event, dearer ones of its kind (each in one parameter), and broken ones with the word that the error must hold."""

    event: Event
    dearer: tuple[Event, ...]
    broken: tuple[tuple[Callable[[], Event], str], ...]
    same_parts: bool = True  # a record's part is the same in every copy; only Repeated can know that
    relation: str = ZERO_OUT


def broken_epsilons(kind: type[Event]) -> tuple[tuple[Callable[[], Event], str], ...]:
    return (
        (lambda: kind(0.0), "epsilon"),
        (lambda: kind(601.0), "most"),
        (lambda: kind(True), "number"),
        (lambda: kind(math.nan), "finite"),
    )


ROWS = [
    Row(
        event=Gaussian(2.0),
        dearer=(Gaussian(1.5),),
        broken=(
            (lambda: Gaussian(-1.0), "noise_multiplier"),
            (lambda: Gaussian(math.nan), "finite"),
            (lambda: Gaussian(1e30), "most"),
        ),
    ),
    Row(
        event=AdaptiveQuantileStep(2.0, 10.0),
        dearer=(AdaptiveQuantileStep(1.5, 10.0),),
        broken=(
            (lambda: AdaptiveQuantileStep(0.0, 1.0), "noise_multiplier"),
            (lambda: AdaptiveQuantileStep(2.0, 1.0), "must be above noise_multiplier/2"),
            (lambda: AdaptiveQuantileStep(2.0, math.inf), "finite"),
        ),
    ),
    Row(
        event=Laplace(4.0),
        dearer=(Laplace(3.0),),
        broken=((lambda: Laplace(0.0), "noise_multiplier"), (lambda: Laplace(1e-3), "at least 0.00166667")),
    ),
    Row(
        event=DiscreteLaplace(0.1),
        dearer=(DiscreteLaplace(0.2),),
        broken=(
            (lambda: DiscreteLaplace(0.0), "epsilon"),
            (lambda: DiscreteLaplace(1e6), "most"),
            (lambda: DiscreteLaplace(True), "number"),
        ),
    ),
    Row(
        event=ApproximateDp(0.3, 1e-8),
        dearer=(ApproximateDp(0.4, 1e-8),),
        broken=(
            *broken_epsilons(ApproximateDp),
            (lambda: ApproximateDp(0.3, 1.0), "delta"),
            (lambda: ApproximateDp(0.3, -0.1), "delta"),
        ),
    ),
    Row(
        event=RenyiBound(32.0, 0.3),
        dearer=(RenyiBound(32.0, 0.4), RenyiBound(48.0, 0.5)),
        broken=(
            (lambda: RenyiBound(1.0, 0.3), "order"),
            (lambda: RenyiBound(math.inf, 0.3), "finite"),
            (lambda: RenyiBound(8.0, -0.1), "rho"),
            (lambda: RenyiBound(8.0, math.nan), "finite"),
            (lambda: RenyiBound(8.0, True), "number"),
        ),
    ),
    Row(
        event=ZeroConcentrated(0.05),
        dearer=(ZeroConcentrated(0.06),),
        broken=(
            (lambda: ZeroConcentrated(-0.1), "rho"),
            (lambda: ZeroConcentrated(math.inf), "finite"),
            (lambda: ZeroConcentrated(math.nan), "finite"),
        ),
    ),
    Row(event=ExponentialMechanism(0.3), dearer=(ExponentialMechanism(0.4),), broken=broken_epsilons(ExponentialMechanism)),
    Row(event=PrivateQuantile(0.3), dearer=(PrivateQuantile(0.4),), broken=broken_epsilons(PrivateQuantile)),
    Row(
        event=NoisyMin(0.3),
        dearer=(NoisyMin(0.4), NoisyMin(0.4, "laplace")),
        broken=(*broken_epsilons(NoisyMin), (lambda: NoisyMin(0.3, "laplas"), "did you mean laplace?")),
    ),
    Row(
        event=AboveThresholdLaplace(8.0, 16.0),
        dearer=(AboveThresholdLaplace(6.0, 16.0), AboveThresholdLaplace(8.0, 12.0)),
        broken=(
            (lambda: AboveThresholdLaplace(0.0, 1.0), "threshold_noise"),
            (lambda: AboveThresholdLaplace(1.0, -1.0), "query_noise"),
            (lambda: AboveThresholdLaplace(1e-3, 1.0), "epsilon"),
        ),
    ),
    Row(
        event=AboveThresholdGaussian(8.0, 8.0, 5),
        dearer=(AboveThresholdGaussian(6.0, 8.0, 5), AboveThresholdGaussian(8.0, 6.0, 5), AboveThresholdGaussian(8.0, 8.0, 8)),
        broken=(
            (lambda: AboveThresholdGaussian(0.0, 8.0, 5), "threshold_noise"),
            (lambda: AboveThresholdGaussian(8.0, 0.1, 5), "query_noise"),
            (lambda: AboveThresholdGaussian(8.0, 8.0, 5.5), "whole"),
            (lambda: AboveThresholdGaussian(8.0, 8.0, 1001), "most"),
        ),
    ),
    Row(
        event=PoissonSubsampled(0.1, Gaussian(1.0)),
        dearer=(PoissonSubsampled(0.2, Gaussian(1.0)), PoissonSubsampled(0.1, Gaussian(0.8))),
        broken=(
            (lambda: PoissonSubsampled(1.1, Gaussian(1.0)), "sampling_probability"),
            (lambda: PoissonSubsampled(0.1, 3), "must hold events"),
            (lambda: PoissonSubsampled(0.1, ReplaceOne(Gaussian(1.0))), "is stated for replace-one"),
        ),
    ),
    Row(
        event=FixedSizeSampled(1_000, 100, Gaussian(2.0)),
        dearer=(
            FixedSizeSampled(1_000, 120, Gaussian(2.0)),
            FixedSizeSampled(800, 100, Gaussian(2.0)),
            FixedSizeSampled(1_000, 100, Gaussian(1.7)),
            FixedSizeSampled(1_000, 100, AdaptiveQuantileStep(1.7, 10.0)),
        ),
        broken=(
            (lambda: FixedSizeSampled(10, 11, Gaussian(1.0)), "sample_size"),
            (lambda: FixedSizeSampled(10.5, 5, Gaussian(1.0)), "rows"),
            (lambda: FixedSizeSampled(10, 5, ExponentialMechanism(1.0)), "must be gaussian"),
            (lambda: FixedSizeSampled(10, 5, "gaussian"), "must be gaussian"),
        ),
        relation=REPLACE_ONE,
    ),
    Row(
        event=RandomPart(0.3, Gaussian(1.0), Gaussian(1.1)),
        dearer=(
            RandomPart(0.5, Gaussian(1.0), Gaussian(1.1)),
            RandomPart(0.3, Gaussian(0.9), Gaussian(1.1)),
            RandomPart(0.3, Gaussian(1.0), Gaussian(0.98)),
        ),
        broken=(
            (lambda: RandomPart(-0.1, Gaussian(1.0), Gaussian(2.0)), "fraction"),
            (lambda: RandomPart(0.1, Gaussian(1.0), None), "must hold events"),
            (lambda: RandomPart(0.1, ReplaceOne(Gaussian(1.0)), ReplaceOne(Gaussian(2.0))), "must be stated for zero-out"),
        ),
    ),
    Row(
        event=Repeated(PoissonSubsampled(0.1, Gaussian(2.0)), 20),
        dearer=(Repeated(PoissonSubsampled(0.1, Gaussian(2.0)), 40), Repeated(PoissonSubsampled(0.12, Gaussian(2.0)), 20)),
        broken=(
            (lambda: Repeated(Gaussian(1.0), -1), "count"),
            (lambda: Repeated(Gaussian(1.0), 1.5), "whole"),
            (lambda: Repeated(Gaussian(1.0), 10**400), "most"),
            (lambda: Repeated("gaussian", 2), "must hold events"),
        ),
    ),
    Row(
        event=Composed((Gaussian(3.0), DiscreteLaplace(0.3))),
        dearer=(Composed((Gaussian(3.0), DiscreteLaplace(0.3), Gaussian(5.0))), Composed((Gaussian(3.0), DiscreteLaplace(0.4)))),
        broken=((lambda: Composed(5), "must hold events"), (lambda: Composed((1, 2)), "must hold events")),
    ),
    Row(
        event=Disjoint((Gaussian(2.0), DiscreteLaplace(1.0))),
        dearer=(Disjoint((Gaussian(1.5), DiscreteLaplace(1.0))),),
        broken=((lambda: Disjoint(()), "at least one"), (lambda: Disjoint(("a",)), "must hold events")),
        same_parts=False,
    ),
    Row(
        event=SelectBest(Gaussian(3.0), LAW),
        dearer=(
            SelectBest(Gaussian(3.0), TruncatedNegativeBinomial(eta=2.0, mean=24.0, max_trials=64)),
            SelectBest(Gaussian(2.5), LAW),
        ),
        broken=((lambda: SelectBest(Gaussian(3.0), "tnb"), "must be a law"), (lambda: SelectBest(1, LAW), "must hold events")),
    ),
    Row(
        event=ReplaceOne(Composed((Gaussian(3.0), ExponentialMechanism(0.2)))),
        dearer=(
            ReplaceOne(Composed((Gaussian(2.5), ExponentialMechanism(0.2)))),
            ReplaceOne(Composed((Gaussian(3.0), ExponentialMechanism(0.3)))),
        ),
        broken=(
            (lambda: ReplaceOne(3), "must hold events"),
            (lambda: ReplaceOne(NoisyMin(1.0)), "its price rests on zero-out"),
            (lambda: ReplaceOne(FixedSizeSampled(10, 2, Gaussian(1.0))), "by itself"),
        ),
        relation=REPLACE_ONE,
    ),
]
each = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.event.kind)


def test_every_kind_has_a_row():
    assert {row.event.kind for row in ROWS} == set(EVENTS) - {""}


@each
def test_it_speaks_of_one_relation(row):
    other = ReplaceOne(Gaussian(1.0)) if row.relation == ZERO_OUT else Gaussian(1.0)
    for event in (row.event, *row.dearer, Repeated(row.event, 2), Composed((NOTHING, row.event)), Disjoint((row.event, NOTHING))):
        assert event.relation == row.relation
    assert Repeated(row.event, 0).relation is None
    for build in (lambda: Composed((row.event, other)), lambda: Disjoint((other, row.event))):
        with pytest.raises(FieldError, match=r"replace-one and zero-out.* are two neighbour relations"):
            build()


@each
def test_json_round_trip(row):
    written = json.dumps(row.event.to_dict())
    read = event_from_dict(json.loads(written))
    assert read == row.event
    assert read.canonical() == row.event.canonical()
    assert type(read) is EVENTS[json.loads(written)["kind"]]
    assert hash(read) == hash(row.event)


@each
def test_the_canonical_form_knows_content_and_nothing_else(row):
    scrambled = json.loads(row.event.canonical(), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    assert event_from_dict(scrambled).canonical() == row.event.canonical()
    assert len({event.canonical() for event in (row.event, *row.dearer)}) == 1 + len(row.dearer)
    assert "sweeper" not in row.event.canonical()  # no module path: files move, ledgers stay
    assert "\n" not in row.event.canonical()


def test_one_number_has_one_notation():
    assert Gaussian(1).canonical() == Gaussian(1.0).canonical() == Gaussian(np.float64(1.0)).canonical()
    assert Composed([Gaussian(1.0)]) == Composed((Gaussian(1.0),))
    assert PoissonSubsampled(-0.0, Gaussian(1.0)).canonical() == PoissonSubsampled(0.0, Gaussian(1.0)).canonical()
    assert SelectBest(Gaussian(1.0), TruncatedNegativeBinomial(eta=1, mean=10)).canonical() == (
        SelectBest(Gaussian(1.0), TruncatedNegativeBinomial(eta=1.0, mean=10.0)).canonical()
    )


@each
def test_events_are_frozen_and_checked(row):
    with pytest.raises(FrozenInstanceError):
        setattr(row.event, fields(row.event)[0].name, None)
    for build, word in row.broken:
        with pytest.raises(FieldError) as caught:
            build()
        assert word in str(caught.value)


@each
def test_broken_records_are_refused_in_words(row):
    good = row.event.to_dict()
    for broken, word in (
        ({**good, "kind": good["kind"] + "x"}, f"did you mean {good['kind']}?"),
        ({**good, "sigma": 1.0}, "is not a field of event"),
        ({key: value for key, value in good.items() if key in ("kind", *list(good)[2:])}, "is missing in event"),
    ):
        with pytest.raises(FieldError) as caught:
            event_from_dict(broken)
        assert word in str(caught.value)


@pytest.mark.parametrize("broken", [{}, [], None, {"kind": ["gaussian"]}, {"kind": "composed", "events": 3}, "gaussian"])
def test_what_is_no_event_is_refused(broken):
    with pytest.raises(FieldError):
        event_from_dict(broken)


def test_a_law_that_lost_a_field_is_refused():
    data = SelectBest(Gaussian(1.0), LAW).to_dict()
    del data["law"]["eta"]
    with pytest.raises(FieldError, match="eta is missing"):
        event_from_dict(data)


@each
def test_n_copies_cost_n_times_in_either_notation(row):
    """dp_accounting ignores the count of some events; here no event can, for Repeated composes whatever it holds."""
    three = accountant.epsilon(Repeated(row.event, 3), DELTA)
    listed = accountant.epsilon(Composed((row.event,) * 3), DELTA)
    nested = accountant.epsilon(Repeated(Repeated(row.event, 3), 1), DELTA)
    once = accountant.epsilon(row.event, DELTA)
    assert nested == pytest.approx(three, rel=1e-3)
    if row.same_parts:
        assert listed == pytest.approx(three, rel=1e-3)
    else:
        assert listed >= three * (1 - 1e-3)  # a list cannot say that the parts are the same
    assert 1.15 * once < three <= 3 * once * (1 + 1e-3)
    assert accountant.epsilon(Composed((row.event,)), DELTA) == pytest.approx(once, rel=1e-3)


@each
def test_none_is_free_and_more_costs_more(row):
    assert accountant.epsilon(Repeated(row.event, 0), DELTA) == 0.0
    assert accountant.epsilon(Repeated(Repeated(row.event, 5), 0), DELTA) == 0.0
    costs = [accountant.epsilon(Repeated(row.event, count), DELTA) for count in (1, 2, 4)]
    assert costs == sorted(costs)
    assert costs[0] > 0
    for dearer in row.dearer:
        assert type(dearer) is type(row.event)
        assert accountant.epsilon(dearer, DELTA) > costs[0] * 1.001
    with_nothing = accountant.epsilon(Composed((NOTHING, row.event, Repeated(row.event, 0))), DELTA)
    assert with_nothing == pytest.approx(costs[0], rel=1e-3)


@each
def test_the_price_has_settled(row):
    """What the accountant says lies within 0.5% of what a fine grid says, at a large and a small delta."""
    for delta in (1e-3, DELTA):
        fine = accountant.privacy_loss(row.event, 1e-3).epsilon(delta)
        assert accountant.epsilon(row.event, delta) <= fine * 1.005 + 1e-5


@each
def test_a_smaller_delta_costs_more_and_reading_changes_nothing(row):
    deltas = [1e-9, 1e-7, 1e-5, 1e-3, 0.1, 0.9]
    first = [accountant.epsilon(row.event, delta) for delta in deltas]
    assert first == sorted(first, reverse=True)
    assert first[0] > first[3]
    before = row.event.canonical()
    assert [accountant.epsilon(row.event, delta) for delta in deltas] == first
    assert row.event.canonical() == before


@each
def test_no_noise_within_costs_infinity(row):
    none = Gaussian(0.0)
    bare = none if row.relation == ZERO_OUT else ReplaceOne(none)
    for event in (Composed((row.event, bare)), Disjoint((bare, row.event)), Repeated(bare, 1), SelectBest(bare, LAW)):
        assert accountant.epsilon(event, DELTA) == math.inf
        assert accountant.renyi(event, 4.0)[0] == math.inf
        assert accountant.renyi_epsilon(event, DELTA) is None
    for event in (Composed((row.event, Repeated(bare, 0))), Composed((row.event, PoissonSubsampled(0.0, none)))):
        assert accountant.epsilon(event, DELTA) == pytest.approx(accountant.epsilon(row.event, DELTA), rel=1e-3)


@each
def test_the_renyi_cost_adds_up_and_covers_the_loss_law(row):
    """Additive at one order, and converted (Mironov 2017, Proposition 3) never below the loss accountant's epsilon."""
    for order in (2.5, 8.0, 30.0):
        rho, lost = accountant.renyi(row.event, order)
        thrice, lost_thrice = accountant.renyi(Repeated(row.event, 3), order)
        assert thrice == pytest.approx(3 * rho, rel=1e-9)
        assert lost_thrice == pytest.approx(3 * lost, rel=1e-9)
        listed, _ = accountant.renyi(Composed((row.event, row.event, row.event)), order)
        assert listed == pytest.approx(thrice, rel=1e-9)
        assert rho + math.log(1 / DELTA) / (order - 1) >= accountant.epsilon(row.event, DELTA + lost)
        assert all(accountant.renyi(dearer, order)[0] >= rho > 0 for dearer in row.dearer)
    cheaper = accountant.renyi(row.event, 2.5)[0]
    assert all(accountant.renyi(dearer, 2.5)[0] > cheaper for dearer in row.dearer) or not row.same_parts
    assert accountant.renyi(Repeated(row.event, 0), 8.0) == (0.0, 0.0)
    with pytest.raises(FieldError, match="order"):
        accountant.renyi(row.event, 1.0)
