"""What the layers of a module with parameters of their own were given, and what they gave, in one pass.

An owner is a layer that holds trained parameters itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from opacus.layers.dp_rnn import DPGRU, DPLSTM, DPRNN
from torch import Tensor, nn

from sweeper.backends.user_module import dropouts

_WRAPPERS = (DPRNN, DPLSTM, DPGRU)  # they name their cells' parameters as their own; the cells are the owners


def owners(module: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """(name, layer) of all layers that hold trained parameters themselves, those inside a layer without a rule left out."""
    bare = [module, *(child for child in module.children() if isinstance(child, (nn.ParameterList, nn.ParameterDict)))]
    if any(p.requires_grad for part in bare for p in part.parameters(recurse=False)) and not isinstance(module, _WRAPPERS):
        return [(prefix or "the module itself", module)]
    return [pair for name, child in module.named_children() for pair in owners(child, f"{prefix}.{name}" if prefix else name)]


class Overwritten(Exception):
    """Layers whose outputs are changed in place afterwards, so that derivatives by them are none by the layer."""

    def __init__(self, names: set[str]) -> None:
        super().__init__(", ".join(sorted(names)))
        self.names = names


@dataclass
class Call:
    """One call of an owner: its name, layer, inputs (records first), and output as the graph knows it."""

    name: str
    layer: nn.Module
    inputs: list[Tensor]
    output: Tensor
    random: Tensor | None  # where torch's generator stood before, if dropout is inside

    def __post_init__(self) -> None:
        self._version = self.output._version

    @property
    def overwritten(self) -> bool:
        return self.output._version != self._version


class Recorder:
    """Keeps the calls of a module's owners while it is on. copied: owners whose outputs the module changes in place."""

    def __init__(self, module: nn.Module, fault: Any, copied: frozenset[str] = frozenset()) -> None:
        self.on, self.calls, self.copied, self._fault = False, list[Call](), copied, fault
        self.owners = list({id(layer): (name, layer) for name, layer in reversed(owners(module))}.values())[::-1]
        self._random: dict[str, Tensor] = {}
        self._handles = [layer.register_forward_hook(self._hook(name), with_kwargs=True) for name, layer in self.owners]
        for name, layer in self.owners:
            if dropouts(layer):
                self._handles.append(layer.register_forward_pre_hook(self._before(name)))

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()

    def _before(self, name: str) -> Any:
        def hook(layer: nn.Module, args: tuple[Any, ...]) -> None:
            if self.on:
                self._random[name] = torch.get_rng_state()

        return hook

    def _hook(self, name: str) -> Any:
        def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> Tensor | None:
            if not self.on:
                return None
            inputs = [value.detach() for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
            if not isinstance(output, Tensor) or not inputs:
                raise self._fault(f"has {name}, a {type(layer).__name__}, which does not turn tensors into one tensor")
            if output.requires_grad:  # else it is in no graph, as under torch.no_grad
                self.calls.append(Call(name, layer, inputs, output, self._random.pop(name, None)))
            return output.clone() if name in self.copied else None

        return hook


def repeated_in(calls: Sequence[Call]) -> set[str]:
    """Names of the owners that are called more than once, or share a parameter with one that is called."""
    uses: dict[int, int] = {}
    for call in calls:
        for parameter in call.layer.parameters():
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    return {call.name for call in calls if any(uses[id(parameter)] > 1 for parameter in call.layer.parameters())}
