"""Readers of the formats that torchvision and Hugging Face keep, on small files of the same formats that are made here."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from sweeper.checks import FieldError, RequestError
from sweeper.data import cifar, emnist, given, newsgroups, tweets
from sweeper.data.cifar import Cifar10, Cifar100, read_batches
from sweeper.data.emnist import Emnist
from sweeper.data.plain_pickle import read_pickle
from sweeper.data.sms_spam import read_messages
from sweeper.data.tweets import Emotion, TweetEval, read_texts

PICTURES = np.arange(3 * 3072, dtype=np.uint64).reshape(3, 3072).astype(np.uint8)


class Python2(pickle._Pickler):
    """Writes text and bytes as Python 2 wrote its strings, which is what the published files hold."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)

    def save_string(self, value: str | bytes) -> None:
        content = value if isinstance(value, bytes) else value.encode()
        self.write(b"T" + struct.pack("<i", len(content)) + content)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_string


def batch(labels: list[Any], key: str = "labels", protocol: int | None = None) -> bytes:
    """A batch as Krizhevsky wrote it; with a protocol, as Python 3 writes it again."""
    values: dict[Any, Any] = {"batch_label": "one", key: labels, "data": PICTURES[: len(labels)]}
    if protocol is not None:
        return pickle.dumps({name.encode(): value for name, value in values.items()}, protocol)
    out = io.BytesIO()
    Python2(out, 2).dump(values)
    return out.getvalue()


@pytest.mark.parametrize("protocol", [None, 0, 2, 4, 5])
def test_cifar_batches_are_planes_scaled_to_one(protocol):
    contents = [batch([3, 9, 10], protocol=protocol), batch([0], protocol=protocol)]
    table = read_batches(contents, (3, 1), "labels", 10, "cifar-10")
    assert table.labels.tolist() == [3, 9, 0, 0]
    assert table.valid.tolist() == [True, True, False, True]  # 10 is no label of CIFAR-10
    np.testing.assert_allclose(table.features[[0, 1, 3]], PICTURES[[0, 1, 0]] / 255, rtol=1e-6)
    assert not table.features[2].any()


def test_cifar_100_has_fine_labels():
    table = read_batches([batch([99, 7], "fine_labels")], (2,), "fine_labels", 100, "cifar-100")
    assert table.labels.tolist() == [99, 7]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no pickle",
        batch([1, 2])[:-40],
        pickle.dumps([1, 2]),
        batch([1]),
        batch([1, 2], "other"),
        pickle.dumps({b"labels": [1, 2], b"data": PICTURES[:2].astype(np.float32)}, 2),
        pickle.dumps({b"labels": [1, 2], b"data": PICTURES[:2, :100]}, 2),
    ],
)
def test_what_is_no_batch_of_the_stated_length_is_refused(content):
    with pytest.raises(RequestError, match=r"^cifar-10: "):
        read_batches([content], (2,), "labels", 10, "cifar-10")


