"""What torch holds for a whole process, left as it was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def _precision(part: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return lambda: part.fp32_precision, lambda value: setattr(part, "fp32_precision", value)


_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    _precision(torch.backends),
    _precision(torch.backends.mkldnn),
    _precision(torch.backends.mkldnn.matmul),
    _precision(torch.backends.mkldnn.conv),
    _precision(torch.backends.mkldnn.rnn),
    _precision(torch.backends.cuda.matmul),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),  # cannot be read while those above disagree with it
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
)


@contextmanager
def settings_kept() -> Iterator[None]:
    """What a user's code sets for all of torch holds for that code alone: sums and noise need float32 as it is."""
    before = [read() for read, _ in _SETTINGS]
    try:
        yield
    finally:
        for _ in range(2):  # the older way to set precision, undone, sets what the newer ones were
            for (read, write), value in zip(_SETTINGS, before, strict=True):
                if read() != value:
                    write(value)


@contextmanager
def in_users_code() -> Iterator[None]:
    """For passes through a user's module: its settings are its own, and torch's fast path, which asks whether all records of a
    batch are padded on the same side, is shut.
    """
    with settings_kept():
        torch.backends.mha.set_fastpath_enabled(False)
        yield


@contextmanager
def global_randomness(state: Tensor | None) -> Iterator[Callable[[], Tensor]]:
    """torch's global generator in this state (None: a fixed one) for a while; gives a function that says where it stands."""
    with torch.random.fork_rng(devices=[]):
        if state is None:
            torch.manual_seed(0)
        else:
            torch.set_rng_state(state)
        yield torch.get_rng_state
