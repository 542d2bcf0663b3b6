"""Networks on Fashion-MNIST at a whole bill of epsilon 2, on the public test rows: `python tests/acceptance/fashion_networks.py`.

The job files of the MLP and of the papers' CNN, and the same CNN as a torch module of the user's own, through ghost norms and
through hooks: same data, steps, price and clip norm. Exit 1 where one is below its floor. Two to six minutes.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from acceptance import opened
from torch import nn

from sweeper.launch.candidate import trial_spec
from sweeper.models.module import ModuleModel
from sweeper.seeds import Streams, secret_from_seed

FLOORS = {"mlp": 0.83, "convnet": 0.83, "own module, ghost": 0.83, "own module, hooks": 0.83}


def cnn() -> nn.Module:
    """What `model: {kind: convnet, layers: [6, pool, 16, pool, 128], kernel: 5, activation: tanh}` is, as a user would write it."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5),
        nn.MaxPool2d(2),
        nn.Tanh(),
        nn.Conv2d(6, 16, 5),
        nn.MaxPool2d(2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(256, 128),
        nn.Tanh(),
        nn.Linear(128, 10),
    )


def main() -> int:
    torch.set_num_threads(1)
    own = {way: ModuleModel(module="fashion_networks:cnn", shape=(1, 28, 28), per_record=way) for way in ("auto", "hooks")}
    rows = [
        ("mlp", "fashion_mlp_no_tuning.yaml", None),
        ("convnet", "fashion_cnn_no_tuning.yaml", None),
        ("own module, ghost", "fashion_cnn_no_tuning.yaml", own["auto"]),
        ("own module, hooks", "fashion_cnn_no_tuning.yaml", own["hooks"]),
    ]
    missed = 0
    for name, job, model in rows:
        priced, worker = opened(job)
        trial = trial_spec(priced.spec, priced.noise_multiplier, 0, {})
        if model is not None:
            trial = dataclasses.replace(trial, model=model)
        begun = time.process_time()
        result = worker.run(trial, Streams(secret_from_seed(f"networks {name[:3]}"), 0))
        accuracy = result.sealed["correct"] / len(worker.data.holdout_rows)
        steps_ms = 1000 * (time.process_time() - begun) / priced.spec.trainer.steps
        print(f"{name:20} {accuracy:.4f}   floor {FLOORS[name]:.2f}   {steps_ms:.0f} CPU-ms a step, all included", flush=True)
        missed += accuracy < FLOORS[name]
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
