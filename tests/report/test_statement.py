"""The privacy statement names mechanism, relation, unit, delta, protocol and what is not covered; nothing in it can inject."""

from __future__ import annotations

import csv
import io
from html.parser import HTMLParser

from sweeper.privacy import events as e
from sweeper.privacy.laws import run_count_law
from sweeper.report.statement import COLUMNS, NOT_COVERED, charges_csv, statement_html

TRIAL = e.Disjoint((e.Repeated(e.PoissonSubsampled(0.01, e.Gaussian(1.64)), 2000), e.DiscreteLaplace(0.1)))
EVENT = e.SelectBest(TRIAL, run_count_law("tnb", eta=2.0, mean=12.0, max_trials=64))
HEAD = {"seq": 7, "hash": "ab" * 32}


def charge(**changes):
    guarantee = {"epsilon": 2.0, "delta": 1e-5, "relation": "zero-out", "unit": "record", "seeded": False}
    price = {"epsilon": 1.9, "rho": 0.1, "delta0": 0.0, "stated_epsilon": 2.0, "stated_delta": 1e-5, "unpriced": ""}
    row = {"id": "r1", "data_set": "adult", "sweep": "adult-clip", "state": "committed", "event": EVENT.to_dict(), "price": price}
    row |= {"guarantee": guarantee, "who": "ann", "at": "2026-11-30T10:00:00+00:00", "fingerprint": "f1", "reason": ""}
    return row | changes


STANDING = {
    "data_set": "adult",
    "budget": {"epsilon": 8.0, "delta": 1e-4, "order": 9.0, "data_set": "adult"},
    "spent": {"epsilon": 2.0, "delta": 1e-4, "epsilon_if_fixed_beforehand": 2.0, "charges": 1},
    "left": 6.0,
    "open_reservations": 0,
}


class Reader(HTMLParser):
    """Text, tags and links of a page; balanced tags are checked."""

    def __init__(self, page):
        super().__init__()
        self.text, self.tags, self.open = "", [], []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_names_all_that_a_reader_needs():
    page = Reader(statement_html([STANDING], [charge()], HEAD, "2026-11-30"))
    for words in (
        "adult-clip",
        "zero-out",
        "record",
        "1e-05",
        "select-best",
        "Gaussian sum, noise multiplier 1.64",
        "8",
        HEAD["hash"],
    ):
        assert words in page.text
    for words in ("2.00", "Poisson batches", "row 7", "ann", *NOT_COVERED):
        assert words in page.text


def test_the_page_loads_nothing_and_runs_nothing():
    page = Reader(statement_html([STANDING], [charge(sweep="<script>alert(1)</script>", who="a&b")], HEAD, "now"))
    assert "script" not in [tag for tag, _ in page.tags]
    assert not any({"src", "href", "onclick"} & set(attrs) for _, attrs in page.tags)
    assert "<script>alert(1)</script>" in page.text
    assert "a&b" in page.text


def test_infinite_released_and_empty_are_said():
    infinite = charge(price=charge()["price"] | {"stated_epsilon": None})
    assert "infinite" in Reader(statement_html([STANDING], [infinite], HEAD, "now")).text
    given_back = Reader(statement_html([STANDING], [charge(state="released")], HEAD, "now")).text
    assert "released" in given_back
    assert "No data set" in Reader(statement_html([], [], HEAD, "now")).text
    no_budget = STANDING | {"budget": None, "spent": STANDING["spent"] | {"epsilon": 0.0}}
    assert "nothing may be asked" in Reader(statement_html([no_budget], [], HEAD, "now")).text


def test_csv_reads_back_and_no_cell_is_a_formula():
    text = charges_csv([charge(), charge(id="r2", sweep="b", reason="=cmd()", state="released")])
    first, second = csv.DictReader(io.StringIO(text))
    assert tuple(first) == COLUMNS
    assert (first["sweep"], float(first["epsilon"]), float(first["delta"])) == ("adult-clip", 2.0, 1e-5)
    assert first["protocol"] == "select-best"
    assert second["reason"] == "'=cmd()"
    assert float(second["epsilon"]) == 0.0
