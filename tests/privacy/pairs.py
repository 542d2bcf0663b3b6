"""Divergences of mechanisms given as tables of probabilities, and the pair that a LossPmf stands for. No code of the package."""

from __future__ import annotations

from itertools import product

import numpy as np

EPSILONS = np.array([-3.0, -1.0, -0.4, -0.1, 0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.3, 2.0, 3.5])


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - np.exp(epsilon) * q, 0.0).sum())


def renyi(p: np.ndarray, q: np.ndarray, order: float) -> float:
    """Of outcomes that both tables give."""
    return float(np.log(np.sum(p**order * q ** (1 - order))) / (order - 1))


def randomised_response(epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    high = 1 / (1 + np.exp(-epsilon))
    return np.array([high, 1 - high]), np.array([1 - high, high])


def both(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The law of two independent releases."""
    return np.outer(p, q).ravel()


def stretch(epsilon: float, top: float) -> tuple[np.ndarray, np.ndarray]:
    """The two-outcome pair with losses top and top - epsilon."""
    high = (np.exp(epsilon) - np.exp(top)) / np.expm1(epsilon)
    return np.array([high, 1 - high]), np.array([high * np.exp(-top), (1 - high) * np.exp(epsilon - top)])


def exponential_mechanism(scores: np.ndarray, epsilon: float, sensitivity: float, monotone: bool = False) -> np.ndarray:
    weights = np.exp(epsilon * (scores - scores.max()) / ((1 if monotone else 2) * sensitivity))
    return weights / weights.sum()


def subsampled_releases(records: int, sampling_probability: float, release: object) -> tuple[np.ndarray, np.ndarray]:
    """(record 0 present, absent): the law of `release` of the set of sampled records, all 2^records batches enumerated.

    `release` maps a 0/1 vector, which records are in the batch, to a table of probabilities. Absent means never in the batch.
    """
    laws = [0.0, 0.0]
    for batch in product((0, 1), repeat=records):
        chosen = np.array(batch)
        weight = np.prod(np.where(chosen, sampling_probability, 1 - sampling_probability))
        without = chosen.copy()
        without[0] = 0
        laws[0] = laws[0] + weight * release(chosen)
        laws[1] = laws[1] + weight * release(without)
    return np.asarray(laws[0]), np.asarray(laws[1])
