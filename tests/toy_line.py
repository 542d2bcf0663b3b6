"""A line of parameters with records whose losses along it are written down: what a line search is tested on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from sweeper.clip.fixed import FixedClip
from sweeper.seeds import SEARCH, Streams, secret_from_seed
from sweeper.spec.protocols import Look

STREAMS = Streams(secret_from_seed("searches"), 0)


class Line:
    """Batch and problem in one. Its one parameter is minus the step size taken."""

    def __init__(self, losses: Callable[[float], np.ndarray], penalty: Callable[[float], float] = lambda size: 0.0) -> None:
        self.losses, self.of_size = losses, penalty

    def penalty(self, params_P: torch.Tensor) -> float:
        return self.of_size(-float(params_P))

    def losses_along(self, params_P, direction_P, sizes, terms) -> torch.Tensor:
        assert params_P.tolist() == [0.0]
        assert direction_P.tolist() == [1.0]
        here, *there = (torch.from_numpy(np.asarray(self.losses(size), np.float32)) for size in (0.0, *sizes))
        return terms(here[:, None], torch.stack(there, dim=1)).sum(dim=0, dtype=torch.float64)


def look_at(batch, problem=None, *, params_P=None, direction_P=None, gradient_P=None, trial=0, **others) -> Look:
    params_P = torch.zeros(1) if params_P is None else params_P
    direction_P = torch.ones(1) if direction_P is None else direction_P
    asked = {"clip": FixedClip(clip_norm=1.0), "step": 0, "steps": 10, "noise_multiplier": 1.0, "divisor": 8.0}
    return Look(
        **(asked | others),
        params_P=params_P,
        gradient_P=direction_P if gradient_P is None else gradient_P,
        direction_P=direction_P,
        batch=batch,
        problem=batch if problem is None else problem,
        draws=Streams(STREAMS.secret, trial).generator(SEARCH),
    )


def given(losses_BJ: np.ndarray, sizes: tuple[float, ...]) -> Line:
    """Records with these losses at size 0 (the first column) and at each of the sizes."""
    column = {np.float32(size): j for j, size in enumerate((0.0, *sizes))}
    return Line(lambda size: losses_BJ[:, column[np.float32(size)]])


def quadratic(centres: np.ndarray) -> Line:
    """Losses (size - centre)^2 / 2: the sum is smallest at the mean of the centres."""
    return Line(lambda size: (size - centres) ** 2 / 2)
