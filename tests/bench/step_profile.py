"""Where one step's time goes, by torch's own operations: python tests/bench/step_profile.py

Times under a profiler are longer than without; their shares are what to read.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from shapes import Shape, main_shapes
from torch.profiler import ProfilerActivity, profile

from sweeper.report.tables import table

KINDS = {  # of operations; what is in none is "the rest"
    "products": (
        "mm",
        "addmm",
        "addmm_",
        "bmm",
        "baddbmm_",
        "_linear_pointwise",
        "mkldnn_convolution",
        "_convolution",
        "convolution_backward",
    ),
    "gather": ("index_select", "index", "gather"),
    "noise": ("normal_", "nonzero"),
    "passes over parameters and batches": (
        "copy_",
        "add_",
        "mul_",
        "div_",
        "fill_",
        "mul",
        "add",
        "sub",
        "zero_",
        "sum",
        "pow",
        "constant_pad_nd",
    ),
}


def shares(shape: Shape) -> dict[str, float]:
    """Share of each kind of operation in the time of private steps."""
    run = shape.private()
    run()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        run()
    times = {event.key.rpartition("::")[2]: event.self_cpu_time_total for event in found.key_averages()}
    whole = sum(times.values())
    known = {kind: sum(times.get(name, 0.0) for name in names) / whole for kind, names in KINDS.items()}
    return known | {"the rest": 1.0 - sum(known.values())}


def show(shapes: Sequence[Shape]) -> str:
    rows = {shape.name: shares(shape) for shape in shapes}
    lines = [[kind, *(f"{found[kind]:.0%}" for found in rows.values())] for kind in (*KINDS, "the rest")]
    return table(["share of a step", *rows], lines, align="l" + "r" * len(rows), width=132)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(show(main_shapes()))
