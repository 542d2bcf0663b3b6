"""The chain: every edit shows, whichever table it was made in, and an earlier layout becomes this one with its hashes."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from ledgers import DELTA, SMALL, STATED, Flat, Gaussians, reserve

from sweeper.checks import FieldError, RequestError
from sweeper.privacy.chain import GENESIS, Chain, Head, New
from sweeper.privacy.events import NOTHING, Gaussian, Repeated
from sweeper.privacy.ledger import Ledger
from sweeper.privacy.ledger_layout import LAYOUTS, Field

TABLES = ("entries", *(layout.table for layout in LAYOUTS.values()))


def filled(path: Path) -> Ledger:
    """A ledger with a row in every table, and three more reservations."""
    made = Ledger(path, accountant=Gaussians())
    made.set_budget("adult", 80.0, DELTA, "ann")
    first = reserve(made, 4.0, digest="d1")
    made.start(first, "run-1")
    made.commit(first)
    made.unseal(first, Repeated(Gaussian(4.0), 3), STATED, "ann")
    made.commit_unsealed(first, Repeated(Gaussian(4.0), 2), "two trials were shown")
    for noise in (4.0, 5.0, 6.0):
        reserve(made, noise, stated=SMALL)
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Ledger:
    return filled(path)


def tamper(path: Path, *statements: str) -> None:
    """As somebody would who has the file and knows how to drop a trigger."""
    with closing(sqlite3.connect(path)) as db:
        for table in TABLES:
            db.execute(f"DROP TRIGGER {table}_keep")
            db.execute(f"DROP TRIGGER {table}_stay")
        for statement in statements:
            assert db.execute(statement).rowcount != 0, statement
        db.commit()


def kinds(ledger: Ledger) -> list[str]:
    return [entry.kind for entry in ledger.entries()]


def test_every_table_has_its_rows_and_one_number_counts_them_all(ledger, path):
    counts = ["budget", "binding", "reservation", "start", "commit", "unseal", "commit", *["reservation"] * 3]
    assert kinds(ledger) == counts
    assert ledger.verify() is None
    with closing(sqlite3.connect(path)) as db:
        numbers = [seq for table in TABLES[1:] for (seq,) in db.execute(f"SELECT seq FROM {table}")]
        assert sorted(numbers) == list(range(1, 11)) == [seq for (seq,) in db.execute("SELECT seq FROM entries ORDER BY seq")]


def test_a_hash_covers_the_row_and_the_hash_before_it(ledger):
    """Computed here from what is published, by another program."""
    previous = GENESIS
    for entry in ledger.entries():
        body = json.dumps(entry.body, sort_keys=True, separators=(",", ":"))
        content = json.dumps([entry.seq, entry.kind, entry.data_set, body, entry.at], separators=(",", ":"))
        assert entry.previous == previous
        assert entry.hash == hashlib.sha256((previous + content).encode()).hexdigest()
        previous = entry.hash


@pytest.mark.parametrize("table", TABLES)
def test_plain_sql_cannot_change_a_row(ledger, path, table):
    with closing(sqlite3.connect(path)) as db:
        for statement in (f"UPDATE {table} SET seq = seq", f"DELETE FROM {table}"):
            with pytest.raises(sqlite3.IntegrityError, match=f"{table} are append-only"):
                db.execute(statement)


def edits(table: str, column: Field) -> str:
    row = f"(SELECT min(seq) FROM {table})"
    if column.form == "number":
        return f"UPDATE {table} SET {column.column} = coalesce({column.column}, 0) + 0.001 WHERE seq = {row}"
    if column.form == "flag":
        return f"UPDATE {table} SET {column.column} = 2 - {column.column} WHERE seq = {row}"
    return f"UPDATE {table} SET {column.column} = coalesce({column.column}, '') || ' ' WHERE seq = {row}"


CELLS = [(layout.table, edits(layout.table, f)) for layout in LAYOUTS.values() for f in layout.fields]


@pytest.mark.parametrize(("table", "statement"), CELLS)
def test_any_edited_cell_is_found(ledger, path, table, statement):
    with closing(sqlite3.connect(path)) as db:
        (seq,) = db.execute(f"SELECT min(seq) FROM {table}").fetchone()
    tamper(path, statement)
    broken = ledger.verify()
    assert broken is not None
    assert (broken.seq, broken.rule) == (seq, "its content does not have its hash")


@pytest.mark.parametrize(
    ("statements", "seq", "rule"),
    [
        (["UPDATE entries SET at = '2020-01-01' WHERE seq = 3"], 3, "does not have its hash"),
        (["UPDATE entries SET kind = 'binding' WHERE seq = 3"], 3, "bindings has no such row"),
        (["UPDATE entries SET previous = 'x' WHERE seq = 3"], 3, "hash of the row before"),
        (["UPDATE entries SET hash = 'x' WHERE seq = 3"], 3, "does not have its hash"),
        (["UPDATE reservations SET data_set = 'zoo' WHERE seq = 9"], 9, "does not have its hash"),
        (["DELETE FROM reservations WHERE seq = 8"], 8, "its content is missing: reservations has no such row"),
        (["DELETE FROM reservations WHERE seq = 10"], 10, "its content is missing"),
        (["DELETE FROM entries WHERE seq = 8"], 8, "it stands in reservations and not in the chain"),
        (["DELETE FROM entries WHERE seq = 10"], 10, "it stands in reservations and not in the chain"),
        (["DELETE FROM entries WHERE seq = 8", "DELETE FROM reservations WHERE seq = 8"], 9, "row 8 is missing"),
        (["INSERT INTO starts (seq, data_set, reservation, run) VALUES (11, 'adult', 'x', 'y')"], 11, "not in the chain"),
        (
            ["INSERT INTO starts (seq, data_set, reservation, run) VALUES (9, 'adult', 'x', 'y')"],
            9,
            "in starts and in reservations",
        ),
        (
            [
                "INSERT INTO starts (seq, data_set, reservation, run) VALUES (11, 'adult', 'x', 'y')",
                "INSERT INTO entries SELECT 11, 'start', at, hash, 'made up' FROM entries WHERE seq = 10",
            ],
            11,
            "does not have its hash",
        ),
        (
            [
                "UPDATE reservations SET seq = -8 WHERE seq = 8",
                "UPDATE reservations SET seq = 8 WHERE seq = 9",
                "UPDATE reservations SET seq = 9 WHERE seq = -8",
            ],
            8,
            "does not have its hash",
        ),
        (
            [
                "UPDATE entries SET seq = -8 WHERE seq = 8",
                "UPDATE entries SET seq = 8 WHERE seq = 9",
                "UPDATE entries SET seq = 9 WHERE seq = -8",
            ],
            8,
            "hash of the row before",
        ),
        (["UPDATE commits SET released = 2 WHERE seq = 5"], 5, "does not have its hash"),
        (["UPDATE budgets SET epsilon = 'much' WHERE seq = 1"], 1, "does not have its hash"),
        (["UPDATE budgets SET who = x'00ff' WHERE seq = 1"], 1, "does not have its hash"),
    ],
)
def test_the_first_broken_row_is_named(ledger, path, statements, seq, rule):
    tamper(path, *statements)
    broken = ledger.verify()
    assert broken is not None
    assert broken.seq == seq
    assert rule in broken.rule


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE budgets SET epsilon = 800.0 WHERE seq = 1",
        "UPDATE commits SET released = 1 WHERE seq = 5",
        "DELETE FROM reservations WHERE seq = 3",
    ],
)
def test_nothing_is_added_to_a_ledger_that_was_edited(ledger, path, statement):
    tamper(path, statement)
    with pytest.raises(RequestError, match=r"row \d of the ledger is not what was appended .* so it cannot be added to"):
        reserve(ledger, 50.0)


def test_a_ledger_with_a_row_cut_out_is_not_read_as_if_it_were_whole(ledger, path):
    tamper(path, "DELETE FROM entries WHERE seq = 3", "DELETE FROM reservations WHERE seq = 3")
    with pytest.raises(RequestError, match="row 3 of the ledger is not what was appended"):
        ledger.spent("adult")


# Heads.


def test_a_quoted_head_stays_in_the_chain(ledger):
    quoted = ledger.head()
    assert (quoted.seq, quoted.hash) == (10, ledger.entries()[-1].hash)
    reserve(ledger, 7.0, stated=SMALL)
    assert ledger.verify(quoted) is None
    assert ledger.verify(Head.parse(str(quoted))) is None
    assert ledger.head() != quoted


def test_an_empty_chain_has_a_head_that_every_chain_continues(tmp_path, ledger):
    empty = Ledger(tmp_path / "empty.db").head()
    assert (empty.seq, empty.hash) == (0, GENESIS)
    assert ledger.verify(empty) is None


def test_a_chain_that_was_cut_or_rebuilt_shows_by_a_quoted_head_alone(ledger, path, tmp_path):
    quoted = ledger.head()
    rebuilt = filled(tmp_path / "rebuilt.db")
    assert rebuilt.verify() is None
    assert "has another hash than was quoted" in rebuilt.verify(quoted).rule
    assert rebuilt.verify(quoted).seq == 10
    tamper(path, "DELETE FROM entries WHERE seq = 10", "DELETE FROM reservations WHERE seq = 10")
    assert ledger.verify() is None
    assert "row 10 was quoted" in ledger.verify(quoted).rule
    assert ledger.verify(quoted).seq == 9


@pytest.mark.parametrize("text", ["", "12", "x:" + "0" * 64, "3:" + "g" * 64, "3:" + "0" * 63, "-1:" + "0" * 64])
def test_a_head_is_a_number_and_a_hash(text):
    with pytest.raises(FieldError):
        Head.parse(text)


# One transaction.


def test_a_transaction_that_fails_in_the_middle_leaves_nothing(ledger, path):
    good = New(kind="start", data_set="adult", body={"reservation": "x", "run": "y"})
    bad = New(kind="start", data_set="adult", body={"reservation": "x"})
    twice = [good, good, ledger_row(ledger), ledger_row(ledger)]  # an id that is there already
    chain = Chain(path)
    for rows, error in (([good, bad], ValueError), (twice, RequestError)):
        with pytest.raises(error):
            chain.append(lambda _, rows=rows: rows)
        assert ledger.head().seq == 10
        assert ledger.verify() is None


def ledger_row(ledger: Ledger) -> New:
    row = ledger.entries()[2]
    return New(kind=row.kind, data_set=row.data_set, body=row.body)


def test_a_decision_that_is_overtaken_is_taken_again(ledger, path):
    """And for ever, if need be: the sixth time it holds the lock."""
    chain, calls = Chain(path), []

    def decide(entries):
        calls.append(len(entries))
        if len(calls) <= 5:
            reserve(Ledger(path, accountant=Flat()), stated=SMALL)
        return [New(kind="start", data_set="adult", body={"reservation": entries[-1].body["id"], "run": "y"})]

    chain.append(decide)
    assert calls == [10, 11, 12, 13, 14, 15]
    assert ledger.entries()[-1].body == {"reservation": ledger.entries()[-2].body["id"], "run": "y"}
    assert ledger.verify() is None


# The layout before this one.

OLD_SCHEMA = """CREATE TABLE entries (
    seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, data_set TEXT NOT NULL, body TEXT NOT NULL,
    at TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL);
    CREATE TRIGGER entries_keep BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END;
    CREATE TRIGGER entries_stay BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END;"""


@pytest.fixture
def old(tmp_path: Path) -> tuple[Path, list[tuple]]:
    """A file of version 0.1, written as that version wrote it: one table with whole bodies."""
    source = Ledger(tmp_path / "source.db", accountant=Gaussians())
    source.set_budget("adult", 8.0, DELTA, "ann")
    ended, given_back, _ = reserve(source, 4.0, digest="d1"), reserve(source, 5.0), reserve(source, 6.0)
    source.commit(ended, Gaussian(4.5), reason="fewer runs")
    source.commit(given_back, NOTHING, reason="no data was opened")
    source.set_budget("adult", 8.0, 2 * DELTA, "ben")
    rows, previous = [], GENESIS
    for e in source.entries():
        body = json.dumps(e.body, sort_keys=True, separators=(",", ":"))
        content = json.dumps([e.seq, e.kind, e.data_set, body, e.at], separators=(",", ":"))
        own = hashlib.sha256((previous + content).encode()).hexdigest()
        rows.append((e.seq, e.kind, e.data_set, body, e.at, previous, own))
        previous = own
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(OLD_SCHEMA)
        db.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        db.commit()
    return path, rows


def test_the_earlier_layout_is_brought_to_this_one_with_its_hashes(old):
    path, rows = old
    ledger = Ledger(path, accountant=Gaussians())
    assert [(e.seq, e.hash) for e in ledger.entries()[: len(rows)]] == [(row[0], row[-1]) for row in rows]
    assert ledger.verify() is None
    assert ledger.verify(Head(seq=rows[-1][0], hash=rows[-1][-1])) is None
    assert [r.state for r in ledger.reservations()] == ["committed", "released", "reserved"]
    assert ledger.spent("adult") == Ledger(path.with_name("source.db")).spent("adult")
    reserve(ledger, 7.0)
    assert Ledger(path).verify() is None


def test_what_was_open_in_the_earlier_layout_may_have_opened_data(old):
    path, rows = old
    ledger = Ledger(path, accountant=Gaussians())
    assert kinds(ledger)[len(rows) :] == ["start"]
    (held,) = ledger.reservations("reserved")
    assert held.started == "unknown"
    with pytest.raises(RequestError, match="has started"):
        ledger.release(held.id, "nobody remembers it")
    ledger.start(held.id, "run-1")  # its vault is resumed by this version
    with pytest.raises(RequestError, match="another one has started"):
        ledger.start(held.id, "run-2")


@pytest.mark.parametrize(
    "statement", ["UPDATE entries SET body = replace(body, '8.0', '9.0') WHERE seq = 1", "DELETE FROM entries WHERE seq = 3"]
)
def test_an_earlier_ledger_that_was_edited_is_left_as_it_is(old, statement):
    path, _ = old
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TRIGGER entries_keep")
        db.execute("DROP TRIGGER entries_stay")
        db.execute(statement)
        db.commit()
    before = path.read_bytes()
    with pytest.raises(RequestError, match=r"earlier layout and cannot be brought to this one: row \d is not what was appended"):
        Ledger(path)
    assert path.read_bytes() == before


def test_a_migration_that_fails_leaves_the_file_as_it_was(old, monkeypatch):
    path, _ = old
    before = path.read_bytes()
    monkeypatch.setattr("sweeper.privacy.ledger_rows.append", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Ledger(path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert Ledger(path).verify() is None


def test_an_empty_ledger_of_the_earlier_layout_becomes_an_empty_one(tmp_path):
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as db:
        db.executescript(OLD_SCHEMA)
    assert Ledger(tmp_path / "ledger.db").head().seq == 0


def test_an_earlier_version_cannot_take_a_new_file_for_an_empty_one(path, ledger):
    """It looks for this trigger before it makes tables, and then reads these columns."""
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT 1 FROM sqlite_master WHERE name = 'entries_stay'").fetchone() == (1,)
        with pytest.raises(sqlite3.OperationalError, match="no such column: data_set"):
            db.execute("SELECT seq, kind, data_set, body FROM entries")


def test_a_file_of_a_later_version_is_left_alone(path, ledger):
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 3")
    with pytest.raises(RequestError, match="written by a later version"):
        Ledger(path)
