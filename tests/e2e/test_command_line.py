"""What a user types and gets: exit codes, one line on failure, JSON that parses, help with examples. No trial runs here."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program import SWEEPER, House
from tiny_sweeps import tiny

from sweeper import cli, service
from sweeper.launch.driver import Driver
from sweeper.privacy.ledger import Ledger
from sweeper.store.home import Home

pytestmark = pytest.mark.timeout(120)

VERBS = ("plan", "run", "resume", "best", "compare", "status", "kinds", "price", "ledger", "ledger set-budget")
VERBS += ("data list", "data fetch", "data show", "ui", "unseal", "doctor")

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def home(tmp_path: Path, data_cache: str, prices: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    (tmp_path / "home" / "cache").mkdir(parents=True)
    (tmp_path / "home" / "cache" / "prices").symlink_to(prices)
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SWEEPER_DATA", f"{data_cache}/data")
    monkeypatch.chdir(tmp_path)
    return Home().ensure()


@pytest.fixture
def say(home: Home, capsys: pytest.CaptureFixture[str]) -> Say:
    """The command line in this process: (exit code, standard output, standard error)."""

    def command(*args: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = cli.main(args)
        except SystemExit as error:
            code = int(error.code or 0)
        return code, *capsys.readouterr()

    return command


def file(spec: dict[str, Any]) -> str:
    Path(f"{spec['name']}.yaml").write_text(json.dumps(spec))
    return f"{spec['name']}.yaml"


def one_line(err: str) -> bool:
    return err.count("\n") == 1 and "Traceback" not in err


def test_without_a_budget_nothing_is_charged_and_the_command_is_named(say: Say, home: Home) -> None:
    code, out, err = say("run", file(tiny()))
    assert (code, out) == (2, "")
    assert one_line(err)
    assert "sweeper ledger set-budget adult --epsilon 8 --delta 1e-04" in err
    assert not (home.vault / "tiny").exists()
    assert Ledger(home.ledger).reservations() == []


def test_over_budget_is_refused_uncharged_by_run_and_said_by_plan(say: Say, home: Home) -> None:
    assert say("ledger", "set-budget", "adult", "--epsilon", "1", "--delta", "1e-4")[0] == 0
    code, out, err = say("run", file(tiny()))
    assert (code, out) == (2, "")
    assert one_line(err)
    assert "over budget" in err
    assert "sweeper ledger set-budget adult" in err
    assert not (home.vault / "tiny").exists()
    assert Ledger(home.ledger).reservations() == []
    code, out, err = say("plan", file(tiny()), "--json")
    assert code == 2
    assert one_line(err)
    assert err.startswith("over budget: ")
    assert json.loads(out)["budget"]["after"] > 1
    code, out, err = say("plan", file(tiny()))
    assert code == 2
    assert "OVER by" in out


def test_plan_within_budget_and_without_one(say: Say) -> None:
    code, out, err = say("plan", file(tiny()))
    assert (code, err) == (0, "")
    assert "no budget of adult is set: sweeper ledger set-budget adult --epsilon 8 --delta 1e-04" in out
    say("ledger", "set-budget", "adult", "--epsilon", "8", "--delta", "1e-4")
    code, out, err = say("plan", file(tiny()))
    assert (code, err) == (0, "")
    assert "budget of adult at delta 1e-04: 8.00, spent 0.00, left " in out
    assert "next: sweeper run tiny.yaml" in out
    assert say("plan", file(tiny()), "--name", "other")[1].startswith("other ")


def test_an_infinite_price_is_over_any_budget(say: Say, home: Home) -> None:
    path = file(tiny(privacy={"noise_multiplier": 0.001, "delta": 1e-5}))
    code, out, err = say("plan", path)
    assert (code, err) == (0, "")
    assert "infinite" in out
    say("ledger", "set-budget", "adult", "--epsilon", "8", "--delta", "1e-4")
    code, out, err = say("plan", path)
    assert code == 2
    assert err == "over budget: this sweep would bring adult to an infinite epsilon, which no budget allows. Give it more noise\n"
    assert "OVER any budget" in out
    code, out, err = say("plan", path, "--json")
    assert code == 2
    budget = json.loads(out)["budget"]
    assert budget.pop("head")  # of the ledger's chain
    assert budget == {"data_set": "adult", "epsilon": 8.0, "delta": 1e-4, "spent": 0.0, "after": None, "over": True}
    code, out, err = say("run", path)
    assert (code, out) == (2, "")
    assert one_line(err)
    assert not list(home.path.glob("crash-*"))


def test_plan_of_public_data_says_as_if_private(say: Say) -> None:
    code, out, _ = say("plan", file(tiny(data={"source": "adult", "public": True})))
    assert code == 0
    assert "as if private" in out
    assert "Sealed: nothing" in out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("run", "nowhere.yaml"), "nowhere.yaml: no such file"),
        (("plan", "."), ".: is a folder; name a YAML file"),
        (("resume", "tini"), 'no sweep "tini" was run here'),
        (("status", "tini"), 'no sweep "tini" was run here'),
        (("best", "tini"), "is not a sweep in this store"),
        (("compare", "tini"), "is not a sweep in this store"),
        (("compare", "tini", "--by", "klip"), "did you mean clip?"),
        (("resume", "../tiny"), "must be 1 to 100 letters"),
        (("kinds", "klip"), "did you mean clip?"),
        (("data", "show", "adlut"), "did you mean adult?"),
        (("ledger", "set-budget", "adult", "--epsilon", "-1", "--delta", "1e-4"), "epsilon = -1 must be above 0"),
        (("ui", "--port", "99999999"), "port = 99999999 must be a whole number of at least 1 and at most 65535"),
        (("price", "--steps", "x"), "--steps = 'x' must be a whole number"),
        (("price", "--steps", "1", "--sampling-probability", "1", "--delta", "1e-5"), "noise"),
    ],
)
def test_a_wrong_request_is_one_line_and_code_2(say: Say, command: tuple[str, ...], words: str) -> None:
    code, out, err = say(*command)
    assert (code, out) == (2, "")
    assert one_line(err)
    assert words in err


@pytest.mark.parametrize("command", [("run",), ("nosuch",), ("plan", "f", "--bad"), ("ui", "--port", "x"), ()])
def test_what_cannot_be_parsed_is_code_2(say: Say, command: tuple[str, ...]) -> None:
    code, out, err = say(*command)
    assert (code, out) == (2, "")
    assert err.startswith("usage: sweeper")


def test_a_malformed_file_names_the_field_and_leaves_nothing(say: Say, home: Home) -> None:
    for command in ("plan", "run"):
        code, out, err = say(command, file(tiny(trainer={"kind": "dp-sgd", "batch_size": 64, "steps": 20, "momentom": 0.9})))
        assert (code, out) == (2, "")
        assert err == "tiny.yaml: trainer.momentom is not a field of trainer dp-sgd; did you mean momentum?\n"
    code, out, err = say("run", file(tiny(privacy={"epsilon": 2.0, "delta": 1e-5, "unit": "user"})))
    assert (code, out) == (2, "")
    assert err == "tiny.yaml: privacy.unit = 'user' is refused: nothing here bounds what one user contributes. Use unit: record.\n"
    assert not home.ledger.exists()


def test_a_name_that_is_taken_is_refused_uncharged(say: Say, home: Home) -> None:
    say("ledger", "set-budget", "adult", "--epsilon", "8", "--delta", "1e-4")
    Driver(home, print)._seal(service.plan(tiny()), bytes(32), None).close()
    code, out, err = say("run", file(tiny()))
    assert (code, out, err) == (2, "", "sweep tiny exists: sweeper resume tiny, or choose another name\n")
    assert Ledger(home.ledger).reservations() == []
    code, out, err = say("best", "tiny")
    assert code == 2
    assert one_line(err)


@pytest.mark.parametrize(
    "command",
    [
        ("plan", "tiny.yaml"),
        ("status",),
        ("ledger",),
        ("kinds",),
        ("kinds", "protocol"),
        ("data", "list"),
        ("data", "show", "adult"),
        ("data", "show", "fashion-mnist"),
        ("data", "fetch", "adult"),
        ("price", "--noise-multiplier", "1", "--steps", "1", "--sampling-probability", "1", "--delta", "1e-5"),
        ("ledger", "set-budget", "adult", "--epsilon", "8", "--delta", "1e-4"),
    ],
)
def test_json_of_every_command_parses_and_text_is_not_json(say: Say, command: tuple[str, ...]) -> None:
    file(tiny())
    code, out, err = say(*command, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) is not None
    assert "Infinity" not in out
    assert "NaN" not in out
    code, out, _ = say(*command)
    assert code == 0
    assert out.strip()
    assert not out.startswith(("{", "["))


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_command_has_an_example(say: Say, verb: str) -> None:
    code, out, err = say(*verb.split(), "--help")
    assert (code, err) == (0, "")
    assert f"example:\n  sweeper {verb.split()[0]}" in out


def test_no_verb_is_missing_from_these_tests(say: Say) -> None:
    known = {verb.split()[0] for verb in VERBS}
    listed = say("--help")[1].split("commands:")[1].split("start here")[0]
    assert {line.split()[0] for line in listed.splitlines() if line.startswith("    ") and line.strip()} - {"COMMAND"} == known


def test_the_version(say: Say) -> None:
    assert say("--version")[1].startswith("sweeper 0.")


def test_an_unexpected_error_is_one_line_and_its_traceback_a_closed_file(
    say: Say, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("a row: age 39, Bachelors")

    monkeypatch.setattr(service, "status", fail)
    code, out, err = say("status")
    assert (code, out) == (1, "")
    assert one_line(err)
    assert "Bachelors" not in err
    (log,) = home.path.glob("crash-*.log")
    assert str(log) in err
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert "age 39, Bachelors" in log.read_text()


@pytest.mark.parametrize("command", [("kinds",), ("plan", "tiny.yaml"), ("data", "show", "adult")])
def test_a_reader_that_leaves_early_is_no_error(home: Home, command: tuple[str, ...]) -> None:
    file(tiny())
    line = f"{SWEEPER} {' '.join(command)} | head -c 1; echo; echo ${{PIPESTATUS[0]}}"
    said = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=os.environ, timeout=60, check=True)
    assert said.stderr == ""
    assert said.stdout.splitlines()[-1] == "0"


def test_what_no_machine_has_is_refused_within_seconds_and_uncharged(build: Callable[..., House]) -> None:
    """Through a Ray of its own, as a user meets it."""
    house = build("large")
    said = house.run("run", house.write(tiny("large", resources={"gpu": 64})))
    assert said.code == 2, said
    assert said.seconds < 40
    assert said.err.splitlines()[-1].startswith("resources: a trial asks for 1 CPU and 64 GPU, and this machine has ")
    assert "Traceback" not in said.err
    (charge,) = house.run("ledger", "--json").json["charges"]
    assert charge["state"] == "released"
    assert list((house.home / "vault").iterdir()) == []
    house.wait_until_alone(10, agents=True)


def test_a_taken_port_is_refused_before_a_server_starts(say: Say) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, out, err = say("ui", "--port", str(port))
    assert (code, out) == (2, "")
    assert err == f"port {port} is taken on this machine; try: sweeper ui --port {port + 1}\n"


def test_the_python_api_gives_functions(home: Home) -> None:
    """`sweeper.plan` the function must not be hidden by a module of that name, whatever was imported before."""
    code = (
        "import sweeper.service, sweeper.launch.driver\n"
        "from sweeper import Sweep, best, compare, plan, run\n"
        "assert all(callable(f) for f in (plan, run, best, compare)), plan\n"
        f"assert plan({tiny()!r}).guarantee.epsilon <= 2\n"
        "assert Sweep.__name__ == 'SweepSpec'\n"
    )
    subprocess.run([SWEEPER.replace("/sweeper", "/python"), "-c", code], env=os.environ, timeout=60, check=True)


@pytest.mark.parametrize(
    "uri", ["garbage", "u:SECRET@host", "host/led", "postgresql+psycopg:/u:SECRET@h/d", "mysql://u:SECRET@h/d"]
)
def test_a_ledger_address_that_is_none_opens_no_fresh_ledger(say: Say, monkeypatch: pytest.MonkeyPatch, uri: str) -> None:
    monkeypatch.setenv("SWEEPER_LEDGER_URI", uri)
    before = sorted(Path().iterdir())
    for command in (("ledger",), ("ledger", "set-budget", "adult", "--epsilon", "5"), ("ledger", "verify")):
        code, out, err = say(*command)
        assert (code, out) == (2, "")
        assert one_line(err)
        assert "SWEEPER_LEDGER_URI" in err
        assert "SECRET" not in err
    assert sorted(Path().iterdir()) == before
