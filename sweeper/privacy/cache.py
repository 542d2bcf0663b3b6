"""A disk cache of numbers computed from events, one small JSON file each, keyed by the canonical question and the versions.

Lives under $SWEEPER_HOME/cache/prices. A file that does not hold its own question is ignored and written again. Where the
folder cannot be written the number is computed each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

VERSION = 10  # raised whenever any number computed here could change


@lru_cache(maxsize=1)
def _libraries() -> dict[str, str]:
    """Versions of what computes the numbers."""
    return {name: metadata.version(name) for name in ("dp-accounting", "numpy", "scipy")}


def cached(question: dict[str, Any], compute: Callable[[], Any]) -> Any:
    """The JSON value of `compute()`, from disk when this very question was answered before."""
    key = json.dumps({"version": VERSION, **_libraries(), **question}, sort_keys=True, separators=(",", ":"))
    folder = Path(os.environ.get("SWEEPER_HOME") or ".sweeper") / "cache" / "prices"
    path = folder / (hashlib.sha256(key.encode()).hexdigest()[:40] + ".json")
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        stored = json.loads(path.read_text())
        if stored["question"] == key:
            return stored["answer"]
    answer = compute()
    with contextlib.suppress(OSError):
        folder.parents[1].mkdir(mode=0o700, parents=True, exist_ok=True)  # the home, closed to others whoever makes it first
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
        with os.fdopen(handle, "w") as file:
            json.dump({"question": key, "answer": answer}, file)
        os.replace(temporary, path)
    return answer
