"""Normalised gradients: the three rules, and what is left to search."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from oracles import AIM
from small import blobs
from tiny_sweeps import FIXED, spec_of

from sweeper.backends.closed_form import LinearProblem
from sweeper.checks import FieldError
from sweeper.clip.normalise import Normalise
from sweeper.models.linear import Softmax

NORMS = [0.0, 1e-6, 0.01, 0.3, 1.0, 50.0]
RULES = {
    "dp-nsgd": (Normalise(r=0.5), lambda norm: 1 / (0.5 + norm)),
    "dp-nsgd-default": (Normalise(), lambda norm: 1 / (0.01 + norm)),
    "auto-s": (Normalise(rule="auto-s"), lambda norm: 1 / (norm + 0.01)),
    "auto-v": (Normalise(rule="auto-v"), lambda norm: 1 / norm if norm else 0.0),
}
every_rule = pytest.mark.parametrize(("policy", "factor"), RULES.values(), ids=RULES)


@every_rule
def test_factors_by_hand(policy, factor):
    found = policy.factors(torch.tensor(NORMS, dtype=torch.float64).square().unsqueeze(1))
    assert found.tolist() == pytest.approx([AIM * factor(norm) for norm in NORMS], rel=3e-6)
    assert policy.sensitivity == 1.0


@every_rule
def test_a_sum_of_normalised_gradients(policy, factor):
    full, description = blobs(30, 6, 4)
    problem = LinearProblem(model=Softmax(), description=description, table=full, rows=np.arange(30))
    params_P = torch.from_numpy(np.random.default_rng(0).standard_normal(28).astype(np.float32))
    rows = [problem.batch(np.array([r])).sum(params_P, lambda s: torch.ones(len(s))).double().numpy() for r in range(30)]
    expected = AIM * sum(row * factor(np.linalg.norm(row)) for row in rows)
    found = problem.batch(np.arange(30)).sum(params_P, policy.factors).double().numpy()
    assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)


def test_gradients_too_short_for_float32_have_no_direction():
    """A squared norm below 1e-24 may have lost coordinates, so that 1 / ||g|| could be too large."""
    factors_B = Normalise(rule="auto-v").factors(torch.tensor([[0.0], [1e-45], [1e-30], [0.9e-24], [1.1e-24]]))
    assert factors_B[:4].tolist() == [0.0, 0.0, 0.0, 0.0]
    assert factors_B[4] == pytest.approx(AIM / math.sqrt(1.1e-24), rel=1e-5)


@pytest.mark.parametrize(("rule", "words"), [("auto-s", "is 0.01 in rule auto-s"), ("auto-v", "has no part in rule auto-v")])
def test_r_is_searched_for_dp_nsgd_alone(rule, words):
    clip = {"policy": "normalise", "range": [1e-4, 1.0], "scale": "log"}
    assert spec_of(space=FIXED | {"clip": clip}).space.clip.dearest().r == pytest.approx(0.01)
    with pytest.raises(FieldError, match=rf"space.clip.r = 0.0001 is not free: it {words}. Leave it out, or use rule: dp-nsgd"):
        spec_of(space=FIXED | {"clip": clip | {"rule": rule}})
    step = {"policy": "fixed", "range": [0.1, 1.0]}
    assert spec_of(space={"clip": {"policy": "normalise", "rule": rule}, "step": step}).space.clip.middle() == Normalise(rule=rule)


@pytest.mark.parametrize("changes", [{"r": 1e-13}, {"r": 1e13}, {"rule": "auto"}])
def test_fields(changes):
    with pytest.raises(FieldError, match=next(iter(changes))):
        Normalise(**changes)
