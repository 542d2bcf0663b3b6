"""The ledger: what is admitted, what a crash leaves, and that nothing acknowledged is ever lost."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scipy import optimize, stats

from sweeper.checks import FieldError, RequestError
from sweeper.privacy.budget import filter_order
from sweeper.privacy.events import NOTHING, Composed, DiscreteLaplace, Gaussian, SelectBest, event_from_dict
from sweeper.privacy.guarantee import Guarantee
from sweeper.privacy.laws import TruncatedNegativeBinomial
from sweeper.privacy.ledger import Ledger, OverBudget

ROOT = Path(__file__).resolve().parents[2]
DELTA = 1e-4
STATED = Guarantee(epsilon=2.0, delta=1e-5)
BY_RENYI = Guarantee(epsilon=2.0, delta=0.6 * DELTA)  # more than addition may spend: only the Renyi filter counts it


def converted(rho: float, epsilon: float, order: float) -> float:
    """Delta of a Renyi cost at epsilon (Proposition 12 of Canonne, Kamath, Steinke)."""
    return math.exp((order - 1) * (rho - epsilon)) * (1 - 1 / order) ** (order - 1) / order


class Gaussians:
    """An accountant for Gaussian mechanisms and their compositions, in closed form (Balle and Wang 2018; Mironov 2017)."""

    def _precision(self, event):
        if isinstance(event, Composed):
            return sum(self._precision(part) for part in event.events)
        if not isinstance(event, Gaussian):
            raise NotImplementedError(event.kind)
        return math.inf if event.noise_multiplier == 0 else event.noise_multiplier**-2

    def epsilon(self, event, delta):
        mu = math.sqrt(self._precision(event))
        if mu in (0.0, math.inf):
            return mu

        def excess(e):
            return stats.norm.cdf(mu / 2 - e / mu) - math.exp(e + stats.norm.logcdf(-mu / 2 - e / mu)) - delta

        return 0.0 if excess(0.0) <= 0 else optimize.brentq(excess, 0.0, mu**2 / 2 + 40 * mu)

    def renyi(self, event, order):
        return order * self._precision(event) / 2, 0.0


class Silent:
    """Knows no price at all."""

    def epsilon(self, event, delta):
        raise NotImplementedError(event.kind)

    renyi = epsilon


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "home" / "ledger.db", accountant=Gaussians())
    made.set_budget("adult", 8.0, DELTA, "ann")
    return made


def reserve(
    ledger: Ledger, noise: float = 2.0, *, data_set: str = "adult", sweep: str = "clip", digest: str | None = None, stated=STATED
):
    return ledger.reserve(data_set, sweep, "f00d", Gaussian(noise), stated, "ann", source_digest=digest)


def follow(ledger: Ledger, refusal: OverBudget) -> None:
    """Type the command that a refusal offers."""
    command = str(refusal)[str(refusal).index("sweeper ledger set-budget") :].split()
    ledger.set_budget(command[3], float(command[5]), float(command[7]), "ann")


# Admission.


def test_without_a_budget_the_refusal_is_the_command_that_sets_one(tmp_path):
    bare = Ledger(tmp_path / "ledger.db", accountant=Gaussians())
    with pytest.raises(RequestError, match=r"sweeper ledger set-budget adult --epsilon 8 --delta 1e-04$"):
        reserve(bare)
    assert bare.budget("adult") is None
    assert bare.spent("adult").charges == 0
    assert bare.entries() == []


def test_one_charge_costs_its_exact_epsilon_at_the_budgets_delta(ledger):
    reserve(ledger, 2.0)
    spent = ledger.spent("adult")
    assert spent.epsilon == pytest.approx(Gaussians().epsilon(Gaussian(2.0), DELTA), rel=1e-9)
    assert (spent.charges, spent.delta) == (1, DELTA)


def test_two_charges_cost_what_the_filter_says_and_not_their_composition(ledger):
    """At 0.45 of delta: half, less a tenth of the half."""
    reserve(ledger, 2.0, stated=BY_RENYI)
    reserve(ledger, 1.5, stated=BY_RENYI)
    order = filter_order(8.0, DELTA)
    spent = ledger.spent("adult")
    rho = order / 2 * (1 / 4 + 1 / 2.25)
    assert converted(rho, spent.epsilon, order) == pytest.approx(0.45 * DELTA, rel=1e-9)
    composed = Gaussians().epsilon(Gaussian((1 / 4 + 1 / 2.25) ** -0.5), DELTA)
    assert spent.epsilon_if_fixed_beforehand == pytest.approx(composed, rel=1e-9)
    assert composed < spent.epsilon < 1.5 * composed


def test_after_says_what_a_reservation_would_make_of_it_and_reserves_nothing(ledger):
    for noise in (2.0, 1.5, 3.0):
        foreseen = ledger.after("adult", Gaussian(noise), STATED)
        before = len(ledger.entries())
        reserve(ledger, noise)
        assert ledger.spent("adult") == foreseen
        assert len(ledger.entries()) == before + 1


def test_over_budget_is_refused_in_plain_words_and_leaves_no_trace(ledger):
    reserve(ledger, 1.0)
    rows, spent = len(ledger.entries()), ledger.spent("adult").epsilon
    with pytest.raises(OverBudget) as refusal:
        reserve(ledger, 0.65)
    text = str(refusal.value)
    asked = Gaussians().epsilon(Gaussian(0.65), DELTA)
    for word in ("epsilon 8 ", f"spent {spent:.2f}", f"left {8 - spent:.2f}", f"asks {asked:.2f}", "smaller privacy.epsilon"):
        assert word in text
    assert (refusal.value.spent, refusal.value.asked, refusal.value.left) == pytest.approx((spent, asked, 8 - spent), rel=1e-9)
    assert "1 of 1 charges never committed" in text
    assert len(ledger.entries()) == rows
    follow(ledger, refusal.value)
    reserve(ledger, 0.65)


def test_admission_stops_exactly_where_the_filter_does(ledger):
    order = filter_order(8.0, DELTA)

    def bill(k: int) -> float:
        return k * order / 2 / 9 + math.log(1 - 1 / order) - math.log(0.45 * DELTA * order) / (order - 1)

    fits = next(k for k in itertools.count(2) if bill(k + 1) > 8.0)
    for _ in range(fits):
        reserve(ledger, 3.0)
    with pytest.raises(OverBudget):
        reserve(ledger, 3.0)
    assert ledger.spent("adult").epsilon == pytest.approx(bill(fits), rel=1e-9)
    assert fits > 10 > 8.0 / Gaussians().epsilon(Gaussian(3.0), STATED.delta)  # addition would stop at six


@pytest.mark.parametrize("accountant", [Gaussians, Silent])
def test_identical_sweeps_cost_at_most_their_number_times_what_each_states(tmp_path, accountant):
    mine = Ledger(tmp_path / "ledger.db", accountant=accountant())
    mine.set_budget("adult", 8.0, DELTA, "ann")
    bills = []
    for _ in range(4):
        reserve(mine, 2.0)  # 1.993 at 1e-5, and it states 2
        bills.append(mine.spent("adult").epsilon)
    assert all(bill <= most for bill, most in zip(bills, [2.0, 4.0, 6.0, 8.0], strict=True))
    if accountant is Silent:  # the Renyi filter's share of delta holds no stated one: what counts is addition
        assert bills == [2.0, 4.0, 6.0, 8.0]
        with pytest.raises(OverBudget, match=r"makes 10\.00") as refusal:
            reserve(mine, 2.0)
        assert refusal.value.left == 0.0
    else:  # cheaper still, by the Renyi filter
        order = filter_order(8.0, DELTA)
        for k in (2, 3, 4):
            assert converted(k * order / 8, bills[k - 1], order) == pytest.approx(0.45 * DELTA, rel=1e-9)


def test_a_plan_that_states_less_than_its_event_costs_is_charged_what_it_costs(ledger):
    lie = Guarantee(epsilon=0.1, delta=1e-5)
    for _ in range(2):
        reserve(ledger, 3.0, stated=lie)  # dearer by the Renyi filter
    assert ledger.spent("adult").epsilon == pytest.approx(2 * Gaussians().epsilon(Gaussian(3.0), 1e-5), rel=1e-9)


def test_a_sweep_without_protection_fits_no_budget(ledger):
    with pytest.raises(OverBudget, match="infinite"):
        reserve(ledger, 0.0)


def test_where_the_accountant_has_no_price_epsilons_and_deltas_add(tmp_path):
    silent = Ledger(tmp_path / "ledger.db", accountant=Silent())
    silent.set_budget("adult", 8.0, DELTA, "ann")
    for k in range(1, 6):
        reserve(silent, stated=Guarantee(epsilon=0.5, delta=1e-5))
        assert silent.spent("adult").epsilon == 0.5 * k
    assert silent.spent("adult").epsilon_if_fixed_beforehand is None
    assert "NotImplementedError" in silent.reservations()[0].price.unpriced
    with pytest.raises(OverBudget, match=r"deltas add up to 6\.0e-05, and half.*--epsilon 8 --delta 2e-04") as refusal:
        reserve(silent, stated=Guarantee(epsilon=0.5, delta=1e-5))
    follow(silent, refusal.value)
    reserve(silent, stated=Guarantee(epsilon=0.5, delta=1e-5))
    assert silent.spent("adult").epsilon == 3.0


def test_where_the_accountant_has_no_price_small_stated_guarantees_add_by_the_renyi_filter(tmp_path):
    silent = Ledger(tmp_path / "ledger.db", accountant=Silent())
    order = silent.set_budget("adult", 8.0, DELTA, "ann").order
    small = Guarantee(epsilon=0.25, delta=1.65e-7)
    for _ in range(30):
        reserve(silent, stated=small)
    spent = silent.spent("adult").epsilon
    assert converted(30 * order * 0.25**2 / 2, spent, order) == pytest.approx(0.45 * DELTA, rel=1e-9)
    assert spent < 30 * 0.25
    reserve(silent, stated=small)  # more than the twentieth of delta that the Renyi filter keeps: they still add
    assert silent.spent("adult").epsilon == 31 * 0.25


def test_what_only_its_exact_value_lets_in_is_the_last(ledger):
    reserve(ledger, 0.58, stated=BY_RENYI)
    assert ledger.spent("adult").epsilon == pytest.approx(Gaussians().epsilon(Gaussian(0.58), DELTA), rel=1e-9)
    with pytest.raises(OverBudget):
        reserve(ledger, 1000.0, stated=Guarantee(epsilon=0.0, delta=1e-9))


@pytest.mark.parametrize("other", [{"relation": "replace-one"}, {"unit": "user"}])
def test_one_bill_speaks_of_one_relation_and_one_unit(ledger, other):
    first = reserve(ledger)
    with pytest.raises(RequestError, match="one relation and one unit"):
        reserve(ledger, stated=Guarantee(epsilon=2.0, delta=1e-5, **other))
    ledger.commit(first, NOTHING, reason="no data was opened")
    reserve(ledger, stated=Guarantee(epsilon=2.0, delta=1e-5, **other))  # nothing is charged under the old one


def test_budgets_of_different_data_sets_do_not_meet(ledger):
    ledger.set_budget("fashion-mnist", 2.0, 1e-5, "ben")
    reserve(ledger, 1.0)
    assert ledger.spent("fashion-mnist").epsilon == 0.0
    assert [s.data_set for s in ledger.data_sets()] == ["adult", "fashion-mnist"]
    adult, fashion = ledger.data_sets()
    assert (adult.open_reservations, fashion.open_reservations) == (1, 0)
    assert adult.left == pytest.approx(8.0 - ledger.spent("adult").epsilon)
    assert json.loads(json.dumps(adult.to_dict()))["budget"]["epsilon"] == 8.0


# Budgets.


def test_the_order_is_fixed_by_the_first_budget(ledger):
    first = ledger.budget("adult").order
    assert first == pytest.approx(filter_order(8.0, DELTA), rel=1e-12)
    again = ledger.set_budget("adult", 3.0, 1e-6, "ann")
    assert (again.epsilon, again.delta, again.order) == (3.0, 1e-6, first)
    assert ledger.budget("adult") == again


def test_a_new_delta_prices_the_charges_again(ledger):
    reserve(ledger, 2.0)
    ledger.set_budget("adult", 8.0, 1e-6, "ann")
    assert ledger.spent("adult").epsilon == pytest.approx(Gaussians().epsilon(Gaussian(2.0), 1e-6), rel=1e-9)
    assert ledger.spent("adult").epsilon_if_fixed_beforehand == ledger.spent("adult").epsilon


def test_a_new_delta_keeps_what_was_stated(tmp_path):
    silent = Ledger(tmp_path / "ledger.db", accountant=Silent())
    silent.set_budget("adult", 8.0, DELTA, "ann")
    for _ in range(3):
        reserve(silent)
    for delta, spent in ((2 * DELTA, 6.0), (0.5 * DELTA, math.inf), (DELTA, 6.0)):
        silent.set_budget("adult", 8.0, delta, "ann")
        assert silent.spent("adult").epsilon == spent


def test_a_new_delta_prices_a_cheaper_commit_as_what_was_committed(ledger):
    for _ in range(2):
        ledger.commit(reserve(ledger, 1.5), Gaussian(3.0), reason="fewer runs than the most that could happen")
    bill = 2 * Gaussians().epsilon(Gaussian(3.0), STATED.delta)
    assert ledger.spent("adult").epsilon == pytest.approx(bill, rel=1e-9)
    ledger.set_budget("adult", 8.0, 2 * DELTA, "ann")
    assert ledger.spent("adult").epsilon == pytest.approx(bill, rel=1e-9)


def test_a_budget_below_what_is_spent_admits_nothing_more(ledger):
    reserve(ledger, 2.0)
    ledger.set_budget("adult", 0.5, DELTA, "ann")
    assert ledger.data_sets()[0].left == 0.0
    with pytest.raises(OverBudget):
        reserve(ledger, 50.0)


@pytest.mark.parametrize(
    "wrong", [{"epsilon": 0.0}, {"delta": 0.0}, {"delta": 1.0}, {"data_set": "../adult"}, {"epsilon": math.inf}]
)
def test_a_senseless_budget_is_refused(ledger, wrong):
    with pytest.raises(FieldError):
        ledger.set_budget(**({"data_set": "adult", "epsilon": 8.0, "delta": DELTA, "who": "ann"} | wrong))


# Commit.


def test_a_commit_keeps_the_charge_and_may_be_repeated(ledger):
    made = reserve(ledger)
    before = ledger.spent("adult")
    assert ledger.commit(made).state == "committed"
    rows = len(ledger.entries())
    assert ledger.commit(made).state == "committed"
    assert ledger.commit(made, Gaussian(2.0)).state == "committed"
    assert len(ledger.entries()) == rows
    assert ledger.spent("adult") == before
    with pytest.raises(RequestError, match="already committed"):
        ledger.commit(made, NOTHING, reason="second thoughts")


def test_a_sweep_that_opened_no_data_is_released_with_its_reason(ledger):
    made, other = reserve(ledger, 1.0), reserve(ledger, 2.0)
    with pytest.raises(FieldError, match="reason"):
        ledger.commit(made, NOTHING)
    ledger.commit(made, NOTHING, reason="interrupted before data was opened")
    assert [r.id for r in ledger.reservations("released")] == [made]
    assert ledger.reservations("released")[0].reason == "interrupted before data was opened"
    spent = ledger.spent("adult")
    assert spent.charges == 1
    assert spent.epsilon == spent.epsilon_if_fixed_beforehand == pytest.approx(Gaussians().epsilon(Gaussian(2.0), DELTA))
    with pytest.raises(RequestError, match="already released"):
        ledger.commit(made)
    assert [r.id for r in ledger.reservations("reserved")] == [other]


def test_a_commit_may_be_cheaper_than_reserved_and_never_dearer(ledger):
    made = reserve(ledger, 2.0)
    with pytest.raises(RequestError, match="costs more than reserved"):
        ledger.commit(made, Gaussian(1.9), reason="more noise than asked")
    assert ledger.reservations()[0].state == "reserved"
    ledger.commit(made, Gaussian(4.0), reason="fewer runs than the most that could happen")
    assert ledger.spent("adult").epsilon == pytest.approx(Gaussians().epsilon(Gaussian(4.0), DELTA))


class Crossing(Gaussians):
    """Noise 4 costs less than noise 2 at the budget's delta and order, and more at the delta that sweeps state."""

    def epsilon(self, event, delta):
        return 1.9 if event == Gaussian(4.0) and delta == STATED.delta else super().epsilon(event, delta)


