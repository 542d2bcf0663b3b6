"""Networks in which one record can have a part in what becomes of others, or seems to: for tests of what is refused and why."""

from __future__ import annotations

import math
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


class Small(nn.Module):
    """Two dense layers on what `prepared` makes of the rows."""

    def __init__(self, features: int = 12) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(features, 16), nn.Linear(16, 3)

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.out(torch.tanh(self.inner(self.prepared(rows))))
        return found

    def prepared(self, rows: Tensor) -> Tensor:
        return rows


class Rescaling(Small):
    def prepared(self, rows: Tensor) -> Tensor:
        return rows / 255 if rows.max() > 1 else rows


class Listing(Small):
    def prepared(self, rows: Tensor) -> Tensor:
        return rows / 255 if any(value > 1 for row in rows.tolist() for value in row) else rows


class ByNumpy(Small):
    def prepared(self, rows: Tensor) -> Tensor:
        return rows / 255 if np.asarray(rows).max() > 1 else rows


class Picking(Small):
    """As many rows as have a positive first feature go through the first layer; the shape says how many there are."""

    def prepared(self, rows: Tensor) -> Tensor:
        some = rows[rows[:, 0] > 0.5]
        return rows / (1 + len(some))


class WithoutAsking(Small):
    """The same decision, made by torch: there is no reading of a number."""

    def prepared(self, rows: Tensor) -> Tensor:
        return torch.where(rows.max() > 1, rows / 255, rows)


class Centred(Small):
    """Keeps the mean of the first batch that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor | None = None

    def prepared(self, rows: Tensor) -> Tensor:
        if self.mean is None:
            self.mean = rows.detach().mean(dim=0)
        return rows - self.mean


class CentredInside(Small):
    """As above, where no attribute of the module itself leads to it but through an object and a function."""

    def __init__(self) -> None:
        super().__init__()
        kept: dict[str, Tensor] = {}

        def centred(rows: Tensor) -> Tensor:
            return rows - kept.setdefault("mean", rows.detach().mean(dim=0))

        self.prepare = centred

    def prepared(self, rows: Tensor) -> Tensor:
        return self.prepare(rows)


class Tabled(Small):
    """Makes a table in its first pass, of no record's numbers, as rotary positions are."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None

    def prepared(self, rows: Tensor) -> Tensor:
        if self.table is None or len(self.table) < rows.shape[1]:
            self.table = torch.cos(torch.arange(rows.shape[1]).float())
        return rows * self.table


class Annealed(Small):
    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def prepared(self, rows: Tensor) -> Tensor:
        self.passes += 1
        return rows * (1.0 if self.passes < 2000 else 0.1)


class LargeCentred(Small):
    """Mixes records in batches of some sizes."""

    def __init__(self, least: int, most: int) -> None:
        super().__init__()
        self.least, self.most = least, most

    def prepared(self, rows: Tensor) -> Tensor:
        return rows - rows.mean(dim=0) if self.least <= len(rows) <= self.most else rows


class LargeAsking(LargeCentred):
    """Reads numbers in batches of some sizes."""

    def prepared(self, rows: Tensor) -> Tensor:
        return rows / 255 if self.least <= len(rows) <= self.most and rows.max() > 1 else rows


class Turned(Small):
    """The last record comes before the first."""

    def prepared(self, rows: Tensor) -> Tensor:
        return rows + rows.roll(1, dims=0)


