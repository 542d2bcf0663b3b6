"""Every record's gradient as a backend makes it, against torch's autograd on one record at a time, in float64.

The oracle is the module that a sweep would release, under the model's own loss. It shares with a backend neither a backward pass
nor a way of clipping.
Shapes: B records, d features, K logits, P parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeper import seeds
from sweeper.backends.choice import problem_of
from sweeper.clip.fixed import FixedClip
from sweeper.data.table import Table
from sweeper.doctor import made_up
from sweeper.seeds import Streams
from sweeper.spec.protocols import Description, Problem

if TYPE_CHECKING:
    from torch import Tensor

RECORDS = 8
TOLERANCE = 1e-3  # of a record's gradient: float32 loses about 1e-6, a wrong rule far more
AWAY = 0.05  # standard deviation of how far parameters are from where training starts, where a linear model's are all zero
_HALF = 2**12  # positions are told apart in float32 by two numbers, each below 2^24


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Largest differences, as parts of what they are differences of."""

    parameters: int
    records: int
    gradient: float  # of one record, unclipped
    norm: float  # that a clip policy is shown
    clipped: float  # of the clipped sum over all records

    @property
    def worst(self) -> float:
        return worse(self.gradient, worse(self.norm, self.clipped))


def compared(model: Any, description: Description, *, pixels: bool = False) -> Compared:
    """On made-up records, at made-up parameters."""
    table = made_up.table(description, RECORDS)
    problem = problem_of(model, description=description, table=table, rows=np.arange(RECORDS), pixels=pixels)
    return against_autograd(problem, model, description, table)


def against_autograd(problem: Problem, model: Any, description: Description, table: Table) -> Compared:
    """The same of a problem on a table whose rows all train."""
    import torch

    params_P = problem.start(Streams(seeds.secret_from_seed("doctor"), 0))
    params_P = params_P + AWAY * torch.randn(params_P.shape, generator=torch.Generator().manual_seed(0))
    wanted_BP = oracle(problem, model, description, table, params_P)
    lengths_B = wanted_BP.norm(dim=1)
    floor = max(1e-6 * float(lengths_B.max()), 1e-30)  # a support vector machine's record may have no gradient at all
    gradient = norm = 0.0
    for row, (wanted_P, length) in enumerate(zip(wanted_BP, lengths_B.tolist(), strict=True)):
        seen: list[Tensor] = []
        found_P = problem.batch(np.array([row])).sum(params_P, lambda s, seen=seen: seen.append(s) or torch.ones(len(s)))  # type: ignore[misc]
        gradient = worse(gradient, float((found_P.double() - wanted_P).norm()) / max(length, floor))
        norm = worse(norm, abs(float(seen[0].double().sum().sqrt()) - length) / max(length, floor))
    clip = FixedClip(clip_norm=max(0.5 * float(lengths_B.median()), floor))  # clips most records by half, and not all
    factors_B = clip.factors(lengths_B.square().unsqueeze(1).float()).double()
    wanted_P = (factors_B.unsqueeze(1) * wanted_BP).sum(dim=0)
    found_P = problem.batch(np.arange(len(wanted_BP))).sum(params_P, clip.factors)
    off = float((found_P.double() - wanted_P).norm()) / max(float(wanted_P.norm()), clip.sensitivity)
    return Compared(parameters=len(params_P), records=len(wanted_BP), gradient=gradient, norm=norm, clipped=off)


def worse(one: float, other: float) -> float:
    """The larger of two; what is no number is worse than any."""
    return other if not other <= one and not math.isnan(one) else one


def oracle(problem: Problem, model: Any, description: Description, table: Table, params_P: Tensor) -> Tensor:
    """Gradients [B, P] in float64, one record after another.

    Training and release may differ by a scale for each parameter (rows that were scaled): the chain rule takes it up.
    """
    import torch

    module = model.torch_module(problem.released(params_P), description).double()
    scale_P, order = problem.released(torch.ones(len(params_P))).double(), places(model, description, len(params_P))
    rows = []
    for features_d, label in zip(torch.from_numpy(table.features).double(), torch.from_numpy(table.labels), strict=True):
        loss = model.losses(module(features_d[None])[:, None, :], label[None]).sum()
        found = torch.autograd.grad(loss, list(module.parameters()))
        gradient_P = torch.zeros(len(params_P), dtype=torch.float64)
        gradient_P[order] = torch.cat([part.flatten() for part in found])
        rows.append(gradient_P * scale_P)
    return torch.stack(rows)


def places(model: Any, description: Description, parameters: int) -> Tensor:
    """Where each of the module's parameters, in its own order, stands in params_P: one made of positions tells."""
    import torch

    at_P = torch.arange(parameters)
    parts = []
    for digits_P in (at_P // _HALF, at_P % _HALF):
        module = model.torch_module(digits_P.float(), description)
        parts.append(torch.cat([parameter.detach().flatten() for parameter in module.parameters()]).long())
    return parts[0] * _HALF + parts[1]
