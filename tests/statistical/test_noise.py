"""Gaussian noise: its scale, its true tails beyond torch's 5.768, and one coordinate at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles import FALSE_ALARM, REJECTED, frequency_p_value, scale_p_value
from scipy import stats

from sweeper.seeds import Streams, secret_from_seed
from sweeper.trainers.noise import CUT, beyond_cut, gaussian_

TORCH_CAP = 5.7681  # sqrt(2 log 2^24), rounded up: no float32 normal_ of 16 or more values on a CPU is larger


def generator(trial: int) -> torch.Generator:
    return Streams(secret_from_seed("noise"), trial).torch_generator("noise")


def draw(size: int, std: float = 1.0, trial: int = 0) -> np.ndarray:
    return gaussian_(torch.empty(size), std, generator(trial)).numpy()


@pytest.mark.parametrize("size", [15, 16, 100_000])
def test_scale_and_law(size):
    """Sizes below 16 take another path in torch."""
    std, stream = 0.7 * 1.3, generator(size)
    out = torch.empty(size)
    drawn = np.concatenate([gaussian_(out, std, stream).numpy().copy() for _ in range(max(1, 30_000 // size))])
    assert scale_p_value(drawn, std) > FALSE_ALARM
    assert stats.kstest(drawn / std, "norm").pvalue > FALSE_ALARM
    for wrong in (2 / 3, 3 / 2):
        assert scale_p_value(drawn, std * wrong) < REJECTED
        assert stats.kstest(drawn / (std * wrong), "norm").pvalue < REJECTED


def tail_p_value(sizes: np.ndarray) -> float:
    """Counts of |x| between 4, 4.5, 5, 5.5, 5.768, 6 and beyond, against the law of |X| given |X| > 4."""
    edges = np.array([CUT, 4.5, 5.0, 5.5, TORCH_CAP, 6.0, np.inf])
    return frequency_p_value(np.histogram(sizes, edges)[0], -np.diff(stats.norm.sf(edges)) / stats.norm.sf(CUT))


def test_beyond_the_cut_is_the_exact_conditional_law():
    sizes = beyond_cut(4_000_000, generator(0)).numpy()
    assert sizes.dtype == np.float64
    assert sizes.min() >= CUT
    assert tail_p_value(sizes) > FALSE_ALARM
    expected = sizes.size * stats.norm.sf(TORCH_CAP) / stats.norm.sf(CUT)  # about 507
    assert abs((sizes > TORCH_CAP).sum() - expected) < 5 * np.sqrt(expected)  # false alarm 6e-7
    assert tail_p_value(np.minimum(sizes, TORCH_CAP)) < REJECTED  # what a capped draw has
    assert tail_p_value(CUT + (sizes - CUT) * 1.5) < REJECTED
    assert tail_p_value(CUT + (sizes - CUT) * 2 / 3) < REJECTED


def test_the_largest_draw_possible_is_far_beyond_eight():
    """The smallest of 2^53 uniforms, by scipy, which is another program."""
    assert stats.norm.isf(2.0**-53 * stats.norm.sf(CUT)) > 9.3
    survival = torch.tensor([1.0, 1e-3, 2.0**-53], dtype=torch.float64) * stats.norm.sf(CUT)
    assert np.allclose(-torch.special.ndtri(survival).numpy(), stats.norm.isf(survival.numpy()), rtol=1e-12)


def test_every_value_beyond_the_cut_is_drawn_again_and_nothing_else():
    """End to end, against torch's own draw from the same state: what a capped generator gives fails here."""
    capped = torch.empty(8_000_000).normal_(generator=generator(1)).numpy()
    drawn = draw(8_000_000, trial=1)
    far = np.abs(capped) > CUT
    assert 400 < far.sum() < 620  # expected 507
    assert np.array_equal(drawn[~far], capped[~far])
    assert not (drawn[far] == capped[far]).any()
    assert np.array_equal(np.sign(drawn[far]), np.sign(capped[far]))
    assert tail_p_value(np.abs(drawn[far])) > FALSE_ALARM


def test_noise_passes_the_cap_of_torch():
    """A stream known to hold such a draw (found by trying streams; one in 15,600 of this size does)."""
    stream = generator(14791)
    capped = torch.empty(8_000).normal_(generator=generator(14791)).numpy()
    assert np.abs(capped).max() < TORCH_CAP
    assert np.abs(gaussian_(torch.empty(8_000), 1.0, stream).numpy()).max() > TORCH_CAP


def test_one_coordinate_at_a_time():
    """A one-coordinate gradient is the worst case for a capped draw: every call must give a fresh normal with its tails."""
    stream, out = generator(3), torch.empty(1)
    drawn = np.array([gaussian_(out, 2.0, stream).item() for _ in range(100_000)])
    assert scale_p_value(drawn, 2.0) > FALSE_ALARM
    assert stats.kstest(drawn / 2.0, "norm").pvalue > FALSE_ALARM
    assert len(np.unique(drawn)) > 99_000
    correlation = np.corrcoef(drawn[:-1], drawn[1:])[0, 1]
    assert abs(correlation) * np.sqrt(drawn.size) < 5
    for wrong in (2 / 3, 3 / 2):
        assert scale_p_value(drawn, 2.0 * wrong) < REJECTED


def test_a_small_draw_beyond_the_cut_is_drawn_again_too():
    class Far(torch.Tensor):
        """A tensor whose normal_ gives only values beyond the cut."""

        def normal_(self, *, generator):
            return self.fill_(-4.5)

    stream = generator(4)
    drawn = np.concatenate([gaussian_(torch.empty(5).as_subclass(Far), 1.0, stream).numpy() for _ in range(2_000)])
    assert (drawn <= -CUT).all()
    assert tail_p_value(-drawn) > FALSE_ALARM


def test_zero_noise_is_zero_and_a_replay_is_the_same_noise():
    assert not draw(100, std=0.0).any()
    assert np.array_equal(draw(7850, 1.5, trial=9), draw(7850, 1.5, trial=9))
    assert not np.array_equal(draw(7850, 1.5, trial=9), draw(7850, 1.5, trial=10))
    assert draw(100).dtype == np.float32