def test_a_commit_that_is_dearer_at_the_stated_delta_alone_is_refused(tmp_path):
    """Else addition would have admitted later charges on too small a figure."""
    crossing = Ledger(tmp_path / "ledger.db", accountant=Crossing())
    crossing.set_budget("adult", 8.0, DELTA, "ann")
    made = reserve(crossing, 3.0, stated=Guarantee(epsilon=1.5, delta=STATED.delta))
    with pytest.raises(RequestError, match="costs more than reserved"):
        crossing.commit(made, Gaussian(4.0), reason="fewer runs")
    crossing.commit(made, Gaussian(4.5), reason="fewer runs")


def test_a_commit_without_a_price_is_refused(ledger):
    made = reserve(ledger)
    with pytest.raises(RequestError, match="costs more than reserved"):
        ledger.commit(made, DiscreteLaplace(0.01), reason="fewer runs")


def test_an_unknown_reservation_is_refused(ledger):
    with pytest.raises(RequestError, match="no reservation"):
        ledger.commit("0" * 32)


def test_reservations_come_in_the_order_they_were_made_and_as_plain_json(ledger):
    ledger.set_budget("zoo", 8.0, DELTA, "ann")
    made = [reserve(ledger), reserve(ledger, data_set="zoo"), reserve(ledger)]
    assert [r.id for r in ledger.reservations()] == made
    line = json.loads(json.dumps(ledger.reservations()[1].to_dict()))
    assert (line["data_set"], line["sweep"], line["event"]) == ("zoo", "clip", {"kind": "gaussian", "noise_multiplier": 2.0})


