"""Single training runs on the two published tables, as the acceptance checks of the policies need them.

Accuracies are exact ones on held-out rows: fair on benchmarks that are declared public, as they are here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from sweeper.backends.closed_form import LinearProblem, evaluate
from sweeper.catalog import resolve
from sweeper.launch.open_data import OpenData
from sweeper.privacy import accountant
from sweeper.seeds import Streams, secret_from_seed
from sweeper.spec.protocols import Fitted
from sweeper.spec.sweep import DataSpec
from sweeper.store.home import Home

MODELS = {"adult": "logistic", "fashion-mnist": "softmax"}
HOLDOUT: dict[str, float | str] = {"adult": 0.2, "fashion-mnist": "test"}
DELTA = 1e-5

torch.set_num_threads(1)


def trainer(kind: str, **fields: Any) -> Any:
    return resolve("trainer", kind)(**fields)


def clip(kind: str, **fields: Any) -> Any:
    return resolve("clip", kind)(**fields)


def step(kind: str, **fields: Any) -> Any:
    return resolve("step", kind)(**fields)


class Table:
    """A table with its public split, and the convex model that is trained on it."""

    def __init__(self, name: str, cache: str) -> None:
        source = resolve("data", name)()
        source.fetch(cache)
        spec = DataSpec(source=source, holdout=HOLDOUT[name], public=True)
        self._known: dict[Any, float] = {}
        self.name, self.model = name, resolve("model", MODELS[name])()
        self.data = OpenData.of(spec, source.load(cache))
        self.problem = LinearProblem(
            model=self.model,
            description=source.description,
            table=self.data.table,
            rows=self.data.train_rows,
            pixels=bool(getattr(source, "pixels", False)),
        )

    @property
    def rows(self) -> int:
        return self.problem.rows

    def noise(self, epsilon: float, trainer: Any, clip: Any, step: Any) -> float:
        """The noise multiplier at which one run costs this epsilon, at delta 1e-5."""
        return float(accountant.calibrate(lambda z: trainer.event(self.rows, z, clip, step), epsilon, DELTA))

    def fit(self, trainer: Any, clip: Any, step: Any, noise: float, seed: int) -> Fitted:
        fitted: Fitted = trainer.fit(self.problem, clip, step, noise, Streams(secret_from_seed("policies"), seed))
        return fitted

    def score(self, fitted: Fitted) -> float:
        """Percent of held-out rows that are right."""
        if not bool(torch.isfinite(fitted.params_P).all()):
            return 0.0
        held_out = self.data.holdout_rows
        return 100.0 * evaluate(self.model, fitted.params_P, self.data.table, held_out) / len(held_out)

    def accuracy(self, trainer: Any, clip: Any, step: Any, noise: float, seed: int) -> float:
        run = trainer, clip, step, noise, seed
        if run not in self._known:
            self._known[run] = self.score(self.fit(*run))
        return self._known[run]

    @property
    def majority(self) -> float:
        """Percent of held-out rows with the commonest label."""
        labels = torch.from_numpy(self.data.table.labels[self.data.holdout_rows])
        return 100.0 * float(labels.bincount().max()) / len(labels)


@lru_cache(maxsize=2)
def table(name: str) -> Table:
    return Table(name, str(Home().ensure().cache))
