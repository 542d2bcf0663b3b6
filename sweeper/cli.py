"""The command line: parses, calls one verb of sweeper.service, prints. Heavy packages are imported inside the verbs.

Exit codes: 0 done, 1 the work failed, 2 the request was wrong or over budget, 130 interrupted.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sweeper.checks import FieldError, RequestError

Command = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. Errors are one line on stderr, never a traceback."""
    args = _parser().parse_args(argv)
    before = signal.signal(signal.SIGTERM, _interrupt)
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)  # the interpreter's last collections would walk all of torch and mlflow: 1 to 2 s
    try:
        code: int = args.command(args)
        sys.stdout.flush()
        return code
    except RequestError as error:
        print(_one_line(str(error)), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"interrupted. {_what_is_left(args)}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left; nothing to say to anybody
        return 0
    except Exception as error:
        if type(error).__name__ in ("WorkFailed", "StoreError"):
            print(_one_line(str(error)), file=sys.stderr)
        else:
            print(f"unexpected {type(error).__name__}; details are in {_keep_traceback()} (curator only)", file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _what_is_left(args: argparse.Namespace) -> str:
    """What an interrupted command leaves behind."""
    from sweeper.store.home import Home
    from sweeper.store.vault_files import directory_of

    name = getattr(args, "sweep", None)
    if args.command in (_run, _resume) and name and directory_of(Home().path, name).exists():
        return f"Nothing is lost: sweeper resume {name}"
    return "Nothing was started."


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _keep_traceback() -> str:
    """A traceback may quote what a trial saw: it goes to a file of mode 0600, not to the terminal."""
    import tempfile
    import traceback

    from sweeper.store.home import Home

    try:
        folder = str(Home().ensure().path)
    except RequestError:  # a home that cannot be written may be what failed
        folder = tempfile.gettempdir()
    descriptor, path = tempfile.mkstemp(prefix=f"crash-{time.strftime('%Y%m%d-%H%M%S')}-", suffix=".log", dir=folder)
    with os.fdopen(descriptor, "w") as file:
        traceback.print_exc(file=file)
    return path


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, default=str, allow_nan=False))


# Verbs


def _plan(args: argparse.Namespace) -> int:
    from sweeper import service
    from sweeper.report.bill import plan_text

    spec = _named(args)
    with _errors_name(args.file):
        plan = service.plan(spec)
    budget = service.budget_for(plan)
    if args.json:
        _print_json(plan.to_dict() | {"budget": budget})
    else:
        print(plan_text(plan.to_dict(), budget, args.file))
    if budget is not None and budget["over"]:
        raise RequestError(_over(budget))
    return 0


@contextlib.contextmanager
def _errors_name(file: str) -> Iterator[None]:
    """A field that turns out wrong only while the sweep is planned is still a field of that file."""
    try:
        yield
    except FieldError as error:
        raise RequestError(f"{file}: {error}") from None


def _over(budget: dict[str, Any]) -> str:
    name, after = budget["data_set"], budget["after"]
    if after is None:
        return f"over budget: this sweep would bring {name} to an infinite epsilon, which no budget allows. Give it more noise"
    return (
        f"over budget: this sweep would bring {name} to epsilon {after:.2f} of {budget['epsilon']:.2f}. Use a smaller "
        f"privacy.epsilon, or: sweeper ledger set-budget {name} --epsilon {math.ceil(after)} --delta {budget['delta']:.0e}"
    )


def _run(args: argparse.Namespace) -> int:
    from sweeper import service

    spec = _named(args)
    args.sweep = spec.name
    with _errors_name(args.file):
        finished = service.run(spec, say=_say)
    return _finish(finished, args)


def _resume(args: argparse.Namespace) -> int:
    from sweeper import service

    return _finish(service.resume(args.sweep, say=_say), args)


def _finish(finished: Any, args: argparse.Namespace) -> int:
    name = finished.plan.spec.name
    if finished.best is None:
        print(f"sweep {name}: every released trial failed or diverged; the charge stands. Try smaller step sizes.", file=sys.stderr)
        return 1
    if args.json:
        _print_json(finished.best.to_dict())
        return 0
    print(_best_text(finished.best, finished.plan.to_dict()))
    print(f"next: sweeper ui     sweeper compare {name} --by clip     sweeper ledger")
    return 0


def _best(args: argparse.Namespace) -> int:
    from sweeper import service

    found = service.best(args.sweep)
    if args.json:
        _print_json(found.to_dict())
    else:
        print(_best_text(found, None))
    return 0


def _best_text(best: Any, plan: dict[str, Any] | None) -> str:
    from sweeper.report.tables import human_epsilon, sig

    settings = [
        f"{k} {sig(v, 4)}" for k, v in best.settings.items() if isinstance(v, float) and k in ("clip_norm", "learning_rate")
    ]
    noise = f" (noise +-{best.score_noise:.2g})" if best.score_noise else ""
    bill = "as if private: public data, nothing charged" if best.public else "tuning included"
    lines = [
        "   ".join(
            [
                *settings,
                f"{best.metric} {best.score:.4f}{noise}",
                f"epsilon {human_epsilon(best.epsilon)} at delta {best.delta:g}, {bill}",
            ]
        )
    ]
    if plan is not None and plan["protocol"] != "no-tuning":
        lines.append(f"(a report of this run alone would say epsilon {plan['epsilon_one_trial']:.2f}, which is not the truth)")
    if best.model_uri:
        lines.append(f'model: mlflow model "{best.model_uri}"     load: {best.load}')
    return "\n".join(lines)


def _compare(args: argparse.Namespace) -> int:
    from sweeper import service
    from sweeper.report.tables import table

    frame, note = service.compare(args.sweep, by=args.by), service.compare_note(args.sweep)
    if args.json:
        _print_json({"groups": json.loads(frame.to_json(orient="records")), "note": note})
        return 0
    print(table([str(c) for c in frame.columns], [[_cell(v) for v in row] for row in frame.itertuples(index=False)]))
    if note:
        print(f"\n{note}")
    return 0


