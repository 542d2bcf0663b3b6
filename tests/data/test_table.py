"""The table refuses what is not a table, and a digest is that of the content."""

from __future__ import annotations

import gzip
import hashlib

import numpy as np
import pytest

from sweeper.checks import FieldError
from sweeper.data.table import Table, digest


def parts(**changed):
    features = np.array([[0.5, 1.0], [0.0, 0.0], [0.25, 0.0]], dtype=np.float32)
    good = {"features": features, "labels": np.array([1, 0, 0]), "valid": np.array([True, False, True])}
    return good | changed


def test_a_table_counts_its_null_records():
    assert Table(**parts()).rows == 3


@pytest.mark.parametrize(
    ("changed", "field", "rule"),
    [
        ({"features": np.zeros((3, 2))}, "features", "float32"),
        ({"features": np.zeros(3, dtype=np.float32)}, "features", "2"),
        ({"features": [[0.0], [0.0], [0.0]]}, "features", "numpy array"),
        ({"features": np.zeros((2, 3), dtype=np.float32).T}, "features", "C-contiguous"),
        ({"features": np.array([[1, np.nan], [0, 0], [0, 0]], dtype=np.float32)}, "features", "finite"),
        ({"features": np.array([[1, np.inf], [0, 0], [0, 0]], dtype=np.float32)}, "features", "finite"),
        ({"labels": np.array([1, 0, 0], dtype=np.int32)}, "labels", "int64"),
        ({"labels": np.array([1, 0])}, "labels", "one row per record"),
        ({"labels": np.array([-1, 0, 0])}, "labels", "at least 0"),
        ({"valid": np.array([1, 0, 1])}, "valid", "bool"),
        ({"valid": np.array([True, False, False])}, "valid", "must be 0"),  # row 2 has features
        ({"labels": np.array([1, 1, 0])}, "valid", "must be 0"),  # null row 1 has a label
    ],
)
def test_a_broken_table_is_refused(changed, field, rule):
    with pytest.raises(FieldError, match=rule) as caught:
        Table(**parts(**changed))
    assert caught.value.field == field


def test_digest_is_the_sha256_of_the_content_however_packed(tmp_path):
    content = b"39, State-gov\n" * 1000
    plain, packed, repacked, other = (tmp_path / name for name in ("plain", "packed.gz", "packed_without_the_ending", "other"))
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content, 1))
    repacked.write_bytes(gzip.compress(content, 9))
    other.write_bytes(content + b"x")
    expected = hashlib.sha256(content).hexdigest()
    assert packed.read_bytes() != repacked.read_bytes()
    assert {digest(str(p)) for p in (plain, packed, repacked)} == {expected}
    assert digest(str(other)) != expected


def test_digest_of_several_files_depends_on_each_and_on_their_order(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"1")
    two.write_bytes(b"2")
    expected = hashlib.sha256(hashlib.sha256(b"1").digest() + hashlib.sha256(b"2").digest()).hexdigest()
    assert digest(str(one), str(two)) == expected
    assert digest(str(two), str(one)) != expected
