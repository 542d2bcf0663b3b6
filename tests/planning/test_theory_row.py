"""The settings of a theorem that `plan` prints, against the same arithmetic written out by hand."""

from __future__ import annotations

import math

import pytest
from tiny_sweeps import spec_of

from sweeper import planning

STEPS, BATCH, SIGMA = 400, 128, 1.7
TRAINER = {"kind": "dp-sgd", "batch_size": BATCH, "steps": STEPS}


def planned(clip, step):
    spec = spec_of(
        "theory",
        trainer=TRAINER,
        space={"clip": clip, "step": step},
        protocol={"kind": "no-tuning"},
        privacy={"noise_multiplier": SIGMA, "delta": 1e-5},
    )
    plan = planning.plan(spec)
    (row,) = [row for row in plan.dimensions if row.name == "theory"]
    return plan, row


def test_theorem_5_4_at_a_fixed_clip_norm():
    plan, row = planned({"policy": "fixed", "value": 0.4}, {"policy": "theory", "theorem": "5.4", "value": 3.0})
    d = plan.spec.data.source.description.features + 1
    phi2 = SIGMA**2 * d / (BATCH**2 * STEPS)
    s = 1 / STEPS + phi2
    eta = 3.0 / math.sqrt(s) / (STEPS * 0.4)
    settings, cap, iterate = row.note.split("; ")
    assert settings == f"here phi squared {phi2:.4g}, S {s:.4g}, clip norm 0.4, learning rate {eta:.4g}"
    assert cap == f"T is capped: the paper takes steps until the noise multiplier is {BATCH / math.sqrt(3 * d):.3g}, not 1.7"
    assert iterate == "the theorems bound an iterate drawn uniformly (average: random)"
    assert row.paid == "free"


@pytest.mark.parametrize(("batch", "leaves"), [(BATCH, True), (10, False)])
def test_theorem_6_5_says_when_a_run_leaves_it(batch, leaves, monkeypatch):
    """It needs phi^2 T = sigma^2 d / b^2 of at least 1: more noise, or a smaller batch."""
    monkeypatch.setitem(TRAINER, "batch_size", batch)
    plan, row = planned(
        {"policy": "heavy-tail", "theorem": "6.5", "value": 2.0, "moment": 3.0},
        {"policy": "theory", "theorem": "6.5", "value": 3.0},
    )
    d = plan.spec.data.source.description.features + 1
    phi2 = SIGMA**2 * d / (batch**2 * STEPS)
    s = 1 / STEPS + phi2
    tau = 3.0 * s ** (-1 / 4)
    assert f"clip norm {tau:.4g}, learning rate {3.0 / math.sqrt(s) / (STEPS * tau):.4g}" in row.note
    assert ("leaves the theorem" in row.note) == leaves == (STEPS * phi2 < 1)


def test_a_quantile_leaves_the_norm_to_the_run():
    _, row = planned({"policy": "private-quantile", "value": "g-min"}, {"policy": "theory", "theorem": "5.4", "value": 3.0})
    assert row.note.startswith("here phi squared ")
    assert "clip norm" not in row.note
