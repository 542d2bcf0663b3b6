"""A user's own table as declared in YAML: columns with public ranges and words, label, classes. Opens nothing.

Everything here is written by the user from public knowledge (a questionnaire, a schema). Nothing is computed from rows: an
observed minimum or list of words would be a release that no bill covers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sweeper import checks
from sweeper.checks import MISSING, FieldError
from sweeper.data.columns import Categorical, Column, Ignored, Numeric

MOST_CLASSES = 100_000
IGNORED = "ignored"
_NUMERIC = ("low", "high", "log", "width", "scaled")
_FORMS = "must be {low: 0, high: 100}, a list of categories, or ignored"
_PUBLIC = "State it from public knowledge (a questionnaire, a schema), not from the rows. A draft: sweeper data describe FILE."


def text_of(value: object) -> str:
    """A word as a declaration and every file format write it: 1 and 1.0 are "1", true is "true", nothing is ""."""
    if value is None or value != value:  # NaN: how several formats write a missing word
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    plain = value.item() if hasattr(value, "item") else value  # numpy's scalars
    if isinstance(plain, bool):
        return "true" if plain else "false"
    if isinstance(plain, float) and plain.is_integer():
        return str(int(plain))
    return str(plain)


def read_classes(value: object) -> tuple[str, ...]:
    """The words of the label, in order of their numbers; a whole number k stands for 0 ... k-1."""
    if isinstance(value, int) and not isinstance(value, bool):
        checks.whole(2, MOST_CLASSES, classes=value)
        return tuple(map(str, range(value)))
    if not isinstance(value, (list, tuple)):
        rule = "must list every word that the label may have, or be their number if they are 0, 1, 2 ..."
        raise FieldError("classes", value, rule)
    return _words("classes", value)


def read_columns(value: object) -> tuple[Column, ...]:
    """Columns in the order of their features: a mapping from name to declaration, or a list of declarations with a `name`.

    Raises:
      FieldError: the first declaration that breaks a rule, by its path (`columns.age.low`).
    """
    if isinstance(value, tuple) and value and all(isinstance(column, (Numeric, Categorical, Ignored)) for column in value):
        columns = value
    else:
        columns = tuple(_column(name, declared) for name, declared in _named(value))
    if not any(column.width for column in columns):
        raise FieldError("columns", MISSING, "declares no column that is used", "Declare at least one that is not ignored.")
    names = [column.name for column in columns]
    for name in names:
        if names.count(name) > 1:
            raise FieldError(f"columns.{name}", MISSING, "is declared twice")
    return columns


def columns_to_list(columns: tuple[Column, ...]) -> list[dict[str, Any]]:
    """What `read_columns` reads back. A list, for the order of columns is that of the features."""
    return [{"name": column.name, **_declaration(column)} for column in columns]


def _declaration(column: Column) -> dict[str, Any]:
    if isinstance(column, Categorical):
        return {"categories": list(column.categories)}
    if isinstance(column, Ignored):
        return {IGNORED: column.why}
    plain = Numeric(name=column.name, low=column.low, high=column.high)
    given = {key: getattr(column, key) for key in _NUMERIC}
    return {key: value for key, value in given.items() if key in ("low", "high") or value != getattr(plain, key)}


def _named(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for name, declared in value.items():
            if not isinstance(name, str):
                raise FieldError("columns", name, "is a name, and names must be text", f'Write "{checks.show(name)}" with quotes.')
            yield name, declared
        return
    if not isinstance(value, (list, tuple)):
        raise FieldError("columns", value, "must be a mapping from column name to declaration", _PUBLIC)
    for place, item in enumerate(value):
        if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
            raise FieldError(f"columns[{place}]", item, "must be a mapping with the column's name")
        yield item["name"], {key: part for key, part in item.items() if key != "name"}


def _column(name: str, declared: object) -> Column:
    path = f"columns.{name}"
    if declared == IGNORED:
        return Ignored(name=name, why="the sweep's file says so")
    if isinstance(declared, (list, tuple)):
        return Categorical(name=name, categories=_words(path, declared))
    if not isinstance(declared, Mapping) or not declared:
        raise FieldError(path, declared, _FORMS, _PUBLIC)
    if IGNORED in declared and len(declared) == 1:
        return Ignored(name=name, why=str(declared[IGNORED]))
    if "categories" in declared and len(declared) == 1:
        return Categorical(name=name, categories=_words(path, declared["categories"]))
    for key in declared:
        if key not in _NUMERIC:
            known = (*_NUMERIC, "categories", IGNORED)
            raise FieldError(f"{path}.{key}", MISSING, f"is not one of {', '.join(known)}{checks.suggestion(key, known)}")
    for key in ("low", "high"):
        if declared.get(key) is None:
            raise FieldError(f"{path}.{key}", MISSING, "is missing", _PUBLIC)
    try:
        return Numeric(name=name, **declared)
    except FieldError as error:
        raise error.within(path) from None


def _words(path: str, declared: object) -> tuple[str, ...]:
    if not isinstance(declared, (list, tuple)):
        raise FieldError(path, declared, "must be a list of words", _PUBLIC)
    for word in declared:
        if not isinstance(word, (str, int, float)) and word is not None:
            raise FieldError(path, word, "is no word", 'Write words, numbers, or "" for a missing one.')
    words = tuple(text_of(word) for word in declared)
    if len(words) < 2 or len(set(words)) < len(words):
        raise FieldError(path, list(declared), "must be at least two different words")
    return words
