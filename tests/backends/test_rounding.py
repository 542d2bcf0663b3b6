"""What one record moves a sum by, rounding of all the others included, on tables built to make rounding drift."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from small import table, without

from sweeper.backends.closed_form import LinearProblem
from sweeper.backends.layered import LayeredProblem
from sweeper.backends.opacus import ModuleProblem
from sweeper.clip.base import BLOCK, MARGIN
from sweeper.clip.fixed import FixedClip
from sweeper.models.linear import Logistic
from sweeper.models.mlp import Mlp
from sweeper.models.module import ModuleModel
from sweeper.seeds import Streams, secret_from_seed
from sweeper.spec.protocols import Description

NORM = 0.25
CLIP = FixedClip(clip_norm=NORM)
STREAMS = Streams(secret_from_seed("rounding"), 0)


def moved(build, features, labels, params=None) -> float:
    """By how much the sum over the whole table, in the table's order, moves when its first record becomes null, in clip norms."""
    full = table(features, labels)
    description = Description(rows=len(labels), features=features.shape[1], classes=2)
    sums = []
    for rows in (full, without(full, 0)):
        problem = build(description=description, table=rows, rows=np.arange(len(labels)))
        params_P = problem.start(STREAMS) if params is None else params(problem)
        sums.append(problem.batch(np.arange(len(labels))).sum(params_P, FixedClip(clip_norm=NORM).factors))
    return float((sums[0] - sums[1]).double().norm()) / NORM


def drifting(climb: int, pulls: int, fraction: float, every: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """`climb` records that bring a sum to about a power of two; then pulls back, one every `every` rows, of a fraction of its ulp.

    With the first record the sum is above the power, where a pull is lost; without it below, where it counts double.
    """
    ulp = 2.0 ** (math.floor(math.log2(NORM * climb)) - 23)
    features, labels = np.zeros((climb + pulls * every, 1), np.float32), np.zeros(climb + pulls * every, np.int64)
    features[climb::every] = math.sqrt((NORM / (fraction * ulp)) ** 2 - 1)
    labels[climb::every] = 1
    return features, labels


@pytest.mark.parametrize("fraction", [0.26, 0.3, 0.4, 0.49])
def test_a_block_moves_by_at_most_the_clip_norm(fraction):
    """All within what is added in float32 at once, at every way to stand beside the power of two."""
    found = [
        moved(lambda **k: LinearProblem(model=Logistic(), **k), *drifting(BLOCK // 2 + extra, BLOCK, fraction))
        for extra in range(4)
    ]
    assert 0.99 < max(found) <= 1.0


def test_a_long_table_moves_by_at_most_the_clip_norm():
    """65,536 rows climb, and 64 chunks pull: in float32 throughout, the sum moved by 1.25 clip norms."""
    climb = 65_536
    for extra in range(0, 12 * 4, 4):  # the margin makes the climb fall short of the power of two by 128 records or more
        features, labels = drifting(climb + round(MARGIN * climb) + extra, 64, 0.26, every=1024)
        assert moved(lambda **k: LinearProblem(model=Logistic(), **k), features, labels) <= 1.0


def test_a_network_moves_by_at_most_the_clip_norm():
    features, labels = drifting(4096 + round(MARGIN * 4096), 256, 0.26, every=128)
    assert moved(lambda **k: LayeredProblem(model=Mlp(hidden=(1,)), **k), features, labels) <= 1.0


@pytest.mark.parametrize("per_record", ["auto", "hooks"])
@pytest.mark.parametrize("extra", range(4))
def test_a_module_moves_by_at_most_the_clip_norm(per_record, extra):
    """One dense layer with two outputs, from zeros. Each of its coordinates climbs at 1 / sqrt(2) of the clip norm a record."""
    model = ModuleModel(module="user_nets:head", args={"width": 1, "classes": 2}, per_record=per_record)

    def zeros(problem):
        return torch.zeros(sum(problem.layers))

    for climb, pulls, every in ((round(BLOCK * 0.7), BLOCK, 1), (round(4096 * (1 + MARGIN) * math.sqrt(2)), 256, 128)):
        features, labels = drifting(climb + extra, pulls, 0.26, every=every)
        assert 0.9 < moved(lambda **k: ModuleProblem(model=model, **k), features, labels, zeros) <= 1.0


def test_a_module_would_move_by_more_without_the_margin():
    """What the test above would see if policies aimed at the norm that they state."""
    model, found = ModuleModel(module="user_nets:head", args={"width": 1, "classes": 2}), []
    for extra in range(8):
        features, labels = drifting(round(BLOCK * 0.7) + extra, BLOCK, 0.26)
        full, sums = table(features, labels), []
        for rows in (full, without(full, 0)):
            problem = ModuleProblem(
                model=model,
                description=Description(rows=len(labels), features=1, classes=2),
                table=rows,
                rows=np.arange(len(labels)),
            )
            sums.append(problem.batch(np.arange(len(labels))).sum(torch.zeros(4), lambda s: CLIP.factors(s) / (1 - MARGIN)))
        found.append(float((sums[0] - sums[1]).norm()) / NORM)
    assert max(found) > 1.0


def test_the_margin_is_the_bound_on_what_a_block_loses():
    """(B - 1) B 2^-24 for each of the two sums, beside 2^-19 for a norm and its factor."""
    assert MARGIN >= 2 * BLOCK * (BLOCK - 1) * 2.0**-24 + 2.0**-19
    assert MARGIN < 0.0025  # what it costs: noise is this much larger, in units of what is summed
