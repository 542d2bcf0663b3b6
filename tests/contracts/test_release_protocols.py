"""Every release protocol: what it draws is what it prices, and what it cannot promise it refuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from oracles import FALSE_ALARM, REJECTED, frequency_p_value
from scipy import optimize, stats

from sweeper.catalog import KINDS, resolve
from sweeper.checks import FieldError
from sweeper.privacy import accountant
from sweeper.privacy.events import (
    Composed,
    DiscreteLaplace,
    Disjoint,
    Gaussian,
    PoissonSubsampled,
    RandomPart,
    Repeated,
    SelectBest,
)
from sweeper.privacy.laws import BinomialAtLeastOne, FixedCount, PoissonCount, TruncatedNegativeBinomial
from sweeper.privacy.release import (
    DrawnRuns,
    NoTuningProtocol,
    Part,
    PublicProxyProtocol,
    ReleaseAllProtocol,
    SelectBestProtocol,
    SubsampleTuneProtocol,
)

TRIAL, SCORE = Gaussian(2.0), DiscreteLaplace(0.5)
TNB = TruncatedNegativeBinomial(eta=1.0, mean=3.0, max_trials=9)


def drawn(**fields: Any) -> SelectBestProtocol:
    return SelectBestProtocol(**fields)


ROWS: dict[str, tuple[Any, Any, set[int]]] = {  # protocol, the event of it all, the counts it can draw
    "select-best": (drawn(mean_trials=3.0, max_trials=9), SelectBest(TRIAL, TNB), set(range(1, 10))),
    "select-best logarithmic": (
        drawn(law="logarithmic", mean_trials=3.0, max_trials=9),
        SelectBest(TRIAL, TruncatedNegativeBinomial(eta=0.0, mean=3.0, max_trials=9)),
        set(range(1, 10)),
    ),
    "select-best binomial": (
        drawn(law="binomial", trials=6, probability=0.5),
        SelectBest(TRIAL, BinomialAtLeastOne(trials=6, probability=0.5)),
        set(range(1, 7)),
    ),
    "select-best fixed": (drawn(law="fixed", trials=7), SelectBest(TRIAL, FixedCount(trials=7)), {7}),
    "select-best poisson": (
        drawn(law="poisson", mean_trials=2.0, max_trials=8, may_return_nothing=True),
        SelectBest(TRIAL, PoissonCount(mean=2.0, max_trials=8)),
        set(range(9)),
    ),
    "subsample-tune": (
        SubsampleTuneProtocol(tune_fraction=0.2, mean_trials=3.0, max_trials=9),
        RandomPart(0.2, SelectBest(TRIAL, TNB), TRIAL),
        set(range(1, 10)),
    ),
    "subsample-tune all": (
        SubsampleTuneProtocol(tune_fraction=0.2, final="all", mean_trials=3.0, max_trials=9),
        Composed((PoissonSubsampled(0.2, SelectBest(TRIAL, TNB)), TRIAL)),
        set(range(1, 10)),
    ),
    "release-all": (ReleaseAllProtocol(trials=5), Repeated(TRIAL, 5), {5}),
    "public-proxy": (PublicProxyProtocol(proxy="adult", trials=5), TRIAL, {5}),
    "no-tuning": (NoTuningProtocol(), TRIAL, {1}),
}
each = pytest.mark.parametrize("name", ROWS)


def uniforms(seed: int = 0) -> Iterator[float]:
    rng = np.random.default_rng(seed)
    while True:
        yield float(rng.random())


def test_every_kind_has_a_row():
    assert {name.split()[0] for name in ROWS} == set(KINDS["protocol"])
    assert all(isinstance(row[0], resolve("protocol", name.split()[0])) for name, row in ROWS.items())


@each
def test_the_event_is_that_of_the_runs(name):
    protocol, event, counts = ROWS[name]
    assert protocol.total(TRIAL) == event
    stream = uniforms()
    seen = [protocol.draw_count(stream) for _ in range(4_000)]
    assert set(seen) == counts
    assert max(seen) == max(counts) == protocol.max_trials
    assert protocol.runs_one == (counts == {1})
    assert protocol.drawn == isinstance(protocol, DrawnRuns) == (event != protocol.unsealed(TRIAL, protocol.max_trials))


def masses(name: str) -> np.ndarray:
    """P[K = 0], P[K = 1], ... written down anew."""
    k = np.arange(10)
    if name == "select-best fixed":
        return np.where(k == 7, 1.0, 0.0)
    if name == "select-best poisson":
        law = np.where(k <= 8, stats.poisson.pmf(k, 2.0), 0.0)
    elif name == "select-best binomial":
        law = np.where(k >= 1, stats.binom.pmf(k, 6, 0.5), 0.0)
    elif name == "select-best logarithmic":
        p = optimize.brentq(lambda p: stats.logser.mean(p) - 3.0, 0.1, 0.999)
        law = np.where(k >= 1, stats.logser.pmf(np.maximum(k, 1), p), 0.0)
    else:
        law = np.where(k >= 1, (2 / 3) ** k, 0.0)  # geometric with mean 3
    return law / law.sum()


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row[0].drawn and len(row[2]) > 1])
def test_what_is_drawn_follows_the_law_that_is_priced(name):
    protocol, stream = ROWS[name][0], uniforms(1)
    counts = np.bincount([protocol.draw_count(stream) for _ in range(50_000)], minlength=10)
    possible = masses(name) > 0
    assert counts[~possible].sum() == 0
    assert frequency_p_value(counts[possible], masses(name)[possible]) > FALSE_ALARM
    for wrong in (2 / 3, 3 / 2):  # the chance of two runs, all others in proportion
        other = masses(name)
        other[2] *= wrong
        assert frequency_p_value(counts[possible], (other / other.sum())[possible]) < REJECTED
    law = protocol.run_counts()
    assert law.mean_trials() == pytest.approx(np.arange(10) @ masses(name), rel=2e-3)
    assert law.chance(0.1) == pytest.approx(1 - 0.9 ** np.arange(10) @ masses(name), rel=2e-3)


@each
def test_it_says_in_one_sentence_what_becomes_visible(name):
    protocol = ROWS[name][0]
    assert 10 < len(protocol.visible) < 100
    assert "\n" not in protocol.visible
    assert protocol.releases_all != protocol.drawn  # only where K is drawn is anything of the private runs sealed


@each
def test_the_bill_of_releasing_every_run_grows_with_the_runs(name):
    protocol = ROWS[name][0]
    if protocol.kind in ("select-best", "release-all"):
        assert protocol.unsealed(TRIAL, 4) == Repeated(TRIAL, 4)
    bills = [accountant.epsilon(protocol.unsealed(TRIAL, runs), 1e-5) for runs in (1, 3)]
    assert bills[0] <= bills[1]
    assert (bills[0] < bills[1]) == (protocol.kind not in ("public-proxy", "no-tuning"))


def test_subsample_tune_prices_a_training_and_a_hold_out_record_apart():
    tuned, scored = SelectBest(TRIAL, TNB), SelectBest(SCORE, TNB)
    both, released = Composed((scored, SCORE)), Composed((Repeated(SCORE, 4), SCORE))
    trial = Disjoint((TRIAL, SCORE))
    disjoint, final_all = ROWS["subsample-tune"][0], ROWS["subsample-tune all"][0]
    assert disjoint.total(trial) == Disjoint((RandomPart(0.2, tuned, TRIAL), both))
    assert final_all.total(trial) == Disjoint((Composed((PoissonSubsampled(0.2, tuned), TRIAL)), both))
    assert disjoint.unsealed(trial, 4) == Disjoint((RandomPart(0.2, Repeated(TRIAL, 4), TRIAL), released))
    together = Composed((TRIAL, SCORE))  # scored on training rows: the score is part of what a training record pays for
    assert disjoint.total(together) == RandomPart(0.2, SelectBest(together, TNB), together)


def test_tuning_on_a_part_costs_more_than_no_tuning_and_less_than_tuning_on_all():
    bills = [
        accountant.epsilon(SubsampleTuneProtocol(tune_fraction=q, law="geometric", mean_trials=10).total(TRIAL), 1e-5)
        for q in (1e-9, 0.1, 0.5, 1 - 1e-9)
    ]
    one, selected = (accountant.epsilon(event, 1e-5) for event in (TRIAL, drawn(law="geometric", mean_trials=10).total(TRIAL)))
    assert bills == sorted(bills)
    assert bills[0] == pytest.approx(one, rel=2e-3)
    assert bills[-1] == pytest.approx(selected, rel=2e-3)
    assert bills[1] > 1.05 * one


def test_which_rows_a_run_may_use():
    disjoint, final_all = ROWS["subsample-tune"][0], ROWS["subsample-tune all"][0]
    assert disjoint.part(final=False) == final_all.part(final=False) == Part(fraction=0.2, rest=False)
    assert disjoint.part(final=True) == Part(fraction=0.2, rest=True)
    assert (Part(fraction=0.2, rest=False).share, Part(fraction=0.2, rest=True).share) == (0.2, 0.8)
    assert final_all.part(final=True) is None
    assert all(row[0].part(final=f) is None for row in ROWS.values() if row[0].kind != "subsample-tune" for f in (True, False))


def test_defaults_of_select_best():
    assert drawn(mean_trials=12).max_trials == 60
    assert drawn(law="logarithmic", mean_trials=12).eta == 0.0
    assert drawn() == drawn(law="tnb", eta=1.0, mean_trials=12.0, max_trials=60, may_return_nothing=False)
    assert (drawn(law="fixed", trials=7).max_trials, drawn(law="fixed", trials=7).mean_trials) == (7, None)
    assert drawn(law="binomial", trials=20, mean_trials=10).max_trials == 20
    assert drawn(law="poisson", mean_trials=2, may_return_nothing=True).max_trials == 10
    assert SubsampleTuneProtocol().tune_fraction == 0.1
    of = SubsampleTuneProtocol.of(drawn(law="fixed", trials=7))
    assert (of.run_counts(), of.final) == (FixedCount(trials=7), "disjoint")


def test_auto_waits_for_planning_and_becomes_a_law():
    auto = drawn(law="auto", chance=0.6, release_every=5.0)
    assert auto.top == 0.1
    assert auto.max_trials is None
    with pytest.raises(ValueError, match="decided by planning"):
        auto.total(TRIAL)
    chosen = auto.with_law({"law": "fixed", "trials": 7})
    assert chosen == drawn(law="fixed", trials=7, release_every=5.0)


def test_a_protocol_made_again_from_its_fields_is_the_same():
    for name, (protocol, _, _) in ROWS.items():
        fields = {f.name: getattr(protocol, f.name) for f in dataclasses.fields(protocol)}
        assert type(protocol)(**fields) == protocol, name


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: drawn(mean_trials=1.0), "mean_trials = 1 must be above 1"),
        (lambda: drawn(mean_trials=1e5), "at most 10000"),
        (lambda: drawn(max_trials=0), "max_trials = 0"),
        (
            lambda: drawn(law="binomal"),
            "law = 'binomal' must be one of tnb, logarithmic, geometric, binomial, fixed, poisson, auto",
        ),
        (lambda: drawn(law="binomal"), "did you mean binomial?"),
        (lambda: drawn(law="logarithmic", eta=1.0), "contradicts"),
        (lambda: drawn(eta=1000.0, mean_trials=5000.0), "too concentrated"),
        (lambda: drawn(trials=10), "trials = 10 is not a parameter of law tnb, which takes eta, mean_trials, max_trials"),
        (lambda: drawn(law="binomial"), "trials is missing: law binomial needs the largest number of runs"),
        (lambda: drawn(law="binomial", trials=20), "probability is missing"),
        (lambda: drawn(law="binomial", trials=20, probability=0.5, mean_trials=10), "each follows from the other"),
        (lambda: drawn(law="fixed"), "trials is missing: law fixed makes exactly this many runs"),
        (lambda: drawn(law="fixed", trials=10, eta=1), "eta = 1 is not a parameter of law fixed"),
        (lambda: drawn(law="poisson"), "law = 'poisson' is refused: it may draw no run at all, and then there is no answer"),
        (lambda: drawn(law="poisson"), "Use law: tnb, or accept that with may_return_nothing: true."),
        (lambda: drawn(law="poisson", may_return_nothing=False), "law = 'poisson' is refused"),
        (lambda: drawn(may_return_nothing=True), "may_return_nothing = True belongs to law poisson: law tnb always makes a run"),
        (lambda: drawn(law="poisson", mean_trials=0, may_return_nothing=True), "mean_trials = 0 must be above 0"),
        (lambda: drawn(law="auto"), "chance is missing, and so is max_epsilon: law auto needs one. Try chance: 0.6"),
        (lambda: drawn(law="auto", chance=0.5, max_epsilon=3), "chance = 0.5 and max_epsilon are both given"),
        (lambda: drawn(law="auto", chance=1.0), "chance = 1 must be above 0 and below 1"),
        (lambda: drawn(law="auto", chance=0.5, top=0.0), "top = 0 must be above 0"),
        (lambda: drawn(law="auto", chance=0.5, mean_trials=3), "mean_trials = 3 is chosen by law auto"),
        (lambda: drawn(law="auto", max_epsilon=-1), "max_epsilon = -1 must be above 0"),
        (lambda: drawn(chance=0.5), "chance = 0.5 belongs to law auto, not tnb"),
        (lambda: drawn(max_epsilon=3), "max_epsilon = 3 belongs to law auto, not tnb"),
        (lambda: drawn(release_every=0.0), "release_every"),
        (lambda: SubsampleTuneProtocol(law="auto", chance=0.6), "law = 'auto' weighs select-best alone"),
        (lambda: SubsampleTuneProtocol(tune_fraction=0.0), "tune_fraction = 0 must be above 0 and below 1"),
        (lambda: SubsampleTuneProtocol(tune_fraction=1.0), "tune_fraction = 1 must be"),
        (lambda: SubsampleTuneProtocol(final="rest"), "final = 'rest' must be one of disjoint, all"),
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
