"""What the commands share: numbers, JSON, one parser shape. Loads nothing heavy."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from typing import Any

Command = Callable[[argparse.Namespace], int]


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, default=str, allow_nan=False))


def number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def whole(text: str) -> int:
    return int(text)


number.__name__, whole.__name__ = "number", "whole number"  # what argparse calls them in its errors


def epsilon_text(value: float | None) -> str:
    return "infinite" if value is None or not math.isfinite(value) else f"{value:.2f}"


def add_verb(
    verbs: Any, name: str, command: Command | None, summary: str, example: str, machine: bool = True
) -> argparse.ArgumentParser:
    """A command with its help, examples and --json. `example`: one command a line."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if command is not None:
        parser.set_defaults(command=command)
    if machine:
        parser.add_argument("--json", action="store_true", help="for machines")
    return parser
