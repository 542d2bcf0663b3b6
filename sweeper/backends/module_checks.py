"""What a user's module must keep beside right gradients, on made-up records; each is a refusal by name.

Shapes: B records, d features, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sweeper.backends.per_record import Engine
from sweeper.backends.torch_state import global_randomness
from sweeper.backends.user_module import UserModule, dropouts, tensors_of
from sweeper.checks import FieldError

_TOLERANCE = 2e-3  # of a record's outputs ...
_LEAST = 0.1  # ... but no less than of these
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
    with global_randomness(None) as where:
        random = where()
        yield
        drew = not torch.equal(where(), random)
    for name, value in tensors_of(engine.module).items():
        if name not in before or not torch.equal(value.nan_to_num(), before[name].nan_to_num()):
            raise _keeps(engine, name)
    if drew:
        raise engine.fault("draws random numbers by itself", "Use torch.nn.Dropout layers, whose numbers can be replayed.")


def one_output_per_class(engine: Engine, features_Bd: Tensor, classes: int) -> Tensor:
    """The outputs [B, K], which must be such."""
    try:
        with torch.no_grad():
            found = engine.module(engine.user.shaped(features_Bd))
    except Exception as error:
        rule = f"raised {type(error).__name__} on made-up records {list(engine.user.shaped(features_Bd).shape)}: {text_of(error)}"
        raise engine.fault(rule, "Set model.shape to the shape of one record, and model.integers: true for tokens.") from error
    wanted = [len(features_Bd), classes]
    if not isinstance(found, Tensor) or list(found.shape) != wanted:
        what = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise engine.fault(f"gives {what} for {wanted[0]} records, and must give {wanted}, one output per class")
    return found


def alike_in_evaluation(engine: Engine, features_Bd: Tensor, classes: int) -> None:
    """Scores count predictions, and searched steps add up losses: there too a record must have a part in its own only."""
    with _modes_kept(engine.module):
        engine.module.eval()
        together_BK = one_output_per_class(engine, features_Bd, classes).double()
        alone_BK = torch.cat([one_output_per_class(engine, one_1d, classes).double() for one_1d in features_Bd.split(1)])
    off_B = (together_BK - alone_BK).norm(dim=1) / alone_BK.norm(dim=1).clamp(min=_LEAST)
    if not bool((off_B <= _TOLERANCE).all()):
        rule = f"gives a record other outputs in a batch than alone when it is evaluated (off by {float(off_B.max()):.2g})"
        raise engine.fault(rule, "Write it so that each record is mapped by itself, after .eval() too.")


def zeros_pass(engine: Engine, features_Bd: Tensor) -> None:
    """A missing record is a row of zeros: if the module raised an error on it, it could be seen that one is missing."""
    zeros_Bd = torch.zeros_like(features_Bd[:2])
    for rows_Bd in (zeros_Bd, torch.cat([zeros_Bd, features_Bd[:1]])):
        labels_B = torch.zeros(len(rows_Bd), dtype=torch.int64)
        with _modes_kept(engine.module):
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
    with _modes_kept(engine.module), global_randomness(None) as where:
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
    with torch.enable_grad(), engine.rounded():
        outputs = engine.module(engine.user.shaped(features_Bd))
    try:
        loss = engine.user.losses(outputs, labels_B).sum()
    except FieldError:
        raise
    except Exception as error:
        rule = f"raised {type(error).__name__} on outputs {list(outputs.shape)} and labels {list(labels_B.shape)}: {text_of(error)}"
        hint = "It must take outputs [B, classes] and labels [B], and give a loss for each."
        raise FieldError("model.loss", engine.user.model.loss, rule, hint) from error
    try:
        found = torch.autograd.grad(loss, engine.trained, allow_unused=True)
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
def _modes_kept(module: nn.Module) -> Iterator[None]:
    """Each layer in training or evaluation afterwards as it was."""
    modes = [(layer, layer.training) for layer in module.modules()]
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode
