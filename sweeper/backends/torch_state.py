"""What torch holds for a whole process, left as it was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def settings_kept() -> Iterator[None]:
    """What a user's code sets for all of torch holds for that code alone: sums and noise need float32 as it is."""
    dtype, precision, recording = torch.get_default_dtype(), torch.get_float32_matmul_precision(), torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype), torch.set_float32_matmul_precision(precision), torch.set_grad_enabled(recording)


@contextmanager
def global_randomness(state: Tensor | None) -> Iterator[Callable[[], Tensor]]:
    """torch's global generator in this state (None: a fixed one) for a while; gives a function that says where it stands."""
    with torch.random.fork_rng(devices=[]):
        if state is None:
            torch.manual_seed(0)
        else:
            torch.set_rng_state(state)
        yield torch.get_rng_state
