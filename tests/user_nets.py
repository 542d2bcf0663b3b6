"""What a user's own package might hold: functions that build modules, good ones and bad ones."""

from __future__ import annotations

import types
from typing import Any

import networks
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import spectral_norm, weight_norm


def network(kind: str, classes: int = 10) -> nn.Module:
    """One of the oracles' networks, in float32."""
    return nn.Sequential(*networks.NETWORKS[kind](classes))


def head(*layers: nn.Module, width: int, classes: int = 3) -> nn.Module:
    return nn.Sequential(*layers, nn.Linear(width, classes))


def head_of(features: int, classes: int, width: int = 5) -> nn.Module:
    return head(nn.Linear(features, width), nn.Tanh(), width=width, classes=classes)


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


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.EmbeddingBag(7, 5), nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.table(tokens)))


class TiedTokens(Tokens):
    """The table of tokens is a dense layer's weight too."""

    def __init__(self) -> None:
        super().__init__()
        self.back, self.out = nn.Linear(5, 7, bias=False), nn.Linear(7, 3)
        self.back.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.back(torch.tanh(self.table(tokens)).mean(dim=1))))


class Recurrent(nn.Module):
    def __init__(self, kind: str = "LSTM", **options: Any) -> None:
        super().__init__()
        self.inner = getattr(nn, kind)(3, 4, batch_first=True, **options)
        self.out = nn.Linear(8 if self.inner.bidirectional else 4, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(self.inner(rows.reshape(len(rows), 4, 3))[0][:, -1])


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, rows: Tensor) -> Tensor:
        x = rows.reshape(len(rows), 3, 4)
        return self.out(self.inner(x, x, x)[0].mean(dim=1))


