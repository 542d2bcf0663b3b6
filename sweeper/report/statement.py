"""The privacy statement of a data set as one HTML page, and its charges as CSV. Pure functions of the ledger's JSON."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Mapping, Sequence
from typing import Any

from sweeper.report.event_words import in_words, protocol_of
from sweeper.report.tables import human_epsilon, sig

Json = Mapping[str, Any]
COLUMNS = (
    "data_set", "sweep", "state", "epsilon", "delta", "relation", "unit", "protocol", "mechanism", "who", "at", "fingerprint",
    "reservation", "reason",
)  # fmt: skip
NOT_COVERED = (
    "How long a sweep ran, and when, unless its protocol releases at fixed times.",
    "Attacks on the low bits of floating-point noise: gradient noise is float32 with exact tails; scores are whole numbers.",
    "More than one record of the same person: the unit is one record, and nothing here bounds what one person contributes.",
    "Anything read from the data outside this ledger, and whoever can read the curator's storage.",
    "Sweeps on data declared public: they are not charged here.",
)


def charges_csv(charges: Sequence[Json]) -> str:
    """One line per charge, oldest first, with a header. Epsilon is empty where it is infinite."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for charge in charges:
        writer.writerow({name: _no_formula(value) for name, value in _row(charge).items()})
    return out.getvalue()


def statement_html(standings: Sequence[Json], charges: Sequence[Json], head: Json, made_at: str) -> str:
    """The page. `standings` and `charges`: as `sweeper ledger --json` gives them; `head`: seq and hash of the chain's last row."""
    sections = "".join(_section(standing, [c for c in charges if c["data_set"] == standing["data_set"]]) for standing in standings)
    uncovered = "".join(f"<li>{html.escape(line)}</li>" for line in NOT_COVERED)
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>Privacy statement</title><style>{_STYLE}</style></head><body><h1>Privacy statement</h1>"
        f"<p>Made {html.escape(made_at)} from row {head['seq']} of the ledger, whose hash is <code>{html.escape(head['hash'])}"
        "</code>. A ledger that no longer holds that row was changed since.</p>"
        f"{sections or '<p>No data set has a budget or a charge.</p>'}"
        f"<h2>What is not covered</h2><ul>{uncovered}</ul>"
        "<h2>How to read it</h2><p>(epsilon, delta)-differential privacy: for two tables that differ in one record, every set of "
        "answers is at most e<sup>epsilon</sup> times as likely on the one as on the other, plus delta. Relation zero-out: the "
        "record is replaced by one that adds nothing to any sum (costs equal those of adding or removing it). Relation "
        "replace-one: it is replaced by any other. A charge counts from its "
        "reservation on, whether or not the sweep finished.</p>"
        "</body></html>\n"
    )


def _section(standing: Json, charges: Sequence[Json]) -> str:
    budget, spent = standing["budget"], standing["spent"]
    name = html.escape(standing["data_set"])
    promise = (
        f"Everything released about <b>{name}</b> is (<b>{sig(budget['epsilon'], 4)}</b>, {budget['delta']:g})-differentially "
        "private for as long as this ledger admits charges by that budget."
        if budget
        else f"<b>{name}</b> has no budget: nothing may be asked of it."
    )
    used = f"Spent so far: epsilon {_epsilon(spent['epsilon'])} at delta {spent['delta']:g}, tuning included."
    rows = "".join(
        f"<tr><td>{html.escape(row['sweep'])}</td><td>{html.escape(row['state'])}</td><td>{_epsilon(row['epsilon'])}</td>"
        f"<td>{row['delta']:g}</td><td>{html.escape(row['relation'])}, {html.escape(row['unit'])}</td>"
        f"<td>{html.escape(row['protocol'])}</td><td>{html.escape(row['mechanism'])}</td><td>{html.escape(row['who'])}</td>"
        f"<td>{html.escape(row['at'])}</td></tr>"
        for row in map(_row, charges)
    )
    head = (
        "<tr><th>sweep</th><th>state</th><th>epsilon</th><th>delta</th><th>relation, unit</th><th>protocol</th><th>mechanism</th>"
    )
    table = f"<table>{head}<th>who</th><th>when (UTC)</th></tr>{rows}</table>" if rows else "<p>No charges.</p>"
    return f"<h2>{name}</h2><p>{promise}</p><p>{used}</p>{table}"


def _row(charge: Json) -> dict[str, Any]:
    guarantee = charge["guarantee"]
    released = charge["state"] == "released"
    return {
        "data_set": charge["data_set"],
        "sweep": charge["sweep"],
        "state": charge["state"],
        "epsilon": 0.0 if released else charge["price"]["stated_epsilon"],
        "delta": 0.0 if released else charge["price"]["stated_delta"],
        "relation": guarantee["relation"],
        "unit": guarantee["unit"],
        "protocol": protocol_of(charge["event"]),
        "mechanism": in_words(charge["event"]),
        "who": charge["who"],
        "at": charge["at"],
        "fingerprint": charge["fingerprint"],
        "reservation": charge["id"],
        "reason": charge["reason"],
    }


def _no_formula(value: Any) -> Any:
    """A spreadsheet takes a text that begins like this for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _epsilon(value: float | None) -> str:
    return "infinite" if value is None else human_epsilon(value)


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;font-size:.9rem}th,td{border:1px solid #ccc;padding:.3rem .5rem;text-align:left}"
    "td{vertical-align:top}th{background:#f3f3f3}code{word-break:break-all;font-size:.85rem}@media print{body{margin:0}}"
)
