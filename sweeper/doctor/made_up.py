"""Records of a table's public shape, made up: what is checked on them says nothing of anybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeper.spec.protocols import Description

if TYPE_CHECKING:
    from sweeper.data.table import Table

LEVELS = 255  # features are whole multiples of 1/255, which both storages of a backend hold exactly


def table(description: Description, rows: int, *, tokens: bool = False) -> Table:
    """`rows` records with features in [0, 1], within the public bound where there is one; labels take turns.

    tokens: features are the whole numbers 0 and 1, which every embedding knows.
    """
    import numpy as np

    from sweeper.data.table import Table

    draws = np.random.default_rng(0)
    if tokens:
        features_nd = draws.integers(0, 2, (rows, description.features)).astype(np.float32)
    else:
        levels_nd = draws.integers(0, LEVELS + 1, (rows, description.features), dtype=np.uint8)
        if description.norm_bound is not None:
            lengths_n1 = np.sqrt(np.square(levels_nd, dtype=np.float64).sum(axis=1, keepdims=True)) / LEVELS
            room = max(description.norm_bound**2 - 1.0, 0.0) ** 0.5
            levels_nd = np.floor(levels_nd * np.minimum(1.0, room / np.maximum(lengths_n1, 1e-9))).astype(np.uint8)
        features_nd = levels_nd.astype(np.float32) / np.float32(LEVELS)
    labels_n = np.arange(rows, dtype=np.int64) % description.classes
    return Table(features=np.ascontiguousarray(features_nd), labels=labels_n, valid=np.ones(rows, np.bool_))
