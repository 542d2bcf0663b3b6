"""What the traps share: Opacus' optimiser on a module, and a module of trap_nets on a small table by our own path."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from small import blobs
from torch import Tensor, nn

from sweeper.backends.opacus import ModuleProblem
from sweeper.models.module import ModuleModel
from sweeper.spec.protocols import Description

ROWS = 60


def problem(function: str, full: Any = None, **args: Any) -> ModuleProblem:
    full = blobs(ROWS, 12, 3)[0] if full is None else full
    model = ModuleModel(module=f"trap_nets:{function}", args=args)
    return ModuleProblem(model=model, description=Description(rows=ROWS, features=12, classes=3), table=full, rows=np.arange(ROWS))


def flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def hooked(net: nn.Module, noise_multiplier: float, batch: int) -> tuple[nn.Module, DPOptimizer]:
    sgd = torch.optim.SGD(net.parameters(), lr=1.0)
    optimizer = DPOptimizer(sgd, noise_multiplier=noise_multiplier, max_grad_norm=1.0, expected_batch_size=batch)
    return GradSampleModule(net), optimizer


def clipped_sum(net: nn.Module, rows: Tensor, labels: Tensor) -> Tensor:
    module, optimizer = hooked(net, 0.0, 1)
    nn.functional.cross_entropy(module(rows), labels).backward()
    optimizer.clip_and_accumulate()
    return flat(p.summed_grad for p in net.parameters())
