"""The ledger's tables in SQLAlchemy, and the triggers that refuse to change or remove a row. Importing this imports SQLAlchemy."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Connection, Double, ForeignKey, Integer, MetaData, Table, Text

from sweeper.privacy.ledger_layout import FLAG, JSON, LAYOUTS, NUMBER, TEXT, Layout

_TYPES = {TEXT: Text, JSON: Text, NUMBER: Double, FLAG: Integer}

METADATA = MetaData()

# One row per row of all the other tables, which hold what it says: `kind` names the table, `seq` the row.
ENTRIES = Table(
    "entries",
    METADATA,
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("at", Text, nullable=False),
    Column("previous", Text, nullable=False, unique=True),
    Column("hash", Text, nullable=False, unique=True),
)


def _table(layout: Layout) -> Table:
    columns: list[Column[Any]] = [
        Column(f.column, _TYPES[f.form], nullable=f.form == NUMBER or bool(f.absent_without), unique=f.column == layout.unique)
        for f in layout.fields
    ]
    seq = Column("seq", Integer, ForeignKey(ENTRIES.c.seq), primary_key=True, autoincrement=False)
    return Table(layout.table, METADATA, seq, Column("data_set", Text, nullable=False), *columns)


TABLES = {kind: _table(layout) for kind, layout in LAYOUTS.items()}

_SQLITE = """CREATE TRIGGER {table}_{name} BEFORE {change} ON {table}
    BEGIN SELECT RAISE(ABORT, '{table} are append-only'); END"""
_POSTGRESQL = (
    """CREATE OR REPLACE FUNCTION sweeper_append_only() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION USING MESSAGE = TG_TABLE_NAME || ' are append-only'; END $$""",
    """CREATE TRIGGER {table}_keep BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION sweeper_append_only()""",
)


def create(db: Connection) -> None:
    """All tables with their triggers, in the transaction that `db` is in. There must be none."""
    METADATA.create_all(db, checkfirst=False)
    names = [table.name for table in METADATA.sorted_tables]
    if db.dialect.name == "sqlite":
        statements = [
            _SQLITE.format(table=table, name=name, change=change)
            for table in names
            for name, change in (("keep", "UPDATE"), ("stay", "DELETE"))
        ]
    else:
        function, trigger = _POSTGRESQL
        statements = [function, *(trigger.format(table=table) for table in names)]
    for statement in statements:
        db.exec_driver_sql(statement)
