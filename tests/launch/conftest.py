"""One Ray of this process for all the tests here, and the real table."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from bad_trainers import POISON

from sweeper.data.adult import Adult
from sweeper.launch.open_data import OpenData
from sweeper.store.home import Home

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def adult(data_cache: str) -> OpenData:
    from tiny_sweeps import spec_of

    return OpenData.of(spec_of().data, Adult().load(data_cache))


@pytest.fixture(scope="package")
def ray_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a running Ray, which also proves at the end that it is removed and that no log of it quotes a row."""
    from sweeper.launch.cluster import ray_for_one_sweep

    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), path)))
    link = tmp_path_factory.mktemp("ray") / "ray"
    try:
        with ray_for_one_sweep(link):
            folder = link.readlink()
            yield folder
            quoting = [f for f in folder.rglob("*") if f.is_file() and POISON.encode() in f.read_bytes()]
            assert not quoting
        assert not folder.exists()
        assert not link.is_symlink()
    finally:
        os.environ["PYTHONPATH"] = path


@pytest.fixture
def home(tmp_path: Path, data_cache: str, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home with its own ledger, a large budget for Adult, and the fetched files."""
    from sweeper import service

    monkeypatch.setenv("SWEEPER_DATA", f"{data_cache}/data")
    place = Home(tmp_path / "home").ensure()
    service.set_budget("adult", 1000.0, 1e-4, home=place)
    return place
