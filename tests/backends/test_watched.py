"""Every way in which Python can get at a number of a tensor is seen, if and only if the number is made of a record's."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sweeper.backends.watched import followed

BUFFER = torch.zeros(4, 3)
READINGS: dict[str, Callable[[Tensor], Any]] = {
    "bool": lambda x: bool(x.max() > 1),
    "item": lambda x: x[0, 0].item(),
    "float": lambda x: float(x.sum()),
    "int": lambda x: int(x.sum()),
    "index": lambda x: [1, 2, 3, 4][x.long().sum() % 4],
    "format": lambda x: f"{x.sum():.2f}",
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.detach().numpy(),
    "asarray": lambda x: np.asarray(x),
    "dlpack": lambda x: np.from_dlpack(x),
    "tensor of a list": lambda x: torch.tensor([row.max() for row in x]),
    "as_tensor of a list": lambda x: torch.as_tensor([row.max() for row in x]),
    "new_tensor of a list": lambda x: x.new_tensor([row.max() for row in x]),
    "Tensor of a list": lambda x: torch.Tensor([row.max() for row in x]),
    "FloatTensor of a list": lambda x: torch.FloatTensor([row.max() for row in x]),
    "asarray of a list": lambda x: torch.asarray([row.max() for row in x]),
    "and what is made of it": lambda x: bool(torch.tensor(x.sum()).any()),
    "full": lambda x: torch.full((2,), x.sum()),
    "sparse": lambda x: x.to_sparse(),
    "sparse rows": lambda x: x.to_sparse_csr(),
    "jagged": lambda x: torch.nested.nested_tensor_from_jagged(x, torch.tensor([0, 2, 4])),
    "split by a tensor": lambda x: torch.tensor_split(torch.arange(9), x[:, 0].long().cumsum(0)),
    "text": lambda x: str(x.sum()),
    "pickled": lambda x: pickle.dumps(x),
    "scattered by a mask": lambda x: torch.zeros(4, 3).masked_scatter(x > 0.5, x),
    "an error": lambda x: torch.linalg.cholesky(x[:3].t() @ x[:3] + torch.eye(3)),
    "a thread": lambda x: list(ThreadPoolExecutor(1).map(lambda row: float(row.max()), x)),
    "array behind": lambda x: torch.from_numpy(np.zeros((4, 3), np.float32)).copy_(x),
    "a part of what was there": lambda x: BUFFER[1].copy_(x[0]),
    "a hook": lambda x: hooked(x),
    "equal": lambda x: torch.equal(x, torch.zeros(4, 3)),
    "allclose": lambda x: torch.allclose(x, torch.zeros(4, 3)),
    "comparison of lists": lambda x: [x.sum()] == [torch.ones(())],
    "contains": lambda x: 0.5 in x,
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0.5),
    "mask": lambda x: x[x > 0.5],
    "masked_select": lambda x: x.masked_select(x > 0.5),
    "unique": lambda x: x.unique(),
    "repeat": lambda x: torch.arange(4).repeat_interleave((x[:, 0] > 0.5).long()),
    "slice": lambda x: torch.arange(9)[: x.long().sum()],
    "one hot": lambda x: nn.functional.one_hot(x[:, 0].long()),
    "packed": lambda x: nn.utils.rnn.pack_padded_sequence(
        x.unsqueeze(2), (x > -1).sum(dim=1), batch_first=True, enforce_sorted=False
    ),
    "after in place": lambda x: bool(torch.zeros(4, 3).add_(x).any()),
    "after a copy into": lambda x: bool(torch.zeros(4, 3).copy_(x).any()),
    "after out=": lambda x: bool(torch.add(x, 1, out=torch.empty(4, 3)).any()),
    "filled with it": lambda x: bool(torch.zeros(3).new_full((3,), 1.0).mul(x[0]).any()),
    "after a view": lambda x: bool(x.view(-1)[3:].any()),
    "after detach": lambda x: bool(x.detach().clone().any()),
    "of its part": lambda x: bool(torch.cat([torch.zeros(1, 3), x])[0].any()),
    "of a gradient": lambda x: bool(torch.autograd.grad((x.requires_grad_() ** 2).sum(), x)[0].any()),
    "a deep copy": lambda x: bool(copy.deepcopy(x).any()),
}


def hooked(records: Tensor) -> None:
    """Decides by a derivative."""
    hidden = torch.ones(3, requires_grad=True) * records
    hidden.register_hook(lambda delta: torch.zeros_like(delta) if delta.norm() > 5 else delta)
    torch.autograd.grad((hidden**2).sum(), hidden)


UNREAD: dict[str, Callable[[Tensor], Any]] = {
    "shapes": lambda x: (len(x), x.shape[1] > 2, x.dim(), x.numel(), x.dtype == torch.float32, x.is_contiguous()),
    "another's": lambda x: bool(torch.arange(3).max() > 1),
    "another's list": lambda x: torch.arange(3).tolist() + list(torch.zeros(3).numpy()),
    "mask in place": lambda x: x.clone().masked_fill_(x > 0.5, 0.0),
    "assigned by mask": lambda x: x.clone().__setitem__(x > 0.5, 0.0),
    "torch.where": lambda x: torch.where(x > 0.5, x, 0.0),
    "by whole numbers": lambda x: torch.arange(9)[x.long()],
    "layers": lambda x: nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 2))(x),
    "embeddings": lambda x: nn.Embedding(5, 2)(x.long()),
    "attention": lambda x: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)(x.new_zeros(4, 5, 4) + x[:, :1, None]),
    "cross entropy": lambda x: nn.functional.cross_entropy(x, torch.zeros(4, dtype=torch.int64), reduction="none"),
    "loop over rows": lambda x: torch.stack([row * 2 for row in x]),
    "a copy": lambda x: (torch.tensor(x), torch.as_tensor(x), x.new_tensor(x), torch.zeros(4, 3).copy_(x)),
    "stacked": lambda x: torch.stack([row.max() for row in x]),
    "their shapes": lambda x: bool(torch.zeros_like(x).any()) and bool(x.new_zeros(3).any()),
    "sorted": lambda x: x.sort(dim=1).values + x.argsort(dim=1),
}


@pytest.mark.parametrize("run", READINGS.values(), ids=READINGS)
def test_a_reading_is_seen_and_where(run: Callable[[Tensor], Any]) -> None:
    records = torch.rand(4, 3)
    found = followed(lambda: run(records), records)
    assert {place.split(":")[0] for place in found.places} <= {"test_watched.py", "thread.py", "copy.py"}
    assert found.places


@pytest.mark.parametrize("run", [run for name, run in READINGS.items() if name != "a thread"])
def test_of_a_tensor_that_is_no_records_it_is_nobodys_business(run: Callable[[Tensor], Any]) -> None:
    found = followed(lambda: run(torch.rand(4, 3)), torch.rand(4, 3))
    assert not found.places


@pytest.mark.parametrize("run", UNREAD.values(), ids=UNREAD)
def test_what_reads_nothing_is_not_accused(run: Callable[[Tensor], Any]) -> None:
    records = torch.rand(4, 3)
    found = followed(lambda: run(records), records)
    assert not found.places


def test_what_is_made_of_records_is_told_from_what_is_not() -> None:
    records, other, kept = torch.rand(4, 3), torch.rand(4, 3), list[Tensor]()

    def run() -> None:
        kept.extend([records.mean(dim=0), other.mean(dim=0), other + records[0], torch.zeros_like(records)])

    found = followed(run, records)
    assert [found.holds(tensor) for tensor in kept] == [True, False, True, False]
    assert not found.holds("text")


KEEPERS: dict[str, Callable[[Tensor, list[Any]], Any]] = {
    "a list": lambda x, kept: kept.append(x.mean(dim=0)),
    "a view": lambda x, kept: kept.append((x * 2)[1:, 0]),
    "with its graph": lambda x, kept: kept.append(torch.ones(3, requires_grad=True) * x),
    "a closure": lambda x, kept: kept.append((lambda mean: lambda: mean)(x.mean())),
    "a loop of objects": lambda x, kept: kept.append({"a": [x.mean(), kept]}),
}


@pytest.mark.parametrize("keep", KEEPERS.values(), ids=KEEPERS)
def test_what_somebody_keeps_is_seen_wherever_it_is(keep: Callable[[Tensor, list[Any]], Any]) -> None:
    records, kept = torch.rand(4, 3), list[Any]()
    found = followed(lambda: keep(records, kept), records)
    assert found.kept == 1
    kept.clear()
    assert found.kept == 0


@pytest.mark.parametrize("run", UNREAD.values(), ids=UNREAD)
def test_what_is_kept_by_nobody_is_gone(run: Callable[[Tensor], Any]) -> None:
    records = torch.rand(4, 3)
    assert followed(lambda: run(records), records).kept == 0
