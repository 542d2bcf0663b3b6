"""Training rows as a backend keeps them: float32, or one byte a feature; null and broken records as rows of zeros.

Shapes: n training rows, B records of one chunk, d features.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from sweeper.data.table import Table
from sweeper.spec.protocols import Description

_LOAD = 4096  # rows per copy while a table is read
_MOST_SQUARES = 3e38  # of a record, in float32, so that the squares of its parts are finite too however they are added up


class StoredRows:
    """A copy of the training rows, each with a mark: 1, 0 for a null record, NaN for a record that is not finite.

    A label outside the public classes makes a null record. A record with a feature that is not finite, or with a squared norm at
    the end of float32, is broken. `pixels`: features are k/255, whole k; others are rounded to that, one by one.
    """

    def __init__(self, *, description: Description, table: Table, rows: np.ndarray, pixels: bool) -> None:
        store_nd = np.empty((len(rows), description.features), np.uint8 if pixels else np.float32)
        squares_n, marks_n = np.empty(len(rows), np.float32), np.empty(len(rows), np.float32)
        labels_n = np.empty(len(rows), np.int64)
        for start in range(0, len(rows), _LOAD):
            some, here = rows[start : start + _LOAD], slice(start, start + _LOAD)
            features_Bd, labels_B = table.features[some], table.labels[some]
            valid_B = table.valid[some] & (labels_B >= 0) & (labels_B < description.classes)
            finite_B = np.isfinite(features_Bd).all(axis=1)
            features_Bd[~(valid_B & finite_B)] = 0
            store_nd[here] = np.rint(features_Bd.clip(0, 1) * 255) if pixels else features_Bd
            with np.errstate(over="ignore"):
                squares_n[here] = np.square(store_nd[here], dtype=np.float64).sum(axis=1) / (255**2 if pixels else 1)
            finite_B &= squares_n[here] < _MOST_SQUARES
            store_nd[here][~(valid_B & finite_B)] = 0
            marks_n[here] = np.where(valid_B, np.where(finite_B, 1.0, np.nan), 0.0)
            labels_n[here] = np.where(valid_B, labels_B, 0)
        squares_n[marks_n != 1.0] = 0.0
        self._store_nd, self._pixels = torch.from_numpy(store_nd), pixels
        self._squares_n, self._marks_n, self._labels_n = map(torch.from_numpy, (squares_n, marks_n, labels_n))

    def gather(self, rows_B: Tensor, out_Bd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Fill `out_Bd` with the features of these rows, then null records; their squared norms, marks and labels."""
        records, nulls = len(rows_B), len(out_Bd) - len(rows_B)
        if self._pixels:
            out_Bd[:records].copy_(torch.index_select(self._store_nd, 0, rows_B)).div_(255)
        else:
            torch.index_select(self._store_nd, 0, rows_B, out=out_Bd[:records])
        found = [of_n.index_select(0, rows_B) for of_n in (self._squares_n, self._marks_n, self._labels_n)]
        if nulls:
            out_Bd[records:] = 0.0
            found = [pad(of_B, (0, nulls)) for of_B in found]
        return tuple(found)  # type: ignore[return-value]

    def label_counts(self, classes: int, rows: np.ndarray | None = None) -> tuple[Tensor, int]:
        """(rows with each label [classes], how many are broken), of all rows or of these."""
        marks_n, labels_n = self._marks_n, self._labels_n
        if rows is not None:
            marks_n, labels_n = marks_n[torch.from_numpy(rows)], labels_n[torch.from_numpy(rows)]
        return torch.bincount(labels_n[marks_n == 1], minlength=classes), int(marks_n.isnan().sum())
