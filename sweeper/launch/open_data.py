"""A table in memory with its public split: what a driver puts once where all workers can read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweeper.data.split import split_rows
from sweeper.spec.sweep import DataSpec

if TYPE_CHECKING:
    import numpy as np

    from sweeper.data.table import Table


@dataclass(frozen=True)
class OpenData:
    """Rows with the positions that train and the positions that score."""

    spec: DataSpec
    table: Table
    train_rows: np.ndarray  # positions, int64
    holdout_rows: np.ndarray

    @classmethod
    def of(cls, spec: DataSpec, table: Table) -> OpenData:
        train_rows, holdout_rows = split_rows(spec, table.ids)
        return cls(spec, table, train_rows, holdout_rows)
