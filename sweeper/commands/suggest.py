"""`sweeper plan --suggest`: its flags, and what it prints."""

from __future__ import annotations

import argparse
import shutil
from typing import Any

from sweeper.checks import FieldError, RequestError
from sweeper.commands.parts import number, print_json
from sweeper.commands.price import Progress

NARROW = 120  # columns where no terminal says how wide it is


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `plan` that belong to suggestions."""
    parser.add_argument("--suggest", action="store_true", help="which settings to search, couple or infer at this total epsilon")
    parser.add_argument(
        "--chance",
        type=number,
        metavar="X",
        help="with --suggest: of drawing a setting in the good part of the space (default 0.8)",
    )


def run(spec: Any, args: argparse.Namespace) -> int:
    """Weigh the ways to search a sweep's space, and print them."""
    from sweeper import service
    from sweeper.report.suggest_text import recommended, suggest_text, yaml_text

    if args.reserve:
        raise RequestError("--reserve holds the price of one sweep, and --suggest weighs several. Leave one of them out")
    try:
        with Progress("pricing the ways to search") as progress:
            found = service.suggest(spec, chance=args.chance, say=progress.say).to_dict()
    except FieldError as error:
        if error.field == "chance":
            raise FieldError("--chance", error.value, error.rule, "Try 0.8.") from None
        raise
    if args.json:
        best = recommended(found)
        print_json(found | {"yaml": None if best is None else yaml_text(best["paste"])})
    else:
        print(suggest_text(found, args.file, shutil.get_terminal_size((NARROW, 24)).columns))
    return 0
