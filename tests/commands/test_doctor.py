"""`sweeper doctor` with real things: servers that run, are down, are silent or are something else; files that are good and bad."""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from sweeper import cli, service
from sweeper.checks import RequestError
from sweeper.commands import price as cli_price
from sweeper.data.adult import Adult
from sweeper.doctor import reachable
from sweeper.doctor.finding import FAIL, OK, WARN
from sweeper.doctor.reachable import Ray
from sweeper.launch import probe
from sweeper.launch.probe import Answer
from sweeper.launch.worker import Worker
from sweeper.privacy.ledger import Ledger
from sweeper.spec.result import TrialResult
from sweeper.spec.sweep import Resources
from sweeper.store.home import Home
from tests.privacy.postgres import connect, postgres_server, postgres_uri  # noqa: F401
from tests.store.conftest import schema_file, server  # noqa: F401
from tests.tiny_sweeps import armed, tiny

Say = Callable[..., tuple[int, str, str]]
PASSWORD = "hunter2/of:doctors"
WRITTEN = "hunter2%2Fof%3Adoctors"


@pytest.fixture
def home(tmp_path: Path, data_cache: str, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home with a budget for Adult, whose files are elsewhere; the current folder is beside it."""
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SWEEPER_DATA", f"{data_cache}/data")
    monkeypatch.chdir(tmp_path)
    service.set_budget("adult", 8.0, 1e-4)
    return Home()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ray that answers at once, for tests of something else: starting one takes 4 s."""
    answer = Answer(nodes=1, cpu=2.0, gpu=0.0, room=2, seconds=0.1)
    monkeypatch.setattr(probe, "ask", lambda resources, timeout: answer)


@pytest.fixture
def say(home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Say:
    """`sweeper doctor` with these words: (exit code, stdout, stderr)."""
    monkeypatch.setattr(cli_price, "PATIENCE", 600.0)  # how busy the machine is must not show

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.main(("doctor", *words))
        return code, *capsys.readouterr()

    return run


def file(spec: dict[str, Any]) -> str:
    Path(f"{spec['name']}.yaml").write_text(json.dumps(spec))
    return f"{spec['name']}.yaml"


def found(out: str, name: str) -> list[dict[str, str]]:
    return [finding for finding in json.loads(out)["findings"] if finding["name"] == name]


def word(out: str, name: str) -> str:
    (only,) = found(out, name)
    return only["word"]


# A whole doctor


def test_a_good_sweep_is_fine_and_nothing_is_opened_charged_or_left(say: Say, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a real Ray. Whatever opens the private table or takes its digest raises."""

    def opened(*_: Any) -> None:
        raise AssertionError("private data was opened")

    monkeypatch.setattr(Adult, "load", opened)
    monkeypatch.setattr(Adult, "digest", opened)
    before, entries = sorted(home.path.rglob("*")), Ledger(home.ledger_uri).entries()
    code, out, err = say(file(tiny()))
    assert (code, err) == (0, "")
    for line in (
        "  ok    Ray          a Ray of its own starts in ",
        "  ok    gradients    106 parameters; ",
        "  ok    dry step     dp-sgd ",
    ):
        assert line in out
    assert "adult is here, unopened: 32,561 rows" in out
    assert out.splitlines()[-1].startswith(("all ", "nothing must be fixed"))
    assert Ledger(home.ledger_uri).entries() == entries
    left = {path for path in sorted(home.path.rglob("*")) if path not in before}
    assert all(path.is_relative_to(home.cache / "prices") for path in left)
    with pytest.raises(AssertionError, match="opened"):
        Adult().load(str(home.cache))


def test_lines_are_aligned_and_a_fix_stands_under_its_line(say: Say, quick: None) -> None:
    code, out, _ = say(file(tiny(privacy={"epsilon": 20.0, "delta": 1e-5})))
    lines = out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("  fail  budget       over budget"))
    assert code == 1
    assert any(line.startswith(" " * 21 + "fix: ") or "sweeper ledger set-budget adult" in line for line in lines[at + 1 : at + 4])
    assert lines[-1].startswith("1 to fix")
    for line in lines:
        assert not line.startswith("  ") or line[2:6].strip() in (OK, WARN, FAIL) or line.startswith(" " * 21)


def test_without_a_file_and_for_machines(say: Say, quick: None) -> None:
    code, out, err = say("--json")
    report = json.loads(out)
    assert (code, err, report["fine"]) == (0, "", True)
    assert {finding["group"] for finding in report["findings"]} == {"packages", "machine", "home", "services"}
    assert all(set(finding) == {"group", "name", "word", "text", "fix"} for finding in report["findings"])
    assert [finding.to_dict()["name"] for finding in service.doctor()] == [finding["name"] for finding in report["findings"]]


def test_what_takes_long_is_named_on_stderr(say: Say, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_price, "PATIENCE", 0.0)
    code, out, err = say("--json")
    assert code == 0
    assert "looking at MLflow" in err
    assert json.loads(out)["fine"]


# A sweep's file


@pytest.mark.parametrize(("name", "words"), [("nowhere.yaml", "nowhere.yaml: no such file"), (".", ".: is a folder")])
def test_a_file_that_is_not_there_is_a_bad_request(say: Say, name: str, words: str) -> None:
    code, out, err = say(name)
    assert (code, out) == (2, "")
    assert err.startswith(words)
    assert err.count("\n") == 1
    with pytest.raises(RequestError):
        service.doctor(name)


def test_a_file_with_a_wrong_field_is_a_finding(say: Say, quick: None) -> None:
    path = file(tiny(trainer={"kind": "dp-sgd", "batch_size": 64, "steps": 20, "momentom": 1}))
    code, out, _ = say(path, "--json")
    assert code == 1
    (finding,) = found(out, "file")
    assert finding["word"] == FAIL
    assert "momentom" in finding["text"] + finding["fix"]
    assert found(out, "price") == []
    assert word(out, "Ray") == OK


def test_a_price_that_no_noise_reaches_is_a_finding_and_the_rest_is_looked_at(say: Say, quick: None) -> None:
    code, out, _ = say(file(tiny(privacy={"epsilon": 0.01, "delta": 1e-5})), "--json")
    (finding,) = found(out, "price")
    assert (code, finding["word"]) == (1, FAIL)
    assert finding["text"].startswith("privacy.epsilon = 0.01 cannot be reached")
    assert word(out, "gradients") == word(out, "dry step") == OK
    assert found(out, "budget") == []


def test_a_data_set_without_a_budget_must_get_one(say: Say, quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for place in (tmp_path / "empty", tmp_path / "home"):
        monkeypatch.setenv("SWEEPER_HOME", str(place))
        code, out, _ = say(file(tiny(privacy={"epsilon": 2.0, "delta": 1e-5, "budget_of": "other"})), "--json")
        (finding,) = found(out, "budget")
        assert (code, finding["word"]) == (1, FAIL)
        assert "sweeper ledger set-budget other" in finding["fix"]


def test_public_data_needs_no_budget_and_a_missing_published_file_is_fetched_later(
    say: Say, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SWEEPER_DATA")
    code, out, _ = say(file(tiny(data={"source": "adult", "public": True})), "--json")
    (table,) = found(out, "table")
    assert code == 0
    assert word(out, "budget") == OK
    assert (table["word"], table["fix"]) == (WARN, "sweeper data fetch adult")


def own_table(path: str) -> dict[str, Any]:
    columns = {"a": {"low": 0, "high": 1}, "b": {"low": 0, "high": 1}}
    return {"source": {"kind": "csv", "path": path, "rows": 1000, "label": "y", "classes": ["no", "yes"], "columns": columns}}


def test_a_file_of_the_users_own_is_not_read(say: Say, quick: None) -> None:
    service.set_budget("people", 8.0, 1e-4)
    spec = file(tiny(data=own_table("people.csv") | {"holdout": 0.2}))
    code, out, _ = say(spec, "--json")
    assert (code, word(out, "table")) == (1, FAIL)
    Path("people.csv").write_bytes(b"\x00 no table at all")
    code, out, _ = say(spec, "--json")
    assert (code, word(out, "table"), word(out, "dry step")) == (0, OK, OK)


def test_a_table_from_a_function_is_not_called_nor_its_package_loaded(say: Say, quick: None) -> None:
    service.set_budget("mine.data-load", 8.0, 1e-4)
    source = {"kind": "module", "module": "mine.data:load", "rows": 1000, "features": 3, "classes": 2}
    spec = file(tiny(data={"source": source, "holdout": 0.2}))
    code, out, _ = say(spec, "--json")
    (table,) = found(out, "table")
    assert (code, table["word"]) == (1, FAIL)
    assert "no package mine is found" in table["text"]
    Path("mine").mkdir()
    Path("mine/__init__.py").write_text("raise AssertionError('was loaded')")
    code, out, _ = say(spec, "--json")
    assert (code, word(out, "table")) == (0, OK)


def test_every_arm_takes_its_step(say: Say, quick: None) -> None:
    service.set_budget("adult", 100.0, 1e-4)
    code, out, _ = say(file(armed()), "--json")
    assert code == 0
    assert [finding["text"].split(":")[0] for finding in found(out, "dry step")] == ["arm wide", "arm low", "arm slow"]


def test_a_step_that_diverges_is_a_warning_and_one_that_raises_is_a_fault(
    say: Say, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file(tiny())
    monkeypatch.setattr(Worker, "run", lambda *_: TrialResult(released={}, sealed={"diverged": True}))
    code, out, _ = say(path, "--json")
    (step,) = found(out, "dry step")
    assert (code, step["word"]) == (0, WARN)
    assert "not finite" in step["text"]

    def fail(*_: Any) -> None:
        raise RuntimeError("shapes do not fit\nmore")

    monkeypatch.setattr(Worker, "run", fail)
    code, out, _ = say(path, "--json")
    (step,) = found(out, "dry step")
    assert (code, step["word"], step["text"]) == (1, FAIL, "RuntimeError: shapes do not fit")


NETS = """
import torch
print("this would spoil JSON")
def good(width): return torch.nn.Sequential(torch.nn.Linear(105, width), torch.nn.ReLU(), torch.nn.Linear(width, 2))
def mixing(width): return torch.nn.Sequential(torch.nn.Linear(105, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 2))
def broken(width): raise OSError("no weights")
"""


@pytest.mark.parametrize(
    ("build", "code", "word", "says"),
    [
        ("good", 0, OK, "866 trained parameters; per-record gradients: ghost in 2 layers"),
        ("mixing", 1, FAIL, "BatchNorm1d"),
        ("broken", 1, FAIL, "no weights"),
        ("absent", 1, FAIL, "cannot be imported"),
    ],
)
def test_a_users_own_module(
    say: Say, quick: None, monkeypatch: pytest.MonkeyPatch, build: str, code: int, word: str, says: str
) -> None:
    Path("doctor_nets.py").write_text(NETS)
    sys.modules.pop("doctor_nets", None)
    model = {"kind": "module", "module": f"doctor_nets:{build}", "args": {"width": 8}}
    ended, out, _ = say(file(tiny(model=model)), "--json")
    finding = found(out, "gradients")[0]
    assert (ended, finding["word"]) == (code, word)
    assert says in finding["text"] + finding["fix"]
    assert len(found(out, "dry step")) == len(found(out, "footprint")) == (word == OK)  # one fault is told once
    assert found(out, "resources")
    if build == "mixing":
        assert "GroupNorm" in finding["fix"]


# What is reached


def look(check: Callable[[Home], Iterator[Any]], home: Home) -> Any:
    (verdict,) = check(home)
    assert PASSWORD not in str(verdict)
    assert WRITTEN not in str(verdict)
    return verdict


def with_password(uri: str) -> str:
    return uri.replace("://", f"://user:{WRITTEN}@")


def test_an_mlflow_server_that_runs(home: Home, server: str, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("SWEEPER_MLFLOW_URI", with_password(server))
    verdict = look(reachable.mlflow, home)
    assert verdict.word == OK
    assert "***" in verdict.text


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def silent() -> Iterator[int]:
    """A port that is open, and nobody says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(50)
        yield int(listening.getsockname()[1])


@contextmanager
def something_else() -> Iterator[int]:
    class NotFound(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            return None

    other = HTTPServer(("127.0.0.1", 0), NotFound)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    yield other.server_address[1]
    other.shutdown()
    other.server_close()


@pytest.mark.parametrize("kind", ["down", "silent", "something else", "no address"])
def test_an_mlflow_server_that_does_not(home: Home, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    with silent() as quiet, something_else() as other:
        port = {"down": closed_port(), "silent": quiet, "something else": other, "no address": WRITTEN}[kind]
        monkeypatch.setenv("SWEEPER_MLFLOW_URI", with_password(f"http://127.0.0.1:{port}"))
        started = time.monotonic()
        verdict = look(reachable.mlflow, home)
        assert time.monotonic() - started < 20
    assert verdict.word == FAIL
    assert verdict.fix


def test_an_mlflow_file(home: Home, schema_file: bytes) -> None:  # noqa: F811
    assert look(reachable.mlflow, home).text.endswith("made by the first sweep")
    assert home.mlflow_database is not None
    assert not home.mlflow_database.exists()
    home.mlflow_database.write_bytes(schema_file)
    assert look(reachable.mlflow, home).text == f"{home.mlflow_database} answers"
    home.mlflow_database.write_bytes(b"not a database" * 1000)
    assert look(reachable.mlflow, home).word == FAIL


def test_a_postgres_ledger(home: Home, postgres_uri: str, connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("SWEEPER_LEDGER_URI", postgres_uri)
    secret = str(make_url(postgres_uri).password)
    verdict = look(reachable.ledger, home)
    assert (verdict.word, "has no ledger yet" in verdict.text, secret in str(verdict)) == (OK, True, False)
    with connect(postgres_uri) as db:
        assert db.execute("SELECT to_regclass('entries')").fetchone() == (None,)  # nothing was made
    service.set_budget("adult", 8.0, 1e-4)
    verdict = look(reachable.ledger, home)
    assert (verdict.word, "are what was appended" in verdict.text, secret in str(verdict)) == (OK, True, False)


@pytest.mark.parametrize("kind", ["down", "silent", "no address"])
def test_a_postgres_that_does_not_answer(home: Home, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    with silent() as quiet:
        place = {"down": f"127.0.0.1:{closed_port()}/x", "silent": f"127.0.0.1:{quiet}/x", "no address": "a@b@c:x/y"}[kind]
        monkeypatch.setenv("SWEEPER_LEDGER_URI", with_password(f"postgresql+psycopg://{place}"))
        started = time.monotonic()
        verdict = look(reachable.ledger, home)
        assert time.monotonic() - started < 20
    assert verdict.word == FAIL
    assert verdict.fix


def test_a_ledger_that_was_changed(home: Home) -> None:
    assert look(reachable.ledger, home).word == OK
    with closing(sqlite3.connect(home.ledger)) as db:
        for trigger in [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")]:
            db.execute(f"DROP TRIGGER {trigger}")
        db.execute("UPDATE entries SET at = '2001-01-01T00:00:00+00:00'")
        db.commit()
    verdict = look(reachable.ledger, home)
    assert verdict.word == FAIL
    assert "was changed: row 1" in verdict.text


def test_a_ray_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed_port()}")
    ray = Ray(Resources())
    (verdict,) = ray.look()
    assert verdict.word == FAIL
    assert "unset RAY_ADDRESS" in verdict.fix
    assert [v.word for v in ray.fits()] == [WARN]


def test_a_ray_that_says_nothing_is_left_alone_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachable, "RAY_SECONDS", 4.0)
    with silent() as port:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        started = time.monotonic()
        (verdict,) = Ray(Resources()).look()
        assert time.monotonic() - started < 30
    assert verdict.word == FAIL
    assert subprocess.run(["pgrep", "-f", "sweeper.launch.[p]robe"], capture_output=True, check=False).stdout == b""


def test_a_trial_that_no_node_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real Ray of this machine."""
    ray = Ray(Resources(cpu=10_000.0))
    assert [v.word for v in ray.look()] == [OK]
    (verdict,) = ray.fits()
    assert verdict.word == FAIL
    assert "asks for 10000 CPU" in verdict.text
    assert verdict.fix.startswith("Lower resources in the sweep")


def test_room_is_what_fits_and_what_the_sweep_allows(quick: None) -> None:
    assert [v.text for v in Ray(Resources()).fits()] == ["2 trials of 1 CPU and 0 GPU at once"]
    assert [v.text for v in Ray(Resources(max_concurrent=1)).fits()] == ["1 trial of 1 CPU and 0 GPU at once"]


def test_a_home_that_cannot_be_written_fails_the_doctor(say: Say, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("taken").write_text("")
    monkeypatch.setenv("SWEEPER_HOME", "taken/home")
    code, out, _ = say("--json")
    assert (code, word(out, "writable")) == (1, FAIL)


def test_help_shows_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(("doctor", "--help"))
    said = capsys.readouterr().out
    assert "example:\n  sweeper doctor " in said
    assert "sweeper doctor jobs/adult_logistic_clip.yaml" in said
    assert "exit code: 0" in said


def test_it_works_where_packages_do_not_load(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, in which Ray and MLflow cannot be imported: both are named, and the rest is looked at."""
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed_port()}")
    blocked = "import sys; sys.modules['ray'] = sys.modules['mlflow'] = None; from sweeper.cli import main; "
    command = [sys.executable, "-c", f"{blocked}sys.exit(main(['doctor', '--json']))"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1, done.stderr
    for name in ("ray", "mlflow", "MLflow", "Ray"):
        assert word(done.stdout, name) == FAIL
    for name in ("torch", "opacus", "ledger", "disk"):
        assert word(done.stdout, name) == OK
