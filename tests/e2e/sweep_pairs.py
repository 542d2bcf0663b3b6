"""The sweeps of which two are run, one that draws 2 runs in secret and one that draws 30."""

from __future__ import annotations

from tiny_sweeps import SELECT_BEST, armed, tiny

SWEEP = tiny("pair", trainer={"kind": "dp-sgd", "batch_size": 64, "steps": 300})
TUNED = SWEEP | {"protocol": SELECT_BEST | {"kind": "subsample-tune", "tune_fraction": 0.25}}  # the same law, so the same draws
ARMED = armed("pair")
ARM_COUNTS = {2: {"wide": 1, "low": 3, "slow": 2}, 30: {"wide": 15, "low": 9, "slow": 6}}  # of the few and of the many
