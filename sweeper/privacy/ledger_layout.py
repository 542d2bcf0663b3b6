"""Which table and columns hold which kind of row of the ledger, and the one line of JSON that a row's hash covers.

The hash covers the cells as they stand in the table, so that any cell that was edited shows. Nothing is stored twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TEXT, NUMBER, FLAG, JSON = "text", "number", "flag", "json"  # a FLAG is 0 or 1, JSON is canonical text, a NUMBER may be null


@dataclass(frozen=True)
class Field:
    """One column of a table and its place in the row's body."""

    column: str
    form: str
    key: str = ""  # in the body, where that is not the column's name
    absent_without: str = ""  # column that is null in rows whose body has no such key

    @property
    def name(self) -> str:
        return self.key or self.column


@dataclass(frozen=True)
class Layout:
    """The table of one kind of row. Every table has `seq` and `data_set` as well."""

    table: str
    fields: tuple[Field, ...]
    unique: str = ""  # column in which no value comes twice


LAYOUTS = {
    "budget": Layout(
        "budgets",
        (
            Field("epsilon", NUMBER),
            Field("delta", NUMBER),
            Field("filter_order", NUMBER, key="order"),
            Field("who", TEXT),
            Field("prices", JSON),  # of the charges, where a new delta changed them
            Field("fixed_beforehand", NUMBER),
        ),
    ),
    "reservation": Layout(
        "reservations",
        (
            Field("id", TEXT),
            Field("sweep", TEXT),
            Field("fingerprint", TEXT),
            Field("who", TEXT),
            Field("event", JSON),
            Field("guarantee", JSON),  # epsilon, delta, neighbour relation, unit
            Field("price", JSON),
            Field("fixed_beforehand", NUMBER),
        ),
        unique="id",
    ),
    "start": Layout("starts", (Field("reservation", TEXT), Field("run", TEXT))),
    "commit": Layout(
        "commits",
        (
            Field("reservation", TEXT),
            Field("reason", TEXT),
            Field("released", FLAG),  # 1: nothing was asked of the data, and nothing is charged
            Field("event", JSON, absent_without="event"),  # these three only where it is not what was reserved
            Field("price", JSON, absent_without="event"),
            Field("fixed_beforehand", NUMBER, absent_without="event"),
        ),
    ),
    "unseal": Layout(
        "unseals",
        (
            Field("id", TEXT),
            Field("reservation", TEXT),
            Field("who", TEXT),
            Field("event", JSON),
            Field("guarantee", JSON),
            Field("delta", NUMBER),  # at which all trials together are charged: see budget.py
            Field("price", JSON),
            Field("fixed_beforehand", NUMBER),
        ),
        unique="reservation",
    ),
    "binding": Layout("bindings", (Field("digest", TEXT), Field("salt", TEXT))),
}


def canonical(body: Mapping[str, Any]) -> str:
    """One line of JSON, the same for equal bodies."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def cells(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The cells of a row, by column.

    Raises:
      ValueError: a body with a key too many, or one too few.
    """
    fields = LAYOUTS[kind].fields
    wanted = {f.name for f in fields if not f.absent_without or f.absent_without in body}
    if set(body) != wanted:
        raise ValueError(f"a row of kind {kind} has {sorted(wanted)}, not {sorted(body)}")
    return {f.column: _cell(f.form, body[f.name]) if f.name in body else None for f in fields}


def body_text(kind: str, row: Mapping[str, Any]) -> str:
    """The canonical JSON of a row's body, put together from its cells.

    Raises:
      TypeError or ValueError: a cell that nothing here can have written.
    """
    fields = {}
    for f in LAYOUTS[kind].fields:
        if not f.absent_without or row[f.absent_without] is not None:
            fields[f.name] = f
        elif row[f.column] is not None:
            raise ValueError(f"{f.column} stands where there is no {f.absent_without}")
    parts = (f"{json.dumps(name)}:{_text(fields[name].form, row[fields[name].column])}" for name in sorted(fields))
    return "{" + ",".join(parts) + "}"


def _cell(form: str, value: Any) -> Any:
    if form == JSON:
        return canonical(value)
    if form == NUMBER:
        return None if value is None else float(value)
    return int(value) if form == FLAG else value


def _text(form: str, value: Any) -> str:
    if form == JSON:
        return str(value)
    if form == FLAG:
        return {0: "false", 1: "true"}.get(value) or json.dumps(value)
    return json.dumps(value, allow_nan=False)
