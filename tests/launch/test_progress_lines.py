"""What a person sees while trials run must not depend on what is sealed: not on K, not on the pace of trials."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import pytest

from sweeper import cli
from sweeper.launch.progress import Progress

pytestmark = pytest.mark.timeout(30)


def lines(counts: bool, stages: Sequence[int], seconds: float = 1.2) -> list[str]:
    """All that is said while stages of these sizes run, each settled to the last trial but one."""
    said: list[str] = []
    with Progress(said.append, "demo", counts=counts) as progress:
        for trials in stages:
            progress.expect(trials)
            progress.settled(trials - 1)
        time.sleep(seconds)
    return [re.sub(r"\d+ s", "# s", line) for line in said]


def test_sealed_sweeps_of_two_and_thirty_trials_say_the_same() -> None:
    assert lines(False, [2]) == lines(False, [30]) == ["\rdemo  running     # s  trials sealed", "\r"]


def test_visible_trials_are_counted_over_all_stages() -> None:
    assert lines(True, [5])[0].endswith("4 of 5 trials")
    assert lines(True, [5, 1])[0].endswith("5 of 6 trials")


@pytest.mark.parametrize("ticks", [0, 1, 40])
def test_a_log_shows_no_clock(ticks: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where standard error is no terminal, the number of ticks must not be readable from what is written."""
    monkeypatch.setattr(cli, "_last_say", "")
    cli._say("reserved epsilon 2.00 of adult")
    for second in range(ticks):
        cli._say(f"\rdemo  running  {second} s  trials sealed")
    cli._say("\r")
    cli._say("done")
    assert capsys.readouterr() == ("", "reserved epsilon 2.00 of adult\nrunning\ndone\n")
