"""What a user's module must keep beside right gradients, on made-up records; each is a refusal by name.

Shapes: B records, d features, K classes.
"""

from __future__ import annotations

import math
import pickle
import random as random_of_python
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from sweeper.backends.attributes import attributes_of, marks_of
from sweeper.backends.made_up import MadeUp
from sweeper.backends.per_record import Engine
from sweeper.backends.torch_state import global_randomness
from sweeper.backends.user_module import UserModule, dropouts, tensors_of
from sweeper.backends.watched import Followed, followed
from sweeper.checks import FieldError

_NOTHING = 1e-5  # a gradient that is rounding alone


def no_odd_embeddings(user: UserModule, module: nn.Module) -> None:
    for name, layer in module.named_modules():
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.weight.requires_grad:
            for option in ("max_norm", "scale_grad_by_freq"):
                if getattr(layer, option):
                    rule = f"has {name}, a {type(layer).__name__} with {option}, which lets the batch change a record's gradient"
                    raise FieldError("model.module", user.model.module, rule, f"Build it without {option}.")


@contextmanager
def moved(engine: Engine, names: Mapping[int, str]) -> Iterator[None]:
    """Parameters off their start, where a last layer of zeros would hide whatever is wrong in the layers before it."""
    draws, start = torch.Generator().manual_seed(1), [parameter.detach().clone() for parameter in engine.trained]
    with torch.no_grad():
        for parameter in engine.trained:
            size = 0.1 * float(parameter.square().mean().sqrt()) + 0.05
            parameter.add_(torch.randn(parameter.shape, generator=draws), alpha=size)
    placed = [parameter.detach().clone() for parameter in engine.trained]
    yield
    for parameter, value in zip(engine.trained, placed, strict=True):
        if not torch.equal(parameter, value):
            raise _keeps(engine, names[id(parameter)])
    with torch.no_grad():
        for parameter, value in zip(engine.trained, start, strict=True):
            parameter.copy_(value)


@contextmanager
def untouched(engine: Engine) -> Iterator[None]:
    """Forward passes must change no buffer and no parameter, and draw no random number once dropout layers rest."""
    before = {name: value.clone() for name, value in tensors_of(engine.module).items()}
    others = _other_draws()
    with global_randomness(None) as where:
        random = where()
        yield
        drew = not torch.equal(where(), random)
    for name, value in tensors_of(engine.module).items():
        if name not in before or not torch.equal(value.nan_to_num(), before[name].nan_to_num()):
            raise _keeps(engine, name)
    if drew or _other_draws() != others:
        raise engine.fault("draws random numbers by itself", "Use torch.nn.Dropout layers, whose numbers can be replayed.")


def _other_draws() -> tuple[str, bytes]:
    """Where the generators of Python and numpy stand."""
    return repr(random_of_python.getstate()), pickle.dumps(np.random.get_state())


def keeps_nothing(engine: Engine, made_up: MadeUp, size: int) -> Followed:
    """What is read out of records in passes of this size, in training with and without dropout and in evaluation.

    Raises:
      FieldError: somebody keeps what is made of records, or something changes from pass to pass; names the attribute.
    """
    features_Bd, labels_B = made_up.batch(size)
    read, loss = Followed(), engine.user.loss_function

    def trained() -> None:
        losses_B = losses_with_graph(engine, features_Bd, labels_B)
        torch.autograd.grad(losses_B.sum(), engine.trained, allow_unused=True)

    def evaluated() -> None:
        with torch.no_grad():
            engine.user.losses(engine.outputs(features_Bd), labels_B)

    for run, drops in ((trained, False), (trained, True), (evaluated, False)):
        with modes_kept(engine.module), global_randomness(None) if drops else nullcontext():
            if run is evaluated:
                engine.module.eval()
            for layer in dropouts(engine.module) if drops else ():
                layer.train()
            marks = [marks_of(engine.module, loss)]
            for _ in range(2):
                found = followed(run, features_Bd, labels_B)
                read.places |= found.places
                marks.append(marks_of(engine.module, loss))
                nothing_held(engine, found)
            # what is made once, as a table of positions is, may be made in the first pass, if nothing of a record can be in it
            first, last = marks[0 if read.places else 1], marks[2]
            for name in first.keys() | last.keys():
                if first.get(name) != last.get(name):
                    raise _keeps(engine, name)
    return read


def nothing_held(engine: Engine, found: Followed) -> None:
    """Raises FieldError where a tensor that was made of records in a pass is still there."""
    for name, value in (*tensors_of(engine.module).items(), *attributes_of(engine.module, engine.user.loss_function)):
        if found.holds(value):
            raise _keeps(engine, name)
    if found.kept:
        raise engine.fault("keeps tensors that are made of its records", "Have it keep nothing but parameters, wherever it is.")