def _cell(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _status(args: argparse.Namespace) -> int:
    from sweeper import service
    from sweeper.report.tables import table

    rows = service.status(args.sweep)
    if args.json:
        _print_json(rows)
    elif rows:
        print(table(list(rows[0]), [list(row.values()) for row in rows]))
    else:
        print("no sweep was run here. Try: sweeper plan jobs/adult_logistic_clip.yaml")
    return 0


def _price(args: argparse.Namespace) -> int:
    from sweeper.privacy.price import Question, answer
    from sweeper.report.bill import price_text

    question = Question(
        sampling_probability=args.sampling_probability,
        steps=args.steps,
        delta=args.delta,
        noise_multiplier=args.noise_multiplier,
        epsilon=args.epsilon,
        protocol=args.protocol,
        law=args.law,
        eta=args.eta,
        mean=args.mean,
        max_trials=args.max_trials,
        trials=args.trials,
    )
    result = answer(question)
    if args.json:
        _print_json(result)
    else:
        print(price_text(result))
    return 0


def _kinds(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from sweeper import catalog

    rows = catalog.kinds(args.family)
    if args.json:
        _print_json([asdict(row) for row in rows])
        return 0
    family = None
    for row in rows:
        if row.family != family:
            print(f"{'' if family is None else chr(10)}{row.family}")
            family = row.family
        print(f"  {row.kind:<14} {row.summary}")
        print(f"  {'':<14}   {row.example}")
    return 0


def _ledger(args: argparse.Namespace) -> int:
    from sweeper import service
    from sweeper.report.tables import table

    standings, charges = service.ledger_standings(), service.ledger_reservations()
    if args.json:
        _print_json({"data_sets": [s.to_dict() for s in standings], "charges": charges})
        return 0
    if not standings:
        print("nothing is charged and no budget is set. Set one: sweeper ledger set-budget adult --epsilon 8 --delta 1e-4")
        return 0
    rows = []
    for s in standings:
        budget = f"{s.budget.epsilon:.2f} at delta {s.budget.delta:.0e}" if s.budget else "none set"
        rows.append([s.data_set, budget, _eps(s.spent.epsilon), f"{s.left:.2f}", s.open_reservations])
    print(table(["data set", "budget", "spent", "left", "open"], rows, align="llrrr"))
    if charges:
        print()
        lines = [
            [c["sweep"], c["data_set"], c["state"], _eps(c["guarantee"]["epsilon"]), f"{c['guarantee']['delta']:.0e}", c["who"]]
            for c in charges
        ]
        print(table(["charge", "data set", "state", "epsilon", "delta", "who"], lines, align="lllrrl"))
    return 0


def _eps(value: float | None) -> str:
    return "infinite" if value is None or not math.isfinite(value) else f"{value:.2f}"


def _set_budget(args: argparse.Namespace) -> int:
    from sweeper import service

    budget = service.set_budget(args.data_set, args.epsilon, args.delta)
    if args.json:
        _print_json(budget)
    else:
        print(f"budget of {args.data_set}: epsilon {args.epsilon:g} at delta {args.delta:g}")
    return 0


def _data_list(args: argparse.Namespace) -> int:
    from sweeper import service
    from sweeper.report.tables import table

    rows = service.data_sets()
    if args.json:
        _print_json(rows)
    else:
        print(table(list(rows[0]), [[_yes(v) for v in row.values()] for row in rows]))
    return 0


def _yes(value: Any) -> Any:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


def _data_fetch(args: argparse.Namespace) -> int:
    from sweeper import service

    files = service.fetch(args.source)
    if args.json:
        _print_json({"files": files})
    else:
        print(f"{args.source}: {len(files)} files, hashes verified")
    return 0


def _data_show(args: argparse.Namespace) -> int:
    from sweeper import service
    from sweeper.report.tables import table

    facts = service.show(args.source)
    if args.json:
        _print_json(facts)
        return 0
    print(f"{facts['kind']}: n = {facts['rows']:,}, {facts['features']} features, {facts['classes']} classes")
    print(f"stated by {facts['stated_by']}; nothing here was read from the rows\n")
    print(table(["column", "features", "declared"], [list(c.values()) for c in facts["columns"]]))
    return 0


def _ui(args: argparse.Namespace) -> int:
    from sweeper import checks, service

    checks.whole(1, 65535, port=args.port)
    if not _free(args.port):
        raise RequestError(f"port {args.port} is taken on this machine; try: sweeper ui --port {args.port % 65535 + 1}")
    command, settings = service.ui(args.port)
    print(f"MLflow on http://127.0.0.1:{args.port}  (Ctrl-C ends it)", flush=True)
    os.execve(command[0], command, {**os.environ, **settings})
    return 0


def _free(port: int) -> bool:
    import socket

    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _named(args: argparse.Namespace) -> Any:
    """The spec of a file, under another name when --name is given."""
    from dataclasses import replace

    from sweeper import catalog

    spec = catalog.load_spec(args.file)
    return replace(spec, name=args.name) if args.name else spec


_last_say = ""


def _say(line: str) -> None:
    """Progress on stderr: in place on a terminal; elsewhere no clock ticks, so that a log's length tells no time."""
    global _last_say
    if line.startswith("\r"):
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line[1:]}", end="", file=sys.stderr, flush=True)
        elif not _last_say.startswith("\r"):
            print("running", file=sys.stderr, flush=True)
    else:
        print(line, file=sys.stderr, flush=True)
    _last_say = line


# Parser


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sweeper",
        description="Hyperparameter sweeps for differentially private training, with the whole privacy bill.",
        epilog="start here:\n  sweeper plan jobs/adult_logistic_clip.yaml\n"
        "  sweeper ledger set-budget adult --epsilon 8 --delta 1e-4\n"
        "  sweeper run jobs/adult_logistic_clip.yaml\n  sweeper best adult-clip",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=_version())
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    for name, command, summary, example in (
        ("plan", _plan, "price a sweep; opens no data", "sweeper plan jobs/adult_logistic_clip.yaml --json"),
        ("run", _run, "reserve, run on Ray, release what is paid for", "sweeper run jobs/adult_logistic_clip.yaml"),
    ):
        verb = _verb(verbs, name, command, summary, example)
        verb.add_argument("file", metavar="FILE", help="a sweep in YAML")
        verb.add_argument("--name", help="run under this name instead of the file's")
    _named_verb(verbs, "resume", _resume, "run what a sweep left unsettled, nothing twice", "sweeper resume adult-clip")
    _named_verb(verbs, "best", _best, "the best released setting with its whole bill", "sweeper best adult-clip --json")
    compare = _named_verb(verbs, "compare", _compare, "released trials in groups", "sweeper compare adult-clip --by clip")
    compare.add_argument("--by", default="clip", help="clip, step, trainer or protocol (default: clip)")
    status = _verb(verbs, "status", _status, "phase of each sweep; nothing sealed", "sweeper status adult-clip")
    status.add_argument("sweep", nargs="?", metavar="NAME")
    kinds = _verb(verbs, "kinds", _kinds, "every kind with a line and an example", "sweeper kinds clip --json")
    kinds.add_argument("family", nargs="?", metavar="FAMILY", help="clip, step, trainer, model, data or protocol")

    price = _verb(
        verbs, "price", _price, "the calculator: what a protocol costs, without a sweep file",
        "sweeper price --noise-multiplier 1 --sampling-probability 0.01 --steps 2000 --delta 1e-5 \\\n"
        "      --protocol select-best --law tnb --eta 1 --mean 10\n"
        "  sweeper price --epsilon 2 --sampling-probability 0.01 --steps 2000 --delta 1e-5",
    )  # fmt: skip
    price.add_argument("--noise-multiplier", type=_number, help="noise standard deviation over sensitivity; or give --epsilon")
    price.add_argument("--epsilon", type=_number, help="the whole bill; the noise multiplier is then found")
    price.add_argument("--sampling-probability", type=_number, required=True, help="q = batch size / n; 1 is the plain Gaussian")
    price.add_argument("--steps", type=_whole, required=True)
    price.add_argument("--delta", type=_number, required=True)
    price.add_argument("--protocol", default="no-tuning", help="select-best, release-all, public-proxy or no-tuning (default)")
    price.add_argument("--law", default="tnb", help="of the secret number of runs: tnb (default), geometric or logarithmic")
    price.add_argument("--eta", type=_number, help="shape of tnb (default 1)")
    price.add_argument("--mean", type=_number, help="mean number of runs, before --max-trials")
    price.add_argument("--max-trials", type=_whole, help="condition on at most this many runs")
    price.add_argument("--trials", type=_whole, help="number of runs of release-all")

    ledger = _verb(
        verbs,
        "ledger",
        _ledger,
        "budgets and charges",
        "sweeper ledger\n  sweeper ledger set-budget adult --epsilon 8 --delta 1e-4",
    )
    actions = ledger.add_subparsers(metavar="ACTION")
    budget = _verb(
        actions,
        "set-budget",
        _set_budget,
        "what may ever be spent on a data set",
        "sweeper ledger set-budget adult --epsilon 8 --delta 1e-4",
    )
    budget.add_argument("data_set", metavar="DATA")
    budget.add_argument("--epsilon", type=_number, required=True)
    budget.add_argument("--delta", type=_number, default=1e-4, help="default 1e-4: ten times the 1e-5 that a sweep usually states")

    data = verbs.add_parser("data", help="sources: list, fetch, show", description="Data sources.")
    actions = data.add_subparsers(metavar="ACTION", required=True)
    _verb(actions, "list", _data_list, "the sources and whether their files are here", "sweeper data list")
    for name, command, summary in (
        ("fetch", _data_fetch, "fetch a source's files and check their hashes"),
        ("show", _data_show, "what is public about a source"),
    ):
        _verb(actions, name, command, summary, f"sweeper data {name} adult").add_argument("source", metavar="SOURCE")

    ui = _verb(verbs, "ui", _ui, "MLflow's pages on the right store", "sweeper ui --port 5001", machine=False)
    ui.add_argument("--port", type=_whole, default=5000)
    return parser


def _verb(verbs: Any, name: str, command: Command, summary: str, example: str, machine: bool = True) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=command)
    if machine:
        parser.add_argument("--json", action="store_true", help="for machines")
    return parser


def _named_verb(verbs: Any, name: str, command: Command, summary: str, example: str) -> argparse.ArgumentParser:
    parser = _verb(verbs, name, command, summary, example)
    parser.add_argument("sweep", metavar="NAME")
    return parser


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _whole(text: str) -> int:
    return int(text)


_number.__name__, _whole.__name__ = "number", "whole number"  # what argparse calls them in its errors


def _version() -> str:
    from sweeper import __version__

    return f"sweeper {__version__}"


if __name__ == "__main__":
    sys.exit(main())
