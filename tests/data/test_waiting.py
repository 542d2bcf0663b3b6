"""What a person is told while records are computed."""

from __future__ import annotations

import sys

import pytest

from sweeper.data import waiting
from sweeper.data.waiting import Counted, tell


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in seconds, that a test sets."""
    now = [100.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    return now


def test_a_terminal_counts_records_every_few_seconds(monkeypatch, capsys, clock):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    counted = Counted(1_000)
    for _ in range(8):  # 125 records in 2 s
        clock[0] += 2.0
        counted.add(125)
    said = capsys.readouterr().err.replace("\r\x1b[K", "").splitlines()
    assert said == ["  375 of 1,000 records, about 10 s left", "  750 of 1,000 records, about 4 s left"]


def test_a_log_is_told_once_and_counts_nothing(capsys, clock):
    tell("computing ...")
    counted = Counted(1_000)
    clock[0] += 60.0
    counted.add(125)
    assert capsys.readouterr() == ("", "computing ...\n")
