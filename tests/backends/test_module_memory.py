"""What a module's backend holds at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small import blobs
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sweeper.backends.opacus import ModuleProblem
from sweeper.clip.fixed import FixedClip
from sweeper.models.module import ModuleModel
from sweeper.seeds import Streams, secret_from_seed


class Largest(TorchDispatchMode):
    """The largest tensor that is made, in numbers."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.size = max([self.size, *(part.numel() for part in tree_leaves(out) if isinstance(part, torch.Tensor))])
        return out


@pytest.mark.parametrize("drawn", [10, 1000])
@pytest.mark.parametrize(("per_record", "most"), [("auto", 4 * 300 + 300 * 12), ("hooks", 4 * 300 * 12)])
def test_memory_is_that_of_a_micro_batch_however_many_are_drawn(per_record: str, most: int, drawn: int) -> None:
    """300 hidden units: without gradients of single records nothing is larger than the weights and four records' outputs."""
    args, (full, description) = {"features": 12, "classes": 3, "width": 300}, blobs(60, 12, 3)
    model = ModuleModel(module="user_nets:head_of", args=args, per_record=per_record, microbatch=4)
    built = ModuleProblem(model=model, description=description, table=full, rows=np.arange(60))
    params_P, rows = built.start(Streams(secret_from_seed("memory"), 0)), np.resize(np.arange(60), drawn)
    with Largest() as largest:
        built.batch(rows).sum(params_P, FixedClip(clip_norm=0.5).factors)
    assert largest.size <= max(most, len(params_P))
    assert (largest.size >= 4 * 300 * 12) == (per_record == "hooks")
