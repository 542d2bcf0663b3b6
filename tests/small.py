"""Small tables made up on the spot."""

from __future__ import annotations

import numpy as np
import torch

from sweeper.data.table import Table
from sweeper.spec.protocols import Description

torch.set_num_threads(1)  # as a worker does: two threads on a busy machine run 20 times slower


def blobs(rows: int, features: int, classes: int, *, seed: int = 0, spread: float = 0.3) -> tuple[Table, Description]:
    """Clusters in [0, 1]^d, one a class, all features k/255 so that both storages hold them exactly."""
    generator = np.random.default_rng(seed)
    centres = generator.random((classes, features))
    labels = generator.integers(0, classes, rows)
    noisy = (centres[labels] + spread * (generator.random((rows, features)) - 0.5)).clip(0, 1)
    pixels = np.rint(noisy * 255).astype(np.float32) / np.float32(255)
    return table(pixels, labels), Description(rows=rows, features=features, classes=classes, stated_by="the test")


def table(features: np.ndarray, labels: np.ndarray) -> Table:
    return Table(
        features=np.ascontiguousarray(features, np.float32), labels=labels.astype(np.int64), valid=np.ones(len(labels), np.bool_)
    )


def without(full: Table, *rows: int) -> Table:
    """The zero-out neighbour: these rows made null records."""
    features, labels, valid = full.features.copy(), full.labels.copy(), full.valid.copy()
    features[list(rows)], labels[list(rows)], valid[list(rows)] = 0, 0, False
    return Table(features=features, labels=labels, valid=valid)


def spoilt(full: Table, row: int, value: float) -> Table:
    """The table with one feature of one row overwritten behind the back of Table's own check."""
    copy = Table(features=full.features.copy(), labels=full.labels, valid=full.valid)
    copy.features[row, 0] = value
    return copy
