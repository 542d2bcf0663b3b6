"""Every release protocol: what it draws is what it prices, and what it cannot promise it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sweeper.catalog import KINDS, resolve
from sweeper.checks import FieldError
from sweeper.privacy.events import Gaussian, Repeated, SelectBest
from sweeper.privacy.laws import TruncatedNegativeBinomial
from sweeper.privacy.release import NoTuningProtocol, PublicProxyProtocol, ReleaseAllProtocol, SelectBestProtocol

TRIAL = Gaussian(2.0)
ROWS: dict[str, tuple[Any, Any, set[int] | None]] = {  # protocol, the event of it all, the counts it can draw (None: many)
    "select-best": (
        SelectBestProtocol(mean_trials=3.0, max_trials=9),
        SelectBest(TRIAL, TruncatedNegativeBinomial(eta=1.0, mean=3.0, max_trials=9)),
        None,
    ),
    "release-all": (ReleaseAllProtocol(trials=5), Repeated(TRIAL, 5), {5}),
    "public-proxy": (PublicProxyProtocol(proxy="adult", trials=5), TRIAL, {5}),
    "no-tuning": (NoTuningProtocol(), TRIAL, {1}),
}
each = pytest.mark.parametrize("kind", ROWS)


def uniforms(seed: int = 0) -> Iterator[float]:
    rng = np.random.default_rng(seed)
    while True:
        yield float(rng.random())


def test_every_kind_has_a_row():
    assert set(ROWS) == set(KINDS["protocol"])
    assert all(isinstance(row[0], resolve("protocol", kind)) for kind, row in ROWS.items())


@each
def test_the_event_is_that_of_the_runs(kind):
    protocol, event, counts = ROWS[kind]
    assert protocol.total(TRIAL) == event
    stream = uniforms()
    drawn = [protocol.draw_count(stream) for _ in range(2_000)]
    assert 1 <= min(drawn) <= max(drawn) <= protocol.max_trials
    assert set(drawn) == (counts or set(range(1, 10)))
    assert protocol.runs_one == (counts == {1})


@each
def test_it_says_in_one_sentence_what_becomes_visible(kind):
    protocol = ROWS[kind][0]
    assert 10 < len(protocol.visible) < 100
    assert "\n" not in protocol.visible
    assert protocol.releases_all == (kind != "select-best")  # only there is anything of the private runs sealed


def test_defaults_of_select_best():
    assert SelectBestProtocol(mean_trials=12).max_trials == 60
    assert SelectBestProtocol(law="logarithmic", mean_trials=12).eta == 0.0
    assert SelectBestProtocol(mean_trials=12) == SelectBestProtocol(law="tnb", eta=1.0, mean_trials=12.0, max_trials=60)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: SelectBestProtocol(mean_trials=1.0), "mean_trials = 1 must be above 1"),
        (lambda: SelectBestProtocol(mean_trials=1e5), "at most 10000"),
        (lambda: SelectBestProtocol(max_trials=0), "max_trials = 0"),
        (lambda: SelectBestProtocol(law="binomial"), "law = 'binomial'"),
        (lambda: SelectBestProtocol(law="logarithmic", eta=1.0), "contradicts"),
        (lambda: SelectBestProtocol(eta=1000.0, mean_trials=5000.0), "too concentrated"),
        (lambda: SelectBestProtocol(release_every=0.0), "release_every"),
        (lambda: ReleaseAllProtocol(trials=0), "trials = 0"),
        (lambda: ReleaseAllProtocol(trials=True), "whole number"),
        (lambda: PublicProxyProtocol(proxy=3), "must name a data source"),
        (lambda: PublicProxyProtocol(proxy="adult", trials=0), "trials = 0"),
    ],
)
def test_what_no_protocol_can_do_is_refused(build, words):
    with pytest.raises(FieldError) as caught:
        build()
    assert words in str(caught.value)
