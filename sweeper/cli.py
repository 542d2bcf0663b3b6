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
from collections.abc import Iterator, Sequence
from typing import Any

from sweeper.checks import FieldError, RequestError
from sweeper.commands import data, doctor, ledger, price, suggest, unseal
from sweeper.commands.parts import Command, add_verb, print_json, whole


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
    if name and "quote" in args:
        return f"What was charged stays charged and is not charged again: sweeper unseal {name} goes on."
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


# Verbs


def _plan(args: argparse.Namespace) -> int:
    from sweeper import service
    from sweeper.report.bill import plan_text

    spec = _named(args)
    if args.suggest:
        with _errors_name(args.file):
            return suggest.run(spec, args)
    if args.chance is not None:
        raise RequestError("--chance belongs to --suggest. Leave it out, or add --suggest")
    with _errors_name(args.file):
        plan = service.plan(spec)
    budget = service.budget_for(plan)
    held = service.reserve(plan) if args.reserve and not (budget is not None and budget["over"]) else None
    if args.json:
        print_json(plan.to_dict() | {"budget": budget} | ({"reservation": held} if args.reserve else {}))
    else:
        print(plan_text(plan.to_dict(), budget, args.file))
    if budget is not None and budget["over"]:
        raise RequestError(_over(budget))
    if held is not None:
        name = f" --name {args.name}" if args.name else ""
        print(
            f"reserved: {held}\nnext: sweeper run {args.file}{name} --reservation {held}",
            file=sys.stderr if args.json else sys.stdout,
        )
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
        if budget.get("why"):
            return str(budget["why"])
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
        finished = service.run(spec, say=_say, reservation=args.reservation)
    return _finish(finished, args)


def _resume(args: argparse.Namespace) -> int:
    from sweeper import service

    return _finish(service.resume(args.sweep, say=_say), args)


def _finish(finished: Any, args: argparse.Namespace) -> int:
    name = finished.plan.spec.name
    if finished.drew_nothing:
        if args.json:
            print_json({"sweep": name, "best": None, "drew_nothing": True, "guarantee": finished.plan.guarantee.to_dict()})
        else:
            print(f"sweep {name} drew no run, as its law may: no answer is what it released, and the charge stands.")
        return 0
    if finished.best is None:
        print(f"sweep {name}: every released trial failed or diverged; the charge stands. Try smaller step sizes.", file=sys.stderr)
        return 1
    arms = _of_arms(name) if finished.plan.arms else None
    if args.json:
        print_json(finished.best.to_dict() | ({"arms": _records(arms)} if arms is not None else {}))
        return 0
    if arms is not None:
        print(f"{_frame_text(arms)}\n")
    print(_best_text(finished.best, finished.plan.to_dict()))
    print(f"next: sweeper ui     sweeper compare {name} --by {'arm' if arms is not None else 'clip'}     sweeper ledger")
    return 0


def _of_arms(sweep: str) -> Any:
    from sweeper import service

    return service.compare(sweep, by="arm")


def _records(frame: Any) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads(frame.to_json(orient="records"))
    return records


def _frame_text(frame: Any) -> str:
    from sweeper.report.tables import table

    return table([str(c) for c in frame.columns], [[_cell(v) for v in row] for row in frame.itertuples(index=False)])


def _best(args: argparse.Namespace) -> int:
    from sweeper import service

    found = service.best(args.sweep)
    if args.json:
        print_json(found.to_dict())
    else:
        print(_best_text(found, None))
    return 0


def _best_text(best: Any, plan: dict[str, Any] | None) -> str:
    from sweeper.report.tables import human_epsilon, sig

    settings = [
        f"{k} {sig(v, 4)}" for k, v in best.settings.items() if isinstance(v, float) and k in ("clip_norm", "learning_rate")
    ]
    shown = ("clip.clip_norm", "step.learning_rate", "step.c")  # the first line says what they came to
    settings += [f"{name} {value}" for name, value in sorted(best.searched.items()) if name not in shown]
    noise = f" (noise +-{best.score_noise:.2g})" if best.score_noise else ""
    bill = "as if private: public data, nothing charged" if best.public else "tuning included"
    lines = [
        "   ".join(
            [
                *([f"arm {best.arm}"] if best.arm else []),
                *settings,
                f"{best.metric} {best.score:.4f}{noise}",
                f"epsilon {human_epsilon(best.epsilon)} at delta {best.delta:g}, {bill}",
            ]
        )
    ]
    if plan is not None and plan["protocol"] != "no-tuning":
        alone = next((arm["epsilon_one_trial"] for arm in plan["arms"] if arm["name"] == best.arm), plan["epsilon_one_trial"])
        lines.append(f"(a report of this run alone would say epsilon {human_epsilon(alone)}, which is not the truth)")
    if best.model_uri:
        lines.append(f'model: mlflow model "{best.model_uri}"     load: {best.load}')
    if best.ledger_head:
        lines.append(f"charged: sweeper ledger verify --head {best.ledger_head}")
    return "\n".join(lines)


