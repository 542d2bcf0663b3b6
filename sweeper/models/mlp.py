"""Multi-layer perceptrons: dense layers with ReLU or tanh between them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.models.layers import Activation, Dense, Layer, Network


@dataclass(frozen=True, kw_only=True)
class Mlp(Network):
    """Multi-layer perceptron: hidden layers of any widths, ReLU or tanh, one logit per class, cross-entropy loss."""

    hidden: tuple[int, ...] = (256, 256)
    kind: ClassVar[str] = "mlp"
    example: ClassVar[str] = "{kind: mlp, hidden: [256, 256], activation: relu}"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.hidden, (list, tuple)) or not self.hidden:
            raise FieldError("hidden", self.hidden, "must be a list of widths", "As in hidden: [256, 256].")
        for width in self.hidden:
            checks.whole(1, hidden=width)
        object.__setattr__(self, "hidden", tuple(self.hidden))

    def stack(self, features: int, classes: int) -> tuple[Layer, ...]:
        return dense_stack((features, *self.hidden, classes), self.activation)


def dense_stack(widths: tuple[int, ...], activation: str) -> tuple[Layer, ...]:
    """Dense layers between these widths, an activation between each two of them."""
    layers: list[Layer] = []
    for inputs, outputs in pairwise(widths):
        layers += [Dense(inputs=inputs, outputs=outputs), Activation(how=activation)]
    return tuple(layers[:-1])