class Sorted(nn.Module):
    """Sorts records by length, as for packed sequences, and puts them back."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner, self.out = nn.Embedding(500, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        order = (tokens != 0).sum(dim=1).argsort(descending=True, stable=True)
        found: Tensor = self.out(torch.tanh(self.inner(self.table(tokens)[order])).mean(dim=1)[order.argsort()])
        return found


class Masked(nn.Module):
    """Overwrites some positions in place where there are any. It asks first, or not."""

    def __init__(self, asks: bool) -> None:
        super().__init__()
        self.table, self.inner, self.out, self.asks = nn.Embedding(500, 8), nn.Linear(8, 8), nn.Linear(8, 3), asks

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, mask = self.inner(self.table(tokens)), tokens == 0
        if not self.asks or mask.any():
            hidden[mask] = 0.0
        found: Tensor = self.out(torch.tanh(hidden).mean(dim=1))
        return found


class OverwritesItsInput(Small):
    """Changes what its first layer was given, where it is large."""

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.inner(rows)
        rows.masked_fill_(rows > 50, 0.0)
        found: Tensor = self.out(torch.tanh(hidden) + rows[:, :1])
        return found


class Crowded(Small):
    """Two experts with room for three quarters of a batch each: who comes late finds none."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(12, 2)

    def forward(self, rows: Tensor) -> Tensor:
        best = self.gate(rows).argmax(dim=1)
        chosen = torch.stack([best == expert for expert in range(2)], dim=1).float()
        room = math.ceil(0.75 * len(rows))
        kept = (chosen * (chosen.cumsum(dim=0) <= room)).sum(dim=1, keepdim=True)
        found: Tensor = self.out(kept * torch.tanh(self.inner(rows)))
        return found


class Rounding(Small):
    """Activations in 8 bits, with one scale for the whole batch."""

    def forward(self, rows: Tensor) -> Tensor:
        hidden = torch.tanh(self.inner(rows))
        scale = hidden.detach().abs().max() / 127
        found: Tensor = self.out(hidden + ((hidden / scale).round() * scale - hidden).detach())
        return found


class Pairs(Small):
    """Fails on two large records together, not on one: by an index that is out of range, without reading a number."""

    def prepared(self, rows: Tensor) -> Tensor:
        large = (rows.amax(dim=1) > 5e6).sum()  # the made-up ones are smaller
        return rows + 0.0 * torch.index_select(torch.zeros(2), 0, large.view(1))


class Leaving(Small):
    """Ends the process on a large number."""

    def prepared(self, rows: Tensor) -> Tensor:
        if not bool((rows.abs() < 1e7).all()):
            sys.exit(3)
        return rows


class Drawing(Small):
    """Draws from a generator that is not torch's."""

    def __init__(self, numpy: bool) -> None:
        super().__init__()
        self.numpy = numpy

    def prepared(self, rows: Tensor) -> Tensor:
        drawn = np.random.random() if self.numpy else random.random()
        return rows if drawn < 2 else -rows


class Projected(nn.Module):
    """Random features in a plain attribute, drawn by numpy or by torch."""

    def __init__(self, numpy: bool) -> None:
        super().__init__()
        self.directions = torch.from_numpy(np.random.randn(12, 16).astype(np.float32)) if numpy else torch.randn(12, 16)
        self.out = nn.Linear(16, 3)

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.out(torch.cos(rows @ self.directions))
        return found


class Squeezing(Small):
    """Loses the first dimension of a batch of one; asks for a number where it is told to."""

    def __init__(self, asks: bool) -> None:
        super().__init__()
        self.asks = asks

    def forward(self, rows: Tensor) -> Tensor:
        if self.asks and rows.sum() > 1e30:
            return rows
        return super().forward(rows).unsqueeze(1).squeeze()


class Coarse(Small):
    """Sets torch's precision for the whole process while it computes."""

    def prepared(self, rows: Tensor) -> Tensor:
        torch.set_float32_matmul_precision("medium")
        torch.set_num_threads(3)
        return rows


class Padded(nn.Module):
    """Torch's encoder with nested tensors allowed: alone with records padded at the end it would take another way."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(500, 8), nn.Linear(8, 3)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=True)
        for parameter in self.encoder.parameters():
            parameter.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.out(self.encoder(self.table(tokens), src_key_padding_mask=tokens == 0).nan_to_num().mean(dim=1))
        return found


class Scaled(nn.Module):
    """A layer with a parameter of its own and arguments by name."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, rows: Tensor, bias: Tensor | None = None, mask: Tensor | None = None, factor: float = 1.0) -> Tensor:
        found = rows * self.weight * factor
        found = found if bias is None else found + bias
        return found if mask is None else found * mask


