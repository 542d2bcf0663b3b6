"""Every record's gradient in any torch module: one backward pass to the layers' outputs, then a rule for each layer.

The inputs of the layers that hold parameters are kept (see recorder.py), the derivatives by their outputs come from autograd; the
gradient by their parameters, which autograd would add up over the batch, comes from a rule instead:
- ghost: norms from inputs and derivatives alone, and one weighted product as the sum; of a dense layer and of an embedding.
- hooks: Opacus' rule for the kind of layer builds each record's gradient.
- functional: torch.func's vmap builds it, for layers that Opacus has no rule for.
What is built is measured and then summed, the same numbers. What a ghost rule sums was measured from other roundings: of rows it
is one product in float32, as far off as sweeper.clip.base.MARGIN allows; of sequences, whose terms may cancel, all is in float64.
Shapes: B records of a chunk, T positions of a record, I inputs, O outputs, V tokens, L trained parameters (tensors), P numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sweeper.backends.recorder import Call, Place, repeated_in
from sweeper.backends.torch_state import global_randomness

GHOST, RULE, FUNCTIONAL = "ghost", "hooks", "functional"
_TINY = 2.0**-126  # a square below it may count as 0 in float32
_GRAM = 2.0**-30  # of the largest that a Gram sum could be: more than float64 loses over a million pairs of positions


def way_of(layer: nn.Module) -> str:
    """How a layer's gradients are made where nothing speaks against it."""
    if type(layer) is nn.Embedding or type(layer) is nn.Linear:
        usual = {name for name, _ in layer.named_parameters(recurse=False)} <= {"weight", "bias"}
        return GHOST if usual else FUNCTIONAL  # pruned, or weights made of others
    plain = getattr(layer, "padding_mode", "zeros") == "zeros"
    return RULE if type(layer) in GradSampleModule.GRAD_SAMPLERS and plain and type(layer) is not nn.EmbeddingBag else FUNCTIONAL


