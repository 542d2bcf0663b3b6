"""What numbers are compared with: exact laws and plain float64 loops that share no code with the package."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

FALSE_ALARM = 1e-6  # a right answer fails a statistical test by chance once in a million
AIM = 1 - 2.0**-9 - 2.0**-19  # of a stated norm: the rest is for what float32 sums of 128 terms lose (sweeper/clip/base.py)
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
        elif kind == "svm":
            sign = 2.0 * label - 1.0
            residual_K = np.where(sign * logits_K > 1.5, 0.0, np.where(sign * logits_K < 0.5, -1.0, sign * logits_K - 1.5)) * sign
        elif kind == "squared":
            residual_K = logits_K - (2.0 * label - 1.0)
        else:
            chances_K = np.exp(logits_K - logits_K.max())
            residual_K = chances_K / chances_K.sum() - (np.arange(len(logits_K)) == label)
        rows.append(np.outer(residual_K, extended_D).ravel())
    return np.array(rows)


def losses(kind: str, params_P: np.ndarray, features_Bd: np.ndarray, labels_B: np.ndarray) -> np.ndarray:
    """Per-record losses [B] of a linear model in float64, one record at a time. The svm's is smooth for margins of 0.5 to 1.5."""
    found = []
    for x, label in zip(features_Bd.astype(np.float64), labels_B, strict=True):
        logits_K = params_P.astype(np.float64).reshape(-1, len(x) + 1) @ np.append(x, 1.0)
        if kind == "logistic":
            found.append(np.logaddexp(0.0, -logits_K[0] if label else logits_K[0]))
        elif kind == "svm":
            margin = logits_K[0] if label else -logits_K[0]
            found.append(0.0 if margin > 1.5 else 1.0 - margin if margin < 0.5 else (1.5 - margin) ** 2 / 2)
        elif kind == "squared":
            found.append((logits_K[0] - (1.0 if label else -1.0)) ** 2 / 2)
        else:
            found.append(np.logaddexp.reduce(logits_K) - logits_K[label])
    return np.array(found)


def clipped(gradients_BP: np.ndarray, clip_norm: float) -> np.ndarray:
    """Every row scaled down to what policies aim at for this norm."""
    norms_B, aim = np.linalg.norm(gradients_BP, axis=1), AIM * clip_norm
    return gradients_BP * (aim / np.maximum(norms_B, aim))[:, None]


def stopping_law(scores_J: np.ndarray, threshold_law: Any, query_law: Any) -> np.ndarray:
    """[J + 1]: P[score j is the first that, with noise, reaches the noisy threshold], and P[none does]; laws of scipy.stats.

    By the trapezoid rule over the threshold, far into both tails.
    """
    ends = threshold_law.ppf([1e-13, 1 - 1e-13])
    at = np.linspace(ends[0], ends[1], 400_001)
    passes_J = np.array([query_law.sf(at - score) for score in scores_J])
    still = np.ones_like(at)
    found = []
    for passes in passes_J:
        found.append(still * passes)
        still = still * (1 - passes)
    return np.array([np.trapezoid(threshold_law.pdf(at) * part, at) for part in [*found, still]])
