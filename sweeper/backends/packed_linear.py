"""Several trials' linear models at once, seat by seat: as in closed_form.py, whose numbers this is to give up to rounding.

Shapes: S seats, B records of a seat, N = S B, J step sizes, K logits, D features with the bias, P = K D parameters, L layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sweeper.backends.closed_form import LinearProblem
from sweeper.backends.packed_layers import add_blocks_, aligned, product


class PackedLinear:
    """What all seats ask of one chunk each. Rows beyond a seat's own number weigh nothing: they are as null records."""

    def __init__(self, alone: LinearProblem, seats: int, length: int, device: torch.device | str) -> None:
        self._alone, self.seats, self.length, self.device = alone, seats, length, device
        self._unit, self._lost, self._bias = alone._unit, alone._lost, 1 / alone._length**2  # of a bias column, squared
        self._store_nD = alone._store_nD.to(device)
        self._squares_n = alone._squares_n1.squeeze(1).to(device)
        self._labels_n = alone._labels_n.to(device)
        self._chunk_SBD = torch.empty(seats, length, self._store_nD.shape[1], device=device)

    def bind(self, params_SP: Tensor) -> None:
        """The parameters to work with; the sum begins at 0."""
        self._weights_SKD = aligned(self.device, self.seats, self._alone.outputs, self._store_nD.shape[1])
        torch.mul(params_SP.view(self._weights_SKD.shape), self._unit, out=self._weights_SKD)
        self._sum_SKD = torch.zeros(self._weights_SKD.shape, dtype=torch.float64, device=self.device)

    def norms(self, rows_SB: Tensor, there_SB: Tensor, by_layer: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Squared norms [S, B, L], which records are not null [S, B], and how many are left out [S]: they are null from here on."""
        self._gather(rows_SB, there_SB)
        logits_SBK = product(self._chunk_SBD, self._weights_SKD.transpose(1, 2))
        residual_SBK = self._alone.model.residual_(logits_SBK.flatten(0, 1), self._labels_N).view_as(logits_SBK)
        residual_SBK.masked_fill_(~there_SB.unsqueeze(2), 0.0)
        squares_SB = residual_SBK.square().sum(dim=2).add_(self._lost)
        norms_SB = squares_SB * self._squares_SB
        wrong_SB = ~norms_SB.isfinite()
        residual_SBK.masked_fill_(wrong_SB.unsqueeze(2), 0.0)
        real_SB = (self._squares_SB != 0) & ~wrong_SB
        self._residual_SBK, self._by_layer = residual_SBK, by_layer
        if by_layer:
            norms_SBL = self._by_layers(squares_SB).masked_fill_(wrong_SB.unsqueeze(2), 0.0)
        else:
            norms_SBL = norms_SB.masked_fill_(wrong_SB, 0.0).unsqueeze(2)
        return norms_SBL, real_SB, wrong_SB.sum(dim=1)

    def _by_layers(self, squares_SB: Tensor) -> Tensor:
        """Of weights and of biases. A bias is stored as 1 / unit, in a null row as 0."""
        features_SBD, there_SB = self._chunk_SBD[..., :-1], self._chunk_SBD[..., -1] > 0
        lost_SB = there_SB * (features_SBD.shape[2] * 2.0**-126)  # as `_lost`, of features; a null row keeps norm 0
        of_weights_SB = features_SBD.square().sum(dim=2).add_(lost_SB).mul_(self._unit**2)
        return torch.stack((squares_SB * of_weights_SB, squares_SB * there_SB * self._bias), dim=2)

    def add_(self, factors_SBL: Tensor) -> None:
        """Add the chunk last looked at, each record times its factor."""
        if self._by_layer:
            of_weights_SB1, of_bias_SB1 = factors_SBL.split(1, dim=2)
            add_blocks_(self._sum_SKD[..., :-1], self._residual_SBK * of_weights_SB1, self._chunk_SBD[..., :-1])
            add_blocks_(self._sum_SKD[..., -1:], self._residual_SBK * of_bias_SB1, self._chunk_SBD[..., -1:])
        else:
            add_blocks_(self._sum_SKD, self._residual_SBK.mul_(factors_SBL), self._chunk_SBD)

    def total(self) -> Tensor:
        """The sums [S, P] in float64."""
        return self._sum_SKD.mul_(self._unit).flatten(1)

    def losses(self, rows_SB: Tensor, there_SB: Tensor, direction_SP: Tensor, sizes_SJ: Tensor) -> tuple[Tensor, Tensor]:
        """Losses here and at every size along the direction [S, B, 1 + J], and which records are neither null nor broken [S, B]."""
        self._gather(rows_SB, there_SB)
        outputs, sizes_S11J = self._alone.outputs, sizes_SJ[:, None, None, :]
        both_SMD = aligned(self.device, self.seats, 2 * outputs, self._store_nD.shape[1])
        both_SMD[:, :outputs] = self._weights_SKD
        torch.mul(direction_SP.view(self._weights_SKD.shape), self._unit, out=both_SMD[:, outputs:])
        here_SKB1, slopes_SKB1 = product(both_SMD, self._chunk_SBD.transpose(1, 2)).unsqueeze(3).split(outputs, dim=1)
        logits_SKBJ = torch.cat((here_SKB1, here_SKB1 - sizes_S11J * slopes_SKB1), dim=3)
        losses_NJ = self._alone.model.losses(logits_SKBJ.permute(0, 2, 3, 1).flatten(0, 1), self._labels_N)
        return losses_NJ.unflatten(0, (self.seats, self.length)), self._squares_SB > 0

    def _gather(self, rows_SB: Tensor, there_SB: Tensor) -> None:
        rows_N = rows_SB.flatten()
        self._chunk_SBD.view(len(rows_N), -1).copy_(self._store_nD.index_select(0, rows_N))
        self._labels_N = self._labels_n.index_select(0, rows_N)
        self._squares_SB = self._squares_n.index_select(0, rows_N).view_as(rows_SB).masked_fill(~there_SB, 0.0)
