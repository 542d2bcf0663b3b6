"""Fashion-MNIST: the idx format, null records, and the published counts."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from sweeper.checks import RequestError
from sweeper.data.fashion_mnist import FashionMnist, read_table
from sweeper.data.pictures import read_idx


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    """An idx file as its author describes it (LeCun, "The MNIST database")."""
    axes = b"".join(struct.pack(">I", axis) for axis in array.shape)
    return bytes([0, 0, kind, array.ndim]) + axes + array.astype(np.uint8).tobytes()


def pictures(n: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 28, 28))


def test_an_idx_file_gives_its_array_back():
    array = pictures(3)
    np.testing.assert_array_equal(read_idx(idx(array), (3, 28, 28), "fashion-mnist"), array)


GOOD = idx(np.arange(10))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        GOOD[:-1],
        GOOD + b"\0",
        idx(np.arange(9)),
        idx(np.arange(10), kind=9),
        idx(np.arange(10).reshape(2, 5)),
        b"\1" + GOOD[1:],
        struct.pack("<IBBBB", 10, 0, 0, 8, 1) + bytes(10),
    ],
)
def test_what_is_not_the_stated_idx_file_is_refused(content):
    with pytest.raises(RequestError, match='idx file of 10 bytes that source "fashion-mnist" states'):
        read_idx(content, (10,), "fashion-mnist")


def test_test_rows_follow_training_rows_and_pixels_are_byte_fractions():
    first, second = pictures(2, seed=1), pictures(1, seed=2)
    table = read_table([idx(first), idx(np.array([3, 9])), idx(second), idx(np.array([0]))], rows=(2, 1))
    expected = np.concatenate([first, second]).reshape(3, 784) / 255
    np.testing.assert_allclose(table.features, expected, rtol=1e-6)
    assert table.labels.tolist() == [3, 9, 0]
    assert table.valid.all()


def test_a_label_that_is_not_declared_makes_a_null_record():
    table = read_table([idx(pictures(3)), idx(np.array([3, 10, 255])), idx(pictures(1)), idx(np.array([9]))], rows=(3, 1))
    assert table.valid.tolist() == [True, False, False, True]
    assert table.labels.tolist() == [3, 0, 0, 9]
    assert not table.features[1:3].any()
    assert table.features[[0, 3]].any(axis=1).all()


def test_load_never_fetches(tmp_path, monkeypatch):
    monkeypatch.setattr("sweeper.data.fetch.PublishedFiles.fetch", lambda *_: pytest.fail("load fetched"))
    with pytest.raises(RequestError, match="run: sweeper data fetch fashion-mnist"):
        FashionMnist().load(str(tmp_path))


def test_the_published_table(data_cache):
    table, stated = FashionMnist().load(data_cache), FashionMnist().description
    assert table.features.shape == (stated.rows, stated.features) == (70_000, 784)
    assert table.valid.all()
    first, last = stated.test_rows
    assert np.bincount(table.labels[:first]).tolist() == [6_000] * stated.classes
    assert np.bincount(table.labels[first:last]).tolist() == [1_000] * stated.classes
    assert (table.features.min(), table.features.max()) == (0.0, 1.0)
    # Mean and deviation of the training pixels that the field's examples use to normalise: 0.2860 and 0.3530.
    assert table.features[:first].mean(dtype=np.float64) == pytest.approx(0.2860, abs=1e-4)
    assert table.features[:first].std(dtype=np.float64) == pytest.approx(0.3530, abs=1e-4)


def test_its_digest_is_one_hash_of_64_digits(data_cache):
    assert len(bytes.fromhex(FashionMnist().digest(data_cache))) == 32
