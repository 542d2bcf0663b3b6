"""Linear models on a CPU, with per-record gradient norms in closed form.

The gradient of a record is the outer product of its residual r (loss derivative by the logits) and [x, 1], so its norm is
||r|| ||[x, 1]|| and the clipped sum over a batch is one matrix product. No per-record gradient is ever built.
The layers are two: weights and bias. Losses along a line need two products, whatever the number of step sizes on it, because
logits are linear in the parameters.
Shapes: n training rows, B records of one chunk, J step sizes, K logits padded to C,
d features, D = d + 1 (the bias last), P = K D parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sweeper.backends.products import FILL, exact_products, filled, product
from sweeper.clip.base import BLOCK
from sweeper.data.table import Table
from sweeper.models.linear import Linear
from sweeper.spec.curvature import SLACK, Curvature
from sweeper.spec.protocols import Description, Terms

if TYPE_CHECKING:
    from sweeper.seeds import Streams

CHUNK = 1024  # rows per chunk. Public and fixed: another size would sum in another order and change the last bits
_LOAD = 4096  # rows per copy while a table is read
_PADDED = 16  # 10 logits in a matrix of 16 columns take 0.16 ms where 10 columns take 0.23
_MOST_SQUARES = 3e38  # of a record, in float32, so that the squares of its parts are finite too however they are added up
_NEVER = -1e38  # a padding column's logit: its probability, so its residual, is 0


class LinearProblem:
    """A linear model on the training rows of a table. Holds its own copy of them: float32, or one byte a feature if `pixels`.

    A null record is a row of zeros, bias column included, so that its term is exactly zero. A record with a feature that is not
    finite, with ||[x, 1]||^2 at the end of float32, or with ||[x, 1]|| beyond the public bound where the description states one,
    is stored as zeros too, and its norm as NaN, to be counted when drawn.
    Scratch space is shared: one problem serves one trial at a time, any number of trials in turn.
    """

    def __init__(self, *, model: Linear, description: Description, table: Table, rows: np.ndarray, pixels: bool = False) -> None:
        """`pixels`, a public statement of the source: features are k/255, whole k. Others are rounded to that, one by one."""
        self.model, self.rows, self.nonfinite = model, len(rows), 0
        self.outputs, width = model.outputs(description), description.features
        one = 255 if pixels else 1
        self._description, bound = description, description.norm_bound
        scaled = model.scale is not None and bound is not None
        self._length = bound if scaled and bound is not None else 1.0  # what rows, their 1 included, are divided by
        self._unit = 1 / one / self._length  # what a stored 1 stands for
        self._lost = self.outputs * 2.0**-126  # squares of tiny residuals are 0 in float32: beside huge features they must not be
        most = _MOST_SQUARES if bound is None else min(_MOST_SQUARES, (bound * (1 + SLACK)) ** 2)
        store_nD = np.empty((self.rows, width + 1), np.uint8 if pixels else np.float32)
        squares_n1 = np.empty((self.rows, 1), np.float32)
        labels_n = np.empty(self.rows, np.int64)
        for start in range(0, self.rows, _LOAD):
            some, here = rows[start : start + _LOAD], slice(start, start + _LOAD)
            features_Bd, labels_B = table.features[some], table.labels[some]
            valid_B = table.valid[some] & (labels_B >= 0) & (labels_B < description.classes)
            finite_B = np.isfinite(features_Bd).all(axis=1)
            features_Bd[~(valid_B & finite_B)] = 0
            store_nD[here, :width] = np.rint(features_Bd.clip(0, 1) * 255) if pixels else features_Bd
            store_nD[here, width] = one
            with np.errstate(over="ignore"):
                squares_B = (np.square(store_nD[here], dtype=np.float64).sum(axis=1) / one**2).astype(np.float32)
            finite_B &= squares_B < most
            store_nD[here][~(valid_B & finite_B)] = 0
            squares_n1[here, 0] = np.where(valid_B, np.where(finite_B, squares_B / self._length**2, np.nan), 0.0)
            labels_n[here] = np.where(valid_B, labels_B, 0)
        self._store_nD, self._squares_n1, self._labels_n = map(torch.from_numpy, (store_nD, squares_n1, labels_n))
        self._raw_BD = torch.empty((CHUNK, width + 1), dtype=torch.uint8) if pixels else None
        self._chunk_BD = torch.empty((CHUNK, width + 1))
        columns = self.outputs if self.outputs <= 4 else math.ceil(self.outputs / _PADDED) * _PADDED
        self._wide = columns > _PADDED  # with few logits, oneDNN's products were no faster in a whole step
        self._weights_CD = torch.zeros((columns, width + 1))
        self._weights_CD[self.outputs :, width] = _NEVER * self._unit

    def start(self, streams: Streams) -> Tensor:
        """Zeros: the loss is convex, so that no random start is needed, and the start depends on nothing."""
        return torch.zeros(self.outputs * self._weights_CD.shape[1])

    @property
    def layers(self) -> tuple[int, ...]:
        return self.outputs * (self._weights_CD.shape[1] - 1), self.outputs

    @property
    def curvature(self) -> Curvature | None:
        return self.model.curvature(self._description.norm_bound)

    def batch(self, rows_B: np.ndarray) -> LinearBatch:
        return LinearBatch(self, torch.from_numpy(rows_B))

    def state(self) -> None:
        """A run changes nothing of it."""
        return

    def restore(self, state: None) -> None:
        return None

    def label_counts(self, rows: np.ndarray | None = None) -> Tensor:
        """Rows with each label [classes]; broken ones are counted as left out."""
        squares_n, labels_n = self._squares_n1.squeeze(1), self._labels_n
        if rows is not None:
            squares_n, labels_n = squares_n[torch.from_numpy(rows)], labels_n[torch.from_numpy(rows)]
        self.nonfinite += int(squares_n.isnan().sum())
        return torch.bincount(labels_n[squares_n > 0], minlength=self._description.classes)

    def constant(self, label: int) -> Tensor:
        return self.model.constant(label, self._description)

    def released(self, params_P: Tensor) -> Tensor:
        return params_P / self._length if self._length != 1.0 else params_P

    @property
    def lipschitz_range(self) -> tuple[float, float | None]:
        """A row's constant is at least that of its 1 alone; at most that of the public bound on its length, where one is stated."""
        one, bound = self.model.lipschitz / self._length, self._description.norm_bound
        return one, None if bound is None else one * bound

    def lipschitz_sum(self, terms: Callable[[Tensor], Tensor], rows: np.ndarray | None = None) -> Tensor:
        """Sum [J] of terms [B, J] of the constants ||[x, 1]|| (softmax: times root 2) over all rows, or these."""
        squares_n = self._squares_n1.squeeze(1)
        squares_n = squares_n if rows is None else squares_n[torch.from_numpy(rows)]
        constants_n = squares_n[squares_n > 0].double().sqrt_().mul_(self.model.lipschitz)
        summed = [terms(constants_B).double().sum(dim=0) for constants_B in constants_n.split(_LOAD)]
        return torch.stack(summed).sum(dim=0) if summed else terms(constants_n).double().sum(dim=0)

    def penalty(self, params_P: Tensor) -> float:
        """l2 / 2 times the squared norm of the weights, or of all parameters."""
        return 0.5 * self.model.l2 * float(self._penalised(params_P).double().square().sum()) if self.model.l2 else 0.0

    def add_penalty_(self, gradient_P: Tensor, params_P: Tensor) -> None:
        if self.model.l2:
            self._penalised(gradient_P).add_(self._penalised(params_P), alpha=self.model.l2)

    def _penalised(self, vector_P: Tensor) -> Tensor:
        vector_KD = vector_P.view(-1, self._weights_CD.shape[1])
        return vector_KD if self.model.penalise_bias else vector_KD[:, :-1]

    def clipped_sum(
        self,
        rows_B: Tensor,
        params_P: Tensor,
        factors: Callable[[Tensor], Tensor],
        by_layer: bool = False,
        counted: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, float]:
        """What `LinearBatch.sum_and_count` returns."""
        weights_KD = self._weights_CD[: self.outputs]
        exact_products()
        torch.mul(params_P.view_as(weights_KD), self._unit, out=weights_KD)
        sum_KD, count = torch.zeros(weights_KD.shape, dtype=torch.float64), 0.0
        for rows in rows_B.split(CHUNK):
            few = self._wide and len(rows) >= BLOCK
            filled_BD = self._gather(rows, filled(len(rows), FILL if few else 1, CHUNK))
            chunk_BD, logits_BC = filled_BD[: len(rows)], product(filled_BD, self._weights_CD.t(), few=few)[: len(rows)]
            residual_BC = self.model.residual_(logits_BC, self._labels_n.index_select(0, rows))
            squares_B1 = self._squares_n1.index_select(0, rows)
            norms_BL = residual_BC.square().sum(dim=1, keepdim=True).add_(self._lost).mul_(squares_B1)
            if not math.isfinite(norms_BL.sum()):
                wrong_B = ~norms_BL.isfinite().squeeze(1)
                self.nonfinite += int(wrong_B.sum())
                residual_BC[wrong_B], norms_BL[wrong_B], squares_B1[wrong_B] = 0.0, 0.0, 0.0  # as null records
            if counted is not None:
                count += float(counted(norms_BL).masked_fill(squares_B1.squeeze(1) == 0, 0.0).sum(dtype=torch.float64))
            if by_layer:
                self._add_by_layer_(sum_KD, residual_BC, chunk_BD, factors)
            else:
                scaled_BC = residual_BC.mul_(factors(norms_BL).unsqueeze(1))
                _add_products_(sum_KD, scaled_BC[:, : self.outputs], chunk_BD, self._wide)
        return (sum_KD.mul_(self._unit) if self._unit != 1.0 else sum_KD).view(-1), count

    def _add_by_layer_(self, sum_KD: Tensor, residual_BC: Tensor, chunk_BD: Tensor, factors: Callable[[Tensor], Tensor]) -> None:
        """Add the sums of weights and of biases, each with its own factor. A bias is stored as 1 / unit, in a null row as 0."""
        features_BD, bias_B1 = chunk_BD[:, :-1], chunk_BD[:, -1:]
        squares_B1 = residual_BC.square().sum(dim=1, keepdim=True).add_(self._lost)
        lost_B1 = (bias_B1 > 0) * (features_BD.shape[1] * 2.0**-126)  # as `_lost`, of features; a null row keeps norm 0
        of_weights_B1 = features_BD.square().sum(dim=1, keepdim=True).add_(lost_B1).mul_(self._unit**2)
        norms_B2 = torch.cat((squares_B1 * of_weights_B1, squares_B1 * (bias_B1 > 0) / self._length**2), dim=1)
        factors_B2 = factors(norms_B2)
        residual_BK = residual_BC[:, : self.outputs]
        _add_products_(sum_KD[:, :-1], residual_BK * factors_B2[:, :1], features_BD)
        _add_products_(sum_KD[:, -1:], residual_BK * factors_B2[:, 1:], bias_B1)

    def exact_sum(self, rows_B: Tensor, params_P: Tensor) -> Tensor:
        """What `LinearBatch.exact_sum` returns."""
        weights_KD = params_P.view(self.outputs, -1) * self._unit
        sum_KD = torch.zeros_like(weights_KD)
        for rows in rows_B.split(CHUNK):
            chunk_BD = self._gather(rows).double()
            self.nonfinite += int(self._squares_n1.index_select(0, rows).isnan().sum())
            residual_BK = self.model.residual_(chunk_BD @ weights_KD.t(), self._labels_n.index_select(0, rows))
            sum_KD.addmm_(residual_BK.t(), chunk_BD)
        return sum_KD.mul_(self._unit).view(-1)

    def losses_along(self, rows_B: Tensor, params_P: Tensor, direction_P: Tensor, sizes: Sequence[float], terms: Terms) -> Tensor:
        """What `LinearBatch.losses_along` returns."""
        both_2KD = torch.stack((params_P, direction_P)).mul_(self._unit).view(2 * self.outputs, -1)
        sizes_J, sums_J = torch.tensor(tuple(sizes), dtype=torch.float32), torch.zeros(len(sizes), dtype=torch.float64)
        for rows in rows_B.split(CHUNK):
            here_KB1, slopes_KB1 = (both_2KD @ self._gather(rows).t()).unsqueeze(2).split(self.outputs)
            # The losses here have no 0 times a slope in them, which may be infinite. In memory a record's logits lie far apart:
            # sums over 10 of them in a row take 9 times as long.
            logits_KBJ = torch.cat((here_KB1, here_KB1 - sizes_J * slopes_KB1), dim=2)
            losses_BJ = self.model.losses(logits_KBJ.permute(1, 2, 0), self._labels_n.index_select(0, rows))
            real_B1 = self._squares_n1.index_select(0, rows) > 0
            sums_J += terms(losses_BJ[:, :1], losses_BJ[:, 1:]).masked_fill(~real_B1, 0.0).sum(dim=0, dtype=torch.float64)
        return sums_J

    def _gather(self, rows_B: Tensor, length: int | None = None) -> Tensor:
        """These rows, and null records up to a length."""
        records = len(rows_B)
        chunk_BD = self._chunk_BD[:records]
        if self._raw_BD is None:
            torch.index_select(self._store_nD, 0, rows_B, out=chunk_BD)
        else:
            chunk_BD.copy_(torch.index_select(self._store_nD, 0, rows_B, out=self._raw_BD[:records]))
        if length is None or length == records:
            return chunk_BD
        self._chunk_BD[records:length] = 0.0
        return self._chunk_BD[:length]