# Files.


def test_a_file_charged_under_one_name_cannot_be_charged_under_another(ledger):
    ledger.set_budget("census", 8.0, DELTA, "ann")
    reserve(ledger, digest="d1")
    for attempt in (lambda: ledger.bind("census", "d1"), lambda: reserve(ledger, data_set="census", digest="d1")):
        with pytest.raises(RequestError, match=r'this file is already charged under "adult"; use privacy\.budget_of: adult'):
            attempt()
    assert ledger.spent("census").charges == 0


def test_a_corrected_file_keeps_its_name_and_its_past(ledger):
    ledger.set_budget("census", 8.0, DELTA, "ann")
    reserve(ledger, digest="d1")
    ledger.bind("adult", "d2")
    ledger.bind("adult", "d2")
    assert [e.body["digest"] for e in ledger.entries() if e.kind == "binding"] == ["d1", "d2"]
    for digest in ("d1", "d2"):
        with pytest.raises(RequestError, match="budget_of: adult"):
            ledger.bind("census", digest)


def test_a_bound_file_is_recognised_even_when_a_reservation_does_not_name_it(ledger):
    ledger.set_budget("census", 8.0, DELTA, "ann")
    ledger.bind("census", "d1")
    reserve(ledger, digest="d1")  # nothing is charged to census, so the file may still change its name
    with pytest.raises(RequestError, match="budget_of: adult"):
        reserve(ledger, data_set="census")


