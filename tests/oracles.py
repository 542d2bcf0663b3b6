"""What numbers are compared with: exact laws and plain float64 loops that share no code with the package."""

from __future__ import annotations

import numpy as np
from scipy import stats

FALSE_ALARM = 1e-6  # a right answer fails a statistical test by chance once in a million
REJECTED = 1e-12  # a wrong answer must be this implausible


def scale_p_value(draws: np.ndarray, std: float) -> float:
    """Two-sided test that normal draws of mean 0 have this standard deviation (their squares add up to a chi-square)."""
    total = float(np.square(draws / std, dtype=np.float64).sum())
    law = stats.chi2(draws.size)
    return 2 * min(law.cdf(total), law.sf(total))


def frequency_p_value(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Pearson's test that counts come from these probabilities; cells that expect fewer than 10 are merged."""
    expected = counts.sum() * probabilities
    small = expected < 10
    if small.any():
        counts = np.append(counts[~small], counts[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
    return float(stats.chi2.sf((np.square(counts - expected) / expected).sum(), len(counts) - 1))


def gradients(kind: str, params_P: np.ndarray, features_Bd: np.ndarray, labels_B: np.ndarray) -> np.ndarray:
    """Per-record gradients [B, P] of a linear model's loss in float64, by the chain rule, one record at a time."""
    rows = []
    for x, label in zip(features_Bd.astype(np.float64), labels_B, strict=True):
        extended_D = np.append(x, 1.0)
        weights_KD = params_P.astype(np.float64).reshape(-1, len(extended_D))
        logits_K = weights_KD @ extended_D
        if kind == "logistic":
            residual_K = 1 / (1 + np.exp(-logits_K)) - label
        else:
            chances_K = np.exp(logits_K - logits_K.max())
            residual_K = chances_K / chances_K.sum() - (np.arange(len(logits_K)) == label)
        rows.append(np.outer(residual_K, extended_D).ravel())
    return np.array(rows)


def clipped(gradients_BP: np.ndarray, clip_norm: float) -> np.ndarray:
    """Every row scaled down to at most this norm."""
    norms_B = np.linalg.norm(gradients_BP, axis=1)
    return gradients_BP * np.minimum(1.0, clip_norm / np.maximum(norms_B, 1e-300))[:, None]