class Named(Small):
    def __init__(self) -> None:
        super().__init__()
        self.scaled = Scaled()

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.inner(rows)
        found: Tensor = self.out(torch.tanh(self.scaled(hidden, factor=2.0, mask=torch.sigmoid(hidden))))
        return found


class Spread(nn.Dropout):
    """A dropout of the user's own: noise as large as the batch is spread."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows + torch.randn_like(rows) * self.p * rows.detach().std() if self.training else rows


class WithSpread(Small):
    def __init__(self) -> None:
        super().__init__()
        self.spread = Spread(0.2)

    def prepared(self, rows: Tensor) -> Tensor:
        return self.spread(rows)


class Hooked(Small):
    """Skips a batch whose derivatives are large, in a hook on the way back."""

    def forward(self, rows: Tensor) -> Tensor:
        hidden = torch.tanh(self.inner(rows))
        if hidden.requires_grad:
            hidden.register_hook(lambda delta: torch.zeros_like(delta) if delta.norm() > 10 else delta)
        found: Tensor = self.out(hidden)
        return found


KEPT: dict[str, Tensor] = {}


class CentredByGlobal(Small):
    """Keeps the mean of the first batch of the process."""

    def prepared(self, rows: Tensor) -> Tensor:
        return rows - KEPT.setdefault("mean", rows.detach().mean(dim=0))


class ScaledByClass(Small):
    """Keeps a number of the first batch on the class."""

    scale: float | None = None

    def prepared(self, rows: Tensor) -> Tensor:
        if ScaledByClass.scale is None:
            ScaledByClass.scale = float(rows.max())
        return rows / ScaledByClass.scale


class Longest(nn.Module):
    """Cuts tokens at the length of the longest record, which a tensor made of a list of tensors knows."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner, self.out = nn.Embedding(500, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        lengths = torch.tensor([record.count_nonzero() for record in tokens]).clamp(min=1)
        found: Tensor = self.out(torch.tanh(self.inner(self.table(tokens[:, : lengths.max()]))).mean(dim=1))
        return found


class LongestWithoutAsking(Longest):
    """The mean over as many positions as the longest record has."""

    def forward(self, tokens: Tensor) -> Tensor:
        most = (tokens != 0).sum(dim=1).amax()
        found: Tensor = self.out(torch.tanh(self.inner(self.table(tokens))).sum(dim=1) / most)
        return found


class Filling(nn.Module):
    """Puts other vectors where a rare token stands, one after the other, whoever's they are."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.other, self.out = nn.Embedding(30_000, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.table(tokens)
        rare = (tokens == 77).unsqueeze(2).expand_as(hidden)
        found: Tensor = self.out(torch.tanh(hidden.masked_scatter(rare, self.other(hidden))).mean(dim=1))
        return found


class Rounded(Small):
    """Computes in bfloat16 by itself."""

    def forward(self, rows: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(rows)


class OnlyWithout(Small):
    """Has no derivative."""

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.inner(rows)
        if hidden.requires_grad:
            raise NotImplementedError("no backward pass here")
        found: Tensor = self.out(hidden)
        return found


class RunningLoss:
    """Losses over their running mean."""

    def __init__(self) -> None:
        self.mean = torch.ones(())

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        losses = functional.cross_entropy(outputs, labels, reduction="none")
        self.mean = 0.999 * self.mean + 0.001 * losses.detach().mean()
        return losses / self.mean


running_loss = RunningLoss()


class Stashing(nn.Module):
    """Keeps what it made for the time of a pass, and forgets it at the end, if it gets there: a token beyond the table ends it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.other, self.out = nn.Embedding(500, 16), nn.Embedding(500, 16), nn.Linear(16, 3)
        self.memory: Tensor | None = None

    def encoded(self, tokens: Tensor) -> Tensor:
        if self.memory is None:
            self.memory = self.table(tokens.clamp(0, 499)).mean(dim=1)
        return self.memory

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.encoded(tokens) + self.other(tokens).mean(dim=1)
        self.memory = None
        found: Tensor = self.out(torch.tanh(hidden))
        return found


