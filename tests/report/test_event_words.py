"""Every event kind says in words what it released, and its numbers."""

from __future__ import annotations

import pytest

from sweeper.privacy import events as e
from sweeper.privacy.laws import run_count_law
from sweeper.report.event_words import in_words, protocol_of

LAW = run_count_law("tnb", eta=2.0, mean=12.0, max_trials=64)
SAID = [
    (e.Gaussian(1.25), ["Gaussian", "1.25"]),
    (e.Laplace(2.0), ["Laplace", "2"]),
    (e.DiscreteLaplace(0.1), ["discrete Laplace", "0.1"]),
    (e.ApproximateDp(0.5, 1e-6), ["0.5", "1e-06"]),
    (e.RenyiBound(8.0, 0.35), ["Renyi", "0.35", "order 8"]),
    (e.ZeroConcentrated(0.05), ["zCDP", "0.05"]),
    (e.ExponentialMechanism(0.3), ["exponential mechanism", "0.3"]),
    (e.PrivateQuantile(0.3), ["quantile", "0.3"]),
    (e.NoisyMin(0.4), ["smallest", "0.4"]),
    (e.AboveThresholdLaplace(4.0, 9.0), ["threshold", "4", "9"]),
    (e.AboveThresholdGaussian(4.0, 9.0, 20), ["20 searches", "Gaussian", "4", "9"]),
    (e.AdaptiveQuantileStep(1.0, 20.0), ["clip norm adapted", "1"]),
    (e.PoissonSubsampled(0.01, e.Gaussian(1.25)), ["1.25", "Poisson", "0.01"]),
    (e.FixedSizeSampled(1000, 10, e.Gaussian(1.25)), ["1.25", "10 of 1,000", "without replacement"]),
    (e.Repeated(e.Gaussian(1.25), 2000), ["2,000 x", "1.25"]),
    (e.Composed((e.Gaussian(1.25), e.DiscreteLaplace(0.1))), ["1.25", " and ", "0.1"]),
    (e.Disjoint((e.Gaussian(1.25), e.DiscreteLaplace(0.1))), ["training rows", "held-out rows"]),
    (e.SelectBest(e.Gaussian(1.25), LAW), ["secret number", "mean 12", "at most 64"]),
    (e.RandomPart(0.1, e.Gaussian(1.0), e.Gaussian(2.0)), ["10%", "other rows"]),
    (e.ReplaceOne(e.DiscreteLaplace(0.1)), ["0.1", "replaced"]),
    (e.NOTHING, ["nothing"]),
]


def test_every_kind_has_words():
    assert {event.kind for event, _ in SAID} == set(e.EVENTS) - {""}


@pytest.mark.parametrize(("event", "words"), SAID, ids=lambda value: getattr(value, "kind", ""))
def test_words_hold_the_numbers(event, words):
    said = in_words(event.to_dict())
    for word in words:
        assert word in said
    assert event.kind in ("gaussian", "laplace") or said != event.kind


def test_the_protocol_shows_in_the_event():
    trial = e.Disjoint((e.Gaussian(1.0), e.DiscreteLaplace(0.1)))
    assert protocol_of(e.SelectBest(trial, LAW).to_dict()) == "select-best"
    assert (
        protocol_of(e.Disjoint((e.RandomPart(0.1, e.SelectBest(e.Gaussian(1.0), LAW), e.Gaussian(1.0)),)).to_dict())
        == "subsample-tune"
    )
    assert "every run" in protocol_of(e.Repeated(trial, 3).to_dict())


def test_a_kind_of_a_later_version_is_named_and_not_guessed():
    assert in_words({"kind": "quantum-noise", "x": 1}) == "quantum-noise"
