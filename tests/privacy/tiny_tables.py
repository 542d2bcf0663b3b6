"""Mechanisms on tables of four records, values -1, 0, 1 (0 is the null record), all draws enumerated. No code of the package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations, combinations_with_replacement, product

import numpy as np
from scipy.special import ndtr

RECORDS = 4
VALUES = (-1, 0, 1)
Table = tuple[int, ...]
Release = Callable[[Table], np.ndarray]  # of the records of a batch: the law of one answer
LARGEST = 40  # noisy counts are clamped to [-LARGEST, LARGEST], which is post-processing


def zero_out_neighbours() -> Iterator[tuple[Table, Table]]:
    """(record present, record null); mechanisms here do not look at the order of records."""
    for others in combinations_with_replacement(VALUES, RECORDS - 1):
        for value in (-1, 1):
            yield (value, *others), (0, *others)


def replace_one_neighbours() -> Iterator[tuple[Table, Table]]:
    for others in combinations_with_replacement(VALUES, RECORDS - 1):
        for value, other in combinations(VALUES, 2):
            yield (value, *others), (other, *others)


def on_poisson_batches(release: Release, sampling_probability: float) -> Release:
    """A batch holds every record independently; whoever is left out is a null record."""

    def law(table: Table) -> np.ndarray:
        total: np.ndarray | float = 0.0
        for kept in product((0, 1), repeat=len(table)):
            chance = sampling_probability ** sum(kept) * (1 - sampling_probability) ** (len(table) - sum(kept))
            total = total + chance * release(tuple(value * keep for value, keep in zip(table, kept, strict=True)))
        return np.asarray(total)

    return law


def on_fixed_size_batches(release: Release, size: int) -> Release:
    """A batch is a uniform set of `size` records."""

    def law(table: Table) -> np.ndarray:
        return np.mean([release(batch) for batch in combinations(table, size)], axis=0)

    return law


def on_random_parts(first: Release, second: Callable[[Table, int], np.ndarray], fraction: float, told: bool) -> Release:
    """Every record goes into the first part with probability `fraction`; `second` also sees the answer on the first.

    `told`: who went where is part of the answer, else it is secret.
    """

    def law(table: Table) -> np.ndarray:
        all_ways = []
        for in_first in product((True, False), repeat=len(table)):
            chance = np.prod([fraction if first_part else 1 - fraction for first_part in in_first])
            parts = [tuple(v for v, side in zip(table, in_first, strict=True) if side == wanted) for wanted in (True, False)]
            answers = first(parts[0])
            all_ways.append(chance * np.concatenate([p * second(parts[1], answer) for answer, p in enumerate(answers)]))
        return np.concatenate(all_ways) if told else np.sum(all_ways, axis=0)

    return law


def in_turn(first: Release, second: Callable[[Table, int], np.ndarray]) -> Release:
    """Both on the same records; `second` also sees the answer of the first."""
    return lambda table: np.concatenate([p * second(table, answer) for answer, p in enumerate(first(table))])


def twice(release: Release) -> Release:
    """Two runs with fresh draws."""
    return lambda table: np.outer(release(table), release(table)).ravel()


def geometric_sum(epsilon: float) -> Release:
    """The sum plus two-sided geometric noise, P[x] proportional to e^(-epsilon |x|)."""

    def law(table: Table) -> np.ndarray:
        away = np.abs(np.arange(-LARGEST, LARGEST + 1) - sum(table))
        masses = np.exp(-epsilon * away) * np.tanh(epsilon / 2)
        beyond = np.exp(-epsilon * away[[0, -1]]) / (1 + np.exp(-epsilon))  # P[X <= end], P[X >= end]
        masses[[0, -1]] = beyond
        return masses

    return law


def gaussian_sum(noise: float, cells: int = 240) -> Release:
    """The sum plus Gaussian noise, read off on a scale of `cells` cells."""

    def law(table: Table) -> np.ndarray:
        edges = np.linspace(-RECORDS - 6 * noise, RECORDS + 6 * noise, cells - 1) - sum(table)
        below, above = ndtr(edges / noise), ndtr(-edges / noise)
        inner = np.where(edges[1:] > 0, above[:-1] - above[1:], below[1:] - below[:-1])
        return np.concatenate([below[:1], inner, above[-1:]])

    return law


def vote(epsilon: float) -> Release:
    """Whether the sum is positive, by randomised response."""
    high = 1 / (1 + np.exp(-epsilon))
    return lambda table: np.array([high, 1 - high]) if sum(table) > 0 else np.array([1 - high, high])


def most_frequent(epsilon: float) -> Callable[[Table, int], np.ndarray]:
    """A value by the exponential mechanism on counts of -1 and 1, one of them ahead by what an earlier answer says."""

    def law(table: Table, answer: int) -> np.ndarray:
        scores = np.array([table.count(-1), table.count(1) + answer % 3 - 1], dtype=float)
        weights = np.exp(epsilon * scores / 2)
        return weights / weights.sum()

    return law
