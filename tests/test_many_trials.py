"""Memory does not grow with the number of trials, in none of a sweep's processes. `make bench-many` asks it of 10,000."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "bench"))

from one_sweep import run


@pytest.mark.timeout(300)
def test_the_processes_of_a_sweep_do_not_grow_with_its_trials() -> None:
    """Of the process that grows most, four times the trials: 1.1 leaves 50 MB, which is 0.2 MB for each further trial."""
    few, many = (run(trials=count)["memory"] for count in (100, 400))
    assert set(few) == set(many) == {"driver", "keeper", "runner"}
    assert max(many[name] / few[name] for name in few) < 1.1
