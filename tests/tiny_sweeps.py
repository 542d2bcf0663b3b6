"""Sweeps on Adult that take seconds, and secrets that make them draw a given number of runs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from sweeper import catalog, seeds
from sweeper.seeds import SWEEP, Streams, of_arm
from sweeper.spec.sweep import SweepSpec

SELECT_BEST = {"kind": "select-best", "law": "geometric", "mean_trials": 10, "max_trials": 40}
FIXED = {"clip": {"policy": "fixed", "value": 0.5}, "step": {"policy": "coupled", "value": 2.0}}


def tiny(name: str = "tiny", **sections: Any) -> dict[str, Any]:
    """A select-best sweep of 20 steps as YAML would give it, with whole sections replaced or added."""
    base = {
        "name": name,
        "data": {"source": "adult", "holdout": 0.2},
        "model": {"kind": "logistic"},
        "trainer": {"kind": "dp-sgd", "batch_size": 64, "steps": 20},
        "privacy": {"epsilon": 2.0, "delta": 1e-5},
        "protocol": SELECT_BEST,
        "space": {
            "clip": {"policy": "fixed", "range": [0.05, 2.0], "scale": "log"},
            "step": {"policy": "coupled", "range": [0.3, 10.0], "scale": "log"},
        },
    }
    return copy.deepcopy(base | sections)


def spec_of(name: str = "tiny", **sections: Any) -> SweepSpec:
    return catalog.sweep_from_dict(tiny(name, **sections))


def armed(name: str = "armed", **sections: Any) -> dict[str, Any]:
    """The same with three arms in the place of its space: two that differ in their clip norms, one with a trainer of its own."""
    base = tiny(name, **sections)
    space = base.pop("space")
    low = {"clip": {"policy": "fixed", "range": [0.05, 0.3]}, "step": space["step"]}
    slow = {"clip": {"policy": "fixed", "value": 0.5}, "step": space["step"]}
    slow["trainer"] = {"kind": "dp-sgd", "batch_size": 128, "steps": 30}
    base["arms"] = {"wide": space, "low": low, "slow": slow}
    return copy.deepcopy(base)


def secret_drawing(count: int | Mapping[str, int], spec: SweepSpec) -> bytes:
    """The first of the secrets test-0, test-1, ... with which a sweep, or each of its arms, draws this many runs."""
    counts = count if isinstance(count, Mapping) else {"": count}
    for number in range(100_000):
        secret = seeds.secret_from_seed(f"test-{number}")
        streams = Streams(secret, SWEEP)
        if all(
            drawn == spec.protocol.draw_count(streams.bits(of_arm(seeds.COUNT, arm)).uniforms()) for arm, drawn in counts.items()
        ):
            return secret
    raise AssertionError(f"no secret draws {count}")
