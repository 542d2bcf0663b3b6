"""Rewriting events: every rule by name, the same price before and after, and no mixing of what must stay apart."""

from __future__ import annotations

import numpy as np
import pytest

from sweeper.privacy import event_loss
from sweeper.privacy.events import (
    NOTHING,
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
    PoissonSubsampled,
    PrivateQuantile,
    RandomPart,
    Repeated,
    ReplaceOne,
    SelectBest,
    event_from_dict,
    in_turn,
)
from sweeper.privacy.laws import TruncatedNegativeBinomial
from sweeper.privacy.simplify import simplified

LAW = TruncatedNegativeBinomial(eta=1.0, mean=5.0)
G, E, STEP = Gaussian(2.0), ExponentialMechanism(0.5), PoissonSubsampled(0.1, Gaussian(1.0))
Q, CHOICE = PrivateQuantile(0.3), ExponentialMechanism(0.3)
RUN = Composed((Q, STEP))
BATCH, PARTS = FixedSizeSampled(100, 10, Gaussian(1.0)), Disjoint((Gaussian(2.0), DiscreteLaplace(0.5)))


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (AdaptiveQuantileStep(2.0, 10.0), G),
        (Repeated(Gaussian(2.0), 4), Gaussian(1.0)),
        (Composed((Gaussian(3.0), Gaussian(4.0))), Gaussian(2.4)),  # 1/9 + 1/16 = 25/144
        (Composed((E, Repeated(E, 2), Gaussian(3.0), Composed((Gaussian(4.0), E)))), Composed((Gaussian(2.4), Repeated(E, 4)))),
        (Repeated(Repeated(STEP, 3), 5), Repeated(STEP, 15)),
        (Composed((Repeated(STEP, 3), STEP, Repeated(STEP, 0))), Repeated(STEP, 4)),
        (PoissonSubsampled(1.0, E), E),
        (PoissonSubsampled(0.5, PoissonSubsampled(0.2, E)), PoissonSubsampled(0.1, E)),
        (PoissonSubsampled(0.1, Composed((Gaussian(3.0), E, Gaussian(4.0)))), PoissonSubsampled(0.1, Composed((Gaussian(2.4), E)))),
        (PoissonSubsampled(0.1, Repeated(AdaptiveQuantileStep(2.0, 9.0), 4)), PoissonSubsampled(0.1, Gaussian(1.0))),
        (FixedSizeSampled(100, 10, AdaptiveQuantileStep(1.0, 9.0)), BATCH),
        (FixedSizeSampled(100, 100, Gaussian(4.0)), ReplaceOne(Gaussian(2.0))),
        (Repeated(FixedSizeSampled(7, 7, Gaussian(4.0)), 4), ReplaceOne(Gaussian(1.0))),
        (Composed((ReplaceOne(Gaussian(3.0)), BATCH, ReplaceOne(Gaussian(4.0)))), Composed((BATCH, ReplaceOne(Gaussian(2.4))))),
        (RandomPart(1.0, Repeated(G, 1), E), G),
        (RandomPart(0.0, E, Repeated(G, 1)), G),
        (RandomPart(0.3, Repeated(G, 4), Composed((E,))), RandomPart(0.3, Gaussian(1.0), E)),
        (SelectBest(Composed((G, G, NOTHING)), LAW), SelectBest(Gaussian(2**0.5), LAW)),
        (Disjoint((Repeated(G, 4), NOTHING)), Disjoint((Gaussian(1.0), NOTHING))),
        # a quantile is one where it is asked first, in the whole or in a run of its own; else a choice like others
        (Composed((NOTHING, Q, G, Q)), Composed((Q, G, CHOICE))),
        (Composed((G, Q, CHOICE)), Composed((G, Repeated(CHOICE, 2)))),
        (Composed((STEP, Composed((E, Q)))), Composed((STEP, E, CHOICE))),
        (Repeated(Q, 3), Composed((Q, Repeated(CHOICE, 2)))),
        (Composed((RUN, G, RUN)), Composed((Q, G, STEP, RUN))),
        (Composed((E, RUN, G, Repeated(RUN, 2))), Composed((G, E, Repeated(RUN, 3)))),
        (Composed((PARTS, RUN, E)), Composed((E, PARTS, RUN))),
        (Composed((RUN, E)), Composed((Q, STEP, E))),
        (Repeated(Composed((RUN, E)), 2), Repeated(Composed((Q, STEP, E)), 2)),
    ],
)
def test_each_rule(event, expected):
    found = simplified(event)
    assert type(found) is type(expected)
    assert found.relation == event.relation
    _assert_close(found.to_dict(), expected.to_dict())
    _assert_close(simplified(found).to_dict(), found.to_dict())


