"""A module of the user's own, built: which parameters are trained, which layers had to be replaced, and what it predicts.

Parameters are one flat float32 vector params_P: those that require a gradient, in the order of module.parameters().
Shapes: B records, d features, K classes, P parameters.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import os
import sys
import types
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from sweeper import seeds
from sweeper.backends.attributes import marks_of, values_of
from sweeper.backends.made_up import MadeUp
from sweeper.backends.replaced import replaced
from sweeper.backends.sizes import LEAST, cut, filled
from sweeper.backends.stand_ins import batch_norm_hint, what_for
from sweeper.backends.torch_state import global_randomness, in_users_code, settings_kept
from sweeper.checks import FieldError
from sweeper.models.module import CROSS_ENTROPY, ModuleModel
from sweeper.spec.protocols import Description

if TYPE_CHECKING:
    from sweeper.seeds import Streams

FIELD = "model.module"
_DROPOUTS = (  # others' own may be anything
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


class UserModule:
    """What the fields of a ModuleModel stand for. Holds one module, the template, whose frozen parameters and buffers count."""

    def __init__(self, model: ModuleModel) -> None:
        self.model, self.replaced, self.notes = model, tuple[str, ...](), tuple[str, ...]()
        self.sizes: tuple[int, ...] = (1,)  # of the batches that predict; others than 1 once its examination allows them
        self.made_up: MadeUp | None = None  # known once it is examined
        self._build, self._loss = imported(FIELD, model.module), None
        if model.loss != CROSS_ENTROPY:
            self._loss = imported("model.loss", model.loss)
        self._loss_state = copy.deepcopy(vars(self._loss)) if _has_state(self._loss) else None
        self.template = self.built()
        self.digest = digest(self.template)

    def built(self, streams: Streams | None = None) -> nn.Module:
        """A new module in training mode. streams: of the trial whose start it is; without, random numbers are the same every time.

        Raises:
          FieldError: the function fails, or its module cannot be trained record by record; names the layer.
        """
        state = None if streams is None else streams.torch_generator(seeds.INIT).get_state()
        with global_randomness(state), settings_kept():
            try:
                module = self._build(**self.model.args)
            except Exception as error:
                rule = f"raised {type(error).__name__}: {_line(error)}"
                raise FieldError(FIELD, self.model.module, rule, "Call it in Python to see more.") from error
            if not isinstance(module, nn.Module):
                raise FieldError(FIELD, self.model.module, f"returned {type(module).__name__}, and must return a torch.nn.Module")
            if isinstance(module, torch.jit.ScriptModule) or any(
                isinstance(layer, torch.jit.ScriptModule) for layer in module.modules()
            ):
                rule = "returned a module of torch.jit, whose layers do not say what they are given"
                raise FieldError(FIELD, self.model.module, rule, "Return the module that was scripted or traced.")
            module = training(self._private(_uncompiled(module)))
        for layer in module.modules():
            if getattr(layer, "inplace", False) is True:
                layer.inplace = False  # it would overwrite the outputs that derivatives are taken by; the results are the same
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not trained:
            raise FieldError(
                FIELD, self.model.module, "has no parameter that requires a gradient", "Leave its last layer unfrozen."
            )
        for name, parameter in module.named_parameters():
            if nn.parameter.is_lazy(parameter):
                rule = f"has parameter {name} without a shape: it is made when a lazy layer sees its first records"
                raise FieldError(FIELD, self.model.module, rule, "Use the layer that is given its width.")
            if parameter.device.type != "cpu":
                rule = f"has parameter {name} on {parameter.device}, and must be built on the cpu"
                raise FieldError(FIELD, self.model.module, rule, "Build it without device or .to().")
        for name, parameter in trained:
            if parameter.dtype != torch.float32:
                rule = f"has parameter {name} in {str(parameter.dtype).removeprefix('torch.')}, and trained ones must be float32"
                raise FieldError(FIELD, self.model.module, rule, "Use model.precision: bfloat16 for a faster pass.")
        return module

    def check_same_again(self, module: nn.Module) -> None:
        """Refuse a function whose modules differ from call to call: workers would disagree, and a retry would start elsewhere.

        Raises:
          FieldError: `module`, just built without streams, is not the first one.
        """
        if digest(module) != self.digest:
            rule = "gives other parameters, buffers or attributes when it is called again, with torch's generator as it was"
            raise FieldError(FIELD, self.model.module, rule, "Draw them with torch, or load them from a file.")

    def check_same(self, expected: str) -> None:
        """Refuse to go on with another module than the one that was examined elsewhere.

        Raises:
          FieldError: it is not the one with this digest.
        """
        if self.digest != expected:
            rule = "gives other parameters, buffers or attributes on this machine than where the sweep was started"
            raise FieldError(FIELD, self.model.module, rule, "Give all machines the same code, files and version of torch.")

    def _private(self, module: nn.Module) -> nn.Module:
        """The module, its layers that mix records replaced or refused; frozen batch norms use the statistics they came with."""
        wrong = {name: layer for name, layer in module.named_modules() if _needs_another(layer, cells=self.model.replace)}
        if wrong and self.model.replace:
            kinds = {name: type(layer).__name__ for name, layer in wrong.items()}
            module = replaced(module, wrong)
            wrong = {name: layer for name, layer in module.named_modules() if _needs_another(layer, cells=False)}
            shown = {name: module.get_submodule(name) for name in kinds if name not in wrong}
            self.replaced = tuple(f"{name or 'itself'}: {kinds[name]} by {_shown(layer)}" for name, layer in shown.items())
        for name, layer in wrong.items():
            raise FieldError(FIELD, self.model.module, *_mixing(name or "itself", layer, tried=self.model.replace))
        kept = [(name, type(layer).__name__) for name, layer in module.named_modules() if _keeps_statistics(layer)]
        self.notes = tuple(f"{name}: a frozen {kind}, which uses the statistics that it came with" for name, kind in kept)
        return module

    @property
    def alone(self) -> bool:
        """Whether records go through it one at a time."""
        return self.sizes == (1,)

    def _warmed(self) -> nn.Module:
        """A new module as `warmed` leaves it, and the loss as it was when the module was examined."""
        if self._loss_state is not None:
            vars(self._loss).clear()
            vars(self._loss).update(copy.deepcopy(self._loss_state))
        module = self.built()
        return module if self.made_up is None else warmed(self, module, self.made_up, self.sizes)

    def again(self) -> nn.Module:
        """As the first module of a problem: for one in which an error left who knows what."""
        return self._warmed()

    @property
    def loss_function(self) -> Any:
        """The user's own; None: cross-entropy."""
        return self._loss

    def losses(self, outputs_BK: Tensor, labels_B: Tensor) -> Tensor:
        """Each record's loss [B], in float32."""
        outputs_BK = outputs_BK.float()
        if self._loss is None:
            return nn.functional.cross_entropy(outputs_BK, labels_B, reduction="none")
        found = self._loss(outputs_BK, labels_B.clone())
        if not isinstance(found, Tensor) or found.shape != labels_B.shape:
            shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            rule = f"gave {shape} for {len(labels_B)} records, and must give a loss for each, without mean or sum"
            raise FieldError("model.loss", self.model.loss, rule, "As torch's losses do with reduction='none'.")
        return found.float()

    def shaped(self, features_Bd: Tensor) -> Tensor:
        """Rows of features as the module takes them."""
        shape = self.model.shape or features_Bd.shape[1:]
        inputs = features_Bd.reshape(len(features_Bd), *shape)
        return inputs.long() if self.model.integers else inputs.clone()  # a module may change its inputs in place

    def module_of(self, params_P: Tensor) -> nn.Module:
        """A module of its own with these parameters, for evaluation."""
        module = self.built()
        bind(trained_of(module), params_P.detach().clone())
        return module.eval()

    def torch_module(self, params_P: Tensor, description: Description) -> nn.Module:
        """The trained module, behind what gives rows of features [B, d] its shape."""
        return nn.Sequential(*([nn.Unflatten(1, self.model.shape)] if self.model.shape else []), self.module_of(params_P))

    def predict(self, params_P: Tensor, features_Bd: Tensor) -> Tensor:
        """Labels [B]: the largest output; -1, which no row has, where the module raises an error on a row."""
        from sweeper.backends.per_record import passes

        def labels(some_Bd: Tensor, _: Tensor, __: Tensor) -> Tensor:
            with in_users_code():
                found_B: Tensor = self.template(self.shaped(some_Bd)).argmax(dim=1)
            return found_B

        def start_again() -> None:
            self.template = self._warmed()
            bind(trained_of(self.template), params_P.detach().float().clone())
            self.template.eval()

        bind(trained_of(self.template), params_P.detach().float().clone())
        self.template.eval()
        state = state_of(self.template, self._loss) if self.alone else None
        chosen_B, at = torch.full((len(features_Bd),), -1), 0
        try:
            with torch.no_grad(), global_randomness(None):
                for some_Bd, size in cut(features_Bd, self.sizes):
                    here_B = torch.arange(size) < len(some_Bd)
                    zeros_B = torch.zeros(size, dtype=torch.int64)
                    for labels_B, real_B in passes(filled(some_Bd, size), zeros_B, here_B, labels, start_again):
                        chosen_B[at : at + len(some_Bd)][real_B[: len(some_Bd)]] = labels_B[real_B]
                    at += len(some_Bd)
                    if self.alone and (now := state_of(self.template, self._loss)) != state:
                        start_again()
                        state = state_of(self.template, self._loss)
                    elif self.alone:
                        state = now
        finally:
            training(self.template)
        return chosen_B


