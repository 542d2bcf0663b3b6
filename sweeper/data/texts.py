"""Texts with labels as a table of frozen features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sweeper.data import minilm

if TYPE_CHECKING:
    from sweeper.data.table import Table


def table_of_texts(records: Sequence[tuple[str, int] | None], cache: str) -> Table:
    """A table with the features of each text. A record that is None is a null record in its place."""
    import numpy as np

    from sweeper.data.table import Table

    valid_n = np.array([record is not None for record in records], dtype=np.bool_)
    features_nd = minilm.text_features([record[0] if record else "" for record in records], cache)
    features_nd[~valid_n] = 0
    labels_n = np.array([record[1] if record else 0 for record in records], dtype=np.int64)
    return Table(features=np.ascontiguousarray(features_nd), labels=labels_n, valid=valid_n)
