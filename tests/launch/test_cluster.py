"""The Ray of one sweep: a closed folder that is gone afterwards."""

from __future__ import annotations

import signal
import stat
import sys

import pytest
import ray

from sweeper.launch import cluster


def test_nobody_else_reaches_the_session_files_while_ray_runs(ray_session):
    """That they are gone afterwards is asserted where `ray_session` ends."""
    assert stat.S_IMODE(ray_session.stat().st_mode) == 0o700
    assert ray.cluster_resources()["CPU"] >= 1
    assert list(ray_session.glob("*/session_*/logs")), "Ray's own folder lies inside the closed one"


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