def test_digests_stay_with_the_curator(ledger):
    reserve(ledger, digest="5eed")
    shown = json.dumps([e.to_dict() for e in ledger.entries()] + [r.to_dict() for r in ledger.reservations()])
    assert "5eed" not in shown
    assert "5eed" not in repr(ledger.entries())
    salts = {e.body["salt"] for e in ledger.entries() if e.kind == "binding"}
    assert all(len(salt) == 32 for salt in salts)  # else the published hash would tell who guesses the digest


# The chain.


def test_the_chain_verifies_and_cannot_be_changed_by_plain_sql(ledger, tmp_path):
    reserve(ledger)
    assert ledger.verify() is None
    with sqlite3.connect(tmp_path / "home" / "ledger.db") as db:
        for statement in ("UPDATE entries SET body = '{}'", "DELETE FROM entries"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                db.execute(statement)


@pytest.mark.parametrize(
    ("statement", "seq", "rule"),
    [
        ("UPDATE entries SET body = replace(body, '8.0', '9.0') WHERE seq = 1", 1, "content"),
        ("UPDATE entries SET at = '2020-01-01' WHERE seq = 3", 3, "content"),
        ("UPDATE entries SET kind = 'binding' WHERE seq = 2", 2, "content"),
        ("DELETE FROM entries WHERE seq = 2", 3, "row 2 is missing"),
        ("UPDATE entries SET previous = hash WHERE seq = 3", 3, "hash of the row before"),
        ("UPDATE entries SET data_set = 'zoo' WHERE seq = 4", 4, "content"),
    ],
)
def test_the_first_broken_row_is_named(ledger, tmp_path, statement, seq, rule):
    for _ in range(3):
        reserve(ledger)
    with sqlite3.connect(tmp_path / "home" / "ledger.db") as db:
        db.execute("DROP TRIGGER entries_keep")
        db.execute("DROP TRIGGER entries_stay")
        db.execute(statement)
    broken = ledger.verify()
    assert broken is not None
    assert broken.seq == seq
    assert rule in broken.rule


def test_only_the_owner_may_read_it_whatever_the_umask(tmp_path):
    old = os.umask(0)
    try:
        Ledger(tmp_path / "new" / "ledger.db").set_budget("adult", 1.0, 1e-5, "ann")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "new" / "ledger.db").stat().st_mode) == 0o600


