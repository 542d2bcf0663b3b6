"""Trials as a pack: each runs its own unmodified loop in a thread of its own, and one call on the device serves all their batches.

A trainer sees a Problem like any other (PackedProblem, a seat of a Pack). What its batches are asked waits until every trial of the
pack has asked something, and is then computed for all seats together. Parameters, noise, policies and everything random stay with
the trial, on the host; the device holds one copy of the rows and answers with sums.
Every call has the same shapes, whoever is there: S seats of `length` rows each, empty seats and rows beyond a batch as null
records. So a trial's numbers do not depend on who shares its pack: seats and length are public and fixed for a sweep, and a replay
is the same bit for bit in any company. A batch longer than `length` is worked off in further rounds of that length.
Shapes: S seats, B = length, J step sizes, P parameters, L layers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sweeper.backends.closed_form import LinearProblem
from sweeper.backends.layered import LayeredProblem
from sweeper.backends.meeting import Meeting, Question
from sweeper.backends.packed_layers import ALIGNED, aligned
from sweeper.backends.packed_linear import PackedLinear
from sweeper.backends.packed_network import PackedNetwork
from sweeper.backends.packed_problem import Line, PackedProblem, Sum
from sweeper.backends.products import exact_products
from sweeper.checks import FieldError
from sweeper.data.table import Table
from sweeper.spec.protocols import Description

PACKED = ("closed-form", "layered")  # backends whose models can be packed


class Joint(Protocol):
    """The maths of one model for all seats: packed_linear.py, packed_network.py."""

    def bind(self, params_SP: Tensor) -> None: ...
    def norms(self, rows_SB: Tensor, there_SB: Tensor, by_layer: bool) -> tuple[Tensor, Tensor, Tensor]: ...
    def add_(self, factors_SBL: Tensor) -> None: ...
    def total(self) -> Tensor: ...
    def losses(self, rows_SB: Tensor, there_SB: Tensor, direction_SP: Tensor, sizes_SJ: Tensor) -> tuple[Tensor, Tensor]: ...


class Pack:
    """Seats for trials of one model on the training rows of one table.

    seats, length: how many trials at once, and rows of each in one round; public, and whatever changes them changes the last bits.
    hands: how many trials may be at work on the host at once between their questions; changes no result.
    """

    def __init__(
        self,
        *,
        model: Any,
        description: Description,
        table: Table,
        rows: np.ndarray,
        pixels: bool = False,
        seats: int,
        length: int,
        device: torch.device | str = "cpu",
        hands: int = 1,
    ) -> None:
        """
        Raises:
          FieldError: the model is one that has no packed form, or the length is odd.
        """
        backend = getattr(model, "backend", "closed-form")
        if backend not in PACKED:
            hint = "Leave resources.pack out: its trials run one by one."
            raise FieldError("model.kind", model.kind, "has no form for packs of trials", hint)
        if length < ALIGNED or length % ALIGNED:
            raise FieldError("length", length, f"must be a multiple of {ALIGNED}", "Use length_for.")
        exact_products()
        given: dict[str, Any] = {"model": model, "description": description, "table": table, "rows": rows, "pixels": pixels}
        self.alone: LinearProblem | LayeredProblem
        self._joint: Joint
        if backend == "closed-form":
            self.alone = LinearProblem(**given)
            self._joint = PackedLinear(self.alone, seats, length, device)
        else:
            self.alone = LayeredProblem(**given)
            layers = model.stack(description.features, description.classes)
            self._joint = PackedNetwork(self.alone, layers, seats, length, device)
        self.seats, self.length, self.device = seats, length, torch.device(device)
        self.meeting = Meeting(self._answer, hands=hands)

    def seat(self, number: int) -> PackedProblem:
        """The problem of the trial on this seat, 0, ..., seats - 1."""
        if not 0 <= number < self.seats:
            raise FieldError("seat", number, f"must be below {self.seats}, the seats of the pack")
        return PackedProblem(self, number)

    def _answer(self, asked: Mapping[int, Question]) -> None:
        exact_products()
        groups: dict[Any, dict[int, Any]] = {}
        for seat, question in sorted(asked.items()):
            groups.setdefault(question.together, {})[seat] = question  # type: ignore[attr-defined]
        with torch.no_grad():
            for group in groups.values():
                (self._sums if isinstance(next(iter(group.values())), Sum) else self._lines)(group)

    def _sums(self, group: Mapping[int, Sum]) -> None:
        self._joint.bind(self._stacked({seat: question.params_P for seat, question in group.items()}))
        counts, left_out = dict.fromkeys(group, 0.0), dict.fromkeys(group, 0)
        for here, rows_SB, there_SB in self._rounds(group):
            by_layer = next(iter(group.values())).by_layer
            norms_SBL, real_SB, left_out_S = (found.cpu() for found in self._joint.norms(rows_SB, there_SB, by_layer))
            factors_SBL = norms_SBL.new_zeros(norms_SBL.shape)
            for seat, size in here.items():
                question, norms_BL = group[seat], norms_SBL[seat, :size]
                left_out[seat] += int(left_out_S[seat])
                with _faults_of(question):
                    if question.counted is not None:
                        counted_B = question.counted(norms_BL).masked_fill(~real_SB[seat, :size], 0.0)
                        counts[seat] += float(counted_B.sum(dtype=torch.float64))
                    found = question.factors(norms_BL)
                    factors_SBL[seat, :size] = found if by_layer else found.unsqueeze(1)
            self._joint.add_(factors_SBL.to(self.device))
        sums_SP = self._joint.total().cpu()
        for seat, question in group.items():
            question.answer = sums_SP[seat].clone(), counts[seat], left_out[seat]

    def _lines(self, group: Mapping[int, Line]) -> None:
        self._joint.bind(self._stacked({seat: question.params_P for seat, question in group.items()}))
        direction_SP = self._stacked({seat: question.direction_P for seat, question in group.items()})
        sizes_SJ = torch.zeros(self.seats, len(next(iter(group.values())).sizes))
        for seat, question in group.items():
            sizes_SJ[seat] = torch.tensor(tuple(question.sizes), dtype=torch.float32)
            question.answer = torch.zeros(len(question.sizes), dtype=torch.float64)
        sizes_SJ = sizes_SJ.to(self.device)
        for here, rows_SB, there_SB in self._rounds(group):
            losses_SBJ, real_SB = (found.cpu() for found in self._joint.losses(rows_SB, there_SB, direction_SP, sizes_SJ))
            for seat, size in here.items():
                question, losses_BJ = group[seat], losses_SBJ[seat, :size]
                with _faults_of(question):
                    terms_BJ = question.terms(losses_BJ[:, :1], losses_BJ[:, 1:])
                    terms_BJ = terms_BJ.masked_fill(~real_SB[seat, :size, None], 0.0)
                    question.answer += terms_BJ.sum(dim=0, dtype=torch.float64)

    def _rounds(self, group: Mapping[int, Sum | Line]) -> Iterator[tuple[dict[int, int], Tensor, Tensor]]:
        """For each round: how many rows each seat still has in it, their positions [S, B], and which of these count."""
        longest = max(len(question.rows_B) for question in group.values())
        for start in range(0, longest, self.length):
            rows_SB = torch.zeros(self.seats, self.length, dtype=torch.int64)
            there_SB = torch.zeros(self.seats, self.length, dtype=torch.bool)
            here = {}
            for seat, question in group.items():
                part = question.rows_B[start : start + self.length]
                if len(part) and question.fault is None:
                    here[seat] = len(part)
                    rows_SB[seat, : len(part)], there_SB[seat, : len(part)] = part, True
            yield here, rows_SB.to(self.device), there_SB.to(self.device)

    def _stacked(self, vectors: Mapping[int, Tensor]) -> Tensor:
        """One vector a seat, zeros for the seats that ask nothing."""
        stacked_SP = aligned("cpu", self.seats, len(next(iter(vectors.values())))).zero_()
        for seat, vector in vectors.items():
            stacked_SP[seat] = vector
        if self.device.type == "cpu":
            return stacked_SP
        return aligned(self.device, *stacked_SP.shape).copy_(stacked_SP)


@contextlib.contextmanager
def _faults_of(question: Question) -> Iterator[None]:
    """What a trial's own function raises is that trial's fault, and stops nobody else."""
    try:
        yield
    except (Exception, SystemExit) as fault:
        question.fault = fault
