"""A user's module before any data is opened: whether its records' gradients come out right, on made-up records.

Every record's gradient in a batch, by the rules of records.py, is compared with autograd's of that record's loss in the same batch:
a layer that shares what it should not, or has a wrong rule, shows. That no record has a part in another's is looked at in
neighbours.py, what else a module must keep in module_checks.py. It is a test, no proof.
Shapes: B records, d features, L trained parameters (tensors).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from sweeper.backends import module_checks
from sweeper.backends.attributes import whole_numbers_of
from sweeper.backends.made_up import MadeUp
from sweeper.backends.neighbours import no_label_counts, nobody_else_counts, same_again
from sweeper.backends.per_record import Engine
from sweeper.backends.records import FUNCTIONAL, GHOST, RULE, Built, LayerFailed, Part, way_of
from sweeper.backends.sizes import LEAST, sizes_up_to
from sweeper.backends.user_module import UserModule, dropouts, training, user_module, warmed
from sweeper.backends.watched import followed
from sweeper.checks import FieldError
from sweeper.models.module import HOOKS, LARGEST_MICROBATCH, ModuleModel
from sweeper.spec.protocols import Description

_FLOATS = 2**26  # of a micro-batch's gradients and activations, 256 MB
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2}  # of a record's gradient by one parameter tensor, but no less than ...
_BUILT = 50  # times as much where what is measured is what is summed: vmap computes a deep layer anew by other kernels
_LEAST = {"float32": 0.01, "bfloat16": 1.0}  # ... of its whole gradient, float noise, and no less than ...
_NOISE = 1e-5  # ... of the batch's largest: where a record is fitted to the last bit its gradient is rounding alone
_BATCHES = ((0, False, (0, 1, 2, LEAST - 1)), (5, True, (0, 1, 4)))  # that are compared: seed, whether wide, and which records
_PASSES = 60  # forward ones, or as much work, for a record of each size that is looked at
_WORK = 1.5e12  # floating-point operations, about a minute of one core
_SPECIAL = 40  # whole numbers in the module's code that are tried as tokens
_QUIET = 3.0  # seconds without a word


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What was found. `ways`: how each layer's gradients are made, by the layer's name; `sizes`: of the batches of a run."""

    parameters: int  # trained numbers, P
    layers: tuple[tuple[str, str, str], ...]  # name, kind of layer, way
    ways: Mapping[str, str]
    copied: frozenset[str]  # layers whose inputs or outputs the module changes in place
    mode: str  # ghost, or hooks where no layer allows ghost norms
    checked: int  # made-up records
    exchanged: int  # made-up records put in another's place, to see whether anybody else's numbers change
    error: float  # largest difference, as a part of the record's gradient
    sizes: tuple[int, ...]
    tokens: int | None  # whole numbers below it are known to the module, where it takes such
    replaced: tuple[str, ...]
    notes: tuple[str, ...]
    digest: str  # of the module that was looked at

    @property
    def microbatch(self) -> int:
        """Records worked off at once."""
        return self.sizes[-1]

    def line(self) -> str:
        """For people, in one line."""
        counts = {way: sum(found == way for _, _, found in self.layers) for way in (GHOST, RULE, FUNCTIONAL)}
        how = ", ".join(f"{way} in {count} layer{'s' if count > 1 else ''}" for way, count in counts.items() if count)
        checked = f"checked on {self.checked} made-up records and {self.exchanged} exchanges of one"
        return f"{self.parameters:,} trained parameters; per-record gradients: {how}; {checked}"


_KNOWN: dict[tuple[ModuleModel, Description], Examination] = {}


def examined(model: ModuleModel, description: Description, say: Callable[[str], None] = lambda _: None) -> Examination:
    """Build the module, compare its gradients, choose the rules and the micro-batch. Reads nothing but these two.

    say: is told every few seconds what is being looked at.

    Raises:
      FieldError: it cannot be trained record by record; names the layer or parameter and what to do.
    """
    if (model, description) not in _KNOWN:
        known(model, description, _examined(model, description, _now_and_then(say)))
    return _KNOWN[model, description]


