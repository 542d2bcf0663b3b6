"""YAML <-> spec <-> mapping: nothing is lost, nothing is guessed, and equal specs have equal fingerprints."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.catalog import dump_spec, load_spec, sweep_from_dict
from sweeper.checks import FieldError
from sweeper.spec.codec import fingerprint, spec_to_dict
from sweeper.spec.space import Choices, Range
from sweeper.spec.sweep import PrivacySpec, SweepSpec

JOBS = sorted((Path(__file__).parents[2] / "jobs").glob("*.yaml"))
BASE: dict[str, Any] = {
    "name": "adult-clip",
    "data": {"source": "adult", "holdout": 0.2},
    "model": {"kind": "logistic"},
    "trainer": {"kind": "dp-sgd", "batch_size": 256, "steps": 2000},
    "privacy": {"epsilon": 2.0, "delta": 1e-5},
    "protocol": {"kind": "select-best", "law": "tnb", "eta": 2.0, "mean_trials": 12.0, "max_trials": 64},
    "space": {
        "clip": {"policy": "fixed", "range": [0.05, 2.0], "scale": "log"},
        "step": {"policy": "coupled", "range": [0.3, 10.0], "scale": "log"},
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """BASE with one field, named by its path, set."""
    data = copy.deepcopy(BASE)
    inner = data
    *parents, last = path.split(".")
    for parent in parents:
        inner = inner.setdefault(parent, {})
    inner[last] = value
    return data


def from_text(folder: Path, text: str) -> SweepSpec:
    path = folder / "sweep.yaml"
    path.write_text(text)
    return load_spec(path)


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_every_job_in_the_repository_round_trips(path, tmp_path):
    spec = load_spec(path)
    again = from_text(tmp_path, dump_spec(spec))
    assert again == spec
    assert hash(again) == hash(spec)
    assert fingerprint(again) == fingerprint(spec)
    assert sweep_from_dict(json.loads(json.dumps(spec_to_dict(spec)))) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec  # Ray ships it to workers


def reversed_keys(value: Any) -> Any:
    return {key: reversed_keys(value[key]) for key in reversed(value)} if isinstance(value, dict) else value


def test_the_fingerprint_ignores_order_notation_and_defaults_left_out(tmp_path):
    spec = sweep_from_dict(BASE)
    expected = fingerprint(spec)
    assert fingerprint(sweep_from_dict(reversed_keys(BASE))) == expected
    assert fingerprint(sweep_from_dict(spec_to_dict(spec))) == expected  # every default written out
    for old, new in (("1e-05", "0.00001"), ("2.0", "2"), ("12.0", "1.2e1"), ("0.05", "5e-2"), ("10.0", "10")):
        text = dump_spec(spec)
        assert old in text
        assert fingerprint(from_text(tmp_path, text.replace(old, new, 1))) == expected
    in_python = dataclasses.replace(spec, privacy=PrivacySpec(delta=1e-5, epsilon=2))
    assert in_python == spec
    assert fingerprint(in_python) == expected
    assert len(expected) == 64
    assert set(expected) <= set("0123456789abcdef")


CHANGES: list[tuple[str, Any]] = [
    ("name", "another"),
    ("data.holdout", 0.25),
    ("data.public", True),
    ("data.n", 32_000),
    ("data.split_key", "another"),
    ("model.kind", "softmax"),
    ("model.l2", 0.001),
    ("trainer.batch_size", 257),
    ("trainer.steps", 2001),
    ("trainer.momentum", 0.9),
    ("trainer.average", "tail"),
    ("trainer.tail_fraction", 0.25),
    ("trainer.sampling", "without-replacement"),
    ("privacy.epsilon", 2.000001),
    ("privacy.delta", 1.1e-5),
    ("privacy.budget_of", "census"),
    ("privacy.relation", "zero-out"),
    ("protocol.kind", "subsample-tune"),
    ("protocol.law", "geometric"),
    ("protocol.eta", 1.5),
    ("protocol.mean_trials", 13),
    ("protocol.max_trials", 65),
    ("protocol.release_every", 60),
    ("search", {"kind": "grid"}),
    ("search.kind", "asha"),
    ("score.epsilon", 0.2),
    ("score.split", "training"),
    ("space.clip.range", [0.05, 2.5]),
    ("space.clip.scale", "linear"),
    ("space.step.range", [0.31, 10.0]),
    ("space.step.policy", "fixed"),
    ("space.step.schedule", "cosine"),
    ("space.step.warmup", {"range": [0.0, 0.1]}),
    ("resources.cpu", 2.0),
    ("resources.gpu", 0.5),
    ("resources.max_concurrent", 3),
]
LAWS: list[dict[str, Any]] = [
    {"law": "logarithmic"},
    {"law": "binomial", "trials": 20, "probability": 0.5},
    {"law": "binomial", "trials": 20, "mean_trials": 8},
    {"law": "fixed", "trials": 20},
    {"law": "poisson", "mean_trials": 13, "may_return_nothing": True},
    {"law": "auto", "chance": 0.6},
    {"law": "auto", "chance": 0.6, "top": 0.05},
]


def test_sweeps_sealed_by_the_first_release_keep_their_fingerprint():
    """Otherwise `resume` would refuse a sweep that is charged and half run. The digests were made by version 0.1.0."""
    assert fingerprint(sweep_from_dict(BASE)) == "d4135a50833261e1ed281cbf53564dc5af653b7d31ae3bf828168733fda9a542"
    assert (
        fingerprint(sweep_from_dict(BASE | {"protocol": {"kind": "release-all"}}))
        == "5492eae9be510cffc2cf3d1c50668379d18347e596e00401e9d5204cbce01bfe"
    )


@pytest.mark.parametrize("law", LAWS, ids=lambda law: " ".join(map(str, law.values())))
@pytest.mark.parametrize("kind", ["select-best", "subsample-tune"])
def test_every_law_round_trips(law, kind, tmp_path):
    if law["law"] == "auto" and kind == "subsample-tune":
        with pytest.raises(FieldError, match=r"protocol\.law = 'auto' weighs select-best alone"):
            sweep_from_dict(BASE | {"protocol": {"kind": kind, **law}})
        return
    spec = sweep_from_dict(BASE | {"protocol": {"kind": kind, **law}})
    assert sweep_from_dict(spec_to_dict(spec)) == from_text(tmp_path, dump_spec(spec)) == spec
    assert fingerprint(from_text(tmp_path, dump_spec(spec))) == fingerprint(spec)
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_a_search_round_trips(tmp_path):
    for search in ({"kind": "random"}, {"kind": "grid"}, {"kind": "grid", "points": 5}, {"kind": "asha", "grace_period": 3}):
        spec = sweep_from_dict(BASE | {"search": search})
        assert spec.search.kind == search["kind"]
        assert from_text(tmp_path, dump_spec(spec)) == spec
    assert sweep_from_dict(BASE | {"search": {"kind": "random"}}) == sweep_from_dict(BASE)
    assert sweep_from_dict(BASE | {"search": {"kind": "grid"}}).search.points == 3


def test_the_fingerprint_is_changed_by_every_field():
    prints = {"": fingerprint(sweep_from_dict(BASE))}
    for path, value in CHANGES:
        data = changed(path, value)
        if path == "protocol.law":
            data["protocol"]["eta"] = 1.0
        prints[path] = fingerprint(sweep_from_dict(data))
    priced = changed("privacy.noise_multiplier", 1.0)
    del priced["privacy"]["epsilon"]
    for law in LAWS:
        prints[f"law {' '.join(map(str, law.values()))}"] = fingerprint(
            sweep_from_dict(BASE | {"protocol": {"kind": "select-best", **law}})
        )
    for points in (2, 4):
        prints[f"{points} points"] = fingerprint(sweep_from_dict(BASE | {"search": {"kind": "grid", "points": points}}))
    for fields in ({}, {"final": "all"}, {"tune_fraction": 0.2}):
        prints[f"tuned {fields}"] = fingerprint(sweep_from_dict(BASE | {"protocol": {"kind": "subsample-tune", **fields}}))
    prints["privacy.noise_multiplier"] = fingerprint(sweep_from_dict(priced))
    chosen = changed("space.clip", {"policy": "fixed", "values": [0.1, 1.0]})
    prints["values"] = fingerprint(sweep_from_dict(chosen))
    chosen["space"]["clip"]["values"] = [1.0, 0.1]  # another law of candidates: a draw maps to another value
    prints["order of values"] = fingerprint(sweep_from_dict(chosen))
    assert len(set(prints.values())) == len(prints)


def test_scalars_are_those_of_yaml_1_2(tmp_path):
    spec = from_text(tmp_path, dump_spec(sweep_from_dict(BASE)).replace("name: adult-clip", "name: on"))
    assert spec.name == "on"  # not True
    assert spec.privacy.delta == 1e-5  # not the text '1e-5'
    for word in ("yes", "no", "off", "y", "n"):
        assert from_text(tmp_path, dump_spec(spec).replace("name: on", f"name: {word}")).name == word


@pytest.mark.parametrize(
    "name", ["on", "yes", "null", "true", "1e5", "0x1F", "0o17", "2020-01-01", "1.5", "12", "007", "1e-5", "n", "a.b_c-d"]
)
def test_names_that_look_like_something_else_survive(tmp_path, name):
    spec = sweep_from_dict(changed("name", name))
    assert from_text(tmp_path, dump_spec(spec)) == spec


def test_whole_numbers_become_floats_where_floats_are_declared_and_nothing_else_is_converted():
    data = changed("privacy.epsilon", 2)
    data["protocol"]["mean_trials"] = 12
    data["space"]["clip"] = {"policy": "fixed", "values": [1, 2]}
    spec = sweep_from_dict(data)
    assert type(spec.privacy.epsilon) is float
    assert type(spec.protocol.mean_trials) is float
    assert [type(v) for v in spec.space.clip.settings["clip_norm"].values] == [float, float]
    assert type(spec.trainer.steps) is int
    for path, value in (("trainer.steps", 2000.0), ("name", 3), ("privacy.delta", "1e-5"), ("data.public", 1)):
        with pytest.raises(FieldError, match=path):
            sweep_from_dict(changed(path, value))


def test_reading_changes_nothing_of_what_was_given():
    before = copy.deepcopy(BASE)
    sweep_from_dict(BASE)
    assert before == BASE


def test_a_domain_may_be_written_by_the_name_of_its_field():
    short = sweep_from_dict(BASE)
    named = sweep_from_dict(changed("space.clip", {"policy": "fixed", "clip_norm": {"range": [0.05, 2.0], "scale": "log"}}))
    assert named == short
    fixed = sweep_from_dict(changed("space.clip", {"policy": "fixed", "clip_norm": 1.0}))
    assert fixed == sweep_from_dict(changed("space.clip", {"policy": "fixed", "value": 1}))


@pytest.mark.parametrize(
    "owner", ["", "data", "trainer", "privacy", "protocol", "score", "resources", "space", "space.clip", "model"]
)
def test_specs_are_frozen_at_every_level(owner):
    target: Any = sweep_from_dict(BASE)
    for name in owner.split(".") if owner else ():
        target = getattr(target, name)
    field = (dataclasses.fields(target) or dataclasses.fields(sweep_from_dict(BASE)))[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(target, field, None)
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
        target.added = 1


def test_a_replaced_section_is_checked_again():
    spec = sweep_from_dict(BASE)
    with pytest.raises(FieldError, match=r"privacy\.delta"):
        dataclasses.replace(spec, privacy=PrivacySpec(delta=0.5, epsilon=1.0))
    with pytest.raises(FieldError, match="name"):
        dataclasses.replace(spec, name="a/b")


numbers = st.floats(1e-6, 1e6, allow_nan=False)
ranges = st.tuples(numbers, numbers, st.sampled_from(["linear", "log"])).filter(lambda t: t[0] < t[1])


@st.composite
def domains(draw: st.DrawFn, policy: str) -> dict[str, Any]:
    how = draw(st.sampled_from(["range", "values"]))
    if how == "range":
        low, high, scale = draw(ranges)
        return {"policy": policy, "range": [low, high], "scale": scale}
    return {"policy": policy, "values": draw(st.lists(numbers, min_size=1, max_size=5, unique=True))}


@st.composite
def sweeps(draw: st.DrawFn) -> dict[str, Any]:
    fashion = draw(st.booleans())
    noise = draw(st.booleans())
    step = draw(domains(draw(st.sampled_from(["fixed", "coupled"]))))
    step |= {"schedule": draw(st.sampled_from(["constant", "cosine", "linear"])), "warmup": draw(st.floats(0.0, 0.99))}
    return {
        "name": draw(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}", fullmatch=True)),
        "data": {
            "source": "fashion-mnist" if fashion else "adult",
            "holdout": draw(st.sampled_from(["test", 0.1]) if fashion else st.floats(0.01, 0.9)),
            "public": draw(st.booleans()),
            "split_key": draw(st.text(st.characters(min_codepoint=32, max_codepoint=0x24F).filter(str.isprintable), max_size=20)),
        },
        "model": {"kind": "softmax", "l2": draw(st.floats(0.0, 10.0))},
        "trainer": {"kind": "dp-sgd", "batch_size": draw(st.integers(1, 30_000)), "steps": draw(st.integers(1, 10**9))},
        "privacy": {"delta": draw(st.floats(1e-12, 1e-5)), "noise_multiplier" if noise else "epsilon": draw(numbers)},
        "protocol": draw(
            st.one_of(
                st.builds(lambda k: {"kind": "release-all", "trials": k}, st.integers(1, 1000)),
                st.builds(
                    lambda e, m, k: {"kind": "select-best", "eta": e, "mean_trials": m, "max_trials": k},
                    st.floats(0.0, 10.0),
                    st.floats(1.01, 100.0),
                    st.one_of(st.none(), st.integers(1, 1000)),
                ),
            )
        ),
        "score": {"epsilon": draw(st.floats(0.001, 100.0)), "split": draw(st.sampled_from(["holdout", "training"]))},
        "space": {"clip": draw(domains("fixed")), "step": step},
        "resources": {"cpu": draw(st.floats(0.1, 64.0)), "max_concurrent": draw(st.one_of(st.none(), st.integers(1, 99)))},
    }


@settings(max_examples=120, deadline=None, derandomize=True)
@given(sweeps())
def test_any_sweep_round_trips(data):
    spec = sweep_from_dict(data)
    written = spec_to_dict(spec)
    assert sweep_from_dict(written) == spec
    assert spec_to_dict(sweep_from_dict(written)) == written
    text = dump_spec(spec)
    from ruamel.yaml import YAML

    again = sweep_from_dict(YAML(typ="safe", pure=True).load(text))
    assert again == spec
    assert fingerprint(again) == fingerprint(spec)


junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.just(10**4000), st.dates()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(st.text(max_size=8), st.integers()), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.sampled_from([path for path, _ in CHANGES] + list(BASE)), junk)
def test_junk_anywhere_is_a_field_error_or_a_spec(path, value):
    """Never another exception, and never a spec that holds something not finite."""
    try:
        spec = sweep_from_dict(changed(path, value))
    except FieldError as error:
        words = str(error)
    else:
        words = json.dumps(spec_to_dict(spec), allow_nan=False)
    assert words


def test_ranges_and_choices_are_hashable_values():
    assert len({Range(low=1.0, high=2.0), Range(low=1, high=2), Choices(values=(1.0, 2.0)), Choices(values=(1.0, 2.0))}) == 2
    assert not math.isnan(hash(sweep_from_dict(BASE)))
    assert hash(sweep_from_dict(BASE)) == hash(sweep_from_dict(reversed_keys(BASE)))