def test_reading_loads_neither_numpy_nor_the_accountant(ledger, tmp_path):
    reserve(ledger, digest="d1")
    reserve(ledger)
    code = (
        "import sys; from sweeper.privacy.ledger import Ledger; x = Ledger(sys.argv[1]); "
        "assert x.spent('adult').charges == 2 and x.verify() is None and x.data_sets() and x.reservations('reserved'); "
        "print({'numpy', 'torch', 'ray', 'mlflow', 'sweeper.privacy.accountant'} & set(sys.modules))"
    )
    done = child("-c", code, tmp_path / "home" / "ledger.db", stdout=subprocess.PIPE)
    assert done.communicate(timeout=60)[0].split() == ["set()"]


def test_the_real_accountant_is_the_default_and_its_events_come_back(tmp_path, monkeypatch):
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path))
    real = Ledger(tmp_path / "ledger.db")
    real.set_budget("adult", 8.0, DELTA, "ann")
    law = TruncatedNegativeBinomial(eta=1.0, mean=3.0)
    event = Composed((SelectBest(Gaussian(4.0), law), Gaussian(3.0)))
    made = real.reserve("adult", "clip", "f00d", event, STATED, "ann")
    assert event_from_dict(real.reservations()[0].event) == event
    real.reserve("adult", "clip", "f00d", Gaussian(2.0), STATED, "ann")
    alone = Gaussians().epsilon(Gaussian(3.0), DELTA)
    first = real.reservations()[0].price
    assert alone < first.epsilon < 3 * alone
    assert first.unpriced == ""
    assert first.epsilon < real.spent("adult").epsilon_if_fixed_beforehand < real.spent("adult").epsilon < 8.0
    assert real.commit(made).state == "committed"


