"""Linear models: binary logistic regression, support vector machine and least squares; softmax regression.

params_P is a matrix [K, d + 1] row by row: K logits, d features, the bias in the last column.
Shapes: B records, J models side by side, K logits, d features, P = K (d + 1) parameters.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sweeper import checks
from sweeper.spec.curvature import SLACK, Curvature
from sweeper.spec.protocols import Description

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Linear(ABC):
    """Base of the linear models: the loss of a record depends on its logits W x + b alone.

    The penalty is l2/2 times the squared norm of the weights, bias left out. No data enters it, so it is not clipped.
    With penalise_bias: true it is on the bias too; without, no penalty makes the objective strongly convex.
    scale: unit-norm trains on [x, 1] / R, R the source's public bound on ||[x, 1]||: step sizes and penalty are then in those
    units. The released parameters are for rows as they are.
    """

    l2: float = 0.0
    penalise_bias: bool | None = None  # None: false
    scale: str | None = None  # unit-norm; None: rows as they are
    kind: ClassVar[str]
    binary: ClassVar[bool] = False
    lipschitz: ClassVar[float]  # bound on a residual's norm: a gradient is at most that times ||[x, 1]||. Not every model has one
    curved: ClassVar[float]  # bound on the loss's second derivative by the logits, in any direction

    def __post_init__(self) -> None:
        checks.non_negative(l2=self.l2)
        if self.penalise_bias is not None:
            checks.flag(penalise_bias=self.penalise_bias)
            object.__setattr__(self, "penalise_bias", self.penalise_bias or None)
        if self.scale is not None:
            checks.one_of(("unit-norm",), scale=self.scale)

    def curvature(self, norm_bound: float | None) -> Curvature | None:
        """Bounds on a record's loss where ||[x, 1]|| <= norm_bound for all; None: there are none.

        The gradient is the residual times [x, 1]; the second derivative that by the logits, times [x, 1] [x, 1]'. With one logit
        it is of rank one.
        """
        if norm_bound is None or not hasattr(self, "lipschitz"):
            return None
        reach = (1.0 + SLACK) * (1.0 if self.scale else norm_bound)
        return Curvature(
            lipschitz=self.lipschitz * reach,
            smoothness=self.curved * reach**2,
            penalty=self.l2,
            strong=self.l2 if self.penalise_bias else 0.0,
            rank_one=self.binary,
        )

    @abstractmethod
    def outputs(self, description: Description) -> int:
        """K."""

    @abstractmethod
    def residual_(self, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        """Derivative of each record's loss with respect to its logits; may overwrite them.

        C is K, or more: a backend may pad with logits so low that their probability is 0.
        """

    @abstractmethod
    def losses(self, logits_BJK: Tensor, labels_B: Tensor) -> Tensor:
        """Each record's loss [B, J] for J models' logits."""

    @abstractmethod
    def choose(self, logits_BK: Tensor) -> Tensor:
        """Labels [B] from logits."""

    def parameters(self, description: Description) -> int:
        """P."""
        return self.outputs(description) * (description.features + 1)

    def constant(self, label: int, description: Description) -> Tensor:
        """Parameters [P] that give every row this label: no weights, and a bias for it."""
        import torch

        params_P = torch.zeros(self.parameters(description))
        biases_K = params_P.view(self.outputs(description), -1)[:, -1]
        if self.binary:
            biases_K[0] = 1.0 if label == 1 else -1.0
        else:
            biases_K[label] = 1.0
        return params_P

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
    binary: ClassVar[bool] = True
    lipschitz: ClassVar[float] = 1.0
    curved: ClassVar[float] = 0.25
    example: ClassVar[str] = "{kind: logistic}"

    def outputs(self, description: Description) -> int:
        return 1

    def residual_(self, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        return logits_BC.sigmoid_().sub_(labels_B.unsqueeze(1))

    def losses(self, logits_BJK: Tensor, labels_B: Tensor) -> Tensor:
        import torch

        signs_B1 = 1.0 - 2.0 * labels_B.unsqueeze(1)
        return torch.nn.functional.softplus(logits_BJK.squeeze(2) * signs_B1)

    def choose(self, logits_BK: Tensor) -> Tensor:
        return (logits_BK[:, 0] > 0).long()


@dataclass(frozen=True, kw_only=True)
class Softmax(Linear):
    """Softmax regression: one logit per class, cross-entropy loss."""

    kind: ClassVar[str] = "softmax"
    lipschitz: ClassVar[float] = math.sqrt(2)  # probabilities less a unit vector (Das et al. 2023, appendix D)
    curved: ClassVar[float] = 0.5  # diag(p) - p p', of which no eigenvalue is above 1/2
    example: ClassVar[str] = "{kind: softmax, l2: 0.001}"

    def outputs(self, description: Description) -> int:
        return description.classes

    def residual_(self, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        residual_BC = logits_BC.softmax(dim=1)
        labels_B1 = labels_B.unsqueeze(1)
        return residual_BC.scatter_add_(1, labels_B1, residual_BC.new_full((1, 1), -1.0).expand_as(labels_B1))

    def losses(self, logits_BJK: Tensor, labels_B: Tensor) -> Tensor:
        chosen_BJ1 = logits_BJK.gather(2, labels_B[:, None, None].expand(-1, logits_BJK.shape[1], 1))
        return logits_BJK.logsumexp(dim=2) - chosen_BJ1.squeeze(2)

    def choose(self, logits_BK: Tensor) -> Tensor:
        return logits_BK.argmax(dim=1)


@dataclass(frozen=True, kw_only=True)
class Svm(Linear):
    """Linear support vector machine: one logit z, Huber hinge loss of the margin m = z for label 1, -z for label 0.

    The loss is 0 for m > 1 + h, 1 - m for m < 1 - h, and (1 + h - m)^2 / (4 h) between, so that it has a derivative everywhere,
    of size at most 1 (Chapelle 2007; Chaudhuri, Monteleoni, Sarwate 2011).
    """

    smoothing: float = 0.5  # h
    kind: ClassVar[str] = "svm"
    binary: ClassVar[bool] = True
    lipschitz: ClassVar[float] = 1.0
    example: ClassVar[str] = "{kind: svm, l2: 0.001}"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.real(1e-3, 1.0, smoothing=self.smoothing)

    @property
    def curved(self) -> float:  # type: ignore[override]
        return 1.0 / (2.0 * self.smoothing)

    def outputs(self, description: Description) -> int:
        return 1

    def residual_(self, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        signs_B1 = 2.0 * labels_B.unsqueeze(1) - 1.0
        short_BC = logits_BC.mul_(signs_B1).neg_().add_(1.0 + self.smoothing)  # 1 + h - m
        return short_BC.div_(2.0 * self.smoothing).clamp_(0.0, 1.0).mul_(-signs_B1)

    def losses(self, logits_BJK: Tensor, labels_B: Tensor) -> Tensor:
        short_BJ = (1.0 + self.smoothing) - logits_BJK.squeeze(2) * (2.0 * labels_B.unsqueeze(1) - 1.0)
        curved_BJ = short_BJ.clamp(min=0.0).square().div_(4.0 * self.smoothing)
        return curved_BJ.where(short_BJ <= 2.0 * self.smoothing, short_BJ - self.smoothing)

    def choose(self, logits_BK: Tensor) -> Tensor:
        return (logits_BK[:, 0] > 0).long()


@dataclass(frozen=True, kw_only=True)
class Squared(Linear):
    """Linear least squares on two classes: one logit z, loss (z - s)^2 / 2 for s = 1 in class 1, -1 in class 0.

    It has no attribute `lipschitz`: its gradient grows with the logit, so that nothing but a clip norm bounds it.
    """

    kind: ClassVar[str] = "squared"
    binary: ClassVar[bool] = True
    curved: ClassVar[float] = 1.0
    example: ClassVar[str] = "{kind: squared, l2: 0.001}"

    def outputs(self, description: Description) -> int:
        return 1

    def residual_(self, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        return logits_BC.sub_(2.0 * labels_B.unsqueeze(1) - 1.0)

    def losses(self, logits_BJK: Tensor, labels_B: Tensor) -> Tensor:
        return (logits_BJK.squeeze(2) - (2.0 * labels_B.unsqueeze(1) - 1.0)).square().div_(2.0)

    def choose(self, logits_BK: Tensor) -> Tensor:
        return (logits_BK[:, 0] > 0).long()