def one_output_per_class(engine: Engine, features_Bd: Tensor, classes: int) -> Tensor:
    """The outputs [B, K], which must be such."""
    try:
        with torch.no_grad():
            found = engine.outputs(features_Bd)
    except Exception as error:
        rule = f"raised {type(error).__name__} on made-up records {list(engine.user.shaped(features_Bd).shape)}: {text_of(error)}"
        raise engine.fault(rule, "Set model.shape to the shape of one record, and model.integers: true for tokens.") from error
    wanted = [len(features_Bd), classes]
    if not isinstance(found, Tensor) or list(found.shape) != wanted:
        what = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise engine.fault(f"gives {what} for {wanted[0]} records, and must give {wanted}, one output per class")
    return found


def zeros_pass(engine: Engine, features_Bd: Tensor) -> None:
    """A missing record is a row of zeros: if the module raised an error on it, it could be seen that one is missing."""
    zeros_Bd = torch.zeros_like(features_Bd)
    some_Bd = torch.cat([features_Bd[:1], zeros_Bd[1:]])
    for rows_Bd in (zeros_Bd, some_Bd):
        labels_B = torch.zeros(len(rows_Bd), dtype=torch.int64)
        with modes_kept(engine.module):
            try:
                engine.parts(rows_Bd, labels_B, labels_B == 1)
                engine.module.eval()
                engine.losses(rows_Bd, labels_B)
            except Exception as error:
                rule = f"raised {type(error).__name__} on a record of zeros, which stands for one that is missing: {text_of(error)}"
                raise engine.fault(rule, "Have it take zeros; what it gives for them is not used.") from error


def dropout_is_replayed(engine: Engine, features_Bd: Tensor, labels_B: Tensor, tolerance: float) -> None:
    """Where dropout is inside a layer whose gradients are built by calling it again, its masks must be the same again."""
    inside = [name for name, layer in engine.recorder.owners if dropouts(layer)]
    if not inside:
        return
    ones_B = torch.ones(len(labels_B))
    with modes_kept(engine.module), global_randomness(None) as where:
        for layer in dropouts(engine.module):
            layer.train()
        random = where()
        wanted = gradients(engine, features_Bd, labels_B)
        torch.set_rng_state(random)
        parts = engine.parts(features_Bd, labels_B, ones_B == 1)
    found = [torch.zeros_like(w) if p is None else p.sum(ones_B) for p, w in zip(parts, wanted, strict=True)]
    off = math.hypot(*(float((f.double() - w.double()).norm()) for f, w in zip(found, wanted, strict=True)))
    if not off <= tolerance * max(math.hypot(*(float(w.double().norm()) for w in wanted)), _NOTHING):
        rule = f"has {inside[0]}, whose dropout draws other numbers when its records' gradients are built"
        raise engine.fault(rule, "Put dropout between layers, not inside one that holds parameters itself.")


def gradients(engine: Engine, features_Bd: Tensor, labels_B: Tensor) -> list[Tensor]:
    """The gradient of the sum of the records' losses by each trained parameter, by autograd."""
    return gradient_of(engine, losses_with_graph(engine, features_Bd, labels_B).sum())


def losses_with_graph(engine: Engine, features_Bd: Tensor, labels_B: Tensor) -> Tensor:
    """Each record's loss [B]."""
    with torch.enable_grad():
        try:
            outputs = engine.outputs(features_Bd)
        except Exception as error:
            rule = f"raised {type(error).__name__} where a gradient is wanted: {text_of(error)}"
            raise engine.fault(rule, "Call it in Python, in training mode and without torch.no_grad().") from error
        try:
            return engine.user.losses(outputs, labels_B)
        except FieldError:
            raise
        except Exception as error:
            shapes = f"outputs {list(outputs.shape)} and labels {list(labels_B.shape)}"
            rule = f"raised {type(error).__name__} on {shapes}: {text_of(error)}"
            hint = "It must take outputs [B, classes] and labels [B], and give a loss for each."
            raise FieldError("model.loss", engine.user.model.loss, rule, hint) from error


def gradient_of(engine: Engine, loss: Tensor) -> list[Tensor]:
    """By each trained parameter, by autograd; the graph stays."""
    try:
        found = torch.autograd.grad(loss, engine.trained, allow_unused=True, retain_graph=True)
    except RuntimeError as error:
        rule = f"has outputs or a loss of which no gradient can be taken: {text_of(error)}"
        raise engine.fault(rule, "Call backward() on its loss in Python to see more.") from error
    return [torch.zeros_like(p) if g is None else g.to_dense() for p, g in zip(engine.trained, found, strict=True)]


def text_of(error: Exception) -> str:
    """In one line."""
    return " ".join(str(error).split())[:200]


def _keeps(engine: Engine, name: str) -> FieldError:
    return engine.fault(f"changes {name} while it computes, which would keep what records left there", "Leave that layer out.")


@contextmanager
def modes_kept(module: nn.Module) -> Iterator[None]:
    """Each layer in training or evaluation afterwards as it was."""
    modes = [(layer, layer.training) for layer in module.modules()]
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode
