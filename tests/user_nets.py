"""What a user's own package might hold: functions that build modules, good ones and bad ones."""

from __future__ import annotations

from typing import Any

import networks
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm


def network(kind: str, classes: int = 10) -> nn.Module:
    """One of the oracles' networks, in float32."""
    return nn.Sequential(*networks.NETWORKS[kind](classes))


def head(*layers: nn.Module, width: int, classes: int = 3) -> nn.Module:
    return nn.Sequential(*layers, nn.Linear(width, classes))


def head_of(features: int, classes: int) -> nn.Module:
    return head(nn.Linear(features, 5), nn.Tanh(), width=5, classes=classes)


class Positions(nn.Module):
    """A layer for rows, called on the positions [B, 4, 3] of 12 features; `flat`: as rows [B * 4, 3]."""

    def __init__(self, layer: nn.Module, flat: bool = False) -> None:
        super().__init__()
        self.layer, self.flat = layer, flat

    def forward(self, rows: Tensor) -> Tensor:
        positions = rows.reshape(len(rows), 4, 3)
        found = self.layer(positions.reshape(-1, 3)) if self.flat else self.layer(positions)
        return torch.tanh(found).reshape(len(rows), 4, -1).sum(dim=1)


class Tokens(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(7, 5, **options), nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.table(tokens)).mean(dim=1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(self.inner(rows.reshape(len(rows), 4, 3))[0][:, -1])


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, rows: Tensor) -> Tensor:
        x = rows.reshape(len(rows), 3, 4)
        return self.out(self.inner(x, x, x)[0].mean(dim=1))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.out = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 3)
        self.two.weight = self.one.weight

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(torch.tanh(self.two(torch.tanh(self.one(rows)))))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(torch.tanh(self.inner(torch.tanh(self.inner(rows)))))


class Rooted(nn.Module):
    """Parameters of the module itself, and inside it a layer that would have a rule of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.out = nn.Parameter(torch.ones(12)), nn.Linear(12, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(rows * self.scale)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out, self.idle = nn.Linear(12, 3), nn.Linear(4, 4)

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(rows)


class Functional(nn.Module):
    """A weight that is used outside of its layer's forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(torch.tanh(nn.functional.linear(rows, self.inner.weight)))


