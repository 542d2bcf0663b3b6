"""`sweeper plan --suggest` from its words to its exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeper import cli
from sweeper.catalog import load_spec
from sweeper.commands import price as cli_price
from sweeper.planning.suggest import suggest
from sweeper.report.suggest_text import suggest_text
from tests.tiny_sweeps import tiny

Say = Callable[..., tuple[int, str, str]]
FILE = "sweep.yaml"


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Say:
    """Run `sweeper plan sweep.yaml` with these words: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setattr(cli_price, "PATIENCE", 600.0)  # how busy the machine is must not show
    Path(FILE).write_text(json.dumps(tiny()))

    def run(*words: str) -> tuple[int, str, str]:
        code = cli.main(("plan", FILE, *words))
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_text_and_json_say_the_same(say):
    code, out, err = say("--suggest")
    expected = suggest(load_spec(FILE))
    assert (code, err) == (0, "")
    assert out == suggest_text(expected.to_dict(), FILE, 140) + "\n"
    code, out, err = say("--suggest", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["recommended"] == expected.recommended.name
    assert {**found, "yaml": None} == json.loads(json.dumps({**expected.to_dict(), "yaml": None}))
    assert set(found["options"][0]) >= {"name", "searched", "dimensions", "chance", "expected_trials", "gradient_noise", "paste"}


def test_the_yaml_that_is_printed_plans_to_the_bill_that_is_printed(say):
    found = json.loads(say("--suggest", "--json")[1])
    best = next(option for option in found["options"] if option["name"] == found["recommended"])
    kept = {key: value for key, value in tiny().items() if key not in ("protocol", "space")}
    Path(FILE).write_text("\n".join([*(f"{key}: {json.dumps(value)}" for key, value in kept.items()), found["yaml"]]))
    planned = json.loads(say("--json")[1])
    assert planned["epsilon"] == best["epsilon"]
    assert planned["noise_multiplier"] == best["noise_multiplier"]


def test_a_chance_is_passed_on(say):
    found = json.loads(say("--suggest", "--chance", "0.6", "--json")[1])
    assert found["chance"] == 0.6
    assert any("law" in (option["law"] or {}) and 0.6 <= option["chance"] < 0.7 for option in found["options"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--suggest", "--reserve"), "--reserve holds the price of one sweep, and --suggest weighs several. Leave one of them out"),
        (("--chance", "0.5"), "--chance belongs to --suggest. Leave it out, or add --suggest"),
        (("--suggest", "--chance", "1"), "sweep.yaml: --chance = 1 must be above 0 and below 1. Try 0.8."),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(say, words, said):
    assert say(*words) == (2, "", said + "\n")


def test_a_field_that_turns_out_wrong_is_named_with_the_file(say):
    Path(FILE).write_text(json.dumps(tiny(privacy={"epsilon": 0.01, "delta": 1e-5})))
    code, out, err = say("--suggest")
    assert (code, out) == (2, "")
    assert err.startswith("sweep.yaml: privacy.epsilon = 0.01 cannot be reached")


def test_how_far_it_is_shows_after_a_while(say, monkeypatch):
    monkeypatch.setattr(cli_price, "PATIENCE", 0.0)
    code, out, err = say("--suggest")
    assert code == 0
    assert err.startswith("pricing the ways to search:")
    assert "pricing" not in out


def test_help_shows_an_example(capsys):
    with pytest.raises(SystemExit):
        cli.main(("plan", "--help"))
    said = capsys.readouterr().out
    assert "sweeper plan jobs/adult_logistic_clip.yaml --suggest" in said
    assert "--chance X" in said