def known(model: ModuleModel, description: Description, found: Examination) -> None:
    """What another process found out, so that this one need not.

    Raises:
      FieldError: the module that is built here is another one.
    """
    user = user_module(model)
    user.check_same(found.digest)
    user.made_up, user.sizes = made_up_of(description, found.tokens), found.sizes
    warmed(user, user.template, user.made_up, user.sizes)
    _KNOWN[model, description] = found


def made_up_of(description: Description, tokens: int | None) -> MadeUp:
    return MadeUp(features=description.features, classes=description.classes, tokens=tokens)


def _now_and_then(say: Callable[[str], None]) -> Callable[[str], None]:
    """Says what it is told if nothing was said for a while."""
    last = [time.monotonic()]

    def told(text: str) -> None:
        if time.monotonic() - last[0] > _QUIET:
            last[0] = time.monotonic()
            say(text)

    return told


def _examined(model: ModuleModel, description: Description, say: Callable[[str], None]) -> Examination:
    user = user_module(model)
    module = user.built()
    user.check_same_again(module)
    least = min(LEAST, model.microbatch or LEAST)
    made_up, places = _takes(user, description, least)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    for layer in dropouts(module):
        layer.eval()
    engine = Engine(user, module, {})
    if not engine.recorder.owners:
        raise engine.fault("has trained parameters that belong to no layer of it")
    for name, layer in engine.recorder.owners:
        way = way_of(layer)
        engine.ways[name] = RULE if way == GHOST and model.per_record == HOOKS else way
    with module_checks.untouched(engine):
        places |= module_checks.keeps_nothing(engine, made_up, least).places
    if places:
        _alone(engine, places)
        least = 1
        module_checks.one_output_per_class(engine, made_up.batch(1)[0], description.classes)
    worst, checked, each, exchanged = 0.0, 0, 0, 0
    with module_checks.untouched(engine):
        batches = [_taken(engine, made_up, least, seed, wide) for seed, wide, _ in _BATCHES]
        pieces = [piece for rows, labels in batches for piece in zip(rows.split(least), labels.split(least), strict=True)]
        with module_checks.moved(engine, names):
            for some_Bd, some_B in pieces:
                each = max(each, _numbers(engine, _working(engine, some_Bd, some_B), len(some_B)))
            same_again(engine, pieces)
            if least > 1:
                no_label_counts(engine, description.classes, least)
                exchanged += nobody_else_counts(engine, made_up, least, thorough=True)
        for precision, moved in dict.fromkeys((("float32", False), ("float32", True), (model.precision, True))):
            engine.precision = precision
            with module_checks.moved(engine, names) if moved else nullcontext():
                for (rows_Bd, labels_B), (_, _, some) in zip(batches, _BATCHES, strict=True):
                    say(f"gradients of records against autograd's, in {precision}")
                    pairs = [(rows_Bd, labels_B, some)] if least > 1 else [(rows_Bd[[at]], labels_B[[at]], (0,)) for at in some]
                    for some_Bd, some_B, compared in pairs:
                        worst = max(worst, _compared(engine, some_Bd, some_B, names, compared))
                        checked += len(compared)
        module_checks.zeros_pass(engine, made_up.batch(least)[0])
    sizes = _sizes(engine, made_up, least, each)
    with module_checks.untouched(engine), module_checks.moved(engine, names):
        for at, size in enumerate(sizes[1:], start=2):
            say(f"batches of {size}, the {at}. of {len(sizes)} sizes")
            if found := module_checks.keeps_nothing(engine, made_up, size).places:
                rule = f"reads numbers out of its records at {_said(found)} in batches of {size}, and not of {least}"
                raise engine.fault(rule, "Write it alike for all sizes.")
            no_label_counts(engine, description.classes, size)
            exchanged += nobody_else_counts(engine, made_up, size, thorough=False)
            worst = max(worst, _compared(engine, *made_up.batch(size, 6), names, (0, size - 1)))
            checked += 2
    with module_checks.moved(engine, names):
        features_Bd, labels_B = made_up.batch(least)
        module_checks.dropout_is_replayed(engine, features_Bd, labels_B, _TOLERANCE[engine.precision])
    for name in engine.repeated:
        engine.ways[name] = RULE if engine.ways[name] == GHOST else engine.ways[name]
    layers = tuple((name, type(layer).__name__, engine.ways[name]) for name, layer in engine.recorder.owners)
    return Examination(
        parameters=sum(parameter.numel() for parameter in engine.trained),
        layers=layers,
        ways=dict(engine.ways),
        copied=engine.recorder.copied,
        mode=GHOST if GHOST in engine.ways.values() else RULE,
        checked=checked,
        exchanged=exchanged,
        error=worst,
        sizes=sizes,
        tokens=made_up.tokens,
        replaced=user.replaced,
        notes=user.notes + _unused(engine, names) + _slow(places),
        digest=user.digest,
    )


