"""The peer: 48 settings of DP softmax regression on Fashion-MNIST with Ray Tune, Opacus and MLflow, as their guides show it.

python peer_ray_opacus.py FOLDER_OF_THE_PICTURES FOLDER_OF_RESULTS MLFLOW_URI STEPS
"""

from __future__ import annotations

import gzip
import sys
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from opacus import PrivacyEngine
from ray import tune
from ray.air.integrations.mlflow import MLflowLoggerCallback
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLIPS = [0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0, 4.0]
RATES = [0.05, 0.1, 0.2, 0.5, 1.0, 2.0]
BATCH_SIZE, NOISE_MULTIPLIER, DELTA = 500, 1.0, 1e-5


def read(folder: str, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    with gzip.open(Path(folder) / f"{part}-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784)
    with gzip.open(Path(folder) / f"{part}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    return torch.from_numpy(pixels / np.float32(255)), torch.from_numpy(labels.astype(np.int64))


def train(config: dict[str, Any], data: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    loader = DataLoader(TensorDataset(*data["train"]), batch_size=BATCH_SIZE, shuffle=True)
    model, criterion = nn.Linear(784, 10), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=config["learning_rate"])
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=config["clip_norm"],
    )
    left = config["steps"]
    while left > 0:  # an epoch at a time
        for features, labels in islice(loader, left):
            optimizer.zero_grad()
            criterion(model(features), labels).backward()
            optimizer.step()
        left -= len(loader)
    features, labels = data["test"]
    with torch.no_grad():
        accuracy = (model(features).argmax(dim=1) == labels).float().mean().item()
    tune.report({"accuracy": accuracy, "epsilon": engine.get_epsilon(DELTA)})


def main(folder: str, storage: str, store: str, steps: int) -> None:
    ray.init(include_dashboard=False, log_to_driver=False)
    data = {"train": read(folder, "train"), "test": read(folder, "t10k")}
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(train, data=data), {"cpu": 1}),
        param_space={
            "clip_norm": tune.grid_search(CLIPS),
            "learning_rate": tune.grid_search(RATES),
            "steps": steps,
        },
        tune_config=tune.TuneConfig(metric="accuracy", mode="max"),
        run_config=tune.RunConfig(
            storage_path=storage, callbacks=[MLflowLoggerCallback(tracking_uri=store, experiment_name="fashion")], verbose=0
        ),
    )
    results = tuner.fit()
    best = results.get_best_result()
    print(len(results), best.config["clip_norm"], best.config["learning_rate"], best.metrics["accuracy"])


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
