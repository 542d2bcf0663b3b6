"""The trace of a run whose length nobody knows beforehand."""

from __future__ import annotations

import pytest

from sweeper.trainers.watch import MOST_TRACED, Watch


@pytest.mark.parametrize("steps", [1, 2, 99, 100, 101, 199, 200, 201, 1600, 5001])
def test_a_run_of_unknown_length_keeps_every_2_to_the_k_th_step_and_the_last(steps):
    watch = Watch()
    for step in range(steps):
        if watch.due(step):
            watch.seal(step, 7)
        watch.release(step, value=step / 2)
    watch.end()
    found = watch.trace["step"]
    stride = 1
    while -(-steps // stride) >= MOST_TRACED:  # the figure is reached: every second one goes
        stride *= 2
    assert found == sorted({*range(0, steps, stride), steps - 1})
    assert len(found) <= MOST_TRACED
    assert watch.trace["value"] == [step / 2 for step in found]
    assert watch.sealed["step"] == [step for step in found if step % stride == 0]
    watch.end()
    assert watch.trace["step"] == found


def test_a_run_that_did_nothing_has_no_trace():
    watch = Watch()
    watch.end()
    assert watch.trace == {}
    assert watch.diagnostics()["mean_batch_size"] == 0.0
