"""The split is a keyed hash of position: nobody's contents and nobody's arrival move anybody."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest

from sweeper.checks import FieldError
from sweeper.data.split import split_rows, split_sizes
from sweeper.spec.protocols import Description
from sweeper.spec.sweep import DataSpec


@dataclass(frozen=True, kw_only=True)
class Sealed:
    """A source whose data nobody may open."""

    rows: int = 70_000
    test: tuple[int, int] | None = None
    kind: ClassVar[str] = "sealed"

    @property
    def description(self) -> Description:
        return Description(rows=self.rows, features=3, classes=2, test_rows=self.test)

    def load(self, cache: str) -> Any:
        raise AssertionError("the split opened data")


def held(**changed: Any) -> np.ndarray:
    return split_rows(DataSpec(source=Sealed(), **changed))[1]


@pytest.mark.parametrize("holdout", [0.2, 0.5, 0.01, 0.999])
def test_sides_are_disjoint_whole_and_as_large_as_stated(holdout):
    spec = DataSpec(source=Sealed(), holdout=holdout)
    train, out = split_rows(spec)
    assert (len(train), len(out)) == split_sizes(spec)
    assert train.dtype == out.dtype == np.int64
    np.testing.assert_array_equal(np.sort(np.concatenate([train, out])), np.arange(70_000))


def test_every_position_is_decided_as_the_law_says():
    words = hashlib.shake_256(b"sweeper.split.1\0" + b"my key").digest(8 * 500)
    expected = [i for i in range(500) if Fraction(int.from_bytes(words[8 * i : 8 * i + 8], "big"), 2**64) < Fraction(0.3)]
    assert held(holdout=0.3, n=500, split_key="my key").tolist() == expected


def test_rows_that_join_move_nobody():
    longest = held(n=70_000)
    for rows in (10, 1_000, 32_561, 69_999):
        np.testing.assert_array_equal(held(n=rows), longest[longest < rows])


def test_a_larger_fraction_keeps_everybody_who_was_held_out():
    assert set(held(holdout=0.1)) < set(held(holdout=0.2))


@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.5])
def test_the_fraction_is_the_one_asked_for(fraction):
    count = len(held(holdout=fraction))

    def deviations(claimed: float) -> float:
        return abs(count - 70_000 * claimed) / (70_000 * claimed * (1 - claimed)) ** 0.5

    assert deviations(fraction) < 6
    assert deviations(fraction * 1.5) > 6
    assert deviations(fraction / 1.5) > 6


def test_another_key_is_another_independent_split():
    one, two = (np.isin(np.arange(70_000), held(split_key=key)) for key in ("one", "two"))
    both = (one & two).sum()
    assert abs(both - 70_000 * 0.04) < 6 * (70_000 * 0.04 * 0.96) ** 0.5
    assert abs(both - 70_000 * 0.04 * 1.5) > 6 * (70_000 * 0.06 * 0.94) ** 0.5


def test_neighbouring_positions_are_independent():
    side = np.isin(np.arange(70_000), held())
    both = (side[1:] & side[:-1]).sum()
    assert abs(both - 69_999 * 0.04) < 6 * (69_999 * 0.04 * 0.96 * 1.5) ** 0.5  # overlapping pairs: a little wider than binomial


def test_holdout_zero_holds_nobody_out():
    spec = DataSpec(source=Sealed(), holdout=0.0)
    train, out = split_rows(spec)
    assert split_sizes(spec) == (70_000, 0)
    assert (len(train), len(out), out.dtype) == (70_000, 0, np.int64)


@pytest.mark.parametrize("test", [(60_000, 70_000), (0, 100), (500, 900)])
def test_the_sources_own_test_rows(test):
    spec = DataSpec(source=Sealed(test=test), holdout="test", split_key="ignored")
    train, out = split_rows(spec)
    assert out.tolist() == list(range(*test))
    assert split_sizes(spec) == (len(train), len(out)) == (70_000 - (test[1] - test[0]), test[1] - test[0])
    assert not set(train) & set(out)


def test_test_rows_past_the_stated_table_are_refused():
    with pytest.raises(FieldError, match=r"data\.n = 65000 ends before"):
        split_sizes(DataSpec(source=Sealed(test=(60_000, 70_000)), holdout="test", n=65_000))


@pytest.mark.parametrize(("holdout", "side"), [(1e-12, "held-out"), (1 - 1e-12, "training")])
def test_an_empty_side_is_refused(holdout, side):
    for split in (split_sizes, split_rows):
        with pytest.raises(FieldError, match=f"leaves no {side} row"):
            split(DataSpec(source=Sealed(), holdout=holdout, n=100))


def test_planning_imports_load_nothing_heavy():
    code = (
        "import sys, sweeper.data.adult, sweeper.data.fashion_mnist, sweeper.data.sampling, sweeper.data.split\n"
        "from sweeper.catalog import KINDS, resolve\n"
        "sources = [resolve('data', kind) for kind in KINDS['data']]\n"
        "one = {'rows': 9, 'label': 'y', 'classes': 2, 'columns': {'x': {'low': 0, 'high': 1}}}\n"
        "[resolve('data', kind)(path='x', **one).description for kind in ('csv', 'parquet', 'npz')]\n"
        "from sweeper.spec.sweep import DataSpec\n"
        "sweeper.data.split.split_sizes(DataSpec(source=sweeper.data.adult.Adult()))\n"
        "print([m for m in ('numpy', 'torch', 'pandas', 'pyarrow', 'scipy', 'subprocess', 'urllib.request') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
