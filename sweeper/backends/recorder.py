"""What the layers of a module with parameters of their own were given, and what they gave, in one pass.

An owner is a layer that holds trained parameters itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sweeper.backends.user_module import dropouts


def owners(module: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """(name, layer) of all layers that hold trained parameters themselves, those inside a layer without a rule left out."""
    bare = [module, *(child for child in module.children() if isinstance(child, (nn.ParameterList, nn.ParameterDict)))]
    if any(p.requires_grad for part in bare for p in part.parameters(recurse=False)):
        return [(prefix or "the module itself", module)]
    return [pair for name, child in module.named_children() for pair in owners(child, f"{prefix}.{name}" if prefix else name)]


class Overwritten(Exception):
    """Layers whose inputs or outputs are changed in place afterwards, so that they are no longer those of the layer."""

    def __init__(self, names: set[str]) -> None:
        super().__init__(", ".join(sorted(names)))
        self.names = names


@dataclass(frozen=True)
class Place:
    """Of a tensor among the inputs of a call."""

    at: int


@dataclass
class Call:
    """One call of an owner: its name, layer, inputs (records first), and output as the graph knows it.

    given: its arguments, positional and by name, with places among the inputs where tensors were.
    """

    name: str
    layer: nn.Module
    inputs: list[Tensor]
    given: tuple[tuple[Any, ...], dict[str, Any]]
    output: Tensor
    random: Tensor | None  # where torch's generator stood before, if dropout is inside

    def __post_init__(self) -> None:
        self._versions = self._now()

    def _now(self) -> list[int]:
        return [value._version for value in (*self.inputs, self.output)]

    @property
    def overwritten(self) -> bool:
        """Whether what the layer was given or gave is no longer what it was."""
        return self._now() != self._versions


class Recorder:
    """Keeps the calls of a module's owners while it is on. copied: owners whose inputs or outputs the module changes in place."""

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
            if name in self.copied:
                inputs = [value.clone() for value in inputs]
            if not isinstance(output, Tensor) or not inputs:
                rule = f"has {name}, a {type(layer).__name__}, which does not turn tensors into one tensor"
                raise self._fault(rule, "Have a layer that holds parameters itself take tensors, and return one.")
            if output.requires_grad:  # else it is in no graph, as under torch.no_grad
                places = iter(range(len(inputs)))
                given = (
                    tuple(Place(next(places)) if isinstance(value, Tensor) else value for value in args),
                    {key: Place(next(places)) if isinstance(value, Tensor) else value for key, value in kwargs.items()},
                )
                self.calls.append(Call(name, layer, inputs, given, output, self._random.pop(name, None)))
            return output.clone() if name in self.copied else None

        return hook


def repeated_in(calls: Sequence[Call]) -> set[str]:
    """Names of the owners that are called more than once, or share a parameter with one that is called."""
    uses: dict[int, int] = {}
    for call in calls:
        for parameter in call.layer.parameters():
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    return {call.name for call in calls if any(uses[id(parameter)] > 1 for parameter in call.layer.parameters())}
