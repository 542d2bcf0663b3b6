"""What every clip policy must keep. A new policy is one row of POLICIES."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from sweeper.checks import FieldError
from sweeper.clip.fixed import FixedClip

POLICIES = [
    FixedClip(clip_norm=1.0),
    FixedClip(clip_norm=0.1),
    FixedClip(clip_norm=37.3),
    FixedClip(clip_norm=1e-6),
]
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=repr)


def gradients(width: int, scales: np.ndarray, seed: int = 0) -> torch.Tensor:
    """Gradients [B, width] in float32 whose norms spread around the given scales."""
    directions = np.random.default_rng(seed).standard_normal((len(scales), width)) / math.sqrt(width)
    return torch.from_numpy((directions * scales[:, None]).astype(np.float32))


@every_policy
@pytest.mark.parametrize("width", [1, 10, 7850])
def test_no_term_is_longer_than_the_sensitivity(policy, width):
    """The factor comes from a float32 norm; the term's norm is checked in float64, from outliers down to the clip norm itself."""
    scales = policy.sensitivity * np.concatenate([np.geomspace(1e-6, 1e12, 200), np.linspace(0.99999, 1.00001, 300)])
    if width == 1:  # norms known to the last bit
        grads_BP = torch.from_numpy(scales.astype(np.float32))[:, None]
    else:
        grads_BP = gradients(width, scales)
    factors_B = policy.factors(grads_BP.square().sum(dim=1, keepdim=True))
    terms_B = factors_B.double() * grads_BP.double().norm(dim=1)
    assert factors_B.shape == (len(scales),)
    assert (terms_B <= policy.sensitivity).all()
    assert terms_B.max() > 0.9999 * policy.sensitivity  # no tighter than it says, or noise is wasted


@every_policy
def test_zero_gradients_are_finite_and_broken_ones_vanish(policy):
    factors_B = policy.factors(torch.tensor([[0.0], [math.nan], [math.inf], [1e-45], [3e38]]))
    assert factors_B.isfinite().all()
    assert (factors_B >= 0).all()
    assert factors_B[1] == 0
    assert factors_B[2] == 0


@every_policy
def test_layers_count_together(policy):
    squares_BL = torch.rand((64, 5), generator=torch.Generator().manual_seed(0)) * 10 * policy.sensitivity**2
    together = policy.factors(squares_BL.sum(dim=1, keepdim=True))
    assert torch.allclose(policy.factors(squares_BL), together, rtol=1e-6)


@every_policy
def test_the_norms_handed_in_are_left_alone(policy):
    squares_BL = torch.rand((8, 1), generator=torch.Generator().manual_seed(0))
    before = squares_BL.clone()
    policy.factors(squares_BL)
    assert torch.equal(squares_BL, before)


@every_policy
def test_a_policy_is_a_frozen_noun_with_a_searched_field(policy):
    assert policy.searched in {f.name for f in dataclasses.fields(policy)}
    assert policy == dataclasses.replace(policy)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(policy, policy.searched, 1.0)
    for wrong in (0.0, -1.0, math.nan, math.inf, "1", True):
        with pytest.raises(FieldError, match=policy.searched):
            dataclasses.replace(policy, **{policy.searched: wrong})


def test_fixed_scales_to_its_norm():
    factors_B = FixedClip(clip_norm=2.0).factors(torch.tensor([[1.0], [4.1], [16.0], [1e4]]))
    assert factors_B.tolist() == pytest.approx([1.0, 2 / math.sqrt(4.1), 0.5, 0.02], rel=3e-6)
    assert FixedClip(clip_norm=2.0).sensitivity == 2.0
