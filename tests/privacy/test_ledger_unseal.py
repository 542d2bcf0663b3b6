"""Unsealing in the ledger: what it is charged as, when it is refused, and that a second call is free. Oracle: exact Gaussians."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from ledgers import DELTA, STATED, Gaussians, Silent, follow, reserve

from sweeper.checks import FieldError, RequestError
from sweeper.privacy.events import NOTHING, Gaussian, Repeated
from sweeper.privacy.guarantee import Guarantee
from sweeper.privacy.ledger import Ledger, OverBudget

ALL = Guarantee(epsilon=3.0, delta=1e-5)
FIRST = 0.025 * DELTA / 2  # what the first sweep of a data set keeps for its unsealing
SECOND = 0.025 * DELTA / 6


def trials(count: int, noise: float = 6.0) -> Repeated:
    return Repeated(Gaussian(noise), count)


def exact(count: int, delta: float, noise: float = 6.0) -> float:
    return Gaussians().epsilon(Gaussian(noise / math.sqrt(count)), delta)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "ledger.db", accountant=Gaussians())
    made.set_budget("adult", 8.0, DELTA, "ann")
    return made


def ended(ledger: Ledger, noise: float = 4.0, **more) -> str:
    made = reserve(ledger, noise, **more)
    ledger.start(made, f"run of {made}")
    ledger.commit(made)
    return made


def test_alone_it_costs_all_its_trials_at_the_delta_that_was_kept(ledger):
    made = ended(ledger)
    assert ledger.spent("adult").epsilon == pytest.approx(Gaussians().epsilon(Gaussian(4.0), DELTA), rel=1e-9)
    foreseen = ledger.after_unseal(made, trials(10), ALL)
    ledger.unseal(made, trials(10), ALL, "ben")
    assert ledger.spent("adult").epsilon == pytest.approx(exact(10, FIRST), rel=1e-9)
    assert ledger.spent("adult") == foreseen
    assert ledger.spent("adult").epsilon_if_fixed_beforehand == pytest.approx(exact(10, DELTA), rel=1e-9)
    held = ledger.find(made)
    assert (held.state, held.event, held.guarantee) == ("committed", trials(10).to_dict(), ALL.to_dict())
    assert held.sealed_price.epsilon < held.price.epsilon
    row = ledger.entries()[-1]
    assert (row.kind, row.body["delta"], row.body["who"], row.body["id"]) == ("unseal", pytest.approx(FIRST), "ben", held.unsealed)


def test_beside_others_epsilons_add_and_the_winners_delta_stays(ledger):
    ended(ledger, 5.0)
    made = ended(ledger, 6.0)
    ledger.unseal(made, trials(4), ALL, "ann")
    assert ledger.find(made).price.stated_delta == STATED.delta
    assert ledger.spent("adult").epsilon == pytest.approx(STATED.epsilon + max(exact(4, SECOND), STATED.epsilon), rel=1e-9)
    reserve(ledger, 5.0)
    assert ledger.spent("adult").epsilon == pytest.approx(2 * STATED.epsilon + max(exact(4, SECOND), 2.0), rel=1e-9)


def test_the_renyi_filter_counts_no_unsealed_sweep(ledger):
    """Two that only it can count together, and then one of them with all its trials, which cost as little as its winner."""
    wide = Guarantee(epsilon=2.0, delta=0.3 * DELTA)
    made, _ = ended(ledger, 6.0, stated=wide), ended(ledger, 6.0, stated=wide)
    assert math.isfinite(ledger.spent("adult").epsilon)
    assert ledger.after_unseal(made, trials(1), ALL).epsilon == math.inf
    with pytest.raises(OverBudget, match=r"deltas add up to 6\.0e-05, and half") as refusal:
        ledger.unseal(made, trials(1), ALL, "ann")
    follow(ledger, refusal.value)
    ledger.unseal(made, trials(1), ALL, "ann")


def test_over_budget_is_refused_in_plain_words_and_leaves_no_trace(ledger):
    made = ended(ledger)
    ended(ledger, 5.0)
    rows, before = len(ledger.entries()), ledger.find(made)
    with pytest.raises(OverBudget) as refusal:
        ledger.unseal(made, trials(100), ALL, "ann")
    text, cost = str(refusal.value), exact(100, FIRST)
    together = cost + STATED.epsilon
    for words in ('all trials of sweep "clip" costs', f"{cost:.2f} (at delta 1.3e-06)", f"in place of {before.price.epsilon:.2f}"):
        assert words in text
    assert f"makes {together:.2f}. Raise the budget: sweeper ledger set-budget adult --epsilon {math.ceil(together)} " in text
    assert len(ledger.entries()) == rows
    assert ledger.find(made) == before
    follow(ledger, refusal.value)
    ledger.unseal(made, trials(100), ALL, "ann")


def test_a_second_call_is_free_and_another_event_is_refused(ledger):
    made = ended(ledger)
    first = ledger.unseal(made, trials(10), ALL, "ann")
    rows, spent = len(ledger.entries()), ledger.spent("adult")
    assert ledger.unseal(made, trials(10), ALL, "ben") == first
    assert ledger.after_unseal(made, trials(10), ALL) == spent
    with pytest.raises(RequestError, match="unsealed already, as another event"):
        ledger.unseal(made, trials(11), ALL, "ann")
    ledger.commit_unsealed(made, trials(3), "three trials were shown")
    assert ledger.unseal(made, trials(10), ALL, "ann") == first  # the charge stays lowered
    assert ledger.find(made).event == trials(3).to_dict()
    assert ledger.commit(made).state == "committed"
    assert (len(ledger.entries()), ledger.spent("adult").charges) == (rows + 1, 1)


def test_the_number_that_was_shown_lowers_the_charge_once(ledger):
    made = ended(ledger)
    with pytest.raises(RequestError, match="is not unsealed"):
        ledger.commit_unsealed(made, trials(3), "x")
    ledger.unseal(made, trials(20), ALL, "ann")
    with pytest.raises(FieldError, match="reason"):
        ledger.commit_unsealed(made, trials(12), "")
    with pytest.raises(RequestError, match="costs more than reserved"):
        ledger.commit_unsealed(made, trials(21), "x")
    ledger.commit_unsealed(made, trials(12), "12 trials were shown")
    assert ledger.spent("adult").epsilon == pytest.approx(exact(12, FIRST), rel=1e-9)
    rows = len(ledger.entries())
    ledger.commit_unsealed(made, trials(12), "12 trials were shown")
    assert len(ledger.entries()) == rows
    with pytest.raises(RequestError, match="is committed already, as another event"):
        ledger.commit_unsealed(made, trials(11), "x")


def test_it_never_costs_less_than_the_winner_did(ledger):
    made = ended(ledger, 2.1)  # states 2 at 1e-5
    ledger.unseal(made, trials(2), ALL, "ann")
    assert exact(2, FIRST) < STATED.epsilon == ledger.spent("adult").epsilon


def test_a_sweep_that_ran_nothing_keeps_the_charge_of_its_answer(ledger):
    """ "No answer" is an answer, of a law that may draw no run."""
    made = ended(ledger, 2.1)
    ledger.unseal(made, trials(2), ALL, "ann")
    found = ledger.commit_unsealed(made, NOTHING, "no run was drawn")
    assert (found.state, ledger.spent("adult").epsilon) == ("committed", STATED.epsilon)


@pytest.mark.parametrize("state", ["reserved", "started", "released"])
def test_only_a_sweep_that_ended_is_unsealed(ledger, state):
    made = reserve(ledger)
    if state == "started":
        ledger.start(made, "run-1")
    if state == "released":
        ledger.release(made, "test")
    with pytest.raises(RequestError, match="only a sweep that has ended can be unsealed"):
        ledger.unseal(made, trials(2), ALL, "ann")


@pytest.mark.parametrize("other", [{"relation": "replace-one"}, {"unit": "user"}])
def test_all_trials_speak_of_the_relation_and_the_unit_of_the_budget(ledger, other):
    with pytest.raises(RequestError, match="one relation and one unit"):
        ledger.unseal(ended(ledger), trials(2), Guarantee(epsilon=3.0, delta=1e-5, **other), "ann")


def test_the_delta_kept_for_a_sweep_is_fixed_by_its_place_whatever_was_unsealed_or_released(ledger):
    ledger.set_budget("adult", 80.0, DELTA, "ann")
    first, gone, third = ended(ledger), reserve(ledger), ended(ledger)
    ledger.release(gone, "test")
    ledger.unseal(third, trials(4), ALL, "ann")
    ledger.unseal(first, trials(4), ALL, "ann")
    assert [e.body["delta"] for e in ledger.entries() if e.kind == "unseal"] == pytest.approx([0.025 * DELTA / 12, FIRST])


def test_a_new_delta_prices_an_unsealed_sweep_again(ledger):
    made = ended(ledger)
    ledger.unseal(made, trials(10), ALL, "ann")
    ledger.set_budget("adult", 8.0, 2 * DELTA, "ann")
    assert ledger.spent("adult").epsilon == pytest.approx(exact(10, 2 * FIRST), rel=1e-9)
    ledger.set_budget("adult", 8.0, 1.9 * STATED.delta, "ann")  # half of it holds the winner's delta no more
    assert ledger.spent("adult").epsilon == math.inf
    ledger.set_budget("adult", 8.0, DELTA, "ann")
    ledger.commit_unsealed(made, trials(8), "eight were shown")
    assert ledger.spent("adult").epsilon == pytest.approx(exact(8, FIRST), rel=1e-9)


def test_without_a_price_it_stays_sealed(tmp_path):
    silent = Ledger(tmp_path / "ledger.db", accountant=Silent())
    silent.set_budget("adult", 8.0, DELTA, "ann")
    made = ended(silent)
    with pytest.raises(OverBudget, match=r"no finite price at delta 1\.3e-06, so it stays sealed"):
        silent.unseal(made, trials(2), ALL, "ann")
    silent.unseal(made, trials(2), Guarantee(epsilon=3.0, delta=1e-6), "ann")
    assert silent.spent("adult").epsilon == 3.0
    assert json.loads(json.dumps(silent.find(made).to_dict()))["sealed_price"]["stated_epsilon"] == 2.0
