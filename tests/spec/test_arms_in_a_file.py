"""Arms in a sweep's file: several spaces instead of one, each held to every rule between sections."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest
from tiny_sweeps import FIXED, armed, spec_of, tiny

from sweeper.catalog import dump_spec, load_spec, sweep_from_dict
from sweeper.checks import FieldError
from sweeper.spec.codec import fingerprint, spec_to_dict


def test_arms_round_trip_and_each_is_a_sweep_of_its_own(tmp_path):
    spec = sweep_from_dict(armed())
    path = tmp_path / "sweep.yaml"
    path.write_text(dump_spec(spec))
    again = load_spec(path)
    assert (again, fingerprint(again), hash(again)) == (spec, fingerprint(spec), hash(spec))
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert list(spec.by_arm()) == list(again.by_arm()) == ["wide", "low", "slow"]
    assert spec.of_arm("wide") == spec_of("armed")
    assert spec.of_arm("slow").trainer.steps == 30
    assert spec.of_arm("low").trainer == spec.of_arm("wide").trainer
    assert (spec.space, spec.trainer) == (None, None)  # nobody can take one arm's for all
    with pytest.raises(KeyError):
        spec.of_arm("")


def test_a_trainer_for_all_arms_is_the_same_as_one_in_each():
    data = armed()
    own = dict(data)
    trainer = own.pop("trainer")
    own["arms"] = {name: {"trainer": trainer} | arm for name, arm in data["arms"].items()}
    assert fingerprint(sweep_from_dict(own)) == fingerprint(sweep_from_dict(data))
    assert spec_to_dict(sweep_from_dict(own)) == spec_to_dict(sweep_from_dict(data))


def test_a_sweep_without_arms_is_written_and_named_as_before_there_were_any():
    spec = spec_of()
    assert list(spec_to_dict(spec)) == ["name", "data", "model", "trainer", "privacy", "protocol", "score", "space", "resources"]
    assert spec.by_arm() == {"": spec}
    assert spec.of_arm("") is spec


STEP = {"policy": "coupled", "range": [0.3, 10.0], "scale": "log"}


def arms(**changes: Any) -> dict[str, Any]:
    """The arms of `armed`, with fields of some replaced; None takes one away."""
    found = armed()["arms"]
    for name, change in changes.items():
        found[name] = {key: value for key, value in (found.get(name, {}) | change).items() if value is not None}
    return {"arms": found}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"space": tiny()["space"]}, "arms and space are both given: arms are several spaces. Move clip and step of space into an arm"),
    ({"arms": None}, "space is missing. Or give arms, to compare several."),
    ({"arms": {"only": armed()["arms"]["low"]}}, "arms must be at least 2 to compare. Add one, or write its clip and step under"),
    ({"arms": {}}, "arms must be at least 2 to compare"),
    ({"arms": ["a", "b"]}, "arms = ['a', 'b'] must be a mapping of fields"),
    (arms(**{"a b": armed()["arms"]["low"]}), "arms = 'a b' must be 1 to 100 letters, digits"),
    (arms(low={"clip": {"policy": "fixd", "value": 1}}), "arms.low.clip.policy = 'fixd' must be one of"),
    (arms(low={"clip": None}), "arms.low.clip is missing. See: sweeper kinds clip."),
    (arms(low={"stp": STEP}), "arms.low.stp is not a field of an arm, which holds clip, step and trainer; did you mean step?"),
    (arms(slow={"trainer": {"kind": "dp-sgd", "steps": 3}}), "arms.slow.trainer.batch_size is missing"),
    ({"trainer": None}, "trainer is missing"),
    (arms(low=FIXED), "arms.low searches nothing, so protocol select-best would pay for choosing among equals"),
    ({"protocol": {"kind": "no-tuning"}}, "arms.wide.clip.clip_norm is searched, but protocol no-tuning runs one setting"),
    (
        arms(slow={"trainer": {"kind": "dp-sgd", "batch_size": 40_000, "steps": 3}}),
        "arms.slow.trainer.batch_size = 40000 must be at most the number of rows, 32,561",
    ),
    (
        arms(slow={"trainer": {"kind": "dp-sgd", "batch_size": 64, "steps": 3, "sampling": "without-replacement"}}),
        "arms.slow.trainer.sampling = 'without-replacement' is priced for replace-one and arm wide for zero-out: the arms add up",
    ),
    (arms(low={"clip": {"policy": "fixed", "percentile": 50}}), "arms.low.clip.percentile = 50 is refused: it is computed from"),
    (
        arms(low={"trainer": {"kind": "dp-sgd", "batch_size": 64, "steps": 3, "seed": 1}}),
        "arms.low.trainer.seed = 1 is refused: whoever knows the seed sees through the noise",
    ),
    (
        arms(low={"trainer": {"kind": "dp-sgd", "batch_size": 64, "steps": 3, "restarts": 2}}),
        "arms.low.trainer.restarts = 2 is refused: it chooses by scores inside a trial",
    ),
]


@pytest.mark.parametrize(("change", "words"), BAD, ids=[words[:40] for _, words in BAD])
def test_what_is_wrong_with_arms_is_said_where_it_stands(change, words):
    data = {key: value for key, value in (armed() | change).items() if value is not None}
    with pytest.raises(FieldError) as caught:
        sweep_from_dict(data)
    assert str(caught.value).startswith(words)


def test_relations_may_differ_where_each_arm_is_billed_alone():
    mixed = arms(slow={"trainer": {"kind": "dp-sgd", "batch_size": 64, "steps": 3, "sampling": "without-replacement"}})
    spec = sweep_from_dict(armed(data={"source": "adult", "public": True}) | mixed)
    assert {name: own.trainer.relation for name, own in spec.by_arm().items()} == {
        "wide": "zero-out",
        "low": "zero-out",
        "slow": "replace-one",
    }


def test_arms_of_which_each_has_a_trainer_need_no_other_in_python():
    spec = sweep_from_dict(armed())
    again = type(spec)(**{name: getattr(spec, name) for name in (f.name for f in dataclasses.fields(spec))})
    assert again == spec
