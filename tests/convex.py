"""Small convex problems in plain numpy float64: gradients, curvature and descent, one record at a time. Shares no package code."""

from __future__ import annotations

import numpy as np
import oracles

from sweeper.data.table import Table
from sweeper.spec.protocols import Description

REACH = 2.0  # ||[x, 1]|| of the longest rows here, and the public bound


def described(rows: int, features: int, classes: int = 2) -> Description:
    return Description(rows=rows, features=features, classes=classes, stated_by="the test", norm_bound=REACH)


def tables(rows: int, features: int = 2, classes: int = 2) -> dict[str, Table]:
    """One at random; all rows at the bound and one label (they pull together); all at the bound, opposed; all null but two."""
    draws = np.random.default_rng(5)
    directions = draws.standard_normal((rows, features))
    longest = directions / np.linalg.norm(directions, axis=1, keepdims=True) * np.sqrt(REACH**2 - 1)
    inside = longest * draws.random((rows, 1))
    one_way = np.tile(longest[:1], (rows, 1))
    labels, null = draws.integers(0, classes, rows), np.zeros((rows, features))
    null[:2] = longest[:2]
    found = {"random": (inside, labels), "together": (one_way, np.ones(rows)), "opposed": (one_way, np.arange(rows) % classes)}
    whole = {name: _table(features_nd, labels_n, np.ones(rows)) for name, (features_nd, labels_n) in found.items()}
    return whole | {"alone": _table(null, np.r_[1, 1, np.zeros(rows - 2)], np.r_[1, 1, np.zeros(rows - 2)])}


def _table(features_nd: np.ndarray, labels_n: np.ndarray, valid_n: np.ndarray) -> Table:
    shorter = features_nd * (1 - 1e-7)  # rounding to float32 must not pass the bound
    return Table(features=shorter.astype(np.float32), labels=labels_n.astype(np.int64), valid=valid_n.astype(np.bool_))


def summed(kind: str, params_P: np.ndarray, full: Table, rows: np.ndarray, length: float) -> np.ndarray:
    """Sum of gradients of valid records, rows with their bias divided by `length`."""
    kept = rows[full.valid[rows]]
    if not len(kept):
        return np.zeros_like(params_P)
    raw = oracles.gradients(kind, params_P / length, full.features[kept], full.labels[kept])
    return raw.sum(axis=0) / length


def descent(kind, full, order, batch, sizes_T, l2, *, length=1.0, outputs=1, kept=1) -> np.ndarray:
    """The mean of the last `kept` iterates of descent from 0 on batches in turn; l2 on all parameters."""
    batches, params_P, iterates = len(order) // batch, np.zeros(outputs * (full.features.shape[1] + 1)), []
    for t, size in enumerate(sizes_T):
        rows = order[t % batches * batch :][:batch]
        params_P = params_P - size * (summed(kind, params_P, full, rows, length) / batch + l2 * params_P)
        iterates.append(params_P)
    return np.mean(iterates[-kept:], axis=0)


def farthest(pushes_T, shrinks_T, weights_T, batches) -> float:
    """largest_move, by the recursion as it is written, for every batch that may hold the record."""
    moves = []
    for place in range(batches):
        distance, total = 0.0, 0.0
        for t, push in enumerate(pushes_T):
            distance = shrinks_T[t] * distance + (push if t % batches == place else 0.0)
            total += weights_T[t] * distance
        moves.append(total)
    return max(moves)
