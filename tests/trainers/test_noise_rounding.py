"""A sum and its noise are added before either is rounded to float32."""

from __future__ import annotations

import numpy as np
import torch

from sweeper.trainers.noise import noisy_


def totals() -> tuple[torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(0)
    total = torch.randn(100_000, dtype=torch.float64, generator=stream) * 10.0 ** torch.arange(-8, 8).repeat_interleave(6250)
    return total, torch.randn(100_000, generator=stream)


def test_a_float64_sum_is_rounded_once_with_its_noise():
    total, noise = totals()
    expected = (total.numpy() + noise.numpy().astype(np.float64)).astype(np.float32)
    found = noisy_(noise.clone(), total)
    assert np.array_equal(found.numpy(), expected)
    assert not np.array_equal((total.float() + noise).numpy(), expected)  # rounded before the noise
    assert not np.array_equal(noisy_(noise * 1.5, total).numpy(), expected)


def test_a_float32_sum_gives_the_same_bits_as_in_float64():
    """So a sum of one chunk need not be stored in float64."""
    total, noise = totals()
    rounded = total.float()
    assert torch.equal(noisy_(noise.clone(), rounded), noisy_(noise.clone(), rounded.double()))


def test_it_is_in_place():
    total, noise = totals()
    assert noisy_(noise, total) is noise
