"""The ledger in its file: what is admitted, what it costs, and how a charge ends."""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from ledgers import BY_RENYI, DELTA, STATED, Gaussians, Silent, converted, follow, reserve

from sweeper.checks import FieldError, RequestError
from sweeper.privacy.budget import filter_order
from sweeper.privacy.events import NOTHING, Composed, DiscreteLaplace, Gaussian, SelectBest, event_from_dict
from sweeper.privacy.guarantee import Guarantee
from sweeper.privacy.laws import TruncatedNegativeBinomial
from sweeper.privacy.ledger import Ledger, OverBudget
from sweeper.store.home import Home

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "home" / "ledger.db", accountant=Gaussians())
    made.set_budget("adult", 8.0, DELTA, "ann")
    return made


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
    small = Guarantee(epsilon=0.25, delta=0.83e-7)
    for _ in range(30):
        reserve(silent, stated=small)
    spent = silent.spent("adult").epsilon
    assert converted(30 * order * 0.25**2 / 2, spent, order) == pytest.approx(0.45 * DELTA, rel=1e-9)
    assert spent < 30 * 0.25
    reserve(silent, stated=small)  # more than the fortieth of delta that the Renyi filter keeps: they still add
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


def test_the_order_is_fixed_by_the_first_reservation(ledger):
    """Until then nobody has an answer by which to choose it, and a budget that is corrected is a new one."""
    ledger.set_budget("adult", 1.0, DELTA, "ann")
    ledger.set_budget("adult", 8.0, DELTA, "ann")
    first = ledger.budget("adult").order
    assert first == pytest.approx(filter_order(8.0, DELTA), rel=1e-12)
    reserve(ledger, 2.0)
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


def test_digests_stay_with_the_curator(ledger, caplog):
    for name in ("sqlalchemy", "sqlalchemy.engine", "sqlalchemy.engine.Engine"):  # MLflow quiets them one by one
        caplog.set_level(logging.DEBUG, logger=name)
    reserve(Ledger(ledger._chain.address.file, accountant=Gaussians()), digest="5eed")
    assert "INSERT INTO bindings" in caplog.text
    assert "5eed" not in caplog.text
    shown = json.dumps([e.to_dict() for e in ledger.entries()] + [r.to_dict() for r in ledger.reservations()])
    assert "5eed" not in shown
    assert "5eed" not in repr(ledger.entries())
    salts = {e.body["salt"] for e in ledger.entries() if e.kind == "binding"}
    assert all(len(salt) == 32 for salt in salts)  # else the published hash would tell who guesses the digest


# The file.


def test_only_the_owner_may_read_it_whatever_the_umask(tmp_path):
    old = os.umask(0)
    try:
        Ledger(tmp_path / "new" / "ledger.db").set_budget("adult", 1.0, 1e-5, "ann")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "new" / "ledger.db").stat().st_mode) == 0o600


def run(code: str, *arguments: object) -> str:
    """What a fresh interpreter says."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=environment, text=True, capture_output=True, check=True, timeout=60).stdout.strip()


def test_reading_loads_neither_numpy_nor_the_accountant(ledger, tmp_path):
    reserve(ledger, digest="d1")
    reserve(ledger)
    code = (
        "import sys; from sweeper.privacy.ledger import Ledger; x = Ledger(sys.argv[1]); "
        "assert x.spent('adult').charges == 2 and x.verify() is None and x.data_sets() and x.reservations('reserved'); "
        "print({'numpy', 'torch', 'ray', 'mlflow', 'psycopg', 'sweeper.privacy.accountant'} & set(sys.modules))"
    )
    assert run(code, tmp_path / "home" / "ledger.db") == "set()"


def test_importing_the_ledger_loads_no_sqlalchemy():
    assert run("import sys, sweeper.privacy.ledger; print('sqlalchemy' in sys.modules)") == "False"


@pytest.mark.parametrize("where", ["ledger.db", "sqlite:///{}/ledger.db", "sqlite:///{}/50%25%3F.db"])
def test_a_path_and_a_uri_lead_to_the_same_file(tmp_path, where):
    name = "50%?.db" if "%" in where else "ledger.db"
    Ledger(tmp_path / name).set_budget("adult", 1.0, 1e-5, "ann")
    place = where.format(tmp_path) if ":" in where else str(tmp_path / where)
    assert Ledger(place).budget("adult").epsilon == 1.0
    assert repr(Ledger(place)) == f"Ledger({str(tmp_path / name)!r})"
    assert {p.name for p in tmp_path.iterdir()} == {name, f"{name}-journal"}


@pytest.mark.parametrize(
    "uri", ["mysql://root:hunter2@db/x", "sqlite://", "sqlite:///", "postgresql://u:p@ss@db/x", "postgresql://u@db:port/x"]
)
def test_an_address_that_is_none_is_refused_without_being_quoted(uri):
    with pytest.raises(FieldError, match=r"SWEEPER_LEDGER_URI.*must be sqlite:///FILE or postgresql") as caught:
        Ledger(uri)
    assert not any(part in str(caught.value) for part in ("hunter2", "p@ss", "ss@db"))


def test_a_file_that_cannot_be_a_ledger_is_refused_in_words(tmp_path):
    (tmp_path / "ledger.db").write_text("not a database, and long enough to be read as the header of one: " * 10)
    with pytest.raises(RequestError, match=r"ledger\.db did not do it: file is not a database"):
        Ledger(tmp_path / "ledger.db")
    with pytest.raises(RequestError, match="cannot be made: File exists"):
        Ledger(tmp_path / "ledger.db" / "ledger.db")


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


def test_a_home_has_its_own_ledger_until_the_environment_names_another(tmp_path, monkeypatch):
    monkeypatch.delenv("SWEEPER_LEDGER_URI", raising=False)
    home = Home(tmp_path / "50%? home")
    assert (home.ledger_uri, home.ledger_exists()) == (f"sqlite:///{tmp_path}/50%25%3F home/ledger.db", False)
    Ledger(home.ledger_uri).set_budget("adult", 1.0, 1e-5, "ann")
    assert home.ledger_exists()
    assert Ledger(home.ledger).budget("adult").epsilon == 1.0
    monkeypatch.setenv("SWEEPER_LEDGER_URI", f"sqlite:///{tmp_path}/shared.db")
    assert not home.ledger_exists()
    assert list(tmp_path.glob("shared*")) == []
    assert repr(Ledger(home.ledger_uri)) == f"Ledger('{tmp_path}/shared.db')"
    monkeypatch.setenv("SWEEPER_LEDGER_URI", "postgresql://ann:pw@db/ledger")
    assert (home.ledger_uri, home.ledger_exists()) == ("postgresql://ann:pw@db/ledger", True)
    monkeypatch.setenv("SWEEPER_LEDGER_URI", "mysql://ann@db/ledger")
    with pytest.raises(FieldError, match="SWEEPER_LEDGER_URI"):
        home.ledger_exists()
