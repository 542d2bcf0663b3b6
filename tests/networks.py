"""Networks as oracles: plain torch modules in float64 with autograd, one record at a time. They share no code with the package."""

from __future__ import annotations

import numpy as np
import oracles
import torch
from torch import nn

LINEAR = ("logistic", "svm", "softmax")
FEATURES = 12  # of the rows that these networks take

NETWORKS = {
    "mlp-relu": lambda k: [nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, k)],
    "mlp-tanh": lambda k: [nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, k)],
    "convnet": lambda k: [  # more filters than positions, where gradients of a convolution are computed twice
        nn.Unflatten(1, (3, 2, 2)),
        nn.Conv2d(3, 5, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(5, 4),
        nn.ReLU(),
        nn.Linear(4, k),
    ],
    "convnet-mean": lambda k: [  # fewer filters, where they are kept; a picture that is no square; a column that a pool drops
        nn.Unflatten(1, (1, 3, 4)),
        nn.Conv2d(1, 3, 2),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(3, k),
    ],
}
WIDEST = {"mlp-relu": 12, "mlp-tanh": 12, "convnet": 135, "convnet-mean": 24}  # numbers a record may keep in one buffer


def module(kind: str, classes: int, params_P: np.ndarray | None = None) -> nn.Module:
    net = nn.Sequential(*NETWORKS[kind](classes)).double()
    if params_P is not None:
        nn.utils.vector_to_parameters(torch.from_numpy(params_P.astype(np.float64)), net.parameters())
    return net


def parts(kind: str, classes: int) -> list[np.ndarray]:
    """Positions in the parameter vector of each layer's weights and biases in turn."""
    if kind in LINEAR:
        table_KD = np.arange((classes if kind == "softmax" else 1) * (FEATURES + 1)).reshape(-1, FEATURES + 1)
        return [table_KD[:, :-1].ravel(), table_KD[:, -1]]
    sizes = [parameter.numel() for parameter in module(kind, classes).parameters()]
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


def gradients(kind: str, params_P: np.ndarray, features_Bd: np.ndarray, labels_B: np.ndarray) -> np.ndarray:
    """Per-record gradients [B, P] in float64, one record at a time."""
    if kind in LINEAR:
        return oracles.gradients(kind, params_P, features_Bd, labels_B)
    net, rows = module(kind, _classes(kind, params_P), params_P), []
    for x_d, label in zip(torch.from_numpy(features_Bd).double(), torch.from_numpy(labels_B), strict=True):
        loss = nn.functional.cross_entropy(net(x_d[None]), label[None])
        rows.append(torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(net.parameters()))]).numpy())
    return np.array(rows)


def losses(kind: str, params_P: np.ndarray, features_Bd: np.ndarray, labels_B: np.ndarray) -> np.ndarray:
    """Per-record losses [B] in float64."""
    if kind in LINEAR:
        return oracles.losses(kind, params_P, features_Bd, labels_B)
    with torch.no_grad():
        logits_BK = module(kind, _classes(kind, params_P), params_P)(torch.from_numpy(features_Bd).double())
        return nn.functional.cross_entropy(logits_BK, torch.from_numpy(labels_B), reduction="none").numpy()


def _classes(kind: str, params_P: np.ndarray) -> int:
    return next(k for k in range(2, 300) if sum(map(len, parts(kind, k))) == len(params_P))