class LayerFailed(Exception):
    """A rule does not work for a layer."""

    def __init__(self, call: Call, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
        self.name, self.kind = call.name, type(call.layer).__name__


class Ghost:
    """The weights of a dense layer or of an embedding, called once: nothing is built for a record."""

    def __init__(self, layer: nn.Module, inputs: Tensor, deltas: Tensor) -> None:
        self.layer, self.rows = layer, deltas.dim() == 2 and not isinstance(layer, nn.Embedding)
        self._inputs, self._deltas = inputs, deltas
        if isinstance(layer, nn.Embedding):
            self._inputs = inputs.reshape(len(inputs), -1)
            self._deltas = deltas.reshape(len(inputs), -1, deltas.shape[-1]).double()
            if layer.padding_idx is not None:
                self._deltas = self._deltas.masked_fill((self._inputs == layer.padding_idx).unsqueeze(-1), 0.0)
        elif not self.rows:
            self._inputs = inputs.reshape(len(inputs), -1, inputs.shape[-1]).double()
            self._deltas = deltas.reshape(len(inputs), -1, deltas.shape[-1]).double()

    def squares(self) -> Tensor:
        """Squared norms [B] of the records' gradients, float32, rounded up by what rounding may have lost."""
        if self.rows:  # the gradient is an outer product
            inputs_B, deltas_B = (part.square().sum(dim=1) + part.shape[1] * _TINY for part in (self._inputs, self._deltas))
            return inputs_B.mul_(deltas_B)
        deltas_BTT = self._deltas @ self._deltas.transpose(1, 2)
        lengths_BT = self._deltas.norm(dim=2)
        if isinstance(self.layer, nn.Embedding):
            deltas_BTT.mul_(self._inputs.unsqueeze(1) == self._inputs.unsqueeze(2))
        else:
            deltas_BTT.mul_(self._inputs @ self._inputs.transpose(1, 2))
            lengths_BT = lengths_BT * self._inputs.norm(dim=2)
        lost_B = lengths_BT.sum(dim=1).square().mul_(_GRAM)
        return deltas_BTT.sum(dim=(1, 2)).clamp_(min=0.0).add_(lost_B).float().add_(_TINY * self._deltas.shape[1])

    def silence(self, wrong_B: Tensor) -> None:
        self._deltas = self._deltas.masked_fill(wrong_B.view(-1, *[1] * (self._deltas.dim() - 1)), 0.0)
        if not isinstance(self.layer, nn.Embedding):
            self._inputs = self._inputs.masked_fill(wrong_B.view(-1, *[1] * (self._inputs.dim() - 1)), 0.0)

    def sum(self, factors_B: Tensor) -> Tensor:
        """Sum of factor times gradient, of the weights' shape."""
        scaled = self._deltas * factors_B.view(-1, *[1] * (self._deltas.dim() - 1)).to(self._deltas.dtype)
        if isinstance(self.layer, nn.Embedding):
            sum_VO = scaled.new_zeros(self.layer.weight.shape)
            return sum_VO.index_add_(0, self._inputs.flatten(), scaled.flatten(0, 1))
        return scaled.flatten(0, -2).t() @ self._inputs.flatten(0, -2)


class Built:
    """A parameter's gradient for every record [B, ...], in float32."""

    def __init__(self, gradients: Tensor) -> None:
        self.gradients = gradients

    def squares(self) -> Tensor:
        flat_BP = self.gradients.flatten(1)
        return flat_BP.square().sum(dim=1).add_(flat_BP.shape[1] * _TINY)

    def silence(self, wrong_B: Tensor) -> None:
        self.gradients[wrong_B] = 0.0

    def sum(self, factors_B: Tensor) -> Tensor:
        return (factors_B @ self.gradients.flatten(1)).view(self.gradients.shape[1:])


Part = Ghost | Built


def parts_of(
    calls: Sequence[Call],
    deltas: Sequence[Tensor | None],
    ways: Mapping[str, str],
    trained: Sequence[nn.Parameter],
    records: int,
    fault: Any,
) -> list[Part | None]:
    """For each trained parameter what its records' gradients are made of; None where no call had a part in the loss.

    ways: of each owner's name. A layer that is called more than once, or shares a parameter, has its gradients built.
    """
    at = {id(parameter): place for place, parameter in enumerate(trained)}
    found: list[Part | None] = [None] * len(trained)
    repeated = repeated_in(calls)
    for call, delta in zip(calls, deltas, strict=True):
        if delta is None:
            continue
        way = ways[call.name]
        inputs, delta = _by_record(call, delta.float(), records, way, fault)
        ghost = way == GHOST and call.name not in repeated and _pays(call.layer, inputs[0])
        try:
            built = _built(call, inputs, delta, way, without_weight=ghost)
        except (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError) as error:
            raise LayerFailed(call, error) from error
        for parameter, gradients in built.items():
            place = at.get(id(parameter))
            if place is not None:
                earlier = found[place]
                found[place] = Built(earlier.gradients + gradients if isinstance(earlier, Built) else gradients)
        if ghost and call.layer.weight.requires_grad:
            found[at[id(call.layer.weight)]] = Ghost(call.layer, inputs[0], delta)
    return found


def _pays(layer: nn.Module, inputs: Tensor) -> bool:
    """Whether norms by Gram sums over the positions take less than the gradient itself; of rows they always do."""
    positions = inputs[0].numel() if isinstance(layer, nn.Embedding) else inputs[0].numel() // max(inputs.shape[-1], 1)
    return (positions == 1 and inputs.dim() == 2) or 2 * positions**2 <= layer.weight.numel()


def _by_record(call: Call, delta: Tensor, records: int, way: str, fault: Any) -> tuple[list[Tensor], Tensor]:
    """Inputs and derivatives with the records first: a layer for rows may have seen all positions of all records as rows."""
    inputs = [value.float() if value.is_floating_point() else value for value in call.inputs]
    if all(len(value) == records for value in inputs if value.dim()) and len(delta) == records:
        return inputs, delta
    first = inputs[0]
    if way != FUNCTIONAL and first.dim() and records and len(first) % records == 0 and len(delta) == len(first):
        return [first.reshape(records, -1, *first.shape[1:])], delta.reshape(records, -1, *delta.shape[1:])
    rule = f"calls {call.name}, a {type(call.layer).__name__}, on a tensor whose first dimension is not the records of the batch"
    raise fault(rule, "Give it a row for each record, as in positions.expand(len(records), -1).")


def _built(call: Call, inputs: list[Tensor], delta: Tensor, way: str, *, without_weight: bool) -> dict[nn.Parameter, Tensor]:
    """Every record's gradient by each trained parameter of a layer."""
    layer = call.layer
    if way == FUNCTIONAL:
        with nullcontext() if call.random is None else global_randomness(call.random):  # dropout's masks are those of the call
            return _functional(call, inputs, delta)
    if isinstance(layer, nn.Linear):
        found = {}
        if layer.weight.requires_grad and not without_weight:
            found[layer.weight] = torch.einsum("b...o,b...i->boi", delta, inputs[0])
        if layer.bias is not None and layer.bias.requires_grad:
            found[layer.bias] = delta.flatten(1, -2).sum(dim=1) if delta.dim() > 2 else delta.clone()
        return found
    if without_weight:
        return {}
    found = GradSampleModule.GRAD_SAMPLERS[type(layer)](layer, inputs, delta)
    if isinstance(layer, nn.Embedding) and layer.padding_idx is not None:
        found[layer.weight][:, layer.padding_idx] = 0.0  # torch gives the padding no gradient
    return found


def _functional(call: Call, inputs: list[Tensor], delta: Tensor) -> dict[nn.Parameter, Tensor]:
    layer, (args, kwargs) = call.layer, call.given
    trained = {name: p for name, p in layer.named_parameters() if p.requires_grad}

    def value(params: dict[str, Tensor], one: list[Tensor], delta: Tensor) -> Tensor:
        def own(argument: Any) -> Any:
            return one[argument.at].unsqueeze(0) if isinstance(argument, Place) else argument

        output = functional_call(layer, params, tuple(map(own, args)), {name: own(argument) for name, argument in kwargs.items()})
        return (output.float() * delta.unsqueeze(0)).sum()

    plain = {name: p.detach() for name, p in trained.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # where vmap has a loop for an operator
        found = vmap(grad(value), in_dims=(None, 0, 0), randomness="different")(plain, inputs, delta)
    return {trained[name]: gradients.float().contiguous() for name, gradients in found.items()}
