"""A draft of the declaration of a user's own file, for `sweeper data describe`.

Reading rows to write a declaration is a look at the data that no bill covers. So of a file that nobody has called public only the
names and types of columns are read, which are public; ranges and words are left to the user.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from sweeper.checks import FieldError, RequestError
from sweeper.data.declared import text_of

MOST_WORDS = 50  # a column with more is no list of categories
LOG_FROM = 1_000  # a range of positive numbers this many times its lower quarter is drafted on a log scale
WARNING = (
    "Reading a private file to write its declaration is itself a look at the data, and no bill covers it.",
    "Take ranges and categories from public knowledge: a questionnaire, a schema, the meaning of the column.",
)
_SUFFIXES = {".csv": "csv", ".csv.gz": "csv", ".tsv": "csv", ".tsv.gz": "csv", ".parquet": "parquet", ".npz": "npz"}


def describe(path: str, label: str | None = None, *, public: bool = False) -> dict[str, Any]:
    """kind, columns (name -> type or None), and `yaml`, the draft. `public`: the user's word that anybody may read the rows.

    Raises:
      FieldError: a kind of file that is not known, or no such column.
    """
    kind = next((known for suffix, known in _SUFFIXES.items() if path.endswith(suffix)), None)
    if kind is None:
        raise FieldError("file", path, f"must end in {', '.join(_SUFFIXES)}")
    if not os.path.isfile(path):
        raise FieldError("file", path, "is no file")
    try:
        types = _names(path, kind)
        if label is not None and label not in types:
            from sweeper.checks import suggestion

            raise FieldError("label", label, f"is not a column of the file{suggestion(label, types)}")
        drafts = {name: _draft(cells) for name, cells in _columns(path, kind).items()} if public else {}
    except RequestError:
        raise
    except Exception as error:  # pyarrow's and numpy's errors quote what they read
        raise RequestError(f"{path}: cannot be read as {kind} ({type(error).__name__})") from None
    lines = _yaml(path, kind, types, label, drafts)
    return {"kind": kind, "columns": types, "public": public, "yaml": "\n".join(lines) + "\n"}


def _names(path: str, kind: str) -> dict[str, str | None]:
    """The columns with their types, from the head of the file."""
    if kind == "parquet":
        import pyarrow.parquet

        schema = pyarrow.parquet.read_schema(path)
        return {field.name: str(field.type) for field in schema}
    if kind == "npz":
        import numpy as np

        with np.load(path, allow_pickle=False) as file:
            return {name: f"{file[name].dtype} {_shape(file[name].shape)}".strip() for name in file.files}
    import csv

    from sweeper.data.table import open_content

    with open_content(path) as head:
        line = head.readline().removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").rstrip("\r\n")
    names = [name.strip() for name in next(csv.reader([line], delimiter=_delimiter(path), skipinitialspace=True), [])]
    return dict.fromkeys(names)


def _shape(shape: tuple[int, ...]) -> str:
    return f"x {math.prod(shape[1:])}" if len(shape) > 1 else ""


def _delimiter(path: str) -> str:
    return "\t" if ".tsv" in os.path.basename(path) else ","


def _columns(path: str, kind: str) -> dict[str, Any]:
    """Every column of a public file."""
    import numpy as np

    if kind == "npz":
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    if kind == "parquet":
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path)
        return {name: table.column(name).to_pylist() for name in table.column_names}
    import pandas as pd

    packed = "gzip" if path.endswith(".gz") else None
    frame = pd.read_csv(path, sep=_delimiter(path), dtype=str, keep_default_na=False, skipinitialspace=True, compression=packed)
    return {str(name).strip(): frame[name].str.strip().tolist() for name in frame.columns}


def _draft(cells: Any) -> dict[str, Any]:
    """What a public column looks like: {words}, {low, high, log, width}, or {ignored}; and how many rows it has."""
    import numpy as np

    rows, width = len(cells), 1
    if isinstance(cells, np.ndarray) and cells.ndim > 1 and cells.size:
        width, cells = cells.size // rows, cells.reshape(-1)
    elif rows and isinstance(cells[0], list):
        width, cells = len(cells[0]), [number for cell in cells for number in cell or ()]
    words = sorted({text_of(cell) for cell in cells[: 100 * MOST_WORDS]})
    if width == 1 and len(words) <= MOST_WORDS:
        words = sorted({text_of(cell) for cell in cells})
    numbers = _numbers(cells)
    own: dict[str, Any] = {"rows": rows, "width": width}
    if width == 1 and 2 <= len(words) <= MOST_WORDS:
        own["words"] = words
    if numbers is not None and (width > 1 or len(words) > 2):
        low, high = _outward(float(numbers.min()), float(numbers.max()))
        positive = numbers[numbers > 0]
        log = low >= 0 and len(positive) > 0 and high > LOG_FROM * max(float(np.quantile(positive, 0.25)), 1.0)
        own |= {"low": low, "high": high, "log": bool(log)}
    return own


def _numbers(cells: Any) -> Any:
    """The numbers of a column, or None where more than one cell in 20 is none."""
    import numpy as np

    if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
        found = cells.astype(np.float64)
    else:
        found = np.array([_number(cell) for cell in cells], dtype=np.float64)
    found = found[np.isfinite(found)]
    return found if len(found) and len(found) >= 0.95 * len(cells) else None


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return math.nan


def _outward(low: float, high: float) -> tuple[float, float]:
    """The range, rounded outward to a tenth of its length's power of ten, so that it is nobody's own number."""
    unit = 10.0 ** (math.floor(math.log10(max(high - low, abs(high), 1e-9))) - 1)
    places = max(0, -round(math.log10(unit)))
    low, high = round(math.floor(low / unit) * unit, places), round(math.ceil(high / unit) * unit, places)
    return low, high if high > low else low + unit


def _yaml(path: str, kind: str, types: Mapping[str, str | None], label: str | None, drafts: Mapping[str, Any]) -> list[str]:
    rows = next((draft["rows"] for draft in drafts.values()), None)
    todo = "  # to fill in: "
    lines = [
        *([] if drafts else [f"# {line}" for line in WARNING]),
        *(
            []
            if drafts
            else ["# If anybody may read the rows, say so, and the draft is whole: sweeper data describe FILE --public"]
        ),
        "data:",
        *(["  public: true  # as you said; nothing of this table is charged"] if drafts else []),
        "  source:",
        f"    kind: {kind}",
        f"    path: {_text(path)}",
        *(['    delimiter: "\\t"'] if kind == "csv" and _delimiter(path) == "\t" else []),
        f"    rows: {rows}" if drafts else f"    rows:{todo}how many records there are, a public number",
        f"    label: {_text(label)}" if label else f"    label:{todo}the column to predict; drop it from columns",
        _classes(drafts.get(label or "")),
        "    # id: NAME  # a column of public keys, if records have some; drop it from columns",
        "    columns:",
    ]
    for name, kind_of in types.items():
        if name != label:
            lines.append(f"      {_text(name)}: {_column(drafts.get(name), kind_of)}")
    return [*lines, "  holdout: 0.2"]


def _classes(draft: Mapping[str, Any] | None) -> str:
    if draft and "words" in draft:
        return f"    classes: [{', '.join(map(_text, draft['words']))}]"
    return "    classes: []  # to fill in: every word that the label may have"


def _column(draft: Mapping[str, Any] | None, kind: str | None) -> str:
    if draft is None:
        of = f"{kind}: " if kind else ""
        return f"{{}}  # to fill in: {of}{{low: , high: }}, [a, list, of, words] or ignored"
    width = f", width: {draft['width']}" if draft["width"] > 1 else ""
    if "low" in draft:
        return f"{{low: {draft['low']:.12g}, high: {draft['high']:.12g}{', log: true' if draft['log'] else ''}{width}}}"
    if "words" in draft:
        return f"[{', '.join(map(_text, draft['words']))}]"
    return "ignored"


def _text(text: str) -> str:
    """Text as a YAML scalar that stays text."""
    import json

    return json.dumps(text, ensure_ascii=False)
