"""A user's module before any data is opened: whether its records' gradients come out right, on made-up records.

Every record's gradient in a batch, by the rules of records.py, is compared with the gradient of that record alone, by autograd.
Batches of several sizes, with records a hundred times larger among them, at the parameters' start and off it: a layer that mixes
records, shares what it should not, or has a wrong rule shows. What else a module must keep is in module_checks.py. It is a test, no
proof: a module whose code asks what else is in the batch can still hide it.
Shapes: B records, d features, L trained parameters (tensors).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from sweeper.backends import module_checks
from sweeper.backends.per_record import Engine
from sweeper.backends.recorder import Overwritten
from sweeper.backends.records import FUNCTIONAL, GHOST, RULE, Built, LayerFailed, way_of
from sweeper.backends.user_module import dropouts, user_module
from sweeper.models.module import HOOKS, LARGEST_MICROBATCH, ModuleModel
from sweeper.spec.protocols import Description

_FLOATS = 2**26  # of a micro-batch's gradients and activations, 256 MB
_TOLERANCE = {"float32": 2e-3, "bfloat16": 0.2}  # of a record's gradient by one parameter tensor, but no less than ...
_LEAST = {"float32": 0.01, "bfloat16": 1.0}  # ... of its whole gradient, float noise, and no less than ...
_NOISE = 1e-5  # ... of the batch's largest: where a record is fitted to the last bit its gradient is rounding alone
_SIZES = (5, 3, 2)  # of the made-up batches


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What was found. `ways`: how each layer's gradients are made, by the layer's name."""

    parameters: int  # trained numbers, P
    layers: tuple[tuple[str, str, str], ...]  # name, kind of layer, way
    ways: Mapping[str, str]
    copied: frozenset[str]  # layers whose outputs the module changes in place
    mode: str  # ghost, or hooks where no layer allows ghost norms
    checked: int  # made-up records
    error: float  # largest difference, as a part of the record's gradient
    microbatch: int
    replaced: tuple[str, ...]
    notes: tuple[str, ...]

    def line(self) -> str:
        """For people, in one line."""
        counts = {way: sum(found == way for _, _, found in self.layers) for way in (GHOST, RULE, FUNCTIONAL)}
        how = ", ".join(f"{way} in {count} layer{'s' if count > 1 else ''}" for way, count in counts.items() if count)
        checked = f"checked against a loop over {self.checked} made-up records"
        return f"{self.parameters:,} trained parameters; per-record gradients: {how}; {checked}"


@lru_cache(maxsize=8)
def examined(model: ModuleModel, description: Description) -> Examination:
    """Build the module, compare its gradients, choose the rules and the micro-batch. Reads nothing but these two.

    Raises:
      FieldError: it cannot be trained record by record; names the layer or parameter and what to do.
    """
    user = user_module(model)
    module = user.built()
    user.check_same_again(module)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    module_checks.no_odd_embeddings(user, module)
    for layer in dropouts(module):
        layer.eval()
    engine = Engine(user, module, {})
    if not engine.recorder.owners:
        raise engine.fault("has trained parameters that belong to no layer of it")
    for name, layer in engine.recorder.owners:
        way = way_of(layer)
        engine.ways[name] = RULE if way == GHOST and model.per_record == HOOKS else way
    worst, checked, each = 0.0, 0, 0
    with module_checks.untouched(engine):
        module_checks.one_output_per_class(engine, next(_made_up(module, model, description))[0], description.classes)
    with module_checks.untouched(engine):
        for precision, moved in dict.fromkeys((("float32", False), ("float32", True), (model.precision, True))):
            engine.precision = precision
            with module_checks.moved(engine, names) if moved else nullcontext():
                for features_Bd, labels_B in _made_up(module, model, description):
                    module_checks.one_output_per_class(engine, features_Bd, description.classes)
                    worst = max(worst, _compared(engine, features_Bd, labels_B, names))
                    checked += len(labels_B)
                    each = max(each, _numbers(engine, features_Bd, labels_B))
                    module_checks.alike_in_evaluation(engine, features_Bd, description.classes)
        module_checks.zeros_pass(engine, next(_made_up(module, model, description))[0])
    with module_checks.moved(engine, names):
        module_checks.dropout_is_replayed(engine, *next(_made_up(module, model, description)), _TOLERANCE[engine.precision])
    for name in engine.repeated:
        engine.ways[name] = RULE if engine.ways[name] == GHOST else engine.ways[name]
    largest = 2 ** int(math.log2(max(_FLOATS / max(each, 1), 1)))
    layers = tuple((name, type(layer).__name__, engine.ways[name]) for name, layer in engine.recorder.owners)
    return Examination(
        parameters=sum(parameter.numel() for parameter in engine.trained),
        layers=layers,
        ways=dict(engine.ways),
        copied=engine.recorder.copied,
        mode=GHOST if GHOST in engine.ways.values() else RULE,
        checked=checked,
        error=worst,
        microbatch=model.microbatch or min(LARGEST_MICROBATCH, largest),
        replaced=user.replaced,
        notes=user.notes + _unused(engine, names),
    )


