"""Which rows are held out, and which a sweep tunes on: functions of row position or of a public id, never of contents.

With ids, a record stays on its side when others join or leave the file, which no position survives. Which ids there are is
public, so how many of them fall on each side is public too. But it is known only to who reads the ids, and planning opens no file;
and a price holds for the sampling probability b / (training rows) that it was made with, so a number that is merely expected will
not do. So the user states `n_holdout`, planning uses it, and a table whose ids say another number is refused, with that number.
A null record keeps its id, so that no record's contents move either side's size.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from sweeper import checks, seeds
from sweeper.checks import MISSING, FieldError

if TYPE_CHECKING:
    import numpy

    from sweeper.seeds import Streams
    from sweeper.spec.sweep import DataSpec

_DOMAIN = b"sweeper.split.1\0"
_DOMAIN_OF_IDS = b"sweeper.split-ids.1\0"


def split_sizes(spec: DataSpec) -> tuple[int, int]:
    """(training rows, held-out rows), both public. Opens no data and loads no numpy.

    Raises:
      FieldError: a side that is asked for would be empty, or the source's test rows lie past the stated table.
    """
    if spec.source.description.ids and spec.holdout:
        if spec.n_holdout is None:
            rule = "is missing: ids decide who is held out, and how many they are must be stated, for planning opens no file"
            raise FieldError("data.n_holdout", MISSING, rule, "Count them from the ids alone: sweeper data split FILE.")
        held = spec.n_holdout
    elif spec.holdout == "test":
        first, last = _test_rows(spec)
        held = last - first
    else:
        limit = _threshold(spec)
        held = sum(word < limit for word in struct.unpack(f">{spec.rows}Q", _stream(spec)))
    if held == spec.rows or (held == 0 and spec.holdout):
        side = "training" if held else "held-out"
        rule = f"leaves no {side} row of {spec.rows:,}"
        raise FieldError("data.holdout", spec.holdout, rule, "Try another fraction.")
    return spec.rows - held, held


def split_rows(spec: DataSpec, ids: Sequence[str] | None = None) -> tuple[numpy.ndarray, numpy.ndarray]:
    """(training positions, held-out positions), int64, increasing. `ids`: of all rows, where the source has some.

    Guarantee: replacing, emptying or appending a record moves no other record to the other side, so the two sides are
    disjoint parts for parallel composition. With ids, neither does removing one or changing the order.
    Law: position i is held out when the i-th 64-bit word of SHAKE-256(split_key) is below holdout * 2^64, compared exactly; with
    ids, when the first 64 bits of BLAKE2b(id), keyed with split_key, are. Rows with one id are on one side.
    Relation: zero-out, table length and ids public.

    Raises:
      FieldError: the ids put another number of rows on a side than `n_holdout` states. The message says which: ids are public.
    """
    import numpy as np

    _, stated = split_sizes(spec)
    if spec.source.description.ids and spec.holdout:
        held = held_out_ids(spec, ids or ())
        if (found := int(held.sum())) != stated:
            rule = f"is not how many of the public ids fall to the held-out side, {found:,}"
            raise FieldError("data.n_holdout", stated, rule, f"Set data.n_holdout: {found}.")
    elif spec.holdout == "test":
        first, last = _test_rows(spec)
        held = np.zeros(spec.rows, dtype=np.bool_)
        held[first:last] = True
    else:
        words, limit = np.frombuffer(_stream(spec), dtype=">u8"), _threshold(spec)
        held = words <= np.uint64(limit - 1) if limit else np.zeros(spec.rows, dtype=np.bool_)
    return np.flatnonzero(~held), np.flatnonzero(held)


def held_out_ids(spec: DataSpec, ids: Sequence[str]) -> numpy.ndarray:
    """bool [rows]: whose id falls to the held-out side."""
    import numpy as np

    limit, key = _threshold(spec), hashlib.sha256(_DOMAIN_OF_IDS + spec.split_key.encode()).digest()
    words = (hashlib.blake2b(name.encode("utf-8", "surrogatepass"), key=key, digest_size=8).digest() for name in ids)
    return np.array([int.from_bytes(word, "big") < limit for word in words], dtype=np.bool_)


def secret_part(rows: int, fraction: float, streams: Streams, arm: str = "") -> numpy.ndarray:
    """bool [rows]: which of the training rows are in the secret part. Each is, independently, with probability `fraction`.

    Guarantee: that of sweeper.privacy.events.RandomPart and PoissonSubsampled: position i is decided by the i-th 64-bit word of a
    stream of the sweep's secret, whatever any record holds. Equal streams give equal parts, so that a resumed sweep has the same;
    the parts of two arms are independent, as the composition of the arms' events counts on.
    Law: a word below fraction * 2^64 puts its row in, compared exactly.
    Relation: zero-out, `rows` public.
    """
    import numpy as np

    checks.real(0.0, 1.0, fraction=fraction)
    words = streams.of_sweep().generator(seeds.of_arm(seeds.SUBSET, arm)).integers(0, 2**64, size=rows, dtype=np.uint64)
    limit = math.ceil(Fraction(fraction) * 2**64)
    return words <= np.uint64(limit - 1) if limit else np.zeros(rows, dtype=np.bool_)


def _stream(spec: DataSpec) -> bytes:
    """8 bytes per position. A longer table has the shorter one's bytes as its beginning."""
    return hashlib.shake_256(_DOMAIN + spec.split_key.encode()).digest(8 * spec.rows)


def _threshold(spec: DataSpec) -> int:
    """The smallest whole number at or above holdout * 2^64: a word lies below one exactly if it lies below the other."""
    return math.ceil(Fraction(spec.holdout) * 2**64)


def _test_rows(spec: DataSpec) -> tuple[int, int]:
    """The rows the source itself sets aside (DataSpec has checked that there are some)."""
    first, last = spec.source.description.test_rows or (0, 0)
    if last > spec.rows:
        rule = f"ends before the source's own test rows do, at {last:,}"
        raise FieldError("data.n", spec.rows, rule, "Leave data.n out.")
    return first, last
