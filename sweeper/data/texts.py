"""Sources of texts: texts with labels, as a table of a frozen network's features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper.data import minilm
from sweeper.data.columns import Block
from sweeper.data.fetch import PublishedFiles
from sweeper.spec.protocols import Description

if TYPE_CHECKING:
    from sweeper.data.table import Table

Record = tuple[str, int] | None  # text and label; None: a null record


@dataclass(frozen=True, kw_only=True)
class Texts:
    """What the sources of texts have in common: the published test rows, where there are some, come last."""

    kind: ClassVar[str]
    stated_by: ClassVar[str]
    record: ClassVar[str] = "text"  # what one text is called

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows, how many of them are published test rows, classes."""
        raise NotImplementedError

    @property
    def files(self) -> PublishedFiles:
        raise NotImplementedError

    def read(self, contents: Sequence[bytes]) -> list[Record]:
        """The records of the files, each read by itself."""
        raise NotImplementedError

    @property
    def description(self) -> Description:
        rows, test, classes = self.sizes
        return Description(
            rows=rows,
            features=minilm.WIDTH,
            classes=classes,
            test_rows=(rows - test, rows) if test else None,
            stated_by=self.stated_by,
            norm_bound=minilm.NORM_BOUND,
        )

    @property
    def columns(self) -> tuple[Block, ...]:
        return (Block(name=self.record, width=minilm.WIDTH, summary=f"text, as features of {minilm.NAME} at norm 1"),)

    def present(self, cache: str) -> bool:
        return self.files.present(cache) and minilm.WEIGHTS.present(cache)

    def fetch(self, cache: str) -> list[str]:
        return self.files.fetch(cache) + minilm.WEIGHTS.fetch(cache)

    def digest(self, cache: str) -> str:
        return self.files.digest(cache)

    def load(self, cache: str) -> Table:
        return table_of_texts(self.read(self.files.contents(cache)), cache)


def table_of_texts(records: Sequence[Record], cache: str) -> Table:
    """A table with the features of each text. A record that is None is a null record in its place."""
    import numpy as np

    from sweeper.data.table import Table

    valid_n = np.array([record is not None for record in records], dtype=np.bool_)
    features_nd = minilm.text_features([record[0] if record else "" for record in records], cache)
    features_nd[~valid_n] = 0
    labels_n = np.array([record[1] if record else 0 for record in records], dtype=np.int64)
    return Table(features=np.ascontiguousarray(features_nd), labels=labels_n, valid=valid_n)
