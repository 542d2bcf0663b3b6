"""The draft of a declaration: of a private file names and types alone; of a public one a declaration that loads."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML

from sweeper.catalog import sweep_from_dict
from sweeper.checks import FieldError, RequestError
from sweeper.data.describe import WARNING, describe

LABELS, WORDS = ("no", "yes"), ("Alpha", "Beta", "")
SMALLEST, LARGEST = 23.4711, 87.9357  # somebody's own numbers, which no draft may hold


def rows(count: int = 400) -> list[tuple[str, ...]]:
    draw = random.Random(5)
    ages = [SMALLEST, LARGEST, *(draw.uniform(30, 80) for _ in range(count - 2))]
    return [
        (f"{age:.4f}", draw.choice(WORDS), f"{draw.paretovariate(0.5):.2f}", f"note {row}", draw.choice(LABELS))
        for row, age in enumerate(ages)
    ]


NAMES = ("age", "group", "spent", "text: free", "bought")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    path.write_text("".join(",".join(row) + "\n" for row in [NAMES, *rows()]))
    return path


def test_of_a_private_file_only_the_head_is_read(table):
    found = describe(str(table), "bought")
    lines = found["yaml"].splitlines()
    assert lines[:2] == [f"# {line}" for line in WARNING]  # first of all
    assert "no bill covers it" in lines[0]
    assert list(found["columns"]) == list(NAMES)
    table.write_text(table.read_text().split("\n")[0] + "\n")  # no record at all: not a word of the draft came from one
    assert describe(str(table), "bought") == found
    for told in ("Alpha", "yes", str(SMALLEST), "400"):
        assert told not in found["yaml"]
    YAML(typ="safe", pure=True).load(found["yaml"])


def test_of_a_public_file_the_draft_is_a_declaration(table):
    draft = YAML(typ="safe", pure=True).load(describe(str(table), "bought", public=True)["yaml"])
    assert draft["data"]["public"] is True
    spec = sweep_from_dict(
        {
            "name": "own",
            **draft,
            "model": {"kind": "logistic"},
            "trainer": {"kind": "dp-sgd", "batch_size": 50, "steps": 20},
            "privacy": {"epsilon": 2.0, "delta": 1e-5},
            "protocol": {"kind": "no-tuning"},
            "space": {"clip": {"policy": "fixed", "value": 1.0}, "step": {"policy": "fixed", "value": 1.0}},
        }
    )
    source = spec.data.source
    assert source.load("").valid.all()  # everybody fits the drafted ranges and words
    age, group, spent, text = source.columns
    assert (age.low, age.high, age.log) == (23, 88, False)
    assert sorted(group.categories) == sorted(WORDS)
    assert spent.log
    assert text.width == 0
    assert source.classes == LABELS


def test_ranges_are_rounded_outward_and_are_nobodys_number(table):
    text = describe(str(table), "bought", public=True)["yaml"]
    assert str(SMALLEST) not in text
    assert str(LARGEST) not in text


@pytest.mark.parametrize("kind", ["csv.gz", "tsv", "parquet", "npz"])
def test_every_format_gives_the_same_draft(tmp_path, table, kind):
    import pandas as pd

    path = tmp_path / f"people.{kind}"
    frame = pd.read_csv(table, keep_default_na=False)
    if kind == "csv.gz":
        path.write_bytes(gzip.compress(table.read_bytes()))
    elif kind == "tsv":
        frame.to_csv(path, sep="\t", index=False)
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        np.savez(path, **{name: np.array(frame[name].tolist()) for name in frame})
    drafts = [YAML(typ="safe", pure=True).load(describe(str(p), "bought", public=True)["yaml"])["data"] for p in (table, path)]
    for draft in drafts:
        for key in ("kind", "path", "delimiter"):
            draft["source"].pop(key, None)
    assert drafts[0] == drafts[1]
    assert list(describe(str(path), "bought")["columns"]) == list(NAMES)


def test_pictures_are_one_column_with_a_width(tmp_path):
    path = tmp_path / "digits.npz"
    np.savez(path, x=np.arange(5 * 4 * 4).reshape(5, 4, 4), y=np.array([0, 1, 2, 1, 0]))
    private, public = (describe(str(path), "y", public=said) for said in (False, True))
    assert private["columns"] == {"x": "int64 x 16", "y": "int64"}
    draft = YAML(typ="safe", pure=True).load(public["yaml"])["data"]["source"]
    assert draft["columns"] == {"x": {"low": 0, "high": 79, "width": 16}}
    assert draft["classes"] == ["0", "1", "2"]


def test_what_cannot_be_described(tmp_path, table):
    with pytest.raises(FieldError, match=r"must end in \.csv"):
        describe(str(tmp_path / "people.xlsx"))
    with pytest.raises(FieldError, match="is no file"):
        describe(str(tmp_path / "none.csv"))
    with pytest.raises(FieldError, match="did you mean bought"):
        describe(str(table), "bougt")
    for kind in ("parquet", "npz"):
        path = tmp_path / f"bad.{kind}"
        path.write_bytes(b"Zaphod-7310" * 40)
        with pytest.raises(RequestError, match=f"cannot be read as {kind}") as caught:
            describe(str(path), public=True)
        assert "Zaphod" not in str(caught.value)
