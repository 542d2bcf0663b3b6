"""A problem that is nothing but Lipschitz constants, for policies that read them."""

from __future__ import annotations

import numpy as np
import torch

from sweeper.spec.protocols import Facts


class Constants:
    """Answers `lipschitz_sum` in pieces of 64 records; constants that are 0 belong to null records."""

    layers = (3, 1)

    def __init__(self, *values: float) -> None:
        self.values_n, self.rows = torch.tensor(values, dtype=torch.float64), len(values)

    lipschitz_range = (1e-3, None)

    def lipschitz_sum(self, terms, rows=None) -> torch.Tensor:
        chosen_B = self.values_n if rows is None else self.values_n[torch.from_numpy(rows)]
        chosen_B = chosen_B[chosen_B > 0]
        return torch.stack([terms(some_B).double().sum(dim=0) for some_B in chosen_B.split(64)]).sum(dim=0)


def facts(**changes) -> Facts:
    """phi^2 = 25 * 4 / (100 * 100) = 0.01 and S = 0.02, unless changed."""
    return Facts(**{"rows": 1000, "batch_size": 10.0, "steps": 100, "parameters": 4, "noise_multiplier": 5.0} | changes)


def spread(count: int, seed: int = 0) -> list[float]:
    """Constants over four orders of magnitude, some of them equal."""
    values = np.exp(np.random.default_rng(seed).normal(0.0, 2.0, count))
    values[::5] = np.round(values[::5], 1) + 0.1
    return values.tolist()
