"""`sweeper ui`: the server shows this store, with the files in it, on loopback only."""

import json
import urllib.parse
import urllib.request

import pytest
from mlflow import MlflowClient
from releases import release

from sweeper.checks import RequestError
from sweeper.store.home import Home
from sweeper.store.mlflow import Store


def test_the_server_shows_what_was_published_and_its_files(server, home, monkeypatch):
    monkeypatch.setenv("SWEEPER_MLFLOW_URI", server)
    parent = Store(home).publish(release(sweep="shown"))
    client = MlflowClient(tracking_uri=server)
    assert client.get_run(parent).info.status == "FINISHED"
    query = urllib.parse.urlencode({"path": "plan.json", "run_uuid": parent})
    with urllib.request.urlopen(f"{server}/get-artifact?{query}", timeout=20) as reply:  # what the page itself asks for
        assert json.load(reply)["unseal_epsilon"] == 9.27


def test_the_command_names_loopback_and_keeps_the_address_of_the_store_to_itself(home, monkeypatch):
    command = Store(home).ui_command(5123)
    assert command[1:4] == ["-m", "mlflow", "server"]
    assert command[4:] == ["--host", "127.0.0.1", "--port", "5123", "--workers", "1"]
    environment = Store(home).ui_environment()
    assert environment["MLFLOW_BACKEND_STORE_URI"] == home.mlflow_uri
    assert environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    monkeypatch.setenv("SWEEPER_MLFLOW_URI", "http://user:secret@store:5000/x")
    with pytest.raises(RequestError, match="already served: open http://store/x") as caught:
        Store(Home(home.path)).ui_command(5123)
    assert "secret" not in str(caught.value)
