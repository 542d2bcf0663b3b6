"""`sweeper unseal`: the price of seeing everything, asked for before it is paid."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from typing import Any

from sweeper.checks import RequestError
from sweeper.commands.parts import add_verb, epsilon_text, print_json


def add(verbs: Any, say: Callable[[str], None]) -> None:
    """The command. `say`: where progress lines go."""
    unseal = add_verb(
        verbs,
        "unseal",
        lambda args: _unseal(args, say),
        "publish every trial of a sweep, at the price of all of them",
        "sweeper unseal adult-clip\n  sweeper unseal adult-clip --quote\n  sweeper unseal adult-clip --yes --json",
    )
    unseal.add_argument("sweep", metavar="NAME")
    unseal.add_argument("--yes", action="store_true", help="pay without being asked")
    unseal.add_argument("--quote", action="store_true", help="only say what it would cost")


def _unseal(args: argparse.Namespace, say: Callable[[str], None]) -> int:
    from sweeper import service

    quote = service.unseal_quote(args.sweep)
    if not args.json:
        print(_quote_text(quote))
    if quote["over"] and not quote["unsealed"]:
        raise RequestError(_over(quote))
    if args.quote:
        if args.json:
            print_json(quote)
        return 0
    if not (args.yes or quote["unsealed"]):
        _ask(args.sweep)
    done = service.unseal(args.sweep, say=say)
    if args.json:
        print_json(done)
    else:
        print(
            f"{done['trials']} trials of {args.sweep} are published: epsilon {epsilon_text(done['epsilon'])} at delta "
            f"{done['delta']:g}, all of them included"
        )
        print(f"next: sweeper compare {args.sweep} --by {'arm' if quote['arms'] else 'clip'}     sweeper ui     sweeper ledger")
    return 0


def _quote_text(quote: dict[str, Any]) -> str:
    if quote["unsealed"]:
        return f"sweep {quote['sweep']} is unsealed already: nothing more is charged"
    lines = [
        f"bill of {quote['sweep']} at delta {quote['delta']:g}        epsilon",
        f"  {'now, the winner of each arm' if quote['arms'] else 'now, the winner alone':<37}  {epsilon_text(quote['epsilon']):>8}",
        f"  unsealed, at most {quote['most']:>3} trials visible    {epsilon_text(quote['unsealed_epsilon']):>8}",
        "  (the second is charged instead of the first; what the number of runs leaves over is given back afterwards)",
        f"  budget of {quote['data_set']}: {quote['budget']:.2f}, spent {epsilon_text(quote['spent'])}, "
        f"{epsilon_text(quote['after'])} after",
        "  (the budget is charged at a smaller delta than the bill states, because this is decided after the winner was seen;",
        "   from then on the charges of this data set add up as plain sums, so that fewer further sweeps fit)",
    ]
    return "\n".join(lines)


def _over(quote: dict[str, Any]) -> str:
    name, after = quote["data_set"], quote["after"]
    reached = f"{epsilon_text(after)} of {quote['budget']:.2f}"
    text = f"over budget: unsealing would bring {name} to epsilon {reached}. Nothing was charged or shown"
    if after is None:
        more = f"--epsilon {quote['budget']:g} --delta {min(0.1, 10 * quote['budget_delta']):.0e}"
        return f"{text}. The deltas of {name}'s charges leave no room for it; a budget of a larger delta may: {more}"
    enough = f"--epsilon {math.ceil(after)} --delta {quote['budget_delta']:.0e}"
    return f"{text}. Raise the budget: sweeper ledger set-budget {name} {enough}"


def _ask(sweep: str) -> None:
    if not sys.stdin.isatty():
        raise RequestError(f"unsealing is charged and cannot be undone: add --yes to pay it (sweeper unseal {sweep} --yes)")
    try:
        answer = input("Charge it and publish every trial? This cannot be undone. [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise RequestError("nothing was charged and nothing published")
