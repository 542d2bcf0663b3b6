"""`sweeper price`: its flags, and the command. Heavy packages are imported inside the command."""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
from dataclasses import dataclass
from typing import Any

from sweeper.checks import MISSING, FieldError
from sweeper.commands.parts import add_verb, print_json

SUMMARY = "the calculator: what a protocol costs, without a sweep file"
TRIAL = "--noise-multiplier 1 --sampling-probability 0.01 --steps 2000 --delta 1e-5"
EXAMPLES = f"""sweeper price {TRIAL} \\
      --protocol select-best --law geometric --mean 10 --explain
  sweeper price --epsilon 2 --sampling-probability 0.01 --steps 2000 --delta 1e-5   # finds the noise
  sweeper price {TRIAL} --curve
  sweeper price {TRIAL} \\
      --line-search exponential --line-search-epsilon 0.25 --score-epsilon 0.1 --protocol select-best --mean 10
  sweeper price {TRIAL} \\
      --protocol subsample-tune --tune-fraction 0.1 --mean 10
  sweeper price {TRIAL} --protocol select-best --law auto --chance 0.5
  sweeper price --noise-multiplier 4 --sampling without-replacement --rows 26000 --batch-size 260 --steps 2000 --delta 1e-5
  sweeper price --event event.yaml --delta 1e-5 --explain"""
PATIENCE = 2.0  # seconds before progress is shown
NARROW = 100  # columns where no terminal says how wide it is
WITH_EVENT = ("delta",)  # flags that an event file leaves open


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One flag: the field of privacy.question.Question that it fills."""

    name: str
    kind: str  # number, whole number, word, or yes (a flag without a value)
    help: str

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")


GROUPS: dict[str, tuple[Flag, ...]] = {
    "one run": (
        Flag(name="noise_multiplier", kind="number", help="noise standard deviation over sensitivity; or give --epsilon"),
        Flag(name="epsilon", kind="number", help="the whole bill; the noise multiplier is then found"),
        Flag(name="steps", kind="whole number", help="noisy sums in one run"),
        Flag(name="delta", kind="number", help="of the whole bill"),
        Flag(name="sampling", kind="word", help="poisson (default) or without-replacement (relation replace-one; needs --rows)"),
        Flag(name="sampling_probability", kind="number", help="q = batch size / n; 1 is the plain Gaussian"),
        Flag(name="rows", kind="whole number", help="public number of rows"),
        Flag(name="batch_size", kind="whole number", help="rows in a batch, with --rows instead of --sampling-probability"),
        Flag(name="quantile_epsilon", kind="number", help="a private quantile (a clip norm) asked before training"),
        Flag(name="score_epsilon", kind="number", help="a count of correct answers with discrete Laplace noise, after training"),
        Flag(name="score_split", kind="word", help="rows the score reads: holdout (default, disjoint) or training"),
    ),
    "line search, on each step's own minibatch": (
        Flag(name="line_search", kind="word", help="exponential, laplace or gaussian"),
        Flag(name="line_search_epsilon", kind="number", help="cost of one search looking at its whole batch"),
        Flag(name="line_search_steps", kind="whole number", help="most candidates of a gaussian search (default 20)"),
        Flag(name="threshold_noise", kind="number", help="laplace, gaussian: noise of the threshold, instead of the epsilon"),
        Flag(name="query_noise", kind="number", help="laplace, gaussian: noise of each query"),
    ),
    "protocol": (
        Flag(name="protocol", kind="word", help="select-best, release-all, public-proxy, subsample-tune or no-tuning (default)"),
        Flag(name="tune_fraction", kind="number", help="subsample-tune: chance of a row to be in the tuning part"),
        Flag(name="final", kind="word", help="subsample-tune: the last run is on the disjoint rest (default) or on all rows"),
        Flag(name="trials", kind="whole number", help="number of runs of release-all and of law fixed; the most of law binomial"),
    ),
    "law of the secret number of runs (select-best, subsample-tune)": (
        Flag(name="law", kind="word", help="tnb (default), geometric, logarithmic, binomial, fixed, poisson or auto"),
        Flag(name="eta", kind="number", help="shape of tnb (default 1)"),
        Flag(name="mean", kind="number", help="mean number of runs, before --max-trials"),
        Flag(name="max_trials", kind="whole number", help="condition on at most this many runs"),
        Flag(name="run_probability", kind="number", help="binomial: chance of each of --trials runs, instead of --mean"),
        Flag(name="may_return_nothing", kind="yes", help="poisson: accept that no run may be made and nothing released"),
        Flag(name="chance", kind="number", help="auto: the smallest bill at this chance to see a good setting"),
        Flag(name="max_epsilon", kind="number", help="auto: the largest chance at this bill"),
        Flag(name="top", kind="number", help="auto: share of the settings that count as good (default 0.1)"),
    ),
}
FLAGS = tuple(flag for flags in GROUPS.values() for flag in flags)


def add(verbs: Any) -> None:
    """The verb among others of a parser."""
    add_flags(add_verb(verbs, "price", run, SUMMARY, EXAMPLES))


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Every flag of `price`. Values stay text here, so that a wrong one is refused in one line that names the rule."""
    for title, flags in GROUPS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            if flag.kind == "yes":
                group.add_argument(flag.option, action="store_true", help=flag.help)
            else:
                group.add_argument(
                    flag.option, metavar={"number": "X", "whole number": "N", "word": "NAME"}[flag.kind], help=flag.help
                )
    shown = parser.add_argument_group("what is shown")
    shown.add_argument("--event", metavar="FILE", help="price the event in a YAML or JSON file instead of flags")
    shown.add_argument("--explain", action="store_true", help="the derivation, step by step, with theorems and sources")
    shown.add_argument("--curve", action="store_true", help="epsilon against the expected number of runs, for every protocol")


