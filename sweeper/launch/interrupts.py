"""Ctrl-C that is heard, whatever runs at the moment."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def heeded() -> Iterator[None]:
    """An interrupt that a library swallows inside the block is raised at its end. (A callback of Ray's may swallow one.)"""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    told: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        told.append(number)
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    try:
        for number, handler in before.items():
            if callable(handler):
                signal.signal(number, note)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if told:
        raise KeyboardInterrupt
