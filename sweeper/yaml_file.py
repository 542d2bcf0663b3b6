"""Reading a YAML 1.2 (or JSON) file that somebody wrote: one-line errors that start with the file, and no surprises inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sweeper.checks import RequestError

LARGEST = 1_000_000  # bytes


def read_yaml(path: str | Path, what: str) -> Any:
    """The plain value in the file; `what` it should hold, for messages ("sweep", "event").

    Raises:
      RequestError: no regular file, too large, not UTF-8, not YAML, or YAML with anchors (they can make a small file explode).
    """
    path = Path(path)
    text = _text(path, what)
    if any(token in text for token in ("&", "*")) and _has_alias(text):
        raise RequestError(f"{path}: uses YAML anchors or aliases, which no {what} needs; write the values out")
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise RequestError(f"{path}: {where}not valid YAML: {one_line(error.problem or 'unreadable', 200)}") from None
    except (YAMLError, ValueError, RecursionError) as error:
        raise RequestError(f"{path}: not valid YAML: {one_line(str(error), 200)}") from None


def one_line(text: str, limit: int = 500) -> str:
    """A message that quotes a file, on one printable line: keys may hold line breaks, terminal escapes and worse."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _text(path: Path, what: str) -> str:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise RequestError(f"{path}: is not a regular file; name a YAML file")
        if path.stat().st_size > LARGEST:
            raise RequestError(f"{path}: is larger than {LARGEST:,} bytes, which no {what} is")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RequestError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise RequestError(f"{path}: is a folder; name a YAML file") from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise RequestError(f"{path}: cannot be read as UTF-8 text ({error.__class__.__name__})") from None


def _has_alias(text: str) -> bool:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError
    from ruamel.yaml.tokens import AliasToken, AnchorToken

    try:
        return any(isinstance(token, (AliasToken, AnchorToken)) for token in YAML(typ="safe", pure=True).scan(text))
    except (YAMLError, ValueError):
        return False  # the loader names what is wrong
