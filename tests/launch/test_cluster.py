"""The Ray of one sweep: a closed folder that is gone afterwards."""

from __future__ import annotations

import signal
import stat
import sys

import pytest
import ray

from sweeper.launch import cluster
from sweeper.launch.cluster import ray_for_one_sweep


def test_nobody_else_reaches_the_session_files_while_ray_runs(tmp_path):
    link = tmp_path / "ray"
    with ray_for_one_sweep(link):
        folder = link.readlink()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert ray.cluster_resources()["CPU"] >= 1
        assert list(folder.glob("*/session_*/logs")), "Ray's own folder lies inside the closed one"
    assert not folder.exists()
    assert not link.is_symlink()


class Terminated(Exception):
    pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("number", "raised"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)])
@pytest.mark.parametrize("swallowed", [False, True])
def test_a_signal_that_comes_while_ray_starts_is_heard(monkeypatch, number, raised, swallowed):
    """Ray's own handler exits, and where Python ignores what a handler raises, as in a destructor, nobody would know of it."""

    class Destroyed:
        def __del__(self):
            signal.raise_signal(number)

    def starting(**_):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))
        if swallowed:
            Destroyed()
        else:
            signal.raise_signal(number)

    def terminated(*_):
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminated)
    monkeypatch.setattr(ray, "init", starting)
    try:
        with pytest.raises(raised):
            cluster._init()
        assert signal.getsignal(signal.SIGTERM) is terminated
    finally:
        signal.signal(signal.SIGTERM, before)


def test_without_a_signal_nothing_is_heard(monkeypatch):
    monkeypatch.setattr(ray, "init", lambda **_: None)
    cluster._init()
