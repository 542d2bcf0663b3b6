import sqlite3
import threading
import time
from pathlib import Path

import pytest

from sweeper.checks import FieldError
from sweeper.store.home import Home, sqlite_uri


def test_default_is_a_directory_here_and_the_environment_moves_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SWEEPER_HOME", raising=False)
    monkeypatch.delenv("SWEEPER_MLFLOW_URI", raising=False)
    assert Home().path == tmp_path / ".sweeper"
    assert Home().mlflow_uri == f"sqlite:///{tmp_path}/.sweeper/mlflow.db"
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "elsewhere"))
    assert Home().path == tmp_path / "elsewhere"
    assert [p.name for p in (Home().artifacts, Home().ledger, Home().cache, Home().vault)] == [
        "artifacts",
        "ledger.db",
        "cache",
        "vault",
    ]
    assert list(tmp_path.iterdir()) == []  # asking for paths creates nothing


def test_a_server_is_named_by_the_environment_and_has_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("SWEEPER_MLFLOW_URI", "http://store:5000")
    assert Home(tmp_path).mlflow_uri == "http://store:5000"
    assert Home(tmp_path).mlflow_database is None


def test_everything_created_is_closed_to_others_and_the_vault_is_closed_again(tmp_path):
    home = Home(tmp_path / "a" / "home").ensure()
    for place in (home.path, home.artifacts, home.cache, home.vault):
        assert place.stat().st_mode & 0o777 == 0o700
    home.vault.chmod(0o755)
    home.ensure()
    assert home.vault.stat().st_mode & 0o777 == 0o700
    assert (home.path / ".gitignore").read_text() == "*\n"


def test_a_home_that_cannot_be_made_is_a_wrong_request(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FieldError, match=r"SWEEPER_HOME = .*must be a directory that can be written"):
        Home(tmp_path / "file").ensure()


@pytest.mark.parametrize("name", ["plain", "a b", "50%", "100%25", "what?", "a#b", "ä"])
def test_an_sqlite_address_leads_sqlalchemy_to_the_very_file(tmp_path, name):
    import sqlalchemy

    path = tmp_path / name / "x.db"
    path.parent.mkdir()
    engine = sqlalchemy.create_engine(sqlite_uri(path))
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("create table t (a)"))
    engine.dispose()
    assert sqlite3.connect(path).execute("select name from sqlite_master").fetchall() == [("t",)]
    assert Home(path.parent).mlflow_database == Path(path.parent / "mlflow.db")


def test_a_lock_has_one_holder_at_a_time_and_ends_with_an_exception(tmp_path):
    home, inside, most = Home(tmp_path), [], []

    def enter() -> None:
        with home.lock("store"):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.005)
            inside.pop()

    with pytest.raises(RuntimeError, match="in the middle"), home.lock("store"):
        raise RuntimeError("in the middle")
    threads = [threading.Thread(target=enter) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert most == [1] * 20