def _assert_close(found: object, expected: object) -> None:
    """Equal, multipliers up to rounding."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            _assert_close(found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            _assert_close(a, b)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-12)
    else:
        assert found == expected


@pytest.mark.parametrize(
    "event",
    [
        Repeated(G, 0),
        PoissonSubsampled(0.0, G),
        PoissonSubsampled(0.3, Repeated(E, 0)),
        RandomPart(0.3, NOTHING, Repeated(G, 0)),
        SelectBest(NOTHING, LAW),
        ReplaceOne(Repeated(G, 0)),
        Composed((NOTHING, Composed((Repeated(STEP, 0),)))),
    ],
)
def test_what_releases_nothing_is_nothing(event):
    assert simplified(event) == NOTHING
    assert event_loss.privacy_loss(event, 1e-2).delta(0.0) == 0.0


def test_equal_events_with_parts_stay_a_list():
    """Two copies may split the table in two ways: a record may be in the dear part of both, or of one only."""
    assert simplified(Composed((PARTS, G, PARTS))) == Composed((G, PARTS, PARTS))
    assert simplified(Composed((SelectBest(PARTS, LAW), SelectBest(PARTS, LAW)))).inside == (SelectBest(PARTS, LAW),) * 2
    assert simplified(Repeated(PARTS, 2)) == Repeated(PARTS, 2)
    listed, repeated = (event_loss.privacy_loss(event, 1e-2) for event in (Composed((PARTS, PARTS)), Repeated(PARTS, 2)))
    assert len(repeated.parts) == 2
    assert len(listed.parts) >= 3


def test_an_unprotected_event_is_not_merged_away():
    bare, faint = Gaussian(0.0), Repeated(Gaussian(0.02), 1_000)  # the second costs a million nats, once merged
    for event in (Composed((bare, G)), Repeated(bare, 4), Composed((ReplaceOne(bare), ReplaceOne(G))), Composed((E, faint))):
        assert event.unprotected == (bare in event.inside or ReplaceOne(bare) in event.inside)
        assert event_loss.privacy_loss(simplified(event), 1e-2).epsilon(1e-6) == np.inf


LOOSE = [
    Composed((Repeated(G, 3), E, Gaussian(5.0), Repeated(E, 2))),
    PoissonSubsampled(0.5, PoissonSubsampled(0.4, Composed((Gaussian(1.5), Laplace(3.0))))),
    Composed((ReplaceOne(Gaussian(2.0)), ReplaceOne(Composed((Gaussian(3.0), ApproximateDp(0.3)))))),
    Composed((PARTS, Repeated(PARTS, 2), PrivateQuantile(0.2), E)),
]


@pytest.mark.parametrize("event", LOOSE)
def test_the_price_is_that_of_the_event_as_it_was_said(event):
    """Priced part by part without any rewriting, by the same laws."""

    def plainly(one: Event) -> object:
        if isinstance(one, (Composed, Repeated)):
            parts = one.events if isinstance(one, Composed) else (one.event,) * one.count
            return event_loss.composed([plainly(part) for part in parts], 2e-3)
        if isinstance(one, ReplaceOne):
            return plainly(one.event)
        return event_loss._loss(one, 2e-3)

    rewritten = event_loss.privacy_loss(event, 2e-3)
    for delta in (1e-2, 1e-6):
        assert rewritten.epsilon(delta) == pytest.approx(plainly(event).epsilon(delta), rel=2e-3)


def test_events_in_turn_write_runs_once():
    """A schedule of three levels over 2,000 steps is three entries; equal events apart from each other stay apart."""
    levels = [PoissonSubsampled(0.01, Gaussian(sigma)) for sigma in (2.0, 1.0, 2.0)]
    event = in_turn(levels[step // 700] for step in range(2_000))
    assert event == Composed((Repeated(levels[0], 700), Repeated(levels[1], 700), Repeated(levels[2], 600)))
    assert len(event.canonical()) < 500
    assert event_from_dict(event.to_dict()) == event
    assert simplified(event) == Composed((Repeated(levels[0], 1_300), Repeated(levels[1], 700)))
    assert in_turn([STEP, STEP]) == Repeated(STEP, 2)
    assert in_turn([STEP]) == STEP
    assert in_turn([]) == NOTHING