@lru_cache(maxsize=4)
def user_module(model: ModuleModel) -> UserModule:
    """The one of this process: its function may load gigabytes."""
    return UserModule(model)


def training(module: nn.Module) -> nn.Module:
    """The module in training mode, but for frozen layers that would go on counting statistics of what they see."""
    module.train()
    for layer in module.modules():
        if _keeps_statistics(layer):
            layer.eval()
    return module


def _uncompiled(module: nn.Module) -> nn.Module:
    """What torch.compile was given: its layers are asked one by one what they got."""
    whole: nn.Module = getattr(module, "_orig_mod", module)
    for layer in whole.modules():
        layer._compiled_call_impl = None
        for name, child in layer._modules.items():
            layer._modules[name] = getattr(child, "_orig_mod", child)
    return whole


def _has_state(loss: Any) -> bool:
    return loss is not None and hasattr(loss, "__dict__") and not isinstance(loss, (types.FunctionType, type, nn.Module))


def state_of(module: nn.Module, loss: Any) -> tuple[dict[str, str], list[tuple[int, int]]]:
    """What tells whether a pass left something: attributes, and versions of what is not trained."""
    fixed = (*module.buffers(), *(p for p in module.parameters() if not p.requires_grad))
    return marks_of(module, loss), [(id(tensor), tensor._version) for tensor in fixed]


