"""What networks are made of: layers as public shapes, and the base of the models that stack them.

params_P holds the parameters of one layer after another, weights before biases, as torch.nn.Module.parameters() lists them.
Shapes: B records, J models side by side, K classes, d features, P parameters.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper import checks, seeds
from sweeper.models.linear import Softmax
from sweeper.spec.protocols import Description

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from sweeper.seeds import Streams

ACTIVATIONS = ("relu", "tanh")
POOLS = ("max", "average")
WINDOW = 2  # side of a pool's window, and its stride
_PREDICTED = 256  # rows per pass of a prediction, so that memory does not grow with the table
_OUTPUT = Softmax()  # the loss of the last layer's outputs, whatever they come from


@dataclass(frozen=True, kw_only=True)
class Dense:
    """Outputs = W inputs + b."""

    inputs: int
    outputs: int

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of weights and biases."""
        return (self.outputs, self.inputs), (self.outputs,)

    def module(self) -> torch.nn.Module:
        import torch

        return torch.nn.utils.skip_init(torch.nn.Linear, self.inputs, self.outputs)


@dataclass(frozen=True, kw_only=True)
class Conv:
    """A convolution of stride 1 over pictures [channels, height, width], zeros around them if padding."""

    channels: int
    height: int
    width: int
    filters: int
    kernel: int
    padding: int = 0

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return (self.filters, self.channels, self.kernel, self.kernel), (self.filters,)

    @property
    def out(self) -> tuple[int, int, int]:
        """Filters, height and width of what comes out."""
        less = self.kernel - 1 - 2 * self.padding
        return self.filters, self.height - less, self.width - less

    def module(self) -> torch.nn.Module:
        import torch

        return torch.nn.utils.skip_init(torch.nn.Conv2d, self.channels, self.filters, self.kernel, padding=self.padding)


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The largest or the mean of every 2 x 2 window; an odd last row or column is dropped."""

    channels: int
    height: int
    width: int
    how: str  # one of POOLS
    shapes: ClassVar[tuple[tuple[int, ...], ...]] = ()

    @property
    def out(self) -> tuple[int, int, int]:
        return self.channels, self.height // WINDOW, self.width // WINDOW

    def module(self) -> torch.nn.Module:
        import torch

        return torch.nn.MaxPool2d(WINDOW) if self.how == "max" else torch.nn.AvgPool2d(WINDOW)


@dataclass(frozen=True, kw_only=True)
class Activation:
    """ReLU or tanh of every number."""

    how: str  # one of ACTIVATIONS
    shapes: ClassVar[tuple[tuple[int, ...], ...]] = ()

    def module(self) -> torch.nn.Module:
        import torch

        return torch.nn.ReLU() if self.how == "relu" else torch.nn.Tanh()


Layer = Dense | Conv | Pool | Activation


@dataclass(frozen=True, kw_only=True)
class Network(ABC):
    """Base of the models that are a stack of layers under a softmax: one output per class, cross-entropy loss.

    The penalty is l2/2 times the squared norm of all weights, biases left out. No data enters it, so it is not clipped.
    It has no attribute `lipschitz`: nothing bounds a record's gradient at every parameter.
    """

    activation: str = "relu"
    l2: float = 0.0
    backend: ClassVar[str] = "layered"

    def __post_init__(self) -> None:
        checks.one_of(ACTIVATIONS, activation=self.activation)
        checks.non_negative(l2=self.l2)

    @abstractmethod
    def stack(self, features: int, classes: int) -> tuple[Layer, ...]:
        """The layers, from a row of features to one output per class.

        Raises:
          FieldError: rows of this width do not fit.
        """

    def parameters(self, description: Description) -> int:
        """P."""
        return self._parameters(description.features, description.classes)

    def _parameters(self, features: int, classes: int) -> int:
        return sum(math.prod(shape) for layer in self.stack(features, classes) for shape in layer.shapes)

    def start(self, description: Description, streams: Streams) -> Tensor:
        """Random weights of mean 0, from the trial's own stream; biases are 0.

        Hidden layers: variance 2 / inputs under a ReLU (He et al. 2015), else 2 / (inputs + outputs), as in the last layer
        (Glorot, Bengio 2010). Inputs and outputs of a convolution are counted over its window.
        """
        import torch

        draws = streams.torch_generator(seeds.INIT)
        parts, left = [], sum(1 for layer in self.stack(description.features, description.classes) if layer.shapes)
        for layer in self.stack(description.features, description.classes):
            if layer.shapes:
                weights, biases = layer.shapes
                left -= 1
                inputs, outputs = math.prod(weights[1:]), weights[0] * math.prod(weights[2:])
                variance = 2 / inputs if self.activation == "relu" and left else 2 / (inputs + outputs)
                parts.append(torch.empty(math.prod(weights)).normal_(0.0, math.sqrt(variance), generator=draws))
                parts.append(torch.zeros(biases))
        return torch.cat(parts)

    def constant(self, label: int, description: Description) -> Tensor:
        """Parameters [P] that give every row this label: zeros, but for the last layer's bias of it."""
        import torch

        params_P = torch.zeros(self.parameters(description))
        params_P[label - description.classes] = 1.0
        return params_P

    def residual_(self, logits_BK: Tensor, labels_B: Tensor) -> Tensor:
        """Derivative of each record's loss with respect to its logits; may overwrite them."""
        return _OUTPUT.residual_(logits_BK, labels_B)

    def losses(self, logits_BJK: Tensor, labels_B: Tensor) -> Tensor:
        """Each record's loss [B, J] for J models' logits."""
        return _OUTPUT.losses(logits_BJK, labels_B)

    def predict(self, params_P: Tensor, features_Bd: Tensor) -> Tensor:
        """Labels [B], by the module that is released."""
        import torch

        width = features_Bd.shape[1]
        none, one = (self._parameters(width, classes) for classes in (0, 1))  # parameters grow by as many with every class
        classes = (len(params_P) - none) // (one - none)
        module = self.torch_module(params_P, Description(rows=1, features=width, classes=classes))
        with torch.no_grad():
            chosen = [module(some_Bd).argmax(dim=1) for some_Bd in features_Bd.split(_PREDICTED)]
        return torch.cat(chosen) if chosen else torch.empty(0, dtype=torch.int64)

    def torch_module(self, params_P: Tensor, description: Description) -> torch.nn.Module:
        """The trained model as a plain torch.nn.Sequential: features [B, d] to logits [B, K]. Needs no sweeper to load."""
        import torch

        module = torch.nn.Sequential(*_modules(self.stack(description.features, description.classes)))
        parts = params_P.detach().split([parameter.numel() for parameter in module.parameters()])
        names = [name for name, _ in module.named_parameters()]
        shapes = [parameter.shape for parameter in module.parameters()]
        state = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        module.load_state_dict(state)  # copies
        return module


def _modules(layers: tuple[Layer, ...]) -> list[torch.nn.Module]:
    """Torch's modules for the layers, with the changes of shape between rows and pictures."""
    import torch

    modules, picture = [], False
    for layer in layers:
        if isinstance(layer, Conv) and not picture:
            modules.append(torch.nn.Unflatten(1, (layer.channels, layer.height, layer.width)))
            picture = True
        if isinstance(layer, Dense) and picture:
            modules.append(torch.nn.Flatten(1))
            picture = False
        modules.append(layer.module())
    return modules
