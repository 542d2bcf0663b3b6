"""Which backend serves a model: the one place that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sweeper.backends.closed_form import LinearProblem
from sweeper.backends.layered import LayeredProblem
from sweeper.spec.protocols import Description, Problem

if TYPE_CHECKING:
    import numpy as np

    from sweeper.data.table import Table


def problem_of(model: Any, *, description: Description, table: Table, rows: np.ndarray, pixels: bool = False) -> Problem:
    """The model on these rows of a table."""
    backend = getattr(model, "backend", "closed-form")
    build: Any = {"closed-form": LinearProblem, "layered": LayeredProblem}.get(backend)
    if build is None:
        from sweeper.backends.opacus import ModuleProblem  # loads opacus, which takes a second

        build = ModuleProblem
    problem: Problem = build(model=model, description=description, table=table, rows=rows, pixels=pixels)
    return problem


def network_of(model: Any) -> Any:
    """What predicts, and what is released, for parameters of the model: the model itself, or a user's module built."""
    if getattr(model, "backend", None) != "opacus":
        return model
    from sweeper.backends.user_module import user_module

    return user_module(model)