def _made_up(module: nn.Module, model: ModuleModel, description: Description) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of made-up records, some of them outliers; tokens are such that every embedding knows them."""
    draws = torch.Generator().manual_seed(0)
    tokens = [layer.num_embeddings for layer in module.modules() if isinstance(layer, (nn.Embedding, nn.EmbeddingBag))]
    for at, size in enumerate(_SIZES):
        shape = (size, description.features)
        if model.integers:
            features_Bd = torch.randint(0, min(tokens, default=2), shape, generator=draws).float()
        else:
            features_Bd = torch.rand(shape, generator=draws) if at == 0 else torch.randn(shape, generator=draws)
            features_Bd[1:2] *= 100.0 if at else 1.0
        yield features_Bd, torch.randint(0, description.classes, (size,), generator=draws)


def _compared(engine: Engine, features_Bd: Tensor, labels_B: Tensor, names: Mapping[int, str]) -> float:
    """Largest difference of a record's gradient or norm from the loop, as a part of it. A layer whose rule errs gets vmap's."""
    alone = [module_checks.gradients(engine, features_Bd[at : at + 1], labels_B[at : at + 1]) for at in range(len(labels_B))]
    real_B = torch.ones(len(labels_B), dtype=torch.bool)
    while True:
        try:
            parts = engine.parts(features_Bd, labels_B, real_B)
        except Overwritten as found_out:
            engine.recorder.copied |= found_out.names
            continue
        except LayerFailed as failed:
            if engine.ways[failed.name] == FUNCTIONAL:
                rule = f"has {failed.name}, a {failed.kind}, whose gradients cannot be made record by record ({failed})"
                raise engine.fault(rule, "Write it with torch's own layers.") from failed
            engine.ways[failed.name] = FUNCTIONAL
            continue
        worst, wrong = 0.0, None
        wholes = [math.sqrt(sum(float(part.double().square().sum()) for part in parts)) for parts in alone]
        for at, whole in enumerate(wholes):
            one_B = torch.zeros(len(labels_B))
            one_B[at] = 1.0
            least = max(_LEAST[engine.precision] * whole, _NOISE * max(wholes), _NOISE)
            for place, part in enumerate(parts):
                expected = alone[at][place].double()
                found = part.sum(one_B).double() if part is not None else torch.zeros_like(expected)
                length = math.sqrt(float(part.squares()[at])) if part is not None else 0.0
                own = float(expected.norm())
                off = max(float((found - expected).norm()), abs(length - own)) / max(own, least)
                if not off <= worst:
                    worst, wrong = off, place
        if worst <= _TOLERANCE[engine.precision]:
            return worst
        assert wrong is not None
        _give_way(engine, wrong, worst, names)


def _give_way(engine: Engine, wrong: int, worst: float, names: Mapping[int, str]) -> None:
    """Have the layer of a parameter that came out wrong done by vmap, if it is not already."""
    parameter = engine.trained[wrong]
    for name, layer in engine.recorder.owners:
        if engine.ways[name] != FUNCTIONAL and any(own is parameter for own in layer.parameters()):
            engine.ways[name] = FUNCTIONAL
            return
    rule = (
        f"has {names[id(parameter)]}, whose gradient for a record is not the same in a batch as alone (off by {worst:.2g}): "
        "records of a batch have a part in each other's outputs, or the parameter is used outside of its layer's forward"
    )
    raise engine.fault(rule, "Freeze it, or write the module so that each record is mapped by itself.")


def _numbers(engine: Engine, features_Bd: Tensor, labels_B: Tensor) -> int:
    """How many numbers a record keeps at once: what is built for it, and its layers' inputs, outputs and derivatives."""
    parts = engine.parts(features_Bd, labels_B, torch.ones(len(labels_B), dtype=torch.bool))
    built = sum(part.gradients.numel() for part in parts if isinstance(part, Built))
    return (built + engine.activations) // len(labels_B)


def _unused(engine: Engine, names: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(
        f"{names[id(engine.trained[at])]}: had no part in any output, and gets noise alone" for at in sorted(engine.unused)
    )
