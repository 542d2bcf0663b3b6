"""How far one record can move the answer of gradient descent on a convex loss, exactly, from public numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def largest_move(pushes_T: np.ndarray, shrinks_T: np.ndarray, weights_T: np.ndarray, batches: int) -> float:
    """Bound on ||sum_t a_t (w_t - w'_t)||: two runs from one start, of which one has a record that the other has not.

    Batches are 0, ..., M - 1 in turn, again and again; the record is in one of them, the same in every pass.
    Theorem. Let w_t = C_t(w_{t-1}) - [batch t holds the record] u_t with C_t, the step that the other records make, of Lipschitz
    constant s_t, and ||u_t|| <= p_t; and w'_t = C_t(w'_{t-1}). Then d_t = s_t d_{t-1} + p_t [batch t holds it], d_0 = 0, bounds
    ||w_t - w'_t|| (triangle inequality), and sum_t a_t d_t the move of the average for a_t >= 0. The largest over the record's
    batch is returned. A push at step r counts with a_r + s_{r+1} a_{r+1} + s_{r+1} s_{r+2} a_{r+2} + ...
    Relation: zero-out. (A replaced record pushes twice: take 2 p_t.)
    Source: Wu, Li, Kumar, Chaudhuri, Jha, Naughton 2017, Lemmas 4 to 8, for constant steps and last iterates.
    """
    import numpy as np

    counts_T, later = np.empty(len(pushes_T)), 0.0
    for t in reversed(range(len(pushes_T))):
        counts_T[t] = later = weights_T[t] + later
        later *= shrinks_T[t]
    padded = np.zeros(-(-len(pushes_T) // batches) * batches)
    padded[: len(pushes_T)] = pushes_T * counts_T
    return float(padded.reshape(-1, batches).sum(axis=0).max())