def _sizes(engine: Engine, made_up: MadeUp, least: int, each: int) -> tuple[int, ...]:
    """Of the batches of a run: up to what fits into memory (`each`: numbers of a record) and can be looked at in a minute or so."""
    if least == 1:
        return (1,)
    if engine.user.model.microbatch is not None:
        return sizes_up_to(engine.user.model.microbatch)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        engine.outputs(made_up.batch(least)[0])
    work = _PASSES * counter.get_total_flops() / least
    largest = min(LARGEST_MICROBATCH, 2 ** int(math.log2(max(_FLOATS / max(each, 1), 1))))
    while largest > LEAST and work * sum(sizes_up_to(largest)) > _WORK:
        largest //= 2
    return sizes_up_to(largest)


def _alone(engine: Engine, places: Mapping[str, str]) -> None:
    """A module that reads numbers gets its records one at a time, and no record can decide for another.

    Raises:
      FieldError: more at once were asked for.
    """
    if (engine.user.model.microbatch or 1) > 1:
        rule = (
            f"must be 1: the module reads numbers out of its records at {_said(places)}, and could decide for a whole batch by them"
        )
        raise FieldError("model.microbatch", engine.user.model.microbatch, rule, "Leave it out, or write that with torch.where.")


def _slow(places: Mapping[str, str]) -> tuple[str, ...]:
    if not places:
        return ()
    return (
        f"records go through it one at a time, which is slow: it reads numbers out of them at {_said(places)}, and with others in "
        "a batch one could decide for all; written with torch.where they could go together",
    )


def _said(places: Mapping[str, str]) -> str:
    return ", ".join(f"{place} ({what})" for place, what in list(places.items())[:3])


def _takes(user: UserModule, description: Description, least: int) -> tuple[MadeUp, dict[str, str]]:
    """Made-up records that the module takes, and where it read numbers out of the first ones that this process gave it.

    Tokens are as high as its tables go, or where it fails on them the smallest goes.

    Raises:
      FieldError: it takes none, or no gradient can be taken of what it gives.
    """
    engine = Engine(user, user.template, {})
    module_checks.no_odd_embeddings(user, engine.module)
    tables = [layer for layer in engine.module.modules() if isinstance(layer, (nn.Embedding, nn.EmbeddingBag))]
    highest = sorted({table.num_embeddings for table in tables}, reverse=True) or [2]
    special = tuple(sorted(whole_numbers_of(engine.module)))[:_SPECIAL]
    kinds = [replace(made_up_of(description, tokens), special=special) for tokens in (highest if user.model.integers else [None])]
    for layer in dropouts(engine.module):
        layer.eval()
    try:
        for made_up in kinds:
            rows_Bd, labels_B = made_up.batch(least)
            try:
                with module_checks.untouched(engine):
                    found = followed(
                        lambda rows_Bd=rows_Bd: module_checks.one_output_per_class(engine, rows_Bd, description.classes), rows_Bd
                    )
                    module_checks.nothing_held(engine, found)
                    module_checks.gradients(engine, rows_Bd, labels_B)
            except FieldError as error:
                if made_up is kinds[-1] or not isinstance(error.__cause__, (RuntimeError, IndexError, ValueError)):
                    raise
                continue
            return made_up, found.places
    finally:
        engine.recorder.close()
        training(user.template)
    raise AssertionError("the last kind is returned or refused")


