"""A run that stops in the middle and goes on elsewhere, bit for bit: one object holds all of its state, and is kept as bytes.

What is kept is private: iterates that nobody paid to see. Whoever keeps it (launch/checkpoints.py) closes and signs it.
"""

from __future__ import annotations

import pickle
from typing import Any, Protocol, TypeVar

from sweeper.spec.protocols import Problem

State = TypeVar("State")


class Keep(Protocol):
    """Where a trial's state is kept. When it is due is a matter of time, and changes no result."""

    resumed_from: int  # steps that were done when the state was last loaded; 0: none was

    def load(self) -> bytes | None:
        """What was kept of this very trial; None: nothing."""
        ...

    def due(self) -> bool:
        """Whether to save now; asked once a step."""
        ...

    def save(self, content: bytes) -> None: ...


def kept(keep: Keep | None, problem: Problem, kind: type[State]) -> State | None:
    """The state to go on with, and the problem's own put back; None: begin.

    `keep` answers only for bytes that this trial saved itself: unpickling others would run whatever they say.
    """
    content = None if keep is None else keep.load()
    if keep is None or content is None:
        return None
    found, own, left_out = pickle.loads(content)
    if not isinstance(found, kind):
        return None  # saved by a trainer of another version: the same streams replay from the start
    problem.restore(own)
    problem.nonfinite += left_out
    keep.resumed_from = found.done  # type: ignore[attr-defined]
    return found


def keep_now(keep: Keep, state: Any, problem: Problem, left_out: int) -> None:
    """Save a state. left_out: terms that were not finite in this run so far."""
    keep.save(pickle.dumps((state, problem.state(), left_out)))
