"""The ledger on PostgreSQL: the same rows as in a file, guards of its own, and plain words when the server is not there."""

from __future__ import annotations

import logging
import re
import sys
import time
import traceback

import psycopg
import pytest
from ledgers import DELTA, SMALL, STATED, Flat, Gaussians, reserve
from sqlalchemy import make_url

from sweeper.checks import RequestError
from sweeper.privacy import ledger_database
from sweeper.privacy.chain import Chain, New
from sweeper.privacy.events import Gaussian, Repeated
from sweeper.privacy.ledger import Ledger
from sweeper.privacy.ledger_layout import LAYOUTS

pytest_plugins = ["postgres"]

TABLES = ("entries", *(layout.table for layout in LAYOUTS.values()))


def filled(where: str) -> Ledger:
    """A ledger with a row in every table."""
    made = Ledger(where, accountant=Gaussians())
    made.set_budget("adult", 8.0, DELTA, "ann")
    first = reserve(made, 4.0, digest="d1")
    made.start(first, "run-1")
    made.commit(first)
    made.unseal(first, Repeated(Gaussian(4.0), 3), STATED, "ann")
    made.commit_unsealed(first, Repeated(Gaussian(4.0), 2), "two trials were shown")
    made.release(reserve(made, 4.0), "ann changed her mind")
    return made


@pytest.fixture
def ledger(postgres_uri) -> Ledger:
    return filled(postgres_uri)


def test_it_holds_what_a_file_would(ledger, postgres_uri, tmp_path):
    """But for ids, salts, times, and the hashes of them."""
    file = filled(str(tmp_path / "ledger.db"))

    def content(made: Ledger) -> list:
        own = ("id", "salt", "reservation")
        return [(e.seq, e.kind, e.data_set, {k: v for k, v in e.body.items() if k not in own}) for e in made.entries()]

    assert content(ledger) == content(file)
    assert ledger.spent("adult") == file.spent("adult")
    assert ledger.verify() is None
    assert ledger.verify(ledger.head()) is None
    assert Ledger(postgres_uri).head() == ledger.head()


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_other_names_of_the_same_server_lead_there(ledger, postgres_uri, scheme):
    assert Ledger(postgres_uri.replace("postgresql+psycopg", scheme)).head() == ledger.head()


@pytest.mark.parametrize("table", TABLES)
def test_plain_sql_cannot_change_a_row(ledger, postgres_uri, connect, table):
    with connect(postgres_uri) as db:
        for statement in (f"UPDATE {table} SET seq = seq", f"DELETE FROM {table}", f"TRUNCATE {table} CASCADE"):
            with pytest.raises(psycopg.errors.RaiseException, match="are append-only"):
                db.execute(statement)
    assert ledger.verify() is None


@pytest.mark.parametrize(
    ("statements", "seq", "rule"),
    [
        (["UPDATE budgets SET epsilon = epsilon * 2"], 1, "does not have its hash"),
        (["UPDATE unseals SET price = price || ' '"], 6, "does not have its hash"),
        (["DELETE FROM starts"], 4, "starts has no such row"),
        (["DELETE FROM starts", "DELETE FROM entries WHERE seq = 4"], 5, "row 4 is missing"),
        (
            ["INSERT INTO starts (seq, data_set, reservation, run) VALUES (8, 'adult', 'x', 'y')"],
            8,
            "in starts and in reservations",
        ),
        (["INSERT INTO entries SELECT 10, 'start', at, hash, 'made up' FROM entries WHERE seq = 9"], 10, "starts has no such row"),
    ],
)
def test_the_first_broken_row_is_named(ledger, postgres_uri, connect, statements, seq, rule):
    with connect(postgres_uri) as db:
        for table in TABLES:
            db.execute(f"ALTER TABLE {table} DISABLE TRIGGER ALL")
        for statement in statements:
            assert db.execute(statement).rowcount != 0
    broken = ledger.verify()
    assert broken.seq == seq
    assert rule in broken.rule
    with pytest.raises(RequestError, match=f"row {seq} of the ledger is not what was appended"):
        reserve(ledger, 9.0)