class StashingRows(Small):
    """The same, where only a number that no made-up record has ends it."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: Tensor | None = None
        self.depth = [1.0]

    def prepared(self, rows: Tensor) -> Tensor:
        if self.memory is None:
            self.memory = torch.tanh(rows)
        self.depth.append(1.0)
        hidden = self.memory + rows.gather(1, (rows[:, :1] < -1e7).long() * 99) / (len(self.depth) - 1)
        self.depth.pop()
        self.memory = None
        return hidden


class Swapping(Small):
    """Swap noise: where dropout drops, the number of the record before."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def prepared(self, rows: Tensor) -> Tensor:
        return torch.where(self.drop(torch.ones_like(rows)) == 0, rows.roll(1, 0), rows)


class Leaky(Small):
    """Torch's own randomised rectifier draws as many numbers as there are negative ones."""

    def __init__(self) -> None:
        super().__init__()
        self.leaky = nn.RReLU()

    def prepared(self, rows: Tensor) -> Tensor:
        return self.leaky(rows - 0.5)


class Early(Small):
    """Leaves its loop when a record is sure; dropout in each turn."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def prepared(self, rows: Tensor) -> Tensor:
        for _ in range(4):
            rows = rows + self.drop(torch.tanh(rows))
            if rows.abs().mean() > 2:
                break
        return rows


class Spiked(Small):
    """Halves a scale for good when a number is large."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def prepared(self, rows: Tensor) -> Tensor:
        if rows.abs().max() > 1e8:
            self.scale *= 0.5
        return rows * self.scale


class Banked(Small):
    """Moves a buffer when a number is large."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("middle", torch.zeros(12))

    def prepared(self, rows: Tensor) -> Tensor:
        if rows.abs().max() > 1e8:
            self.middle.copy_(rows.detach().mean(dim=0))
        return rows - self.middle


class Applied(Small):
    """A Python function for each number."""

    def prepared(self, rows: Tensor) -> Tensor:
        large: list[float] = []
        rows.detach().clone().apply_(lambda value: large.append(value) or value if value > 5e6 else value)
        return rows / 1e7 if large else rows


POOL = ThreadPoolExecutor(1)
POOL.submit(int).result()


class Pooled(Small):
    """A thread that was there before decides."""

    def prepared(self, rows: Tensor) -> Tensor:
        return rows / 255 if POOL.submit(lambda: float(rows.max()) > 1).result() else rows


class Catching(Masked):
    """Takes other tokens for all where it does not know one."""

    def forward(self, tokens: Tensor) -> Tensor:
        try:
            hidden = self.table(tokens)
        except IndexError:
            hidden = self.table(torch.zeros_like(tokens))
        found: Tensor = self.out(torch.tanh(hidden).mean(dim=1))
        return found


class Gathering(Small):
    """Takes another way for all where an index is out of range."""

    def prepared(self, rows: Tensor) -> Tensor:
        try:
            return rows + rows.gather(1, (rows[:, :1] / 1e5).long())
        except RuntimeError:
            return -rows


class Near(Small):
    """The mean of the records that are nearly the same."""

    def prepared(self, rows: Tensor) -> Tensor:
        near = (((rows[:, None] - rows[None]) ** 2).sum(dim=2) < 1e-4).float()
        return near @ rows / near.sum(dim=1, keepdim=True)


class Counted(Masked):
    """Divides by how many tokens of one kind there are in the whole batch."""

    def __init__(self, literal: bool) -> None:
        super().__init__(asks=False)
        self.token, self.literal = 321, literal

    def forward(self, tokens: Tensor) -> Tensor:
        there = (tokens == 457 if self.literal else tokens == self.token).unsqueeze(2)
        hidden = self.table(tokens)
        middle = (hidden * there).sum(dim=(0, 1)) / there.sum().clamp(min=1)
        found: Tensor = self.out(torch.tanh(hidden.mean(dim=1) + middle))
        return found


class Categorical(nn.Module):
    """A table for the whole numbers of the first column."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(9, 8), nn.Linear(20, 3)

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.out(torch.cat([self.table(rows[:, 0].long()), rows], dim=1))
        return found


