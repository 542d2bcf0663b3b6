"""What a trial gives back, in two parts that never mix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """`released` is inside the trial's price; `sealed` is not, and stays with the curator.

    released: {"score": float or None, "settings": {...}, "params": float32 bytes of params_P, "trace": name -> values at some
    steps, all of them noisy or made of noisy ones}. score None: the trial failed
    or gave no finite score; it still counts as a run. sealed: diagnostics, a traceback, what was printed, seconds.
    """

    released: Mapping[str, Any]
    sealed: Mapping[str, Any] = field(default_factory=dict)