# Transactions.


def refuse(connect, uri: str, state: str, times: int) -> None:
    """Make the server refuse the next insertions with an SQLSTATE. A sequence counts them: it is not rolled back."""
    with connect(uri) as db:
        db.execute("CREATE SEQUENCE refusals")
        db.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('refusals') <= "
            f"{times} THEN RAISE EXCEPTION 'refused for a test' USING ERRCODE = '{state}'; END IF; RETURN NEW; END $$"
        )
        # On a table of content: the row of the chain is inserted before it, and must go too.
        db.execute("CREATE TRIGGER refuse BEFORE INSERT ON budgets FOR EACH ROW EXECUTE FUNCTION refuse()")


@pytest.mark.parametrize("state", ["40001", "40P01", "23505"])
def test_what_another_writer_made_fail_is_tried_again(ledger, postgres_uri, connect, state):
    refuse(connect, postgres_uri, state, 3)
    began = time.monotonic()
    ledger.set_budget("adult", 9.0, DELTA, "ann")
    assert time.monotonic() - began >= (0.02 + 0.04 + 0.08) / 2  # the least that three waits take
    assert [e.body["epsilon"] for e in ledger.entries() if e.kind == "budget"] == [8.0, 9.0]
    assert ledger.verify() is None


def test_trying_again_has_an_end_and_leaves_nothing(ledger, postgres_uri, connect, monkeypatch):
    monkeypatch.setattr(ledger_database, "BACKOFF_SECONDS", (0.001, 0.002))
    refuse(connect, postgres_uri, "40001", 1000)
    before = ledger.head()
    with pytest.raises(RequestError, match=r"was busy: other writers were first 10 times over\. Nothing was written"):
        ledger.set_budget("adult", 9.0, DELTA, "ann")
    assert ledger.head() == before
    with connect(postgres_uri) as db:
        assert db.execute("SELECT last_value FROM refusals").fetchone() == (10,)


def test_any_other_error_is_told_at_once_and_leaves_nothing(ledger, postgres_uri, connect):
    refuse(connect, postgres_uri, "P0001", 1000)
    before = ledger.head()
    with pytest.raises(RequestError, match="did not do it: refused for a test"):
        ledger.set_budget("adult", 9.0, DELTA, "ann")
    assert ledger.head() == before
    with connect(postgres_uri) as db:
        assert db.execute("SELECT last_value FROM refusals").fetchone() == (1,)


def test_a_decision_that_is_overtaken_is_taken_again(ledger, postgres_uri):
    """And for ever, if need be: the sixth time it holds the lock."""
    calls = []

    def decide(entries):
        calls.append(len(entries))
        if len(calls) <= 5:
            reserve(Ledger(postgres_uri, accountant=Flat()), stated=SMALL)
        return [New(kind="start", data_set="adult", body={"reservation": "x", "run": "y"})]

    Ledger(postgres_uri).set_budget("adult", 80.0, DELTA, "ann")
    Chain(postgres_uri).append(decide)
    assert calls == [10, 11, 12, 13, 14, 15]
    assert ledger.verify() is None


def test_a_held_lock_is_not_waited_for_for_ever(ledger, postgres_uri, connect, monkeypatch):
    shorter = re.sub("lock_timeout = '.*?'", "lock_timeout = '100ms'", ledger_database._LOCK)
    monkeypatch.setattr(ledger_database, "_LOCK", shorter)
    with connect(postgres_uri) as db, db.transaction():
        db.execute("LOCK TABLE entries IN SHARE ROW EXCLUSIVE MODE")
        with pytest.raises(RequestError, match=r"was busy for .* seconds: canceling statement due to lock timeout"):
            ledger.set_budget("adult", 9.0, DELTA, "ann")
        assert ledger.spent("adult").charges == 1  # readers go on
    ledger.set_budget("adult", 9.0, DELTA, "ann")


