"""The split by public ids: nobody is moved by who else is in the file, and sizes are stated, never found."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest

from sweeper.checks import FieldError
from sweeper.data.split import held_out_ids, split_rows, split_sizes
from sweeper.spec.protocols import Description
from sweeper.spec.sweep import DataSpec

IDS = tuple(f"person-{number}" for number in range(20_000))


@dataclass(frozen=True, kw_only=True)
class Keyed:
    """A source whose rows have ids, and whose data nobody may open."""

    rows: int = len(IDS)
    kind: ClassVar[str] = "keyed"

    @property
    def description(self) -> Description:
        return Description(rows=self.rows, features=3, classes=2, ids=True)

    def load(self, cache: str) -> Any:
        raise AssertionError("the split opened data")


def spec(n_holdout: int | None = None, rows: int = len(IDS), **changed: Any) -> DataSpec:
    return DataSpec(source=Keyed(rows=rows), n_holdout=n_holdout, **changed)


def held(ids: tuple[str, ...], **changed: Any) -> set[str]:
    count = int(held_out_ids(spec(**changed), ids).sum())
    rows = split_rows(spec(count, len(ids), **changed), ids)[1]
    return {ids[row] for row in rows}


def test_every_id_is_decided_as_the_law_says():
    key = hashlib.sha256(b"sweeper.split-ids.1\0" + b"my key").digest()
    ids = IDS[:500]
    words = {name: int.from_bytes(hashlib.blake2b(name.encode(), key=key, digest_size=8).digest(), "big") for name in ids}
    assert held(ids, split_key="my key", holdout=0.3) == {name for name in ids if Fraction(words[name], 2**64) < Fraction(0.3)}


def test_who_joins_who_leaves_and_in_what_order_moves_nobody():
    everybody = held(IDS)
    some = IDS[5:300] + IDS[7_000:9_000]
    assert held(some) == everybody & set(some)
    assert held(tuple(reversed(some))) == everybody & set(some)


def test_a_larger_fraction_keeps_everybody_who_was_held_out():
    assert held(IDS, holdout=0.1) < held(IDS, holdout=0.2)


@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.5])
def test_the_fraction_is_the_one_asked_for(fraction):
    count = len(held(IDS, holdout=fraction))

    def deviations(claimed: float) -> float:
        return abs(count - len(IDS) * claimed) / (len(IDS) * claimed * (1 - claimed)) ** 0.5

    assert deviations(fraction) < 6
    assert deviations(fraction * 1.5) > 6
    assert deviations(fraction / 1.5) > 6


def test_another_key_is_another_independent_split():
    both = len(held(IDS, split_key="one") & held(IDS, split_key="two"))
    assert abs(both - len(IDS) * 0.04) < 6 * (len(IDS) * 0.04 * 0.96) ** 0.5
    assert abs(both - len(IDS) * 0.04 * 1.5) > 6 * (len(IDS) * 0.06 * 0.94) ** 0.5


def test_sizes_are_those_that_were_stated():
    count = len(held(IDS))
    stated = spec(count)
    train, out = split_rows(stated, IDS)
    assert (len(train), len(out)) == split_sizes(stated) == (len(IDS) - count, count)
    np.testing.assert_array_equal(np.sort(np.concatenate([train, out])), np.arange(len(IDS)))
    with pytest.raises(FieldError, match=r"data\.n_holdout is missing.* sweeper data split FILE"):
        split_sizes(spec())


def test_another_number_than_stated_is_refused_with_the_public_one():
    count = len(held(IDS))
    for wrong in (count - 1, count + 1, 4_000 if count != 4_000 else 4_001):
        with pytest.raises(FieldError) as caught:
            split_rows(spec(wrong), IDS)
        assert f"Set data.n_holdout: {count}." in str(caught.value)


def test_rows_with_one_id_are_on_one_side():
    ids = tuple(name for name in IDS[:300] for _ in range(3))
    count = int(held_out_ids(spec(), ids).sum())
    train, out = split_rows(spec(count, len(ids)), ids)
    assert not {ids[row] for row in train} & {ids[row] for row in out}


def test_holdout_zero_needs_no_number():
    assert split_sizes(spec(holdout=0.0)) == (len(IDS), 0)
    assert len(split_rows(spec(holdout=0.0), IDS)[1]) == 0
