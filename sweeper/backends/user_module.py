"""A module of the user's own, built: which parameters are trained, which layers had to be replaced, and what it predicts.

Parameters are one flat float32 vector params_P: those that require a gradient, in the order of module.parameters().
Shapes: B records, d features, K classes, P parameters.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from sweeper import seeds
from sweeper.backends.torch_state import global_randomness, settings_kept
from sweeper.checks import FieldError
from sweeper.models.module import CROSS_ENTROPY, ModuleModel
from sweeper.spec.protocols import Description

if TYPE_CHECKING:
    from sweeper.seeds import Streams

_PREDICTED = 256  # rows per pass of a prediction, so that memory does not grow with the table
FIELD = "model.module"


class UserModule:
    """What the fields of a ModuleModel stand for. Holds one module, the template, whose frozen parameters and buffers count."""

    def __init__(self, model: ModuleModel) -> None:
        self.model, self.replaced, self.notes = model, tuple[str, ...](), tuple[str, ...]()
        self._build, self._loss = imported(FIELD, model.module), None
        if model.loss != CROSS_ENTROPY:
            self._loss = imported("model.loss", model.loss)
        self.template = self.built()
        self._digest = digest(self.template)

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
            module = training(self._private(module))
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
        if digest(module) != self._digest:
            rule = "gives other parameters or buffers each time it is called, though torch's generator stands where it stood"
            raise FieldError(FIELD, self.model.module, rule, "Draw them with torch, or load them from a file.")

    def _private(self, module: nn.Module) -> nn.Module:
        """The module, its layers that mix records replaced or refused; frozen batch norms use the statistics they came with."""
        wrong = {name: layer for name, layer in module.named_modules() if self._mixes(layer)}
        if wrong and self.model.replace:
            kinds = {name: type(layer).__name__ for name, layer in wrong.items()}
            module = ModuleValidator.fix(module)
            self.replaced = tuple(f"{name}: {kind} by {_shown(module.get_submodule(name))}" for name, kind in kinds.items())
            wrong = {name: layer for name, layer in module.named_modules() if self._mixes(layer)}
        for name, layer in wrong.items():
            raise FieldError(FIELD, self.model.module, *_mixing(name, layer, tried=self.model.replace))
        kept = [(name, type(layer).__name__) for name, layer in module.named_modules() if _keeps_statistics(layer)]
        self.notes = tuple(f"{name}: a frozen {kind}, which uses the statistics that it came with" for name, kind in kept)
        return module

    def _mixes(self, layer: nn.Module) -> bool:
        """Whether a record's output, or a buffer, depends on other records of its batch; or the layer has no per-record rule."""
        trained = any(p.requires_grad for p in layer.parameters(recurse=False))
        if isinstance(layer, _BatchNorm):
            return trained or layer.running_mean is None
        if _keeps_statistics(layer):
            return trained
        validator = ModuleValidator.VALIDATORS.get(type(layer))
        return trained and validator is not None and bool(validator(layer))

    def losses(self, outputs_BK: Tensor, labels_B: Tensor) -> Tensor:
        """Each record's loss [B], in float32."""
        outputs_BK = outputs_BK.float()
        if self._loss is None:
            return nn.functional.cross_entropy(outputs_BK, labels_B, reduction="none")
        found = self._loss(outputs_BK, labels_B)
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
        from sweeper.backends.per_record import without_offenders

        def labels(some_Bd: Tensor) -> Tensor:
            some_Bd = some_Bd.clone()
            found_B, failed_B = without_offenders(
                some_Bd, torch.zeros(len(some_Bd), dtype=torch.int64), lambda: self.template(self.shaped(some_Bd)).argmax(dim=1)
            )
            return found_B.masked_fill(failed_B, -1)

        bind(trained_of(self.template), params_P.detach().float().clone())
        self.template.eval()
        try:
            with torch.no_grad(), global_randomness(None):
                chosen = [labels(some_Bd) for some_Bd in features_Bd.split(_PREDICTED)]
        finally:
            training(self.template)
        return torch.cat(chosen) if chosen else torch.empty(0, dtype=torch.int64)


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
    return [layer for layer in module.modules() if isinstance(layer, (_DropoutNd, nn.RReLU))]


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, those too that a state_dict leaves out."""
    return {name: value.detach() for name, value in (*module.named_parameters(), *module.named_buffers())}


def digest(module: nn.Module) -> str:
    """Of all parameters and buffers."""
    found = hashlib.blake2b()
    for name, value in tensors_of(module).items():
        found.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        found.update(value.contiguous().flatten().view(torch.uint8).numpy())
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


def _mixing(name: str, layer: nn.Module, *, tried: bool) -> tuple[str, str]:
    """Rule and hint for a layer that is refused."""
    kind, own = type(layer).__name__, next((n for n, _ in layer.named_parameters(recurse=False)), None)
    what = f"{name}, a {kind}" + (f" with parameter {name}.{own}" if own else "")
    if isinstance(layer, _InstanceNorm):
        return f"has {what}, which keeps statistics of the records that it sees", "Build it without track_running_stats."
    if not isinstance(layer, _BatchNorm):
        rule = f"has {what}, whose gradients cannot be made record by record"
        return (
            rule,
            "Use a layer that can." if tried else f"Set model.replace: true for opacus.layers' stand-in, {what_for(layer)}.",
        )
    if any(p.requires_grad for p in layer.parameters(recurse=False)) and not tried:
        groups = f"torch.nn.GroupNorm({ModuleValidator.FIXERS[type(layer)](layer).num_groups}, {layer.num_features})"
        hint = f"Use {groups}, or set model.replace: true, which does it."
        return f"has {what}, which mixes the records of a batch", hint
    rule = f"has {what}, which mixes the records of a batch: it keeps no statistics of its own"
    return rule, "Use torch.nn.GroupNorm."


def _shown(layer: nn.Module) -> str:
    return type(layer).__name__ if list(layer.children()) else str(layer)


def what_for(layer: nn.Module) -> str:
    """What the replacement of a layer is called."""
    names = {"LSTM": "DPLSTM", "GRU": "DPGRU", "MultiheadAttention": "DPMultiheadAttention"}
    return names.get(type(layer).__name__, "if it has one")


def _line(error: Exception, limit: int = 200) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