class Mixing(nn.Module):
    """Subtracts the mean of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(12, 6), nn.Linear(6, 3)

    def forward(self, rows: Tensor) -> Tensor:
        found = torch.tanh(self.inner(rows))
        return self.out(found - found.mean(dim=0))


class MixingBackwards(Mixing):
    """Outputs are each record's own, gradients are not; and the last layer starts at 0, where no gradient tells."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.out.weight)

    def forward(self, rows: Tensor) -> Tensor:
        found = torch.tanh(self.inner(rows))
        mean = found.mean(dim=0)
        return self.out(found + mean - mean.detach())


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(12, 3)
        self.register_buffer("seen", torch.zeros(12))

    def forward(self, rows: Tensor) -> Tensor:
        self.seen += rows.detach().sum(dim=0)
        return self.out(rows)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(12, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(nn.functional.dropout(rows, 0.5, training=self.training))


class Placed(nn.Module):
    """A table of positions that is looked up once for the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.places, self.out = nn.Linear(3, 5), nn.Embedding(4, 5), nn.Linear(5, 3)

    def forward(self, rows: Tensor) -> Tensor:
        x = self.inner(rows.reshape(len(rows), 4, 3)) + self.places(torch.arange(4))
        return self.out(torch.tanh(x).mean(dim=1))


class Thawing(nn.Module):
    """Unfreezes its first layer at its hundredth pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out, self.passes = nn.Linear(12, 6).requires_grad_(False), nn.Linear(6, 3), 0

    def forward(self, rows: Tensor) -> Tensor:
        self.passes += 1
        if self.passes > 100:
            self.inner.requires_grad_(True)
        return self.out(torch.tanh(self.inner(rows)))


class Choosy(nn.Module):
    """Raises an error on a row whose first feature is above 50."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.drop = nn.Linear(12, 3), nn.Dropout(0.3)

    def forward(self, rows: Tensor) -> Tensor:
        if bool((rows[:, 0] > 1e6).any()):
            raise ValueError("a row that it does not like")
        return self.out(self.drop(rows))


def frozen() -> nn.Module:
    """Batch norm and first layer frozen, with statistics of their own."""
    net = nn.Sequential(nn.Linear(12, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
    net[1].running_mean.copy_(torch.linspace(-1, 1, 6))
    for parameter in (*net[0].parameters(), *net[1].parameters()):
        parameter.requires_grad_(False)
    return net


def bias_only() -> nn.Module:
    found = nn.Linear(12, 6)
    found.weight.requires_grad_(False)
    return found


def picture(*layers: nn.Module) -> nn.Module:
    """Layers for pictures [B, 3, 2, 2], with the last one for what comes out."""
    body = nn.Sequential(nn.Unflatten(1, (3, 2, 2)), *layers, nn.Tanh(), nn.Flatten())
    width = body(torch.zeros(1, 12)).shape[1]
    return nn.Sequential(*body, nn.Linear(width, 3))


LAYERS: dict[str, Any] = {
    "rows": lambda: head(nn.Linear(12, 6), nn.Tanh(), width=6),
    "no-bias": lambda: head(nn.Linear(12, 6, bias=False), nn.Tanh(), width=6),
    "bias-only": lambda: head(bias_only(), nn.Tanh(), width=6),
    "sequence": lambda: head(Positions(nn.Linear(3, 20)), width=20),
    "short-sequence": lambda: head(Positions(nn.Linear(3, 2)), width=2),
    "flat-sequence": lambda: head(Positions(nn.Linear(3, 20), flat=True), width=20),
    "conv1d": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 6)), nn.Conv1d(2, 4, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)
    ),
    "conv2d": lambda: picture(nn.Conv2d(3, 4, 2)),
    "conv2d-dilated": lambda: picture(nn.Conv2d(3, 4, 2, dilation=2, padding=2)),
    "conv2d-groups": lambda: picture(nn.Conv2d(3, 6, 2, groups=3)),
    "conv2d-same": lambda: picture(nn.Conv2d(3, 4, 3, padding="same")),
    "conv2d-circular": lambda: picture(nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular")),
    "conv3d": lambda: nn.Sequential(nn.Unflatten(1, (1, 3, 2, 2)), nn.Conv3d(1, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)),
    "transposed": lambda: picture(nn.ConvTranspose2d(3, 4, 2)),
    "group-norm": lambda: picture(nn.Conv2d(3, 4, 2, padding=1), nn.GroupNorm(2, 4)),
    "instance-norm": lambda: picture(nn.Conv2d(3, 4, 2, padding=1), nn.InstanceNorm2d(4, affine=True)),
    "layer-norm": lambda: head(nn.LayerNorm(12), nn.Linear(12, 6), nn.Tanh(), width=6),
    "rms-norm": lambda: head(nn.RMSNorm(12), nn.Linear(12, 6), nn.Tanh(), width=6),
    "prelu": lambda: head(nn.Linear(12, 6), nn.PReLU(), width=6),
    "weight-norm": lambda: head(weight_norm(nn.Linear(12, 6)), nn.Tanh(), width=6),
    "in-place": lambda: head(nn.Linear(12, 6), nn.ReLU(inplace=True), width=6),
    "tied": Tied,
    "twice": Twice,
    "rooted": Rooted,
    "frozen": frozen,
    "unused": Unused,
}


def layer(name: str) -> nn.Module:
    return LAYERS[name]()


def batch_norm() -> nn.Module:
    return head(nn.Linear(12, 6), nn.BatchNorm1d(6), nn.Tanh(), width=6)


def batch_norm_without_statistics() -> nn.Module:
    return head(nn.Linear(12, 6), nn.BatchNorm1d(6, affine=False, track_running_stats=False), nn.Tanh(), width=6)


def smoothed(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, labels, label_smoothing=0.2, reduction="none")


def averaged(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, labels)


def mixing_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs - outputs.mean(dim=0), labels, reduction="none")


def raising() -> nn.Module:
    raise RuntimeError("weights are not here")


def number() -> int:
    return 7


def double() -> nn.Module:
    return head(nn.Linear(12, 6), width=6).double()


def all_frozen() -> nn.Module:
    return head(nn.Linear(12, 6), width=6).requires_grad_(False)
