"""`sweeper price` from its words to its exit code, with the verb's own flags and no other verb."""

from __future__ import annotations

import argparse
import io
import json
import re
import shlex
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sweeper.checks import RequestError
from sweeper.commands import price as cli_price
from sweeper.event_file import DEEPEST, load_event
from sweeper.privacy.events import EVENTS, ApproximateDp, Gaussian, PoissonSubsampled, Repeated, SelectBest
from sweeper.privacy.laws import TruncatedNegativeBinomial
from sweeper.privacy.question import Question

RUN = ("--noise-multiplier", "1", "--sampling-probability", "0.01", "--steps", "300", "--delta", "1e-5")
BEST = (*RUN, "--protocol", "select-best", "--law", "geometric", "--mean", "10")
EVENT = SelectBest(Repeated(PoissonSubsampled(0.01, Gaussian(1.0)), 300), TruncatedNegativeBinomial(eta=1.0, mean=10.0))
WRITTEN = """\
kind: select-best
trial:
  kind: repeated
  count: 300
  event: {kind: poisson-subsampled, sampling_probability: 0.01, event: {kind: gaussian, noise_multiplier: 1}}
law: {law: tnb, eta: 1, mean: 10, max_trials: null}
"""

SHIPPED_PATIENCE = cli_price.PATIENCE
Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Say:
    """Run the verb in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setattr(cli_price, "PATIENCE", 600.0)  # how busy the machine is must not show

    def run(*words: str) -> tuple[int, str, str]:
        parser = argparse.ArgumentParser(prog="sweeper")
        cli_price.add(parser.add_subparsers())
        args = parser.parse_args(("price", *words))
        try:
            code = args.command(args)
        except RequestError as error:
            print(error, file=sys.stderr)
            code = 2
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def answered(say: Say, *words: str) -> dict[str, Any]:
    code, out, _ = say(*words, "--json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    return found


def test_every_flag_is_a_field_of_the_question_and_the_other_way_round():
    flags = [flag.name for flag in cli_price.FLAGS]
    assert sorted(flags) == sorted(Question.__dataclass_fields__)
    assert all(flag.help for flag in cli_price.FLAGS)


def test_text_and_json_say_the_same(say):
    code, out, err = say(*BEST)
    found = answered(say, *BEST)
    assert (code, err) == (0, "")
    assert f"{found['epsilon']:.2f}   at delta 1e-05, select-best, whole bill" in out
    assert found["guarantee"]["relation"] == "zero-out"


def test_every_example_of_the_help_runs(say, tmp_path):
    """Steps are cut to 20, so that the suite stays quick; every flag is as it stands there."""
    (tmp_path / "event.yaml").write_text(WRITTEN)
    text = re.sub(r"\\\n\s+", " ", cli_price.EXAMPLES)
    examples = [line.split("#")[0].strip() for line in text.splitlines()]
    assert len(examples) >= 7
    for example in examples:
        words = shlex.split(example)
        assert words[:2] == ["sweeper", "price"]
        code, out, err = say(*[("20" if before == "--steps" else word) for before, word in pairwise(words) if word != "price"])
        assert code == 0, f"{example}: {err}"
        assert "1e-05" in out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--steps", "x"), "--steps = 'x' must be a whole number. See sweeper price --help: noisy sums in one run."),
        (("--steps", "1e3"), "--steps = '1e3' must be a whole number. See sweeper price --help: noisy sums in one run."),
        (("--delta", "small"), "--delta = 'small' must be a number. See sweeper price --help: of the whole bill."),
        ((), "--steps is missing: a bill needs its steps. Try --steps 2000."),
        ((*RUN[:-2],), "--delta is missing: a bill needs its delta. Try --delta 1e-5."),
        ((*RUN, "--epsilon", "nan"), "--noise-multiplier or epsilon must be given, and not both"),
        ((*RUN[2:], "--epsilon", "nan"), "--epsilon = nan must be a finite number above 0"),
        (
            (*RUN, "--protocol", "select-bets"),
            "--protocol = 'select-bets' must be one of select-best, release-all, public-proxy, no-tuning, subsample-tune; "
            "did you mean select-best?",
        ),
        (
            (*RUN, "--protocol", "select-best", "--law", "poisson", "--mean", "3"),
            "--law = 'poisson' may make no run at all, and then releases nothing. "
            "Use --law tnb, or add --may-return-nothing if no answer is a result you accept.",
        ),
        ((*RUN, "--explain", "--curve"), "--curve draws many bills, and explain derives one. Leave one of them out."),
        (("--event", "none.yaml", "--delta", "1e-5"), "none.yaml: no such file"),
        (
            ("--event", "none.yaml", *RUN),
            "--noise-multiplier = 1 cannot be given with --event: the file holds the whole event. Leave it out.",
        ),
        (
            ("--event", "none.yaml", "--delta", "1e-5", "--curve"),
            "--curve needs the flags of one run: an event file names one protocol already. Use --explain.",
        ),
    ],
)
def test_a_wrong_flag_is_one_line_and_code_2(say, words, line):
    assert say(*words) == (2, "", line + "\n")


# Derivation and curve


def test_explain_derives_the_bill(say):
    code, out, err = say(*BEST, "--explain")
    assert (code, err) == (0, "")
    assert "No analysis that does not know the score can charge less than" in " ".join(out.split())
    found = answered(say, *BEST, "--explain")
    whole = [step for step in found["explanation"] if "the whole bill" in step["title"]]
    assert whole[0]["numbers"]["epsilon"] == found["epsilon"]
    assert [step["numbers"]["epsilon"] for step in found["explanation"] if "alone" in step["title"]] == [found["epsilon_one_trial"]]


def test_curve_draws_every_protocol(say, monkeypatch):
    found = answered(say, *BEST, "--curve")
    assert {curve["protocol"] for curve in found["curves"]} == {"no-tuning", "subsample-tune", "select-best", "release-all"}
    code, out, err = say(*BEST, "--curve")
    assert (code, err) == (0, "")
    assert f"asked (@): select-best, epsilon {found['epsilon']:.2f}" in out
    assert max(map(len, out.splitlines())) <= 90


@pytest.mark.parametrize("encoding", ["ascii", "utf-8", "latin-1"])
def test_a_curve_can_be_printed_in_any_encoding(say, monkeypatch, encoding):
    page = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", page)
    code, _, _ = say(*RUN, "--curve")
    page.flush()
    drawn = page.buffer.getvalue().decode(encoding)
    assert code == 0
    assert drawn.isascii() == (encoding != "utf-8")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_silent_at_first_and_then_counts_on_stderr(say, monkeypatch):
    """In place on a terminal and gone at the end; one line elsewhere; nothing where it was quick."""
    assert SHIPPED_PATIENCE == 2.0
    assert say(*RUN, "--curve")[2] == ""
    monkeypatch.setattr(cli_price, "PATIENCE", 0.0)
    code, out, err = say(*RUN, "--curve", "--json")
    assert code == 0
    assert json.loads(out)["curves"]
    assert re.fullmatch(r"pricing curves:( \d+ of \d+)?\n", err)
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    assert say(*RUN, "--curve")[0] == 0
    shown = screen.getvalue()
    assert re.search(r"pricing curves: (\d+) of \1", shown)
    assert shown.endswith("\r\x1b[K")
    assert "\n" not in shown


# Event files


def test_an_event_file_is_priced_like_its_flags(say, tmp_path):
    (tmp_path / "event.yaml").write_text(WRITTEN)
    (tmp_path / "event.json").write_text(EVENT.canonical())
    (tmp_path / "whole.yaml").write_text(f"delta: 1e-5\nevent: {EVENT.canonical()}\n")
    (tmp_path / "beside.yaml").write_text(WRITTEN + "delta: 1e-5\n")
    by_flags = answered(say, *BEST)
    for words in (("event.yaml", "--delta", "1e-5"), ("event.json", "--delta", "1e-5"), ("whole.yaml",), ("beside.yaml",)):
        found = answered(say, "--event", *words)
        assert found["epsilon"] == by_flags["epsilon"]
        assert found["epsilon_renyi"] == by_flags["epsilon_renyi"]
        assert found["guarantee"] == by_flags["guarantee"]
        assert found["delta"] == 1e-5
    assert answered(say, "--event", "whole.yaml", "--delta", "1e-5", "--explain")["explanation"]
    code, out, _ = say("--event", "whole.yaml")
    assert code == 0
    assert "zero-out, unit record" in out
    assert "by Renyi alone" in out


def test_what_price_prints_as_the_event_can_be_given_back(say, tmp_path):
    found = answered(say, *RUN, "--line-search", "exponential", "--line-search-epsilon", "0.3", "--score-epsilon", "0.1")
    (tmp_path / "event.json").write_text(json.dumps({"event": found["event"], "delta": found["delta"]}))
    assert answered(say, "--event", "event.json")["epsilon"] == found["epsilon"]


def test_a_delta_beside_a_kind_that_has_one_is_its_own(tmp_path):
    (tmp_path / "a.yaml").write_text("{kind: approximate-dp, epsilon: 1.0, delta: 1e-6}")
    assert load_event(tmp_path / "a.yaml") == (ApproximateDp(1.0, 1e-6), None)
    (tmp_path / "b.yaml").write_text("{event: {kind: approximate-dp, epsilon: 1.0, delta: 1e-6}, delta: 1e-5}")
    assert load_event(tmp_path / "b.yaml") == (ApproximateDp(1.0, 1e-6), 1e-5)
    assert [kind for kind, cls in EVENTS.items() if "delta" in getattr(cls, "__dataclass_fields__", {})] == ["approximate-dp"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "event = None must be a mapping with a kind"),
        ("[1, 2]", "must be a mapping with a kind"),
        ("delta: 1e-5", "event is missing"),
        ("{evnet: {kind: gaussian, noise_multiplier: 1}}", "evnet is not a field here"),
        ("{kind: gausian, noise_multiplier: 1}", "kind = 'gausian' must be one of"),
        ("{kind: [a], noise_multiplier: 1}", "kind = ['a'] must be one of"),
        ("{kind: gaussian, noise_multiplier: 1, clip: 2}", "clip is not a field of event gaussian"),
        ("{kind: gaussian}", "noise_multiplier is missing in event gaussian"),
        ("{kind: gaussian, noise_multiplier: .nan}", "noise_multiplier = nan must be a finite number"),
        (
            "{kind: repeated, count: 2, event: {kind: gaussian, noise_multiplier: -1}}",
            "event.noise_multiplier = -1 must be at least 0",
        ),
        (
            "{kind: composed, events: [{kind: gaussian, noise_multiplier: 1}, {kind: gaussian, noise_multiplier: yes}]}",
            "events[1].noise_multiplier = 'yes' must be a number",
        ),
        (
            "{kind: select-best, trial: {kind: gaussian, noise_multiplier: 1}, law: {law: tnb, eta: 1, mean: 0.5, max_trials: 4}}",
            "mean_trials = 0.5 must be above 1",
        ),
        ("{kind: gaussian, noise_multiplier: 1, delta: 2}", "delta = 2 must be above 0 and below 1"),
        ("{kind: gaussian, kind: laplace, noise_multiplier: 1}", "not valid YAML"),
        ("kind: &a gaussian\nnoise_multiplier: *a", "anchors or aliases"),
        ("kind: !!python/object:os.system gaussian", "could not determine a constructor"),
        ("{kind: gaussian", "line 1"),
        ("{kind: composed, events: " + "[" * (DEEPEST + 5) + "]" * (DEEPEST + 5) + "}", f"more than {DEEPEST} deep"),
        ("{kind: composed, events: [" + "{kind: gaussian, noise_multiplier: 1}, " * 2100 + "]}", "more than 2,000 parts"),
        ("{kind: composed, events: [" + "a, " * 400_000 + "]}", "larger than 1,000,000 bytes"),
        ("\x1b[2J: 1", "unacceptable character"),
    ],
)
def test_a_wrong_event_file_is_one_line_that_names_file_and_field(say, tmp_path, text, words):
    (tmp_path / "event.yaml").write_text(text)
    code, out, err = say("--event", "event.yaml", "--delta", "1e-5")
    assert (code, out) == (2, "")
    assert err.startswith("event.yaml: ")
    assert words in err
    assert err.count("\n") == 1
    assert "\x1b" not in err
    assert len(err) < 600


def test_a_file_that_is_none(say, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    for name, words in (("folder", "is a folder"), ("bytes.yaml", "UTF-8"), ("/dev/null", "not a regular file"), ("a\0b", "read")):
        code, _, err = say("--event", name, "--delta", "1e-5")
        assert code == 2
        assert words in err


def test_one_delta(say, tmp_path):
    (tmp_path / "event.yaml").write_text("{event: {kind: gaussian, noise_multiplier: 1}, delta: 1e-5}")
    assert "contradicts delta 1e-05 in event.yaml" in say("--event", "event.yaml", "--delta", "1e-6")[2]
    (tmp_path / "event.yaml").write_text("{kind: gaussian, noise_multiplier: 1}")
    assert "--delta" in say("--event", "event.yaml")[2]
