"""`sweeper doctor`: what is wrong with an installation or a sweep's file, and what to do about it."""

from __future__ import annotations

import argparse
import shutil
import sys
from typing import Any

from sweeper.commands.parts import add_verb, print_json
from sweeper.commands.price import Progress

NARROW = 110  # columns where no terminal says how wide it is
EXAMPLES = """sweeper doctor                                    # this machine, its packages, the home, MLflow, the ledger, Ray
  sweeper doctor jobs/adult_logistic_clip.yaml      # and a sweep: price, budget, gradients, one dry step, memory, room
  sweeper doctor --json | python -m json.tool"""
CODES = "exit code: 0 all is fine (there may be warnings), 1 something must be fixed, 2 the request was wrong."


def add(verbs: Any) -> None:
    """The command."""
    parser = add_verb(verbs, "doctor", _doctor, "what to fix before a sweep runs; opens no data, charges nothing", EXAMPLES)
    parser.epilog = f"{parser.epilog}\n\n{CODES}"
    parser.add_argument("file", nargs="?", metavar="FILE", help="a sweep in YAML, to be checked too")


def _doctor(args: argparse.Namespace) -> int:
    from sweeper import service
    from sweeper.report.doctor_text import finding_text, summary

    width, groups = shutil.get_terminal_size((NARROW, 24)).columns, [""]

    def show(finding: Any) -> None:
        if finding.group != groups[-1]:
            print(f"{chr(10) if groups[-1] else ''}{finding.group}")
            groups.append(finding.group)
        print(finding_text(finding.to_dict(), width))
        sys.stdout.flush()

    found = service.doctor(args.file, watch=lambda name: Progress(f"looking at {name}"), hear=None if args.json else show)
    records = [finding.to_dict() for finding in found]
    failed = any(record["word"] == "fail" for record in records)
    if args.json:
        print_json({"fine": not failed, "findings": records})
    else:
        print(f"\n{summary(records)}")
    return 1 if failed else 0
