"""The catalog: every kind loads, says what it is, and gives an example that works."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from ruamel.yaml import YAML

from sweeper.catalog import KINDS, KindInfo, dump_spec, kinds, load_spec, resolve, sweep_from_dict
from sweeper.checks import FieldError

ROWS = kinds()
each = pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.family}-{row.kind}")


GOES_WITH = {  # trainers that do not go with every policy -> policies of clip and step that they go with
    "dp-adam": ("fixed", "fixed"),
    "dp-nsgd": ("normalise", "coupled"),
    "dp-blsgd": ("fixed", "backtracking"),
    "dp-blsgd-ac": ("decay", "backtracking"),
    "dp-blgd": ("fixed", "backtracking"),
    "dp-agd": ("fixed", "noisy-min"),
    "output-perturbation-sgd": ("none", "fixed"),
    "output-perturbation-gd": ("none", "none"),
    "objective-perturbation": ("none", "none"),
    "privgene": ("none", "none"),
    "majority": ("none", "none"),
    "non-private": ("none", "none"),
}


def sweep_with(row: KindInfo) -> dict[str, Any]:
    """A full sweep around a kind's example."""
    section = YAML(typ="safe", pure=True).load(row.example)[row.family]
    data: dict[str, Any] = {
        "name": "example",
        "data": {"source": "adult", "holdout": 0.2},
        "model": {"kind": "softmax"},
        "trainer": {"kind": "dp-sgd", "batch_size": 256, "steps": 200},
        "privacy": {"epsilon": 2.0, "delta": 1e-6},
        "protocol": {"kind": "select-best", "mean_trials": 12},
        "space": {
            "clip": {"policy": "fixed", "range": [0.1, 1.0]},
            "step": {"policy": "coupled", "range": [0.3, 10.0], "scale": "log"},
        },
    }
    if row.family in ("clip", "step"):
        data["space"][row.family] = section
        data["data"]["public"] = getattr(resolve(row.family, row.kind), "public_only", False)
    else:
        data[row.family] = section
    if row.kind == "convnet":  # its layers must fit the rows, so the rows must be pictures
        data["data"] = {"source": "fashion-mnist", "holdout": "test"}
    if "none" in (row.kind, *GOES_WITH.get(row.kind, ())):
        data["protocol"], data["data"]["public"] = {"kind": "no-tuning"}, True
        data["model"] = {"kind": "logistic"}
        data["trainer"] = section if row.family == "trainer" else {"kind": "majority"}
        clip, step = GOES_WITH.get(row.kind, ("none", "none"))
        data["space"] = {"clip": {"policy": clip}, "step": {"policy": step} | ({"value": 0.1} if step == "fixed" else {})}
        return data
    if row.family == "trainer" and row.kind in GOES_WITH:
        clip, step = GOES_WITH[row.kind]
        if clip != "fixed":
            data["space"]["clip"] = {"policy": clip} | ({"value": 0.5, "schedule": "raise"} if clip == "decay" else {})
        data["space"]["step"] = {"policy": step, "range": [0.01, 0.5]}
    if data.get("search") == {"kind": "grid", "points": 3}:
        data["protocol"] = {"kind": "release-all", "trials": 9}
    if data["protocol"]["kind"] == "no-tuning":
        data["space"] = {"clip": {"policy": "fixed", "value": 1.0}, "step": {"policy": "fixed", "value": 1.0}}
    return data


def test_the_table_lists_every_kind_once_and_in_order():
    assert [(row.family, row.kind) for row in ROWS] == [(family, kind) for family in KINDS for kind in KINDS[family]]
    assert set(KINDS) == {"clip", "step", "trainer", "model", "data", "protocol", "search"}
    for family in KINDS:
        assert kinds(family) == [row for row in ROWS if row.family == family]
    assert json.dumps([dataclasses.asdict(row) for row in ROWS])


@each
def test_a_kind_loads_and_says_what_it_is(row):
    cls = resolve(row.family, row.kind)
    assert cls.kind == row.kind
    assert dataclasses.is_dataclass(cls)
    assert 20 < len(row.summary) < 140
    assert row.summary[0].isupper()
    assert row.summary.endswith(".")
    assert "\n" not in row.summary + row.example
    assert row.example.startswith(f"{row.family}: {{")
    assert set(row.fields) == {field.name for field in dataclasses.fields(cls)}
    for default in row.fields.values():
        assert default == "required" or "<" not in default  # no object without a notation


@each
def test_its_example_is_a_section_of_a_sweep_that_round_trips(row, tmp_path):
    spec = sweep_from_dict(sweep_with(row))
    path = tmp_path / "example.yaml"
    path.write_text(dump_spec(spec))
    assert load_spec(path) == spec
    section = getattr(spec, row.family, None) or getattr(spec.space, row.family)
    used = {"data": lambda: section.source, "clip": lambda: section.policy, "step": lambda: section.policy}.get(
        row.family, lambda: section
    )()
    assert used.kind == row.kind


@each
def test_a_typo_is_told_the_kind(row):
    for typo in (row.kind + "x", row.kind.upper() if row.kind != row.kind.upper() else row.kind, row.kind[:-1]):
        if typo in KINDS[row.family]:  # cifar-10 is no typo of cifar-100
            continue
        with pytest.raises(FieldError) as caught:
            resolve(row.family, typo)
        assert f"kind = {typo!r} must be one of {', '.join(KINDS[row.family])}" in str(caught.value)
    with pytest.raises(FieldError, match=rf"did you mean {row.kind}\?"):
        resolve(row.family, row.kind + "x")


@pytest.mark.parametrize("kind", [None, 3, ["fixed"], {"fixed": 1}, "", "sweeper.clip.fixed:FixedClip"])
def test_only_names_of_the_table_are_kinds(kind):
    with pytest.raises(FieldError, match="must be one of"):
        resolve("clip", kind)


def test_an_unknown_family_is_told_the_closest():
    with pytest.raises(FieldError, match=r"family = 'trainr' must be one of .*did you mean trainer\?"):
        kinds("trainr")
