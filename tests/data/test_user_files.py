"""The user's own table in three formats: one declaration, equal tables, null records in place, and no word of any row."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweeper.catalog import dump_spec, load_spec, sweep_from_dict
from sweeper.checks import FieldError, RequestError
from sweeper.data.csv_file import CsvFile
from sweeper.data.npz_file import NpzFile
from sweeper.data.parquet_file import ParquetFile
from sweeper.spec.codec import fingerprint, spec_to_dict

NAMES = ("key", "age", "gain", "sex", "income")
ROWS: list[tuple[Any, ...]] = [
    ("a", 40, 2174.0, "Male", "low"),
    ("b", 17, 0.0, "Female", "high"),
    ("c", 120, 99_999.0, "Female", "low"),
    ("d", 90, 50.0, "Male", "high"),
]
COLUMNS = {"age": {"low": 17, "high": 90}, "sex": ["Female", "Male"], "gain": {"low": 0, "high": 99_999, "log": True}}
FEATURES = [  # by hand, in the order of COLUMNS
    [23 / 73, 1, math.log(2175) / math.log(100_000)],
    [0, 0, 0],
    [1, 0, 1],
    [1, 1, math.log(51) / math.log(100_000)],
]
SECRET = "Zaphod-7310"  # stands in a broken cell: no message may hold it
KINDS = {"csv": CsvFile, "parquet": ParquetFile, "npz": NpzFile}
each = pytest.mark.parametrize("kind", KINDS)


def write(path: Path, kind: str, rows: list[tuple[Any, ...]] = ROWS, names: tuple[str, ...] = NAMES) -> Path:
    if kind == "csv":
        path.write_text("".join(",".join("" if c is None else f"{c}" for c in row) + "\n" for row in [names, *rows]))
        return path
    cells = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    if kind == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table(cells), path)
    else:
        with path.open("wb") as file:
            np.savez(file, **{name: np.array(["" if c is None else c for c in column]) for name, column in cells.items()})
    return path


def source(where: Path, kind: str, **changed: Any) -> Any:
    stated = {"path": str(where), "rows": len(ROWS), "label": "income", "classes": ["low", "high"], "columns": COLUMNS}
    return KINDS[kind](**(stated | changed))


def sweep(path: Path, kind: str, **data: Any) -> dict[str, Any]:
    stated = {"kind": kind, "path": str(path), "rows": 4000, "label": "income", "classes": ["low", "high"], "columns": COLUMNS}
    return {
        "name": "own",
        "data": {"source": stated | data.pop("source", {}), **data},
        "model": {"kind": "logistic"},
        "trainer": {"kind": "dp-sgd", "batch_size": 200, "steps": 20},
        "privacy": {"epsilon": 2.0, "delta": 1e-5},
        "protocol": {"kind": "no-tuning"},
        "space": {"clip": {"policy": "fixed", "value": 1.0}, "step": {"policy": "fixed", "value": 1.0}},
    }


@each
def test_a_table_is_encoded_by_hand_worked_values(tmp_path, kind):
    own = source(write(tmp_path / "t", kind), kind)
    table = own.load("")
    np.testing.assert_allclose(table.features, FEATURES, rtol=1e-6)
    assert table.labels.tolist() == [0, 1, 0, 1]
    assert table.valid.all()
    assert table.ids is None
    assert (own.description.rows, own.description.features, own.description.classes) == (4, 3, 2)
    assert own.present("")
    assert own.fetch("") == [str(tmp_path / "t")]


BROKEN = {
    "number missing": (1, None),
    "word not declared": (3, SECRET),
    "word missing": (3, None),
    "label not declared": (4, SECRET),
    "label missing": (4, None),
}


@each
@pytest.mark.parametrize(("column", "cell"), BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("place", range(4))
def test_a_broken_record_is_a_null_record_in_its_place(tmp_path, kind, column, cell, place):
    rows = list(ROWS)
    rows[place] = tuple(cell if at == column else old for at, old in enumerate(rows[place]))
    own = source(write(tmp_path / "t", kind, rows), kind, id="key")
    table = own.load("")
    whole = source(write(tmp_path / "w", kind), kind, id="key").load("")
    others = [row for row in range(4) if row != place]
    assert table.valid.tolist() == [row != place for row in range(4)]
    assert not table.features[place].any()
    assert table.labels[place] == 0
    np.testing.assert_array_equal(table.features[others], whole.features[others])
    np.testing.assert_array_equal(table.labels[others], whole.labels[others])
    assert table.ids == whole.ids == own.row_ids("") == ("a", "b", "c", "d")  # a null record keeps its id


@pytest.mark.parametrize(
    "line",
    [
        "",
        "x",
        "a,40,2174,Male",
        "a,40,2174,Male,low,1",
        'a,"40,2174,Male,low',
        "a,4\r0,2174,Male,low",
        "a,nan,0,Male,low",
        "a,40,\0,Male,low",
    ],
)
def test_a_broken_line_reaches_no_other(tmp_path, line):
    path = write(tmp_path / "t", "csv")
    lines = path.read_bytes().split(b"\n")
    lines[2] = line.encode()
    path.write_bytes(b"\n".join(lines))
    table = source(path, "csv").load("")
    assert table.valid.tolist() == [True, False, True, True]
    np.testing.assert_allclose(table.features[[0, 2, 3]], np.array(FEATURES)[[0, 2, 3]], rtol=1e-6)


def test_a_line_that_cannot_be_parsed_keeps_its_id(tmp_path):
    path = write(tmp_path / "t", "csv")
    path.write_text(path.read_text().replace("b,17", 'b,"17'))
    own = source(path, "csv", id="key")
    assert own.load("").ids == own.row_ids("") == ("a", "b", "c", "d")
    assert own.load("").valid.tolist() == [True, False, True, True]


@pytest.mark.parametrize("change", ["gzip", "crlf", "bom", "blank lines", "no end", "quotes", "spaces", "semicolons"])
def test_the_dialects_of_csv(tmp_path, change):
    path, changed = write(tmp_path / "t", "csv"), {}
    text = path.read_text()
    content = {
        "gzip": gzip.compress(text.encode()),
        "crlf": text.replace("\n", "\r\n").encode(),
        "bom": b"\xef\xbb\xbf" + text.encode(),
        "blank lines": text.encode() + b"\n  \n\n",
        "no end": text.strip().encode(),
        "quotes": text.replace("Male", '"Male"').replace("age", '"age"').encode(),
        "spaces": text.replace(",", " , ").encode(),
        "semicolons": text.replace(",", ";").encode(),
    }[change]
    if change == "semicolons":
        changed["delimiter"] = ";"
    path.write_bytes(content)
    table = source(path, "csv", **changed).load("")
    np.testing.assert_allclose(table.features, FEATURES, rtol=1e-6)
    assert table.labels.tolist() == [0, 1, 0, 1]


def test_repacking_does_not_make_it_another_table(tmp_path):
    path = write(tmp_path / "t", "csv")
    packed = tmp_path / "t.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert source(path, "csv").digest("") == source(packed, "csv").digest("")
    path.write_text(path.read_text().replace("40", "41"))
    assert source(path, "csv").digest("") != source(packed, "csv").digest("")


@each
@pytest.mark.parametrize("rows", [2, 3, 5, 400])
def test_another_length_is_refused_without_telling_it(tmp_path, kind, rows):
    own = source(write(tmp_path / "t", kind), kind, rows=rows)
    with pytest.raises(RequestError) as caught:
        own.load("")
    said = str(caught.value)
    assert f"does not hold the {rows:,} rows that data.source.rows states" in said
    assert "4 rows" not in said


@each
def test_a_column_that_is_not_in_the_file_is_named(tmp_path, kind):
    path = write(tmp_path / "t", kind)
    for field, words in (
        ({"label": "incme"}, "data.source.label = 'incme' is not a column of the file; did you mean income?"),
        ({"id": "kee"}, "data.source.id = 'kee' is not a column of the file; did you mean key?"),
        ({"columns": {"agee": {"low": 0, "high": 1}}}, "data.source.columns.agee is not a column of the file; did you mean age?"),
    ):
        with pytest.raises(FieldError) as caught:
            source(path, kind, **field).load("")
        assert str(caught.value) == words


@each
def test_what_is_no_such_file_says_so_and_quotes_nothing(tmp_path, kind):
    path = tmp_path / "t"
    with pytest.raises(FieldError, match="is no file"):
        source(path, kind).load("")
    with pytest.raises(FieldError, match="is no file"):
        source(path, kind).digest("")
    path.write_bytes(b"\x1f\x8b" + SECRET.encode() * 50 if kind == "csv" else SECRET.encode() * 50)
    with pytest.raises(RequestError, match=f"cannot be read as {kind}") as caught:
        source(path, kind).load("")
    assert SECRET not in str(caught.value)


@each
def test_a_row_without_an_id_is_refused(tmp_path, kind):
    rows = [*ROWS[:2], (None, *ROWS[2][1:]), ROWS[3]]
    own = source(write(tmp_path / "t", kind, rows), kind, id="key")
    for read in (own.load, own.row_ids):
        with pytest.raises(RequestError, match="a row has no id"):
            read("")


def test_parquet_takes_numbers_as_lists_text_and_decimals(tmp_path):
    import decimal

    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "t"
    cells = {
        "y": pyarrow.array([0, 1, 2, None, 1]),
        "v": pyarrow.array([[1, 2], [3, 4], None, [5, 6], [7]], pyarrow.list_(pyarrow.int32())),
        "f": pyarrow.array([[0.0], [1.0], [2.0], [3.0], [4.0]], pyarrow.list_(pyarrow.float32(), 1)),
        "t": pyarrow.array(["1", "2.5", "x", None, "10"]).dictionary_encode(),
        "d": pyarrow.array([decimal.Decimal("1.50")] * 5),
        "b": pyarrow.array([True, False, True, True, None]),
        "when": pyarrow.array([0] * 5, pyarrow.timestamp("s")),
    }
    pyarrow.parquet.write_table(pyarrow.table(cells), path)
    ten = {"low": 0, "high": 10}
    stated = {"rows": 5, "label": "y", "classes": 3}
    columns = {"v": {**ten, "width": 2}, "f": ten, "d": ten, "b": ["false", "true"]}
    table = source(path, "parquet", columns=columns, **stated).load("")
    assert table.valid.tolist() == [True, True, False, False, False]
    np.testing.assert_allclose(table.features[:2], [[0.1, 0.2, 0, 0.15, 1], [0.3, 0.4, 0.1, 0.15, 0]], rtol=1e-6)
    table = source(path, "parquet", columns={"t": ten}, **stated).load("")
    assert table.valid.tolist() == [True, True, False, False, True]
    np.testing.assert_allclose(table.features[table.valid], [[0.1], [0.25], [1.0]], rtol=1e-6)
    for name, width in (("when", 1), ("y", 2), ("t", 2)):
        with pytest.raises(FieldError, match=rf"data\.source\.columns\.{name} is of type"):
            source(path, "parquet", columns={name: {**ten, "width": width}}, **(stated | {"label": "b"})).load("")


def test_npz_takes_pictures_and_refuses_objects(tmp_path):
    path = tmp_path / "t"
    pictures = np.arange(4 * 2 * 3, dtype=np.uint8).reshape(4, 2, 3)
    with path.open("wb") as file:
        np.savez_compressed(file, x=pictures, y=np.array([0, 1, 2, 9]), o=np.array([{}, 1, 2, 3], dtype=object))
    stated = {"rows": 4, "label": "y", "classes": 3}
    table = source(path, "npz", columns={"x": {"low": 0, "high": 255, "width": 6}}, **stated).load("")
    assert table.valid.tolist() == [True, True, True, False]
    np.testing.assert_allclose(table.features[:3], pictures[:3].reshape(3, 6) / 255, rtol=1e-6)
    with pytest.raises(FieldError, match=r"columns\.x has 6 numbers a record in the file, not 1\. State width: 6\."):
        source(path, "npz", columns={"x": {"low": 0, "high": 255}}, **stated).load("")
    with pytest.raises(RequestError, match="cannot be read as npz"):
        source(path, "npz", columns={"o": {"low": 0, "high": 1}}, **stated).load("")


@pytest.mark.parametrize(
    ("kind", "changed", "words"),
    [
        ("csv", {"path": ""}, "path = '' must be the path of a file"),
        ("csv", {"rows": 1}, "rows = 1 must be a whole number of at least 2"),
        ("csv", {"classes": ["low"]}, "classes = ['low'] must be at least two different words"),
        ("csv", {"label": "age"}, "columns.age is the label, which is no feature. Drop it from columns."),
        ("csv", {"id": "age"}, "columns.age is the id, which is no feature"),
        ("csv", {"id": "income"}, "id = 'income' is the label, which is private"),
        ("csv", {"delimiter": ",,"}, "delimiter = ',,' must be one character"),
        ("csv", {"columns": {"x": {"low": 0, "high": 1, "width": 3}}}, "columns.x.width = 3 is refused: a cell of a csv file"),
    ],
)
def test_a_declaration_that_contradicts_itself(tmp_path, kind, changed, words):
    with pytest.raises(FieldError) as caught:
        source(tmp_path / "t", kind, **changed)
    assert words in str(caught.value)


@each
def test_a_sweep_says_it_and_says_it_again(tmp_path, kind):
    spec = sweep_from_dict(sweep(tmp_path / "people.csv", kind))
    assert spec.budget_of == "people"
    assert spec.data.rows_stated_by == "the user"
    assert sweep_from_dict(spec_to_dict(spec)) == spec
    text = tmp_path / "again.yaml"
    text.write_text(dump_spec(spec))
    assert fingerprint(load_spec(text)) == fingerprint(spec)
    hash(spec.data)


def test_the_order_of_columns_is_part_of_the_sweep(tmp_path):
    turned = dict(reversed(COLUMNS.items()))
    one, two = (sweep_from_dict(sweep(tmp_path / "p", "csv", source={"columns": c})) for c in (COLUMNS, turned))
    assert fingerprint(one) != fingerprint(two)


def test_a_published_source_keeps_its_fingerprint_however_it_is_written():
    def of(data: Any) -> str:
        return fingerprint(sweep_from_dict(sweep(Path("x"), "csv") | {"data": {"source": data}}))

    assert of("adult") == of({"kind": "adult"})
    stated = spec_to_dict(sweep_from_dict(sweep(Path("x"), "csv") | {"data": {"source": "adult"}}))
    assert stated["data"]["source"] == "adult"


def test_a_relative_path_is_relative_to_the_sweeps_file(tmp_path, monkeypatch):
    import json

    (tmp_path / "jobs").mkdir()
    (tmp_path / "else").mkdir()
    own = tmp_path / "jobs" / "own.yaml"
    own.write_text(json.dumps(sweep(Path("rows/t.csv"), "csv")))
    monkeypatch.chdir(tmp_path / "else")
    expected = str(tmp_path / "jobs" / "rows" / "t.csv")
    assert load_spec("../jobs/own.yaml").data.source.path == load_spec(own).data.source.path == expected
    assert sweep_from_dict(sweep(Path("rows/t.csv"), "csv")).data.source.path == str(tmp_path / "else" / "rows" / "t.csv")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"source": "csv"}, "data.source = 'csv' needs path, rows, label, classes, columns. As in data: {source: {kind: csv"),
        ({"source": {"path": "x"}}, "data.source.kind is missing. See: sweeper kinds data."),
        ({"source": {"kind": "csvv"}}, "data.source.kind = 'csvv' must be one of"),
        ({"source": {"kind": "csv", "path": "x"}}, "data.source.rows is missing"),
        ({"source": {"kind": "adult", "path": "x"}}, "data.source.path is not a field of data source adult"),
        ({"source": 7}, "data.source = 7 must be one of"),
    ],
)
def test_a_source_that_is_not_said_whole(data, words):
    with pytest.raises(FieldError) as caught:
        sweep_from_dict(sweep(Path("x"), "csv") | {"data": data})
    assert words in str(caught.value)


def test_numbers_that_are_stated_elsewhere_are_refused():
    for data, words in (
        ({"n": 10}, "data.n = 10 is stated by data.source.rows. Leave n out."),
        ({"n_holdout": 10}, "data.n_holdout = 10 is for rows with public ids"),
        ({"n_holdout": 10, "holdout": 0.0, "source": {"id": "key"}}, "data.n_holdout = 10 is for rows with public ids"),
        (
            {"n_holdout": 4000, "source": {"id": "key"}},
            "data.n_holdout = 4000 must be a whole number of at least 1 and at most 3999",
        ),
        ({"holdout": "test"}, "data.holdout = 'test' needs a source with rows of its own set aside"),
    ):
        with pytest.raises(FieldError) as caught:
            sweep_from_dict(sweep(Path("x"), "csv", **data))
        assert words in str(caught.value)


def test_an_own_table_is_no_public_proxy():
    data = sweep(Path("x"), "csv") | {"protocol": {"kind": "public-proxy", "proxy": "csv", "trials": 3}}
    with pytest.raises(FieldError, match=r"protocol\.proxy = 'csv' is a table of the user's own, and must be a published one"):
        sweep_from_dict(data)
