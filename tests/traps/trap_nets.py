"""Modules of the traps: written as a user would, for Opacus and for `model: {module: ...}` alike."""

from __future__ import annotations

from torch import Tensor, nn


class Reuse(nn.Module):
    """A layer of the user's own around a weight that another layer has too."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, rows: Tensor) -> Tensor:
        return rows @ self.weight


class Shared(nn.Module):
    """A dense layer, and its transposed weight in a layer of the user's own: an autoencoder's tied halves."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(12, 4, bias=False), nn.Linear(12, 3)
        self.back = Reuse(self.into.weight)

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(self.back(self.into(rows)))


def normed() -> nn.Module:
    """Batch norm without parameters and without statistics."""
    return nn.Sequential(nn.BatchNorm1d(12, affine=False, track_running_stats=False), nn.Linear(12, 3))


def wide(width: int = 500) -> nn.Module:
    return nn.Sequential(nn.Linear(12, width), nn.Tanh(), nn.Linear(width, 3))