# Several processes, and death.

CHILD = """
import sys
from sweeper.privacy.events import NOTHING, Gaussian
from sweeper.privacy.guarantee import Guarantee
from sweeper.privacy.ledger import Ledger, OverBudget

class Flat:
    def epsilon(self, event, delta): return 0.01
    def renyi(self, event, order): return 0.001, 0.0

what, path = sys.argv[1:3]
print("ready", flush=True)
sys.stdin.readline()
ledger = Ledger(path, accountant=Flat())
stated = Guarantee(epsilon=0.01, delta=1e-9)
if what == "budget":
    ledger.set_budget("adult", 8.0, 1e-4, "child")
    print("done", flush=True)
while what == "reserve":
    try:
        made = ledger.reserve("adult", "clip", "f00d", Gaussian(10.0), stated, "child", source_digest="d1")
    except OverBudget:
        break
    print("reserved", made, flush=True)
    if int(made, 16) % 3 == 0:
        ledger.commit(made)
        print("committed", made, flush=True)
    if int(made, 16) % 3 == 1:
        ledger.commit(made, NOTHING, reason="test")
        print("released", made, flush=True)
while what == "fill":
    try:
        print("reserved", ledger.reserve("adult", "clip", "f00d", Gaussian(10.0), stated, "child"), flush=True)
    except OverBudget:
        break
"""