def _compare(args: argparse.Namespace) -> int:
    from sweeper import service

    frame, note = service.compare(args.sweep, by=args.by), service.compare_note(args.sweep)
    if args.json:
        print_json({"groups": _records(frame), "note": note})
        return 0
    print(_frame_text(frame))
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
        print_json(rows)
    elif rows:
        print(table(list(rows[0]), [list(row.values()) for row in rows]))
    else:
        print("no sweep was run here. Try: sweeper plan jobs/adult_logistic_clip.yaml")
    return 0


def _kinds(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from sweeper import catalog

    rows = catalog.kinds(args.family)
    if args.json:
        print_json([asdict(row) for row in rows])
        return 0
    family, width = None, max(len(row.kind) for row in rows)
    for row in rows:
        if row.family != family:
            print(f"{'' if family is None else chr(10)}{row.family}")
            family = row.family
        print(f"  {row.kind:<{width}} {row.summary}")
        print(f"  {'':<{width}}   {row.example}")
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
        (
            "plan",
            _plan,
            "price a sweep; opens no data",
            "sweeper plan jobs/adult_logistic_clip.yaml --json\n"
            "  sweeper plan jobs/adult_logistic_clip.yaml --suggest     # what to search, couple or infer at its epsilon",
        ),
        ("run", _run, "reserve, run on Ray, release what is paid for", "sweeper run jobs/adult_logistic_clip.yaml"),
    ):
        verb = add_verb(verbs, name, command, summary, example)
        verb.add_argument("file", metavar="FILE", help="a sweep in YAML")
        verb.add_argument("--name", help="run under this name instead of the file's")
        if name == "plan":
            verb.add_argument("--reserve", action="store_true", help="charge the price now; prints an id for run --reservation")
            suggest.add_flags(verb)
        else:
            verb.add_argument("--reservation", metavar="ID", help="pay with what plan --reserve has reserved")
    _namedadd_verb(verbs, "resume", _resume, "run what a sweep left unsettled, nothing twice", "sweeper resume adult-clip")
    _namedadd_verb(verbs, "best", _best, "the best released setting with its whole bill", "sweeper best adult-clip --json")
    compare = _namedadd_verb(verbs, "compare", _compare, "released trials in groups", "sweeper compare adult-clip --by clip")
    compare.add_argument("--by", help="clip, step, trainer, protocol or arm (default: arm where there are arms, else clip)")
    status = add_verb(verbs, "status", _status, "phase of each sweep; nothing sealed", "sweeper status adult-clip")
    status.add_argument("sweep", nargs="?", metavar="NAME")
    kinds = add_verb(verbs, "kinds", _kinds, "every kind with a line and an example", "sweeper kinds clip --json")
    kinds.add_argument("family", nargs="?", metavar="FAMILY", help="clip, step, trainer, model, data, protocol or search")

    price.add(verbs)
    ledger.add(verbs)
    unseal.add(verbs, _say)
    data.add(verbs)
    doctor.add(verbs)

    ui = add_verb(verbs, "ui", _ui, "MLflow's pages on the right store", "sweeper ui --port 5001", machine=False)
    ui.add_argument("--port", type=whole, default=5000)
    return parser


def _namedadd_verb(verbs: Any, name: str, command: Command, summary: str, example: str) -> argparse.ArgumentParser:
    parser = add_verb(verbs, name, command, summary, example)
    parser.add_argument("sweep", metavar="NAME")
    return parser


def _version() -> str:
    from sweeper import __version__

    return f"sweeper {__version__}"


if __name__ == "__main__":
    sys.exit(main())
