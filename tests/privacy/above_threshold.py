"""AboveThreshold itself, outcome by outcome: probabilities by integration over the threshold's noise. No code of the package."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from scipy.special import ndtr

NODES, WEIGHTS = np.polynomial.legendre.leggauss(600)


def outcomes(below_threshold: np.ndarray, threshold_noise: float, query_noise: float) -> np.ndarray:
    """[queries + 1]: P[query j is the first above], and P[none is], for Gaussian noise; below_threshold is threshold - query."""
    z = 11.0 * NODES
    weight = WEIGHTS * 11.0 * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    margin = (below_threshold[:, None] + threshold_noise * z) / query_noise  # what the query's noise must exceed
    return race(margin) @ weight


def laplace_outcomes(below_threshold: np.ndarray, threshold_noise: float, query_noise: float) -> np.ndarray:
    """The same for Laplace noise."""
    total = np.zeros(len(below_threshold) + 1)
    kinks = np.concatenate([[-40.0 * threshold_noise], np.sort(np.append(-below_threshold, 0.0)), [40.0 * threshold_noise]])
    for low, high in pairwise(kinks):
        z = low + (high - low) * (NODES + 1) / 2
        weight = WEIGHTS * (high - low) / 2 * np.exp(-np.abs(z) / threshold_noise) / (2 * threshold_noise)
        margin = (below_threshold[:, None] + z) / query_noise
        above = np.where(margin > 0, 0.5 * np.exp(-np.abs(margin)), 1 - 0.5 * np.exp(-np.abs(margin)))
        total += race(np.zeros_like(margin), above) @ weight
    return total


def race(margin: np.ndarray, above: np.ndarray | None = None) -> np.ndarray:
    """First success of independent tests: [tests + 1, ...]."""
    above = ndtr(-margin) if above is None else above
    survived = np.cumprod(np.concatenate([np.ones_like(above[:1]), 1 - above]), axis=0)
    return np.concatenate([survived[:-1] * above, survived[-1:]])
