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

_FEW = ("of zeros", "-3 times as large", "100 times as large", "of 1s", "of one token")  # where not all are tried
_FEWER = ("of zeros", "100 times as large", "of 1s")


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
        before = _seen(engine, *base)
        for company in _exchanges(made_up, base, thorough=thorough, first=place == 0):
            try:
                after = _seen(engine, company.features_Bd, company.labels_B)
            except (RuntimeError, ValueError, IndexError):
                continue  # of a record like that a run finds out by itself: see per_record.passes
            others_B = torch.arange(size) != company.at
            for name, value in before.items():
                if not _same(after[name][others_B], value[others_B]):
                    raise _mixes(engine, f"{name} when another one of its {size} is {company.said}")
            looked += 1
        if not all(_same(value, before[name]) for name, value in _seen(engine, *base).items()):
            raise _mixes(engine, "numbers when other batches came before its own")
    return looked


def same_again(engine: Engine, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Raises FieldError where a batch gives other numbers after others than before."""
    before = [_seen(engine, *batch) for batch in batches]
    for batch, found in zip(batches, before, strict=True):
        for name, value in _seen(engine, *batch).items():
            if not _same(value, found[name]):
                hint = "Have it keep nothing from pass to pass, and draw no numbers but by torch.nn.Dropout."
                raise engine.fault(f"gives the same records another {name} when it is called again", hint)


def _with_an_outlier(made_up: MadeUp, size: int) -> tuple[Tensor, Tensor]:
    features_Bd, labels_B = made_up.batch(size, seed=4)
    features_Bd[size // 2] = list(made_up.outliers())[-2][1]
    return features_Bd, labels_B


def _exchanges(made_up: MadeUp, base: tuple[Tensor, Tensor], *, thorough: bool, first: bool) -> Iterator[Company]:
    """The second record and the last are exchanged: some code lets a record count for those before it only, or after."""
    features_Bd, labels_B = base
    size = len(labels_B)
    for at in sorted({min(1, size - 1), size - 1}):
        for said, record_d in made_up.outliers():
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
    return {"gradient": squares_BL, "output in evaluation": outputs_BK, "loss": losses_B}


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num())


def _mixes(engine: Engine, what: str) -> Exception:
    hint = "Write it so that each record is mapped by itself, after .eval() too, and is the same row of all that its layers get."
    return engine.fault(f"gives a record another {what}", hint)