def _keeps_statistics(layer: nn.Module) -> bool:
    return isinstance(layer, (_BatchNorm, _InstanceNorm)) and layer.running_mean is not None


def trained_of(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that are trained; one that two layers share stands there once."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def bind(trained: list[nn.Parameter], params_P: Tensor) -> None:
    """Make the trained parameters views of a vector."""
    parts = params_P.split([parameter.numel() for parameter in trained])
    for parameter, part in zip(trained, parts, strict=True):
        parameter.data = part.view(parameter.shape)


def dropouts(module: nn.Module) -> list[nn.Module]:
    """The layers that draw random numbers while they train."""
    return [layer for layer in module.modules() if type(layer) in _DROPOUTS]


def warmed(user: UserModule, module: nn.Module, made_up: MadeUp, sizes: tuple[int, ...]) -> nn.Module:
    """The module after passes of made-up records in all sizes and modes, in training.

    What code makes once, in the first pass that it sees, holds made-up numbers then, wherever it is kept.
    """
    with global_randomness(None), in_users_code(), torch.no_grad():
        for size in (min(LEAST, user.model.microbatch or LEAST), *sizes):  # the first is what an examination begins with
            features_Bd, labels_B = made_up.batch(size)
            for mode in (True, False):
                training(module) if mode else module.eval()
                with torch.set_grad_enabled(mode):
                    user.losses(module(user.shaped(features_Bd)), labels_B)
    return training(module)


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, those too that a state_dict leaves out."""
    return {name: value.detach() for name, value in (*module.named_parameters(), *module.named_buffers())}


def digest(module: nn.Module) -> str:
    """Of all parameters and buffers, and of what plain attributes hold."""
    found = hashlib.blake2b()
    for name, value in tensors_of(module).items():
        found.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        found.update(value.contiguous().flatten().view(torch.uint8).numpy())
    for name, mark in values_of(module).items():
        found.update(f"{name} {mark}".encode())
    return found.hexdigest()


def imported(field: str, text: str) -> Any:
    """What package.module:name names, found on Python's path and in the current folder.

    Raises:
      FieldError: it cannot be imported.
    """
    place, _, name = text.partition(":")
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        with settings_kept():
            return getattr(importlib.import_module(place), name)
    except Exception as error:
        rule = f"cannot be imported ({type(error).__name__}: {_line(error)})"
        raise FieldError(field, text, rule, "Install its package, run from the folder that holds it, or set PYTHONPATH.") from error
    finally:
        sys.path.remove(here)


def _needs_another(layer: nn.Module, *, cells: bool) -> bool:
    """Whether a record's output, or a buffer, depends on other records of its batch; or the layer has no per-record rule.

    cells: of recurrent layers too, which can do without if they are given their states.
    """
    trained = any(p.requires_grad for p in layer.parameters(recurse=False))
    if isinstance(layer, _BatchNorm):
        return trained or layer.running_mean is None
    if _keeps_statistics(layer):
        return trained
    if isinstance(layer, (nn.MultiheadAttention, nn.RNNBase)):  # those that are frozen draw no numbers but where they drop some
        return layer.dropout > 0 or any(p.requires_grad for p in layer.parameters())
    return cells and trained and isinstance(layer, nn.RNNCellBase)


def _mixing(name: str, layer: nn.Module, *, tried: bool) -> tuple[str, str]:
    """Rule and hint for a layer that is refused."""
    kind, own = type(layer).__name__, next((n for n, _ in layer.named_parameters(recurse=False)), None)
    what = f"{name}, a {kind}" + (f" with parameter {name}.{own}" if own else "")
    if isinstance(layer, _InstanceNorm):
        return f"has {what}, which keeps statistics of the records that it sees", "Build it without track_running_stats."
    if not isinstance(layer, _BatchNorm):
        rule, stand_in = f"has {what}, whose gradients cannot be made record by record", what_for(layer)
        if tried or not stand_in:
            return rule, "Use torch's own layer as it is built, with parameters that no other layer holds."
        return rule, f"Set model.replace: true for its stand-in, {stand_in}."
    rule, norm = f"has {what}, which mixes the records of a batch", batch_norm_hint(layer)
    if layer.running_mean is None:
        rule += ": it keeps no statistics of its own"
    if tried or not norm:
        return rule, "Leave it out: a record has too few numbers in it to be normalised by itself."
    return rule, f"Use {norm}, or set model.replace: true, which does it."


def _shown(layer: nn.Module) -> str:
    return type(layer).__name__ if list(layer.children()) else str(layer)


def _line(error: Exception, limit: int = 200) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