@pytest.mark.parametrize(("server", "ours"), [("off", "on"), ("on", "on"), ("remote_apply", "remote_apply")])
def test_a_commit_is_on_disk_whatever_the_server_is_set_to(ledger, postgres_uri, connect, server, ours):
    with connect(postgres_uri) as db:
        db.execute(f"ALTER DATABASE {make_url(postgres_uri).database} SET synchronous_commit = {server}")
    database = Chain(postgres_uri)._database
    asked = [f"SHOW {name}" for name in ("synchronous_commit", "transaction_isolation")]
    assert database.write(lambda db: [db.exec_driver_sql(q).scalar() for q in asked]) == [ours, "serializable"]


def test_a_connection_that_is_lost_on_the_way_is_told_and_leaves_nothing(ledger, postgres_uri, connect):
    before = ledger.head()

    def work(db):
        db.exec_driver_sql("INSERT INTO entries VALUES (10, 'start', 'now', 'p', 'h')")
        (process,) = db.exec_driver_sql("SELECT pg_backend_pid()").one()
        with connect(postgres_uri) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (process,))
            while other.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (process,)).fetchone():
                time.sleep(0.01)
        db.exec_driver_sql("SELECT 1")

    with pytest.raises(RequestError, match=r"the connection to .* was lost: .*sweeper ledger"):
        Chain(postgres_uri)._database.write(work)
    assert ledger.head() == before


# Addresses and what is shown of them.

PASSWORD = "hunter2/of@tests"
WRITTEN = "hunter2%2Fof%40tests"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (f"ann:{WRITTEN}@127.0.0.1:1/ledger", "Connection refused"),
        (f"ann:{WRITTEN}@/ledger?host=/nonexistent", "No such file or directory"),
        (f"ann@127.0.0.1:1/ledger?password={WRITTEN}", "Connection refused"),
        (f"ann:{WRITTEN}@127.0.0.1:1/ledger?sslmode=perhaps", "sslmode"),
    ],
)
def test_a_server_that_is_not_there_is_named_without_its_password(place, said, caplog):
    caplog.set_level(logging.DEBUG, logger="sqlalchemy")
    with pytest.raises(RequestError) as caught:
        Ledger(f"postgresql+psycopg://{place}")
    text = str(caught.value)
    assert text.startswith("SWEEPER_LEDGER_URI = postgresql+psycopg://ann")
    assert "cannot be reached" in text
    assert said in text
    assert "\n" not in text
    for shown in (text, caplog.text, "".join(traceback.format_exception(caught.value))):
        assert not [word for word in ("hunter2", PASSWORD, WRITTEN) if word in shown]


def test_an_option_that_the_driver_does_not_know_is_told_without_the_password():
    with pytest.raises(
        RequestError, match=r'the ledger .*ann:\*\*\*@.* did not do it: invalid connection option "nonsense"'
    ) as caught:
        Ledger(f"postgresql+psycopg://ann:{WRITTEN}@127.0.0.1:1/ledger?nonsense=1")
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_a_ledger_shows_no_password_of_its_own(ledger, postgres_uri):
    password = make_url(postgres_uri).password
    assert password
    address = ledger._chain.address
    for shown in (repr(ledger), str(address), repr(address), repr(ledger._chain._database._engine)):
        assert password not in shown
        assert re.sub("[^a-z]", "", password) not in re.sub("[^a-z]", "", shown)
    assert make_url(postgres_uri).database in repr(ledger)


def test_a_database_that_is_not_there_is_told(postgres_uri):
    missing = make_url(postgres_uri).set(database="nowhere").render_as_string(hide_password=False)
    with pytest.raises(RequestError, match=r'cannot be reached: .*database "nowhere" does not exist'):
        Ledger(missing)


def test_without_the_driver_it_says_what_to_install(postgres_uri, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(RequestError, match=r"its driver is not here: pip install 'psycopg\[binary\]'"):
        Ledger(postgres_uri)
