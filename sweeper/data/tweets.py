"""Emotion (Saravia et al. 2018) and TweetEval (Barbieri et al. 2020): tweets in the parquet files that Hugging Face keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sweeper import checks
from sweeper.checks import RequestError
from sweeper.data import minilm
from sweeper.data.columns import Block
from sweeper.data.fetch import PublishedFiles
from sweeper.data.given import given
from sweeper.spec.protocols import Description

if TYPE_CHECKING:
    from sweeper.data.table import Table

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
class _Tweets:
    """Three parquet files with the columns text and label, as a table of frozen features; the last holds the test rows."""

    kind: ClassVar[str]
    stated_by: ClassVar[str]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        raise NotImplementedError

    @property
    def files(self) -> PublishedFiles:
        raise NotImplementedError

    @property
    def description(self) -> Description:
        *rows, classes = self.sizes
        return Description(
            rows=sum(rows),
            features=minilm.WIDTH,
            classes=classes,
            test_rows=(sum(rows) - rows[-1], sum(rows)),
            stated_by=self.stated_by,
            norm_bound=minilm.NORM_BOUND,
        )

    @property
    def columns(self) -> tuple[Block, ...]:
        return (Block(name="text", width=minilm.WIDTH, summary=f"text, as features of {minilm.NAME} at norm 1"),)

    def present(self, cache: str) -> bool:
        return self.files.present(cache) and minilm.WEIGHTS.present(cache)

    def fetch(self, cache: str) -> list[str]:
        return self.files.fetch(cache) + minilm.WEIGHTS.fetch(cache)

    def digest(self, cache: str) -> str:
        return self.files.digest(cache)

    def load(self, cache: str) -> Table:
        from sweeper.data.texts import table_of_texts

        *rows, classes = self.sizes
        contents = zip(self.files.contents(cache), rows, strict=True)
        return table_of_texts([record for one, n in contents for record in read_texts(one, n, classes, self.kind)], cache)


@dataclass(frozen=True, kw_only=True)
class Emotion(_Tweets):
    """Emotion: 20,000 tweets as 384 frozen MiniLM features, 6 feelings; files brought by the user; needs the extra `text`."""

    kind: ClassVar[str] = "emotion"
    example: ClassVar[str] = "{source: emotion, holdout: test, public: true}"
    stated_by: ClassVar[str] = "the data set's card"

    @property
    def sizes(self) -> tuple[int, int, int, int]:
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
    stated_by: ClassVar[str] = "the data set's card"

    def __post_init__(self) -> None:
        checks.one_of(TASKS, task=self.task)

    def to_dict(self) -> dict[str, Any]:
        return {"task": self.task}

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return TASKS[self.task]

    @property
    def files(self) -> PublishedFiles:
        names = tuple(f"{self.task}/{end}-00000-of-00001.parquet" for end in ENDS)
        return given(self.kind, names, "the data set cardiffnlp/tweet_eval of Hugging Face")


def read_texts(content: bytes, rows: int, classes: int, kind: str) -> list[tuple[str, int] | None]:
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