def run(args: argparse.Namespace) -> int:
    """Price what the flags or the event file say, and print it."""
    try:
        result = _result(args)
    except FieldError as error:
        raise _in_flags(error) from None
    if args.json:
        print_json(result)
    else:
        print(_text(result, args))
    return 0


def _result(args: argparse.Namespace) -> dict[str, Any]:
    from sweeper.privacy import price

    given = {flag.name: value for flag in FLAGS if (value := _value(flag, getattr(args, flag.name))) is not None}
    if args.explain and args.curve:
        raise FieldError("curve", MISSING, "draws many bills, and explain derives one", "Leave one of them out.")
    if args.event is not None:
        return _event_result(args, given)
    bill = price.settle(price.Question(**given))
    result = price.answer_bill(bill)
    if args.explain:
        from sweeper.privacy.explain import explain

        result["explanation"] = [step.to_dict() for step in explain(bill.total, bill.question.bill_delta, bill.trial)]
    if args.curve:
        from sweeper.privacy.price_curve import curves

        with Progress("pricing curves") as progress:
            result["curves"] = [curve.to_dict() for curve in curves(bill, progress.say)]
    return result


def _event_result(args: argparse.Namespace, given: dict[str, Any]) -> dict[str, Any]:
    from sweeper.event_file import load_event
    from sweeper.privacy.explain import explain
    from sweeper.privacy.price import answer_event

    for name, value in given.items():
        if name not in WITH_EVENT:
            raise FieldError(name, value, "cannot be given with --event: the file holds the whole event", "Leave it out.")
    if args.curve:
        raise FieldError("curve", MISSING, "needs the flags of one run: an event file names one protocol already", "Use --explain.")
    event, delta = load_event(args.event)
    if delta is not None and given.get("delta", delta) != delta:
        raise FieldError("delta", given["delta"], f"contradicts delta {delta:g} in {args.event}", "Leave one of them out.")
    delta = given.get("delta", delta)
    if delta is None:
        raise FieldError("delta", MISSING, f"is missing, and {args.event} has none", "Try --delta 1e-5.")
    result = answer_event(event, delta)
    if args.explain:
        result["explanation"] = [step.to_dict() for step in explain(event, delta)]
    return result


def _text(result: dict[str, Any], args: argparse.Namespace) -> str:
    from sweeper.report.curve import curve_text
    from sweeper.report.price_text import explain_text, price_text

    if args.curve:
        width = shutil.get_terminal_size((NARROW, 24)).columns
        return curve_text(result, width=width, unicode=_prints("│┤└─┴…"))
    return price_text(result) + (f"\n\n{explain_text(result)}" if args.explain else "")


def _prints(letters: str) -> bool:
    try:
        letters.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _value(flag: Flag, text: Any) -> Any:
    """The value of a flag; None where it was not given."""
    if text is None or text is False:
        return None
    if flag.kind in ("word", "yes"):
        return text
    try:
        return float(text) if flag.kind == "number" else int(text)
    except ValueError:
        raise FieldError(flag.name, text, f"must be a {flag.kind}", f"See sweeper price --help: {flag.help}.") from None


def _in_flags(error: FieldError) -> FieldError:
    """The error as whoever typed the command reads it: fields are flags."""
    known = {flag.name: flag.option for flag in FLAGS} | {"curve": "--curve"}
    return FieldError(known.get(error.field, error.field), error.value, error.rule, error.hint)


class Progress:
    """How far a long computation is, on stderr, once it has taken PATIENCE seconds: in place on a terminal, else one line."""

    def __init__(self, what: str) -> None:
        self._what, self._counts, self._shown = what, "", False
        self._timer = threading.Timer(PATIENCE, self._show)
        self._timer.daemon = True

    def __enter__(self) -> Progress:
        self._timer.start()
        return self

    def say(self, done: int, count: int) -> None:
        self._counts = f" {done} of {count}"
        if self._shown and sys.stderr.isatty():
            self._show()

    def _show(self) -> None:
        self._shown = True
        ends = ("\r\x1b[K", "") if sys.stderr.isatty() else ("", "\n")
        print(f"{ends[0]}{self._what}:{self._counts}", end=ends[1], file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()
        if self._shown and sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