class Encoding(nn.Module):
    """torch's own encoder layer of a transformer, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.TransformerEncoderLayer(4, 2, 8, 0.2, batch_first=True), nn.Linear(4, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(self.inner(rows.reshape(len(rows), 3, 4)).mean(dim=1))


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


class Listed(nn.Module):
    """Parameters in a list, which is called by nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.rand(12)) for _ in range(2)])
        self.out = nn.Linear(12, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(torch.tanh(rows * self.scales[0] + self.scales[1]))


class RootedWithDropout(Rooted):
    """As a vision transformer is built: parameters of the module itself, and dropout inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop, self.out = nn.Linear(12, 40), nn.Dropout(0.5), nn.Linear(40, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(self.drop(torch.tanh(self.inner(rows * self.scale))))


class DrawnOnce(RootedWithDropout):
    """Drops the same units for all records of a batch, and others when it is computed for one."""

    def forward(self, rows: Tensor) -> Tensor:
        mask = self.drop(torch.ones(40))
        return self.out(mask * torch.tanh(self.inner(rows * self.scale)))


class InPlace(nn.Module):
    """Changes its inputs, and its layers' outputs, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.out = nn.Linear(12, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, rows: Tensor) -> Tensor:
        found = torch.relu_(self.one(rows.mul_(0.5).add_(1.0)))
        more = self.two(found)
        more += found
        return self.out(more)


class Half(nn.Module):
    """No gradient reaches its first layer, though it is not frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.out = nn.Linear(12, 6), nn.Linear(6, 3)

    def forward(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            found = torch.tanh(self.idle(rows))
        return self.out(found)


class Product(nn.Module):
    """A layer of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Parameter(torch.randn(5, 6)), nn.Parameter(torch.randn(7, 6))

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        return (one @ self.left) * (two @ self.right)


class Pair(nn.Module):
    """Gives a layer's inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = Product(), nn.Linear(6, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(input=torch.tanh(self.inner(rows[:, :5], two=rows[:, 5:])))


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


class CountingQuietly(Counting):
    """Its buffer is in no state_dict."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(12), persistent=False)


class Clamping(nn.Module):
    """Keeps its weights short, which shows off its start alone."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(12, 3)

    def forward(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            self.out.weight.clamp_(-0.29, 0.29)
        return self.out(rows)


class MixingInEvaluation(Mixing):
    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows) if not self.training else self.out(torch.tanh(self.inner(rows)))


class Touchy(nn.Module):
    """Asks in one of its modes whether rows have a length."""

    def __init__(self, training: bool) -> None:
        super().__init__()
        self.out, self.asks = nn.Linear(12, 3), training

    def forward(self, rows: Tensor) -> Tensor:
        if self.training == self.asks and not bool(rows.any(dim=1).all()):
            raise ValueError("a row without length")
        return self.out(rows)


class Silent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(12, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(rows).detach()


class TimeFirst(nn.Module):
    """Six positions come first, then records."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(2, 5), nn.Linear(5, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(torch.tanh(self.inner(rows.reshape(len(rows), 6, 2).transpose(0, 1))).mean(dim=0))


class Remembering(nn.Module):
    """Keeps the last batch in an attribute that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.last = nn.Linear(12, 3), torch.zeros(12)

    def forward(self, rows: Tensor) -> Tensor:
        found = self.out(rows + self.last)
        self.last = rows.detach().mean(dim=0)
        return found


class Celled(nn.Module):
    """A cell in a loop, from a state that it is given or from none."""

    def __init__(self, given: bool = False) -> None:
        super().__init__()
        self.cell, self.out, self.given = nn.GRUCell(4, 6), nn.Linear(6, 3), given

    def forward(self, rows: Tensor) -> Tensor:
        state = rows.new_zeros(len(rows), 6) if self.given else None
        for step in rows.unflatten(1, (3, 4)).unbind(dim=1):
            state = self.cell(step, state)
        found: Tensor = self.out(state)
        return found


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(12, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(nn.functional.dropout(rows, 0.5, training=self.training))


class Placed(nn.Module):
    """A table of positions that is looked up once for the whole batch; 30 of them can be dealt out to 5, 3 or 2 records."""

    def __init__(self, positions: int = 4) -> None:
        super().__init__()
        self.inner, self.places, self.out = nn.Linear(12, 5), nn.Embedding(positions, 5), nn.Linear(5, 3)

    def forward(self, rows: Tensor) -> Tensor:
        x = self.inner(rows).unsqueeze(1) + self.places(torch.arange(self.places.num_embeddings))
        return self.out(torch.tanh(x).mean(dim=1))


PASSES: Any = types.ModuleType("passes")


class Thawing(nn.Module):
    """Unfreezes its first layer at its two thousandth pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(12, 6).requires_grad_(False), nn.Linear(6, 3)
        PASSES.count = 0  # where an examination of the module's attributes does not look

    def forward(self, rows: Tensor) -> Tensor:
        PASSES.count += 1
        if PASSES.count > 2000:
            self.inner.requires_grad_(True)
        return self.out(torch.tanh(self.inner(rows)))


class Dropping(nn.Module):
    """Dropout between layers."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.drop = nn.Linear(12, 3), nn.Dropout(0.3)

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.out(self.drop(rows))
        return found


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


def half_frozen(kind: str, name: str) -> nn.Module:
    """A layer for pictures [B, 3, 2, 2] of which one parameter is trained."""
    kinds = {
        "conv": lambda: nn.Conv2d(3, 3, 1),
        "group": lambda: nn.GroupNorm(1, 3),
        "layer": lambda: nn.LayerNorm([3, 2, 2]),
        "instance": lambda: nn.InstanceNorm2d(3, affine=True),
        "dense": lambda: nn.Linear(2, 2),
    }
    found = kinds[kind]()
    for own, parameter in found.named_parameters():
        parameter.requires_grad_(own == name)
    return picture(found)


def shared() -> nn.Module:
    """One layer in two parts of a module."""
    one = nn.Linear(12, 12)
    return nn.Sequential(nn.Sequential(one, nn.Tanh()), nn.Sequential(one, nn.Tanh()), nn.Linear(12, 3))


def pruned() -> nn.Module:
    return head(prune.l1_unstructured(nn.Linear(12, 6), "weight", 0.4), nn.Tanh(), width=6)


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
    "conv1d-dilated": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 6)), nn.Conv1d(2, 4, 2, dilation=3, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)
    ),
    "conv1d-reflected": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 6)), nn.Conv1d(2, 3, 3, padding=2, padding_mode="reflect"), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)
    ),
    "conv2d": lambda: picture(nn.Conv2d(3, 4, 2)),
    "conv2d-dilated": lambda: picture(nn.Conv2d(3, 4, 2, dilation=2, padding=2)),
    "conv2d-groups": lambda: picture(nn.Conv2d(3, 6, 2, groups=3)),
    "conv2d-same": lambda: picture(nn.Conv2d(3, 4, 3, padding="same")),
    "conv2d-circular": lambda: picture(nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular")),
    "conv3d": lambda: nn.Sequential(nn.Unflatten(1, (1, 3, 2, 2)), nn.Conv3d(1, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)),
    "conv3d-same": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 3, 2, 2)), nn.Conv3d(1, 2, 3, padding="same"), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)
    ),
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
    "shared": shared,
    "rooted": Rooted,
    "listed": Listed,
    "pair": Pair,
    "pruned": pruned,
    "changed-in-place": InPlace,
    "half": Half,
    "frozen": frozen,
    "unused": Unused,
}


def layer(name: str) -> nn.Module:
    return LAYERS[name]()


def batch_norm() -> nn.Module:
    return head(nn.Linear(12, 6), nn.BatchNorm1d(6), nn.Tanh(), width=6)


def instance_norm_with_statistics() -> nn.Module:
    return picture(nn.InstanceNorm2d(3, affine=True, track_running_stats=True))


def spectral() -> nn.Module:
    return head(spectral_norm(nn.Linear(12, 6)), nn.Tanh(), width=6)


def lazy() -> nn.Module:
    return head(nn.LazyLinear(6), width=6)


def elsewhere() -> nn.Module:
    return head(nn.Linear(12, 6, device="meta"), width=6)


def numpys(frozen: bool = False) -> nn.Module:
    """Weights from numpy's own generator, which nobody seeds."""
    net = head(nn.Linear(12, 6), nn.Tanh(), width=6)
    net[0].weight.data = torch.from_numpy(np.random.default_rng().standard_normal((6, 12)).astype(np.float32))
    net[0].weight.requires_grad_(not frozen)
    return net


def setting() -> nn.Module:
    """Sets what holds for all of torch."""
    torch.set_default_dtype(torch.bfloat16), torch.set_float32_matmul_precision("medium"), torch.set_grad_enabled(False)
    return head(nn.Linear(12, 6), nn.Tanh(), width=6).float()


def batch_norm_without_statistics(width: int = 6) -> nn.Module:
    return head(nn.Linear(12, width), nn.BatchNorm1d(width, affine=False, track_running_stats=False), nn.Tanh(), width=width)


def smoothed(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, labels, label_smoothing=0.2, reduction="none")


def averaged(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, labels)


def mixing_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs - outputs.mean(dim=0), labels, reduction="none")


def wrong(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) != labels).long()


def raising_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs.view(-1, 7), labels, reduction="none")


def raising() -> nn.Module:
    raise RuntimeError("weights are not here")


def number() -> int:
    return 7


def double() -> nn.Module:
    return head(nn.Linear(12, 6), width=6).double()


def all_frozen() -> nn.Module:
    return head(nn.Linear(12, 6), width=6).requires_grad_(False)