def child(*arguments, **options) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, *map(str, arguments)], env=environment, text=True, **options)


def start(what: str, path: Path) -> subprocess.Popen:
    """A child that has imported everything and waits for a line."""
    process = child("-c", CHILD, what, path, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen) -> None:
    process.stdin.write("go\n")
    process.stdin.flush()


def test_eight_processes_may_create_the_same_ledger_at_once(tmp_path):
    children = [start("budget", tmp_path / "new" / "ledger.db") for _ in range(8)]
    for process in children:
        go(process)
    assert [process.communicate(timeout=60)[0] for process in children] == ["done\n"] * 8
    made = Ledger(tmp_path / "new" / "ledger.db")
    assert len(made.entries("adult")) == 8
    assert made.verify() is None


@pytest.mark.parametrize("binding", ["renyi", "addition"])
def test_eight_processes_never_admit_more_than_the_budget(tmp_path, binding):
    """A first charge leaves room for `wanted` of the children's and half of one more, in the filter that binds."""
    ledger = Ledger(tmp_path / "ledger.db", accountant=Gaussians() if binding == "renyi" else Silent())
    order = ledger.set_budget("adult", 8.0, DELTA, "ann").order
    wanted = 24
    if binding == "renyi":
        room = 8.0 - math.log(1 - 1 / order) + math.log(0.45 * DELTA * order) / (order - 1)
        noise = math.sqrt(order / 2 / (room - (wanted + 0.5) * 0.001))
        reserve(ledger, noise, sweep="big", stated=BY_RENYI)
    else:
        reserve(ledger, sweep="big", stated=Guarantee(epsilon=8.0 - (wanted + 0.5) * 0.01, delta=1e-5))
    children = [start("fill", tmp_path / "ledger.db") for _ in range(8)]
    for process in children:
        go(process)
    said = [line for process in children for line in process.communicate(timeout=120)[0].splitlines()]
    assert len(said) == wanted
    assert {line.split()[1] for line in said} == {r.id for r in ledger.reservations() if r.sweep == "clip"}
    assert ledger.spent("adult").epsilon <= 8.0
    assert ledger.verify() is None


def test_kill_9_at_any_moment_loses_nothing_that_was_acknowledged(tmp_path):
    """25 kills at random moments of reserving and committing. Oracle: what the children had said before they died."""
    ledger = Ledger(tmp_path / "ledger.db", accountant=Gaussians())
    ledger.set_budget("adult", 8.0, DELTA, "ann")
    moments = random.Random(7)
    said: dict[str, set[str]] = {"reserved": set(), "committed": set(), "released": set()}
    for _ in range(25):
        process = start("reserve", tmp_path / "ledger.db")
        go(process)
        began, wanted = time.perf_counter(), moments.randint(1, 15)
        lines = [process.stdout.readline() for _ in range(wanted)]
        time.sleep(moments.uniform(0, 2) * (time.perf_counter() - began) / wanted)
        process.kill()
        lines += process.stdout.readlines()
        process.wait()
        for line in (line for line in lines if line.endswith("\n")):
            word, made = line.split()
            said[word].add(made)
        assert ledger.verify() is None
    states = {r.id: r.state for r in ledger.reservations()}
    assert len(said["reserved"]) > 25
    assert said["reserved"] <= set(states)
    assert len(states) <= len(said["reserved"]) + 25  # one at most can be written and not yet said at each death
    assert {states[made] for made in said["committed"]} == {"committed"}
    assert {states[made] for made in said["released"]} == {"released"}
    for made, state in states.items():  # whatever was not closed stays charged
        if made not in said["committed"] | said["released"] and state != "reserved":
            assert state == ["committed", "released"][int(made, 16) % 3]
    assert ledger.spent("adult").charges == sum(state != "released" for state in states.values())
    reserve(ledger, 10.0)  # and it goes on
