"""Hyperparameter sweeps for differentially private training, with the whole privacy bill.

    from sweeper import Sweep, plan, run, best, compare

Names load on first use, so that `import sweeper` is quick.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"
_PLACES = {
    "Sweep": ("sweeper.spec.sweep", "SweepSpec"),
    "load_spec": ("sweeper.catalog", "load_spec"),
    "sweep_from_dict": ("sweeper.catalog", "sweep_from_dict"),
    "Home": ("sweeper.store.home", "Home"),
} | {
    verb: ("sweeper.service", verb)
    for verb in ("plan", "run", "resume", "best", "compare", "trials", "load", "status", "set_budget", "ledger_standings")
}
__all__ = ["__version__", *_PLACES]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        module, attribute = _PLACES[name]
        return getattr(importlib.import_module(module), attribute)
    raise AttributeError(f"module 'sweeper' has no attribute {name!r}")
