"""Releases for the tests of the store: small, complete, and easy to change in one field."""

from __future__ import annotations

from typing import Any

import numpy as np

from sweeper.store.release import Release, ReleasedTrial, synthetic_rows

FEATURES = 5
RELEASED_AT = 1_790_000_000.0  # a round public second
WEIGHTS = np.arange(FEATURES + 1, dtype=np.float32) / 8


def linear(params: bytes) -> Any:
    """A torch.nn.Linear from P = FEATURES + 1 float32 numbers, bias last."""
    import torch

    values = torch.from_numpy(np.frombuffer(params, dtype="<f4").copy())
    module = torch.nn.Linear(FEATURES, 1)
    with torch.no_grad():
        module.weight.copy_(values[:FEATURES].reshape(1, FEATURES))
        module.bias.copy_(values[FEATURES:])
    return module


def trial(identity: str = "w1", **changes: Any) -> ReleasedTrial:
    given = {
        "id": identity,
        "settings": {"clip_norm": 0.21, "learning_rate": 14.3},
        "candidate": {"clip.clip_norm": 0.21},
        "metric": "accuracy",
        "score": 0.841,
        "clip_policy": "fixed",
        "step_policy": "coupled",
        "trainer": "dp-sgd",
        "params": WEIGHTS.tobytes(),
        "is_best": True,
    }
    return ReleasedTrial(**(given | changes))


def release(*trials: ReleasedTrial, **changes: Any) -> Release:
    given = {
        "sweep": "adult-clip",
        "submission": "sub-1",
        "spec_yaml": "name: adult-clip\nprivacy: {epsilon: 2.0, delta: 1.0e-05}\n",
        "spec": {"name": "adult-clip", "privacy": {"epsilon": 2.0, "delta": 1e-5}, "arms": {}},
        "plan": {"epsilon_one_trial": 1.03, "unseal_epsilon": 9.27, "noise_multiplier": 1.64},
        "guarantee": {"epsilon": 2.0, "delta": 1e-5, "relation": "zero-out", "unit": "record", "seeded": False},
        "ledger": {"budget": "adult", "reserved": 2.0},
        "protocol": "select-best",
        "public": False,
        "released_at": RELEASED_AT,
        "timing": "timing not covered",
        "description_markdown": "# adult-clip\nepsilon **2.00**",
        "trials": trials or (trial(),),
        "build_model": linear,
        "build_example": lambda: synthetic_rows(FEATURES),
        "score_noise": 0.0015,
    }
    return Release(**(given | changes))
