"""Whether a record has a part in what a module makes of the others in its batch, which would move more than its own clipped term.

One record of a made-up batch is exchanged for another, and for every other record the squared norms, the outputs and the loss must
stay the same to the last bit, in all sizes of batches that a run uses: norms in training, the rest in evaluation. What the code
decides by numbers that it reads is found elsewhere (watched.py), and what it keeps from batch to batch too (attributes.py).
Shapes: B records, d features, K outputs, L trained parameters (tensors).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sweeper.backends.made_up import MadeUp
from sweeper.backends.module_checks import modes_kept
from sweeper.backends.per_record import Engine
from sweeper.backends.torch_state import global_randomness
from sweeper.backends.user_module import dropouts
from sweeper.checks import FieldError

_FEW = ("of zeros", "-3 times as large", "100 times as large", "of 1s", "of one token", "of special tokens", "the same as another")
_FEWER = ("of zeros", "100 times as large", "of special tokens")  # where not all are tried


_LABELS = 200  # of them at most are tried one by one


@dataclass(frozen=True, kw_only=True)
class Company:
    """A batch, and one record that takes another's place in it."""

    features_Bd: Tensor
    labels_B: Tensor
    at: int
    said: str  # the record that comes: "of zeros"


def nobody_else_counts(engine: Engine, made_up: MadeUp, size: int, *, thorough: bool) -> int:
    """How many exchanges in batches of this size were looked at. thorough: more of them.

    Raises:
      FieldError: a record's numbers depend on who else is in its batch; says on whom.
    """
    looked = 0
    bases = [made_up.batch(size, seed=3), made_up.crowd(size), *([_with_an_outlier(made_up, size)] if thorough else [])]
    for place, base in enumerate(bases):
        try:
            before = _seen(engine, *base)
        except FieldError:
            raise
        except Exception:
            if place < 2:
                raise
            continue  # it does not take the outlier: as below
        for company in _exchanges(made_up, base, thorough=thorough, first=place == 0):
            try:
                after = _seen(engine, company.features_Bd, company.labels_B)
            except FieldError:
                raise
            except Exception:  # of a record like that a run finds out by itself: see per_record.passes
                _check_again(engine, base, before, "a pass that ended in an error")
                continue
            others_B = torch.arange(size) != company.at
            for name, value in before.items():
                if not _same(after[name][others_B], value[others_B]):
                    raise _mixes(engine, f"{name} when another one of its {size} is {company.said}")
            looked += 1
        _check_again(engine, base, before, "other batches")
    return looked


def same_again(engine: Engine, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Raises FieldError where a batch gives other numbers after others than before."""
    before = [_seen(engine, *batch) for batch in batches]
    for batch, found in zip(batches, before, strict=True):
        for name, value in _seen(engine, *batch).items():
            if not _same(value, found[name]):
                hint = "Have it keep nothing from pass to pass, and draw no numbers but by torch.nn.Dropout."
                raise engine.fault(f"gives the same records another {name} when it is called again", hint)


def _check_again(engine: Engine, base: tuple[Tensor, Tensor], before: dict[str, Tensor], what: str) -> None:
    if not all(_same(value, before[name]) for name, value in _seen(engine, *base).items()):
        hint = "Have it keep nothing from pass to pass, nor for the time of one."
        raise engine.fault(f"gives the same records other numbers after {what}", hint)


def _with_an_outlier(made_up: MadeUp, size: int) -> tuple[Tensor, Tensor]:
    features_Bd, labels_B = made_up.batch(size, seed=4)
    features_Bd[size // 2] = dict(made_up.outliers())["1e+06 times as large" if made_up.tokens is None else "of special tokens"]
    return features_Bd, labels_B


def _exchanges(made_up: MadeUp, base: tuple[Tensor, Tensor], *, thorough: bool, first: bool) -> Iterator[Company]:
    """The second record and the last are exchanged: some code lets a record count for those before it only, or after."""
    features_Bd, labels_B = base
    size = len(labels_B)
    for at in sorted({min(1, size - 1), size - 1}):
        twin_d = features_Bd[0]
        near_d = twin_d + 1e-3 if made_up.tokens is None else twin_d.roll(1)
        for said, record_d in (*made_up.outliers(), ("the same as another", twin_d), ("nearly the same as another", near_d)):
            if (thorough and first and at < size - 1) or said in (_FEW if thorough else _FEWER if at < size - 1 else _FEWER[1:]):
                changed_Bd, changed_B = features_Bd.clone(), labels_B.clone()
                changed_Bd[at] = record_d
                yield Company(features_Bd=changed_Bd, labels_B=changed_B, at=at, said=said)
        if first:
            changed_B = labels_B.clone()
            changed_B[at] = (changed_B[at] + 1) % made_up.classes
            yield Company(features_Bd=features_Bd, labels_B=changed_B, at=at, said="of another label")


def _seen(engine: Engine, features_Bd: Tensor, labels_B: Tensor) -> dict[str, Tensor]:
    """What is looked at, each [B, ...]."""
    parts = engine.parts(features_Bd, labels_B, torch.ones(len(labels_B), dtype=torch.bool))
    squares_BL = torch.stack([p.squares() if p else torch.zeros(len(labels_B)) for p in parts], dim=1)
    with modes_kept(engine.module), torch.no_grad():
        engine.module.eval()
        outputs_BK = engine.outputs(features_Bd)
        losses_B = engine.user.losses(outputs_BK, labels_B)
    found = {"gradient": squares_BL, "output in evaluation": outputs_BK, "loss": losses_B}
    if dropping := dropouts(engine.module):
        with modes_kept(engine.module), global_randomness(None):
            for layer in dropping:
                layer.train()
            parts = engine.parts(features_Bd, labels_B, torch.ones(len(labels_B), dtype=torch.bool))
        found["gradient with dropout"] = torch.stack([p.squares() if p else torch.zeros(len(labels_B)) for p in parts], dim=1)
    return found


def no_label_counts(engine: Engine, classes: int, size: int) -> None:
    """Raises FieldError where a record's loss, or its derivative, is another when another record has another label."""
    draws = torch.Generator().manual_seed(7)
    outputs_BK = torch.randn((size, classes), generator=draws)
    mixed_B = torch.randint(0, classes, (size,), generator=draws)
    others_B = torch.arange(size) != 1
    for label in range(min(classes, _LABELS)):
        for base_B in (mixed_B, torch.full((size,), label)):
            changed_B = base_B.clone()
            changed_B[1] = label if base_B is mixed_B and int(mixed_B[1]) != label else (int(base_B[1]) + 1) % classes
            for one, other in zip(_of_loss(engine, outputs_BK, base_B), _of_loss(engine, outputs_BK, changed_B), strict=True):
                if not _same(one[others_B], other[others_B]):
                    rule = f"gives a record another loss when another one of its {size} is of another label (one is {label})"
                    hint = "Write it so that each record has a loss by itself."
                    raise FieldError("model.loss", engine.user.model.loss, rule, hint)


def _of_loss(engine: Engine, outputs_BK: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
    outputs_BK = outputs_BK.clone().requires_grad_()
    with torch.enable_grad():
        losses_B = engine.user.losses(outputs_BK, labels_B)
        (deltas_BK,) = torch.autograd.grad(losses_B.sum(), outputs_BK)
    return losses_B.detach(), deltas_BK


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num())


def _mixes(engine: Engine, what: str) -> Exception:
    hint = "Write it so that each record is mapped by itself, after .eval() too, and is the same row of all that its layers get."
    return engine.fault(f"gives a record another {what}", hint)
