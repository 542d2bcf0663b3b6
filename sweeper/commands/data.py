"""sweeper data: list, fetch, show, split, describe."""

from __future__ import annotations

import argparse
from typing import Any

from sweeper.commands.parts import add_verb, print_json


def add(verbs: Any) -> None:
    """The commands below `sweeper data`."""
    data = verbs.add_parser("data", help="sources: list, fetch, show, split, describe", description="Data sources.")
    actions = data.add_subparsers(metavar="ACTION", required=True)
    add_verb(actions, "list", _list, "the published sources and whether their files are here", "sweeper data list")
    for name, command, summary in (
        ("fetch", _fetch, "fetch a source's files and check their hashes"),
        ("show", _show, "what is public about a source, or about that of a sweep's file"),
    ):
        add_verb(actions, name, command, summary, f"sweeper data {name} adult").add_argument("source", metavar="SOURCE")
    summary = "how many rows train and how many are held out; of a file with row ids, reads the ids alone"
    add_verb(actions, "split", _split, summary, "sweeper data split sweep.yaml").add_argument("file", metavar="FILE")
    summary = "draft the declaration of a file of your own"
    describe = add_verb(actions, "describe", _describe, summary, "sweeper data describe people.csv --label income")
    describe.add_argument("file", metavar="FILE", help="csv, csv.gz, parquet or npz")
    describe.add_argument("--label", metavar="NAME", help="the column to predict")
    describe.add_argument("--public", action="store_true", help="anybody may read the rows: draft ranges and categories from them")


def _list(args: argparse.Namespace) -> int:
    from sweeper import service
    from sweeper.report.tables import table

    rows = service.data_sets()
    if args.json:
        print_json(rows)
    else:
        print(table(list(rows[0]), [[_yes(v) for v in row.values()] for row in rows]))
    return 0


def _yes(value: Any) -> Any:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


def _fetch(args: argparse.Namespace) -> int:
    from sweeper import service

    files = service.fetch(args.source)
    if args.json:
        print_json({"files": files})
    else:
        print(f"{args.source}: {len(files)} files, hashes verified")
    return 0


def _show(args: argparse.Namespace) -> int:
    from sweeper import service
    from sweeper.report.tables import table

    facts = service.show(args.source)
    if args.json:
        print_json(facts)
        return 0
    print(f"{facts['kind']}: n = {facts['rows']:,}, {facts['features']} features, {facts['classes']} classes")
    print(f"stated by {facts['stated_by']}; nothing here was read from the rows\n")
    if facts["columns"]:
        print(table(["column", "features", "declared"], [list(c.values()) for c in facts["columns"]]))
    return 0


def _split(args: argparse.Namespace) -> int:
    from sweeper import service

    found = service.split(args.file)
    if args.json:
        print_json(found)
        return 0
    print(f"{found['train_rows']:,} rows train, {found['holdout_rows']:,} are held out")
    if found["n_holdout"] is not None:
        print(f"read from the public ids alone. In the sweep's file, under data: n_holdout: {found['n_holdout']}")
    return 0


def _describe(args: argparse.Namespace) -> int:
    from sweeper.data.describe import describe

    found = describe(args.file, args.label, public=args.public)
    if args.json:
        print_json(found)
    else:
        print(found["yaml"], end="")
    return 0
