"""Features of a frozen network, cached on disk: what a last layer is trained on.

Guarantee: a record's features are a function of that record and of the network's published weights alone, to the bit. Batches
have a fixed public shape (filled up with empty records), and nothing is computed over rows: no mean, no vocabulary, no batch
statistics. So this is processing of each record by itself, which costs no privacy and leaves a null record null.
The cache is named by the SHA-256 of weights, settings and records, in their order. It holds features of private records: its
files, like the home, are closed to others.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from sweeper.checks import RequestError
from sweeper.data.fetch import notice

if TYPE_CHECKING:
    import numpy

FOLDER = "features"  # below the cache


def cached(
    cache: str, network: str, key: Iterable[bytes], shape: tuple[int, int], compute: Callable[[], numpy.ndarray]
) -> numpy.ndarray:
    """Features [n, d] float32: from the cache where they are there and whole, else computed and put there.

    `key`: all that they depend on, the network's weights and settings first, then every record.
    """
    import numpy as np

    path = os.path.join(cache, FOLDER, f"{network}-{fingerprint(key)}.npy")
    try:
        found = np.load(path, allow_pickle=False)
        if found.shape == shape and found.dtype == np.float32:
            return found
    except (OSError, EOFError, ValueError):
        pass  # not there, or a torn file of a full disk: computed again
    with notice(f"computing features of {shape[0]:,} records with {network}, once; they are kept ..."):
        found = compute()
    if found.shape != shape:
        raise RequestError(f"{network}: gave features of shape {found.shape}, not {shape}; fetch its weights again")
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    descriptor, part = tempfile.mkstemp(dir=os.path.dirname(path), suffix=".part")  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            np.save(file, found)
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise
    return found


def fingerprint(parts: Iterable[bytes]) -> str:
    """SHA-256 of a list of byte strings: each with its length, so that no two lists look alike."""
    content = hashlib.sha256()
    for part in parts:
        content.update(len(part).to_bytes(8, "big"))
        content.update(part)
    return content.hexdigest()


def missing_extra(extra: str, error: ImportError) -> RequestError:
    """What to say where a library of an extra is not installed."""
    return RequestError(f"this source needs {error.name}: pip install 'sweeper[{extra}]'")


def buckets(lengths: Sequence[int], widths: Sequence[int], size: int) -> Iterable[tuple[int, list[int]]]:
    """(width, at most `size` positions), so that each record is in the smallest width that holds it, whatever the others are."""
    for width, below in zip(widths, [0, *widths], strict=False):
        inside = [place for place, length in enumerate(lengths) if below < length <= width]
        for start in range(0, len(inside), size):
            yield width, inside[start : start + size]
