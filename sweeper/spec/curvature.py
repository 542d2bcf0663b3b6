"""What is public about every record's loss as a function of the parameters."""

from __future__ import annotations

from dataclasses import dataclass

SLACK = 1e-6  # relative, of a bound on ||[x, 1]||: features are rounded to float32. Rows beyond it are left out


@dataclass(frozen=True, kw_only=True)
class Curvature:
    """Bounds that hold for every possible record, at all parameters, of a loss that is convex in them.

    The penalty, which no data enters, is apart: `lipschitz` and `smoothness` are those of one record's loss alone.
    """

    lipschitz: float  # L: largest norm of a record's gradient
    smoothness: float  # beta: largest second derivative of a record's loss in any direction
    penalty: float = 0.0  # largest second derivative of the penalty
    strong: float = 0.0  # gamma: its least one; 0 where it leaves some parameter out
    rank_one: bool = False  # a record's second derivative is a number times one matrix of rank one
