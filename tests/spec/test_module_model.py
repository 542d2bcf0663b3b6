"""`model: {module: ...}` in a file: what it may hold, what it is refused with, and that pricing it builds nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tiny_sweeps import spec_of, tiny

from sweeper import catalog
from sweeper.checks import FieldError
from sweeper.spec.codec import fingerprint

MODEL = {"module": "nobody.has.this:build", "args": {"width": 8, "layers": [1, 2]}, "shape": [15, 7]}


def test_its_kind_is_inferred_and_it_round_trips():
    spec = spec_of(model=MODEL)
    assert (spec.model.kind, spec.model.shape, spec.model.loss) == ("module", (15, 7), "cross-entropy")
    again = catalog.sweep_from_dict(catalog_dict(spec))
    assert again == spec
    assert fingerprint(again) == fingerprint(spec) == fingerprint(spec_of(model=MODEL | {"kind": "module"}))
    assert fingerprint(spec) != fingerprint(spec_of(model=MODEL | {"args": {"width": 9, "layers": [1, 2]}}))


def catalog_dict(spec):
    from ruamel.yaml import YAML

    return YAML(typ="safe", pure=True).load(catalog.dump_spec(spec))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"module": "nobody"}, "model.module = 'nobody' must be package.module:function"),
        ({"module": "no-body:build"}, "must be package.module:function"),
        ({"args": [1]}, r"model.args = \[1\] must be a mapping from names of parameters to values"),
        ({"args": {"a b": 1}}, "must be a mapping from names"),
        ({"loss": "mean"}, "model.loss = 'mean' must be package.module:function, or cross-entropy"),
        ({"shape": [28, 28]}, r"model.shape = \[28, 28\] holds 784 numbers, and a row has 105 features"),
        ({"shape": []}, "model.shape .* must be a list of whole numbers"),
        ({"shape": [0, 105]}, "model.shape"),
        ({"precision": "float16"}, "model.precision = 'float16' must be one of float32, bfloat16"),
        ({"per_record": "ghost"}, "model.per_record = 'ghost' must be one of auto, hooks"),
        ({"microbatch": 129}, "model.microbatch = 129"),
        ({"replace": "yes"}, "model.replace = 'yes' must be true or false"),
        ({"integers": 1}, "model.integers"),
        ({"l2": -1.0}, "model.l2"),
        ({"widht": 3}, "model.widht is not a field of model module"),
        ({"kind": "mlp"}, "model.module is not a field of model mlp"),
    ],
)
def test_what_it_is_refused_with(changes, words):
    with pytest.raises(FieldError, match=words):
        spec_of(model=MODEL | changes)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        (
            {"trainer": {"kind": "objective-perturbation"}, "space": {"clip": {"policy": "none"}, "step": {"policy": "none"}}},
            "model",
        ),
        (
            {
                "trainer": {"kind": "output-perturbation-gd", "steps": 9},
                "space": {"clip": {"policy": "none"}, "step": {"policy": "none"}},
            },
            "model",
        ),
        ({"trainer": {"kind": "majority"}, "space": {"clip": {"policy": "none"}, "step": {"policy": "none"}}}, "model"),
        (
            {
                "space": {
                    "clip": {"policy": "private-quantile", "quantile": 0.5, "epsilon": 1.0},
                    "step": {"policy": "fixed", "value": 1.0},
                }
            },
            "space.clip",
        ),
        (
            {
                "space": {
                    "clip": {"policy": "fixed", "value": 1.0},
                    "step": {"policy": "theory", "theorem": "N.1", "value": 1.0, "smoothness": 2.0},
                }
            },
            "space.step",
        ),
    ],
    ids=["objective", "output", "majority", "quantile of constants", "theory"],
)
def test_what_needs_a_convex_model_is_refused_by_name(changes, field):
    with pytest.raises(FieldError) as refused:
        spec_of(model=MODEL, protocol={"kind": "no-tuning"}, **changes)
    assert refused.value.field.startswith(field)
    assert "module" in str(refused.value) or "bounds" in str(refused.value)


def test_a_price_needs_neither_the_module_nor_torch(tmp_path):
    import json

    (tmp_path / "own.yaml").write_text(json.dumps(tiny(model=MODEL)))
    program = (
        "import sys; from sweeper.cli import main; code = main(['plan', 'own.yaml']);"
        "assert not {'torch', 'opacus', 'nobody'} & set(sys.modules), set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "module on adult" in done.stdout
