"""With bfloat16 the passes are rounded. What is measured of a record is still what is summed, and no setting of a user's lasts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small import blobs, table

from sweeper.backends.examine import examined
from sweeper.backends.opacus import ModuleProblem
from sweeper.clip.fixed import FixedClip
from sweeper.models.module import ModuleModel
from sweeper.seeds import Streams, secret_from_seed
from sweeper.spec.protocols import Description

FULL, DESCRIPTION = blobs(24, 12, 3, spread=2.0)
TOKENS = table(np.random.default_rng(5).integers(0, 7, (24, 6)).astype(np.float32), np.arange(24) % 3)
NAMES = ("rows", "sequence", "short-sequence", "flat-sequence", "conv2d", "group-norm", "rms-norm", "rooted", "tied", "twice")
MODELS = {name: ModuleModel(module="user_nets:layer", args={"name": name}, precision="bfloat16") for name in NAMES} | {
    "tokens": ModuleModel(module="user_nets:Tokens", integers=True, precision="bfloat16"),
    "lstm": ModuleModel(module="user_nets:Recurrent", replace=True, precision="bfloat16"),
    "attention": ModuleModel(module="user_nets:Attending", replace=True, precision="bfloat16"),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_what_is_measured_in_bfloat16_is_what_is_summed(model: ModuleModel) -> None:
    full = TOKENS if model.integers else FULL
    description = Description(rows=24, features=6, classes=3) if model.integers else DESCRIPTION
    built = ModuleProblem(model=model, description=description, table=full, rows=np.arange(24))
    params_P, clip, seen = built.start(Streams(secret_from_seed("precision"), 0)), FixedClip(clip_norm=0.01), []
    for row in range(24):
        batch = built.batch(np.array([row]))
        whole = batch.sum(params_P, lambda squares_BL: (seen.append(squares_BL), torch.ones(len(squares_BL)))[1])
        assert float(whole.norm()) == pytest.approx(float(seen[-1].sqrt()), rel=1e-5)
        assert 0.0099 < batch.sum(params_P, clip.factors).norm() <= 0.01
    assert {squares_BL.dtype for squares_BL in seen} == {torch.float32}


def test_what_a_function_sets_for_all_of_torch_does_not_last() -> None:
    """With bfloat16 by default, a module's buffers and a trainer's noise would be in it."""
    before = torch.get_default_dtype(), torch.get_float32_matmul_precision(), torch.is_grad_enabled()
    assert before == (torch.float32, "highest", True)
    assert examined(ModuleModel(module="user_nets:setting"), DESCRIPTION).error < 1e-3
    assert (torch.get_default_dtype(), torch.get_float32_matmul_precision(), torch.is_grad_enabled()) == before