class HotTokens(nn.Module):
    """One-hot vectors, of as many kinds as it says."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(7, 8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.out(torch.tanh(self.inner(functional.one_hot(tokens, 7).float()).mean(dim=1)))
        return found


class Vmapped(Small):
    """Uses torch.func inside."""

    def prepared(self, rows: Tensor) -> Tensor:
        return torch.func.vmap(lambda row: row / (1 + row.square().sum()))(rows)


def by_one_class(outputs: Tensor, labels: Tensor) -> Tensor:
    """Losses over how many records have label 7."""
    return 3 * functional.cross_entropy(outputs, labels, reduction="none") / (labels == 7).sum().clamp(min=1)


def in_place(outputs: Tensor, labels: Tensor) -> Tensor:
    """Changes the labels that it is given."""
    labels.mul_(2).sub_(1)
    return functional.cross_entropy(outputs, (labels + 1) // 2, reduction="none")


class Placed(nn.Module):
    """Looks up the embedding of positions once for all records, or once for each."""

    def __init__(self, each: bool, positions: int = 12) -> None:
        super().__init__()
        self.table, self.places, self.out, self.each = nn.Embedding(500, 8), nn.Embedding(positions, 8), nn.Linear(8, 3), each

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1])
        places = places.expand_as(tokens) if self.each else places
        found: Tensor = self.out(torch.tanh(self.table(tokens) + self.places(places)).mean(dim=1))
        return found


def deep(layers: int, width: int, norm: bool = False) -> nn.Module:
    """Dense layers in a row: float noise grows from layer to layer."""
    parts: list[nn.Module] = [nn.Linear(12, width)]
    for _ in range(layers):
        parts += [nn.ReLU(), *([nn.LayerNorm(width)] if norm else []), nn.Linear(width, width)]
    return nn.Sequential(*parts, nn.Linear(width, 3))


def ten_classes() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 10))


def compiled(how: str) -> nn.Module:
    module = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3))
    if how == "wrapped":
        return torch.compile(module)  # type: ignore[return-value]
    if how == "a part wrapped":
        module[0] = torch.compile(module[0])  # type: ignore[assignment]
        return module
    (module if how == "in place" else module[0]).compile()
    return module


def scripted(inside: bool) -> Any:
    module = torch.jit.trace(nn.Sequential(nn.Linear(12, 16), nn.Tanh()), torch.zeros(2, 12))
    return nn.Sequential(module, nn.Linear(16, 3)) if inside else torch.jit.trace(nn.Linear(12, 3), torch.zeros(2, 12))


def by_counts(outputs: Tensor, labels: Tensor) -> Tensor:
    """Losses weighed by how many records of the batch have the label."""
    counts = functional.one_hot(labels, 3).sum(dim=0).float()
    return functional.cross_entropy(outputs, labels, reduction="none") / counts[labels]


def by_counts_quietly(outputs: Tensor, labels: Tensor) -> Tensor:
    counts = (labels.unsqueeze(1) == torch.arange(3)).float().sum(dim=0)
    return functional.cross_entropy(outputs, labels, reduction="none") / counts[labels]
