"""`sweeper ledger`: budgets and charges, what is known of a charge that was never committed, and what to hand to others."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from sweeper.checks import FieldError, RequestError
from sweeper.commands.parts import add_verb, epsilon_text, number, print_json


def add(verbs: Any) -> None:
    """The command and its actions."""
    ledger = add_verb(
        verbs, "ledger", _list, "budgets and charges",
        "sweeper ledger\n  sweeper ledger set-budget adult --epsilon 8 --delta 1e-4\n  sweeper ledger verify\n"
        "  sweeper ledger recover adult-clip\n  sweeper ledger export adult -o statement.html",
    )  # fmt: skip
    actions = ledger.add_subparsers(metavar="ACTION")
    add_verb(actions, "list", _list, "budgets and charges", "sweeper ledger list --json")
    budget = add_verb(
        actions,
        "set-budget",
        _set_budget,
        "what may ever be spent on a data set",
        "sweeper ledger set-budget adult --epsilon 8 --delta 1e-4",
    )
    budget.add_argument("data_set", metavar="DATA")
    budget.add_argument("--epsilon", type=number, required=True)
    budget.add_argument("--delta", type=number, default=1e-4, help="default 1e-4: ten times the 1e-5 that a sweep usually states")
    verify = add_verb(
        actions,
        "verify",
        _verify,
        "whether every row is as it was appended; exit 1 if not",
        "sweeper ledger verify --head 12:9f3c...",
    )
    verify.add_argument("--head", metavar="SEQ:HASH", help="a head that a bill quotes: is that row still there?")
    recover = add_verb(
        actions,
        "recover",
        _recover,
        "what is known of a sweep's charges, and giving back what provably did not run",
        "sweeper ledger recover adult-clip\n  sweeper ledger recover adult-clip --give-back",
    )
    recover.add_argument("sweep", metavar="NAME")
    recover.add_argument("--give-back", action="store_true", help="commit as nothing what provably opened no data")
    release = add_verb(
        actions,
        "release",
        _release,
        "give back a reservation that no run has started",
        "sweeper ledger release 3f2a... --reason 'not needed'",
    )
    release.add_argument("reservation", metavar="ID")
    release.add_argument("--reason", default="released by hand before any run")
    export = add_verb(
        actions,
        "export",
        _export,
        "the privacy statement as one HTML page, or the charges as CSV",
        "sweeper ledger export adult -o statement.html\n  sweeper ledger export -o charges.csv",
    )
    export.add_argument("data_set", metavar="DATA", nargs="?", help="one data set (default: all)")
    export.add_argument("-o", "--output", metavar="FILE", help="FILE.html or FILE.csv; default: CSV to the terminal")


def _list(args: argparse.Namespace) -> int:
    from sweeper import service
    from sweeper.report.tables import table

    broken = service.ledger_broken()
    if broken is not None:
        print(f"warning: the ledger was changed: row {broken['seq']}: {broken['rule']}", file=sys.stderr)
    standings, charges = service.ledger_standings(), service.ledger_reservations()
    if args.json:
        head = None if broken else service.ledger_head()
        print_json({"data_sets": [s.to_dict() for s in standings], "charges": charges, "head": head, "broken": broken})
        return 0
    if not standings:
        print("nothing is charged and no budget is set. Set one: sweeper ledger set-budget adult --epsilon 8 --delta 1e-4")
        return 0
    rows = []
    for s in standings:
        budget = f"{s.budget.epsilon:.2f} at delta {s.budget.delta:.0e}" if s.budget else "none set"
        rows.append([s.data_set, budget, epsilon_text(s.spent.epsilon), f"{s.left:.2f}", s.open_reservations])
    print(table(["data set", "budget", "spent", "left", "open"], rows, align="llrrr"))
    if charges:
        print()
        print(table(["charge", "data set", "state", "epsilon", "delta", "who", "id"], [_line(c) for c in charges], align="lllrrll"))
    return 0


def _line(charge: dict[str, Any]) -> list[Any]:
    guarantee = charge["guarantee"]
    epsilon = charge["price"]["stated_epsilon"] if charge.get("unsealed") else guarantee["epsilon"]
    state = "unsealed" if charge.get("unsealed") else charge["state"]
    return [
        charge["sweep"], charge["data_set"], state, epsilon_text(epsilon), f"{guarantee['delta']:.0e}", charge["who"],
        charge["id"][:12],
    ]  # fmt: skip


def _set_budget(args: argparse.Namespace) -> int:
    from sweeper import service

    budget = service.set_budget(args.data_set, args.epsilon, args.delta)
    if args.json:
        print_json(budget)
    else:
        print(f"budget of {args.data_set}: epsilon {args.epsilon:g} at delta {args.delta:g}")
    return 0


def _verify(args: argparse.Namespace) -> int:
    from sweeper import service

    found = service.ledger_verify(args.head)
    if args.json:
        print_json(found)
    elif found["broken"] is None:
        print(f"{found['rows']} rows, all as they were appended. Head: {found['head']}")
    if found["broken"] is not None:
        broken = found["broken"]
        print(f"the ledger was changed: row {broken['seq']}: {broken['rule']}", file=sys.stderr)
        return 1
    return 0


def _recover(args: argparse.Namespace) -> int:
    from sweeper import service

    found = service.ledger_recover(args.sweep, give_back=args.give_back)
    if args.json:
        print_json(found)
        return 0
    for row in found:
        print(
            f"{row['reservation'][:12]}  {row['state']}, epsilon {epsilon_text(row['epsilon'])} of {row['data_set']}, "
            f"asked by {row['who']} at {row['at']}"
        )
        print(f"  {row['known']}")
        print(f"  {row['next']}")
    return 0


def _release(args: argparse.Namespace) -> int:
    from sweeper import service

    done = service.ledger_release(args.reservation, args.reason)
    if args.json:
        print_json(done)
    else:
        print(f"reservation {done['id'][:12]} of sweep {done['sweep']} costs nothing any more")
    return 0


def _export(args: argparse.Namespace) -> int:
    from sweeper import service

    if args.json and args.output is None:
        print_json(service.ledger_export(args.data_set))
        return 0
    if args.output is None:
        print(service.ledger_csv(args.data_set), end="")
        return 0
    path = Path(args.output)
    text = {".html": service.ledger_statement, ".csv": service.ledger_csv}.get(path.suffix.lower())
    if text is None:
        raise FieldError("output", args.output, "must end in .html or .csv")
    try:
        path.write_text(text(args.data_set), encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{args.output} cannot be written ({error.strerror}); name another file with -o") from None
    if args.json:
        print_json({"written": args.output})
    else:
        print(f"written to {args.output}")
    return 0
