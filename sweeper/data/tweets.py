"""Emotion (Saravia et al. 2018) and TweetEval (Barbieri et al. 2020): tweets in the parquet files that Hugging Face keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sweeper import checks
from sweeper.checks import RequestError
from sweeper.data.fetch import PublishedFiles
from sweeper.data.given import given
from sweeper.data.texts import Record, Texts

ENDS = ("train", "validation", "test")
TASKS = {  # training, validation and test rows, classes
    "emoji": (45_000, 5_000, 50_000, 20),
    "emotion": (3_257, 374, 1_421, 4),
    "hate": (9_000, 1_000, 2_970, 2),
    "irony": (2_862, 955, 784, 2),
    "offensive": (11_916, 1_324, 860, 2),
    "sentiment": (45_615, 2_000, 12_284, 3),
}
EMOTION = (16_000, 2_000, 2_000, 6)


@dataclass(frozen=True, kw_only=True)
class _Tweets(Texts):
    """Three parquet files with the columns text and label; the last holds the test rows."""

    stated_by: ClassVar[str] = "the data set's card"

    @property
    def parts(self) -> tuple[int, int, int, int]:
        """Training, validation and test rows, classes."""
        raise NotImplementedError

    @property
    def sizes(self) -> tuple[int, int, int]:
        *rows, classes = self.parts
        return sum(rows), rows[-1], classes

    def read(self, contents: Sequence[bytes]) -> list[Record]:
        *rows, classes = self.parts
        return [record for one, n in zip(contents, rows, strict=True) for record in read_texts(one, n, classes, self.kind)]


@dataclass(frozen=True, kw_only=True)
class Emotion(_Tweets):
    """Emotion: 20,000 tweets as 384 frozen MiniLM features, 6 feelings; files brought by the user; needs the extra `text`."""

    kind: ClassVar[str] = "emotion"
    example: ClassVar[str] = "{source: emotion, holdout: test, public: true}"

    @property
    def parts(self) -> tuple[int, int, int, int]:
        return EMOTION

    @property
    def files(self) -> PublishedFiles:
        names = tuple(f"split/{end}-00000-of-00001.parquet" for end in ENDS)
        return given(self.kind, names, "the data set dair-ai/emotion of Hugging Face")


@dataclass(frozen=True, kw_only=True)
class TweetEval(_Tweets):
    """TweetEval: tweets as 384 frozen MiniLM features; files brought by the user; needs the extra `text`.

    task: sentiment (59,899 tweets, 3 classes), emoji, emotion, hate, irony or offensive.
    """

    task: str = "sentiment"
    kind: ClassVar[str] = "tweet-eval"
    example: ClassVar[str] = "{source: {kind: tweet-eval, task: sentiment}, holdout: test, public: true}"

    def __post_init__(self) -> None:
        checks.one_of(TASKS, task=self.task)

    def to_dict(self) -> dict[str, Any]:
        return {"task": self.task}

    @property
    def parts(self) -> tuple[int, int, int, int]:
        return TASKS[self.task]

    @property
    def files(self) -> PublishedFiles:
        names = tuple(f"{self.task}/{end}-00000-of-00001.parquet" for end in ENDS)
        return given(self.kind, names, "the data set cardiffnlp/tweet_eval of Hugging Face")


def read_texts(content: bytes, rows: int, classes: int, kind: str) -> list[Record]:
    """Text and label of each row; None where there is no text, or a label that is not declared.

    Raises:
      RequestError: no such parquet file, or another number of rows than stated.
    """
    import pyarrow
    import pyarrow.parquet

    wrong = RequestError(f'{kind}: a file is not the parquet file of {rows:,} texts and labels that source "{kind}" states')
    try:
        table = pyarrow.parquet.read_table(pyarrow.BufferReader(content), columns=["text", "label"])
    except (pyarrow.ArrowException, OSError, KeyError):
        raise wrong from None
    if table.num_rows != rows or table.column_names != ["text", "label"]:
        raise wrong
    pairs = zip(table.column("text").to_pylist(), table.column("label").to_pylist(), strict=True)
    return [
        (text, label) if isinstance(text, str) and type(label) is int and 0 <= label < classes else None for text, label in pairs
    ]
