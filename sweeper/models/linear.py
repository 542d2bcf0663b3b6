"""Linear models: binary logistic regression and softmax regression.

params_P is a matrix [K, d + 1] row by row: K logits, d features, the bias in the last column.
Shapes: B records, K logits, d features, P = K (d + 1) parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper import checks
from sweeper.spec.protocols import Description

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Linear(ABC):
    """Base of the linear models: the loss of a record depends on its logits W x + b alone.

    The penalty is l2/2 times the squared norm of the weights, bias left out. No data enters it, so it is not clipped.
    """

    l2: float = 0.0

    def __post_init__(self) -> None:
        checks.non_negative(l2=self.l2)

    @abstractmethod
    def outputs(self, description: Description) -> int:
        """K."""

    @abstractmethod
    def residual_(self, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        """Derivative of each record's loss with respect to its logits; may overwrite them.

        C is K, or more: a backend may pad with logits so low that their probability is 0.
        """

    @abstractmethod
    def choose(self, logits_BK: Tensor) -> Tensor:
        """Labels [B] from logits."""

    def parameters(self, description: Description) -> int:
        """P."""
        return self.outputs(description) * (description.features + 1)

    def predict(self, params_P: Tensor, features_Bd: Tensor) -> Tensor:
        """Labels [B]."""
        weights_KD = params_P.view(-1, features_Bd.shape[1] + 1)
        return self.choose(features_Bd @ weights_KD[:, :-1].t() + weights_KD[:, -1])

    def torch_module(self, params_P: Tensor, description: Description) -> torch.nn.Module:
        """The trained model as a plain torch module: features [B, d] to logits [B, K]. Needs no sweeper to load."""
        import torch

        weights_KD = params_P.detach().view(-1, description.features + 1)
        module = torch.nn.utils.skip_init(torch.nn.Linear, description.features, self.outputs(description))
        module.load_state_dict({"weight": weights_KD[:, :-1], "bias": weights_KD[:, -1]})  # copies
        return module


@dataclass(frozen=True, kw_only=True)
class Logistic(Linear):
    """Binary logistic regression: one logit, the log-odds of label 1."""

    kind: ClassVar[str] = "logistic"
    example: ClassVar[str] = "{kind: logistic}"

    def outputs(self, description: Description) -> int:
        return 1

    def residual_(self, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        return logits_BC.sigmoid_().sub_(labels_B.unsqueeze(1))

    def choose(self, logits_BK: Tensor) -> Tensor:
        return (logits_BK[:, 0] > 0).long()


@dataclass(frozen=True, kw_only=True)
class Softmax(Linear):
    """Softmax regression: one logit per class, cross-entropy loss."""

    kind: ClassVar[str] = "softmax"
    example: ClassVar[str] = "{kind: softmax, l2: 0.001}"

    def outputs(self, description: Description) -> int:
        return description.classes

    def residual_(self, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        residual_BC = logits_BC.softmax(dim=1)
        labels_B1 = labels_B.unsqueeze(1)
        return residual_BC.scatter_add_(1, labels_B1, residual_BC.new_full((1, 1), -1.0).expand_as(labels_B1))

    def choose(self, logits_BK: Tensor) -> Tensor:
        return logits_BK.argmax(dim=1)