def _taken(engine: Engine, made_up: MadeUp, least: int, seed: int, wide: bool) -> tuple[Tensor, Tensor]:
    """A batch that the module takes: of its wide records some may be what it raises errors on."""
    features_Bd, labels_B = made_up.batch(LEAST, seed, wide=wide)
    try:
        for some_Bd, some_B in zip(features_Bd.split(least), labels_B.split(least), strict=True):
            _working(engine, some_Bd, some_B)
    except FieldError:
        raise
    except Exception as error:
        if not wide:
            rule = f"raised {type(error).__name__} on made-up records: {module_checks.text_of(error)}"
            raise engine.fault(rule, "Have it take any numbers; a record that it cannot take can be mapped to zeros.") from error
        return made_up.batch(LEAST, seed)
    return features_Bd, labels_B


def _working(engine: Engine, features_Bd: Tensor, labels_B: Tensor) -> list[Part | None]:
    """What gradients are made of, by ways that raise no error."""
    while True:
        try:
            return engine.parts(features_Bd, labels_B, torch.ones(len(labels_B), dtype=torch.bool))
        except LayerFailed as failed:
            if engine.ways[failed.name] == FUNCTIONAL:
                rule = f"has {failed.name}, a {failed.kind}, whose gradients cannot be made record by record ({failed})"
                cell = isinstance(dict(engine.recorder.owners)[failed.name], nn.RNNCellBase)
                hint = "Set model.replace: true, or give it its first state." if cell else "Write it with torch's own layers."
                raise engine.fault(rule, hint) from failed
            engine.ways[failed.name] = FUNCTIONAL


def _compared(engine: Engine, features_Bd: Tensor, labels_B: Tensor, names: Mapping[int, str], some: tuple[int, ...]) -> float:
    """Largest difference of a record's gradient or norm from autograd's, as a part of it. A layer whose rule errs gets vmap's."""
    losses_B = module_checks.losses_with_graph(engine, features_Bd, labels_B)
    while True:
        parts = _working(engine, features_Bd, labels_B)
        precision = "bfloat16" if engine.halved else engine.precision
        worst, wrong = 0.0, None
        squares_BL = torch.stack([p.squares() if p else torch.zeros(len(labels_B)) for p in parts], dim=1).double()
        largest = float(squares_BL.sum(dim=1).max().sqrt())
        for at in some:
            alone = module_checks.gradient_of(engine, losses_B[at])
            one_B = torch.zeros(len(labels_B))
            one_B[at] = 1.0
            whole = math.sqrt(sum(float(part.double().square().sum()) for part in alone))
            least = max(_LEAST[precision] * whole, _NOISE * min(largest, 1e3 * whole), _NOISE)
            for place, part in enumerate(parts):
                expected = alone[place].double()
                found = part.sum(one_B).double() if part is not None else torch.zeros_like(expected)
                length = math.sqrt(float(squares_BL[at, place]))
                own = float(expected.norm())
                off = max(float((found - expected).norm()), abs(length - own)) / max(own, least)
                if isinstance(part, Built) and precision == "float32" and off <= _BUILT * _TOLERANCE["float32"]:
                    off /= _BUILT
                if not off <= worst:
                    worst, wrong = off, place
        if worst <= _TOLERANCE[precision]:
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
        f"has {names[id(parameter)]}, whose gradient for a record is not to be had from what its layer gets (off by {worst:.2g}): "
        "the parameter is used outside of its layer's forward, or the layer sees the records in another order"
    )
    raise engine.fault(rule, "Freeze it, or use it in the forward of the layer that holds it, with the records as they came.")


def _numbers(engine: Engine, parts: list[Part | None], records: int) -> int:
    """How many numbers a record keeps at once: what is built for it, and its layers' inputs, outputs and derivatives."""
    built = sum(part.gradients.numel() for part in parts if isinstance(part, Built))
    return (built + engine.activations) // records


def _unused(engine: Engine, names: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(
        f"{names[id(engine.trained[at])]}: had no part in any output, and gets noise alone" for at in sorted(engine.unused)
    )
