"""An interrupt is never lost in somebody else's code."""

from __future__ import annotations

import contextlib
import signal
import threading

import pytest

from sweeper.launch.interrupts import heeded


def test_a_swallowed_interrupt_is_raised_at_the_end():
    before = signal.getsignal(signal.SIGINT)
    reached = []

    def library() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        reached.append("its end")

    with pytest.raises(KeyboardInterrupt), heeded():
        library()
    assert reached
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_that_nobody_swallows_comes_at_once_and_none_changes_nothing():
    with pytest.raises(KeyboardInterrupt), heeded():
        signal.raise_signal(signal.SIGINT)
    with heeded():
        pass


def test_other_threads_have_no_signals_to_heed():
    ran = []

    def block() -> None:
        with heeded():
            ran.append(True)

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert ran