def _add_products_(sum_KD: Tensor, scaled_BK: Tensor, rows_BD: Tensor, wide: bool = False) -> None:
    """Add scaled_BK^T rows_BD to a float64 sum, by blocks short enough for sweeper.clip.base.MARGIN."""
    for scaled, rows in zip(scaled_BK.split(BLOCK), rows_BD.split(BLOCK), strict=True):
        sum_KD.add_(product(scaled.t(), rows, few=wide and len(rows) == BLOCK))


class LinearBatch:
    """One minibatch of a linear problem."""

    def __init__(self, problem: LinearProblem, rows_B: Tensor) -> None:
        self._problem, self._rows_B = problem, rows_B

    def sum(self, params_P: Tensor, factors: Callable[[Tensor], Tensor], *, by_layer: bool = False) -> Tensor:
        """Sum of factor times gradient, a new [P] in float64, in chunks of 1,024 rows; `factors` sees squared norms [chunk, 1].

        by_layer: `factors` sees squared norms [chunk, 2], of weights and of biases, and gives a factor for each.
        Sensitivity (zero-out): that of the policy behind `factors`. A null record's term is zero; so is the term of a record
        whose squared norm is not finite in float32 (a norm beyond 1.8e19 included).
        """
        return self._problem.clipped_sum(self._rows_B, params_P, factors, by_layer)[0]

    def sum_and_count(
        self, params_P: Tensor, factors: Callable[[Tensor], Tensor], counted: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, float]:
        """`sum`, and the sum of `counted` over the records that are neither null nor left out."""
        return self._problem.clipped_sum(self._rows_B, params_P, factors, False, counted)

    def exact_sum(self, params_P: Tensor) -> Tensor:
        """Sum of gradients, a new [P] in float64, at params_P in float64. Null records and those left out are rows of zeros.

        Sensitivity (zero-out): `curvature.lipschitz`, where the problem has one; the rows beyond the bound are left out.
        """
        return self._problem.exact_sum(self._rows_B, params_P)

    def losses_along(self, params_P: Tensor, direction_P: Tensor, sizes: Sequence[float], terms: Terms) -> Tensor:
        """Sums [J] of terms of the losses here [chunk, 1] and at each size along the direction [chunk, J]; null records add 0.

        A loss may be infinite or NaN where parameters are huge: what it counts as is for `terms` to say.
        """
        return self._problem.losses_along(self._rows_B, params_P, direction_P, sizes, terms)


def evaluate(model: Linear, params_P: Tensor, table: Table, rows: np.ndarray) -> int:
    """How many of these rows are valid and get their label right; one record changes it by at most 1 (zero-out).

    A row with a feature that is not finite counts as wrong.
    """
    correct = 0
    for start in range(0, len(rows), _LOAD):
        some = rows[start : start + _LOAD]
        features_Bd = torch.from_numpy(table.features[some])
        right_B = model.predict(params_P, features_Bd) == torch.from_numpy(table.labels[some])
        right_B &= torch.from_numpy(table.valid[some]) & features_Bd.isfinite().all(dim=1)
        correct += int(right_B.sum())
    return correct
