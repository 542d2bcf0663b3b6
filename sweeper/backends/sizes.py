"""The sizes in which records go through a user's module: a few, all known and all checked before data is opened.

A module may do something else with 30 records than with 3. So a draw is cut into full micro-batches, and what is left over is
filled up with rows of zeros to the next size of a short list; no other size is ever run.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

LEAST = 8  # records, so that no module sees a batch of one, which some take for no batch at all


def sizes_up_to(microbatch: int) -> tuple[int, ...]:
    """LEAST and its doubles below the micro-batch, and the micro-batch."""
    sizes, size = [], LEAST
    while size < microbatch:
        sizes.append(size)
        size *= 2
    return (*sizes, microbatch)


def cut(rows: Tensor, sizes: tuple[int, ...]) -> Iterator[tuple[Tensor, int]]:
    """Rows (or a table of them), cut into pieces of the largest size, each with the size that it has to be filled up to."""
    for some in rows.split(sizes[-1]) if len(rows) else ():
        yield some, next(size for size in sizes if size >= len(some))


def filled(some: Tensor, size: int) -> Tensor:
    """With rows of zeros after them."""
    return some if len(some) == size else torch.cat([some, some.new_zeros(size - len(some), *some.shape[1:])])