class Runs:
    """A pickle of this makes a folder when a plain unpickler reads it."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.place),)


def test_no_code_of_a_file_is_run(tmp_path):
    made = tmp_path / "made"
    content = pickle.dumps({"data": Runs(made)})
    with pytest.raises(RequestError, match=r"is not a pickle of plain values and arrays \(UnpicklingError\)"):
        read_pickle(content, "file")
    assert not made.exists()
    pickle.loads(content)  # the same bytes do run, where nobody looks
    assert made.exists()


@pytest.mark.parametrize("call", [eval, getattr, np.load, pickle.loads, gzip.decompress], ids=lambda call: call.__name__)
def test_no_other_name_is_looked_up(call):
    with pytest.raises(RequestError):
        read_pickle(pickle.dumps(call), "file")


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def test_emnist_stands_upright_and_letters_start_at_one():
    pictures = np.arange(4 * 28 * 28, dtype=np.uint64).reshape(4, 28, 28).astype(np.uint8)
    contents = [idx(pictures[:3]), idx(np.array([1, 26, 0], np.uint8)), idx(pictures[3:]), idx(np.array([27], np.uint8))]
    table = emnist.read_table(contents, (3, 1), classes=26, first=1)
    assert table.valid.tolist() == [True, True, False, False]
    assert table.labels.tolist() == [0, 25, 0, 0]
    np.testing.assert_allclose(table.features[1].reshape(28, 28), pictures[1].T / 255, rtol=1e-6)


@pytest.mark.parametrize("part", emnist.PARTS)
def test_emnist_files_are_named_as_torchvision_names_them(part):
    source = Emnist(part=part)
    assert [file.name for file in source.files.files][1] == f"emnist-{part}-train-labels-idx1-ubyte"
    assert source.description.rows == sum(emnist.PARTS[part][:2])
    assert source.to_dict() == {"part": part}
    with pytest.raises(FieldError, match="did you mean balanced"):
        Emnist(part="balancd")


def parquet(texts: list[Any], labels: list[Any], **columns: Any) -> bytes:
    import pyarrow
    import pyarrow.parquet

    out = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table({"text": texts, "label": labels, **columns}), out)
    return out.getvalue().to_pybytes()


def test_texts_of_parquet_files_are_read_row_by_row():
    content = parquet(["good", None, "bad", "odd", "none"], [1, 0, 2, 3, None], extra=[0] * 5)
    assert read_texts(content, 5, 3, "emotion") == [("good", 1), None, ("bad", 2), None, None]


@pytest.mark.parametrize("content", [b"", b"no parquet" * 9, parquet(["a"], [1]), parquet(["a", "b"], [1, 0])[:-3]])
def test_what_is_no_such_parquet_file_is_refused(content):
    with pytest.raises(RequestError, match=r"^emotion: a file is not the parquet file of 2 texts"):
        read_texts(content, 2, 3, "emotion")


def test_a_parquet_file_without_the_columns_is_refused():
    import pyarrow
    import pyarrow.parquet

    out = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table({"sentence": ["a", "b"], "label": [0, 1]}), out)
    with pytest.raises(RequestError, match="is not the parquet file"):
        read_texts(out.getvalue().to_pybytes(), 2, 3, "emotion")


@pytest.mark.parametrize("source", [Cifar10(), Cifar100(), Emnist(), Emotion(), TweetEval(task="irony")], ids=lambda s: s.kind)
def test_a_missing_file_is_asked_of_the_user_by_name_and_place(tmp_path, source):
    assert not source.present(str(tmp_path))
    with pytest.raises(RequestError) as caught:
        source.fetch(str(tmp_path))
    said = str(caught.value)
    assert source.files.files[0].name in said
    assert str(tmp_path / "data" / source.kind) in said
    assert source.description.test_rows[1] == source.description.rows


def test_files_are_found_below_either_folder_and_checked_by_their_md5(tmp_path, monkeypatch):
    content = batch([1, 2, 3])
    files = given.given("cifar-9", ("folder/one",), "its page", {"folder/one": hashlib.md5(content).hexdigest()})
    place = tmp_path / "data" / "cifar-9" / "folder" / "one"
    place.parent.mkdir(parents=True)
    place.write_bytes(content)
    assert files.present(str(tmp_path))
    assert files.fetch(str(tmp_path)) == [str(place)]
    assert files.contents(str(tmp_path)) == [content]
    monkeypatch.setenv("SWEEPER_DATA", str(tmp_path / "data"))
    assert files.fetch(str(tmp_path / "elsewhere")) == [str(place)]
    place.write_bytes(content + b"!")
    with pytest.raises(RequestError, match="has not the published MD5"):
        files.fetch(str(tmp_path))


def test_a_cifar_source_loads_what_lies_in_its_folder(tmp_path, monkeypatch):
    for name in cifar.MD5_10:
        place = tmp_path / "data" / "cifar-10" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(batch([1, 2]))
    monkeypatch.setattr(cifar, "read_batches", lambda contents, rows, *rest: read_batches(contents, (2,) * len(rows), *rest))
    table = Cifar10().load(str(tmp_path))
    assert table.labels.tolist() == [1, 2] * 6
    assert Cifar10().description.features == table.features.shape[1]
    assert len(Cifar10().digest(str(tmp_path))) == 64


def test_sms_messages_are_read_line_by_line():
    content = "ham\tHello there\nspam\tWIN\ta prize\nhamm\tx\nno tab\nspam\t£5 \xff\n".encode()
    expected = [("Hello there", 0), ("WIN\ta prize", 1), None, None, ("£5 ÿ", 1)]
    assert read_messages(content, rows=5) == expected
    assert read_messages(content.replace(b"\n", b"\r\n"), rows=5) == expected
    assert read_messages(content[:-1] + b"\xff", rows=5)[4] is not None
    for rows in (4, 6):
        with pytest.raises(RequestError, match=f"does not hold the {rows} rows"):
            read_messages(content, rows=rows)


POST = "From: ann\nSubject: x\n\nHello all,\nbob wrote:\n> old words\nnew words\n\n--\nAnn\n"


def packed(train: list[Any], labels: list[int]) -> bytes:
    from sklearn.utils import Bunch

    parts = {"train": Bunch(data=train, target=np.array(labels)), "test": Bunch(data=["a\n\nb"], target=np.array([3]))}
    return zlib.compress(pickle.dumps(parts))


def test_posts_lose_header_footer_and_quotes():
    found = newsgroups.read_posts(packed([POST, 7, "x\n\ny"], [19, 0, 20]), rows={"train": 3, "test": 1})
    assert found == [("Hello all,\nnew words\n", 19), None, None, ("b", 3)]


def test_posts_are_cut_as_scikit_learn_cuts_them():
    from sklearn.datasets import _twenty_newsgroups as oracle

    posts = [
        POST,
        "",
        "h\n\n",
        "h\n\nno end",
        "h\n\n\nfirst\n\n----\nme",
        "one line",
        "h\n\n> all\n| quoted\nIn article 5\n",
        "h\n\na\n - \nb",
    ]
    for post in posts:
        text = oracle.strip_newsgroup_quoting(oracle.strip_newsgroup_footer(oracle.strip_newsgroup_header(post)))
        assert newsgroups.read_posts(packed([post], [1]), rows={"train": 1, "test": 1})[0] == (text, 1)


@pytest.mark.parametrize("content", [b"", b"no zlib", zlib.compress(b"no pickle"), zlib.compress(pickle.dumps({"train": 1}))])
def test_what_is_no_such_pickle_is_refused(content):
    with pytest.raises(RequestError, match=r"^20newsgroups: "):
        newsgroups.read_posts(content, rows={"train": 1, "test": 1})


def test_another_number_of_posts_is_refused_without_telling_it():
    with pytest.raises(RequestError) as caught:
        newsgroups.read_posts(packed(["a\n\nb"] * 5, [1] * 5), rows={"train": 3, "test": 1})
    assert "5" not in str(caught.value)


def test_what_a_source_of_tweets_states_adds_up():
    assert Emotion().description.rows == 20_000
    assert TweetEval().to_dict() == {"task": "sentiment"}
    for task, (*rows, classes) in tweets.TASKS.items():
        description = TweetEval(task=task).description
        assert (description.rows, description.classes) == (sum(rows), classes)
        assert description.test_rows == (rows[0] + rows[1], sum(rows))
    with pytest.raises(FieldError, match="did you mean irony"):
        TweetEval(task="irny")
