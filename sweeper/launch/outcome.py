"""What a driver says and gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweeper.planning import Plan

if TYPE_CHECKING:
    from sweeper.store.queries import Best

Say = Callable[[str], None]  # a line for a person; one that starts with a carriage return replaces the last such line


class WorkFailed(Exception):
    """The request was right and the work failed: exit 1. Says what to do next."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What a run gives: the plan it kept to and the best of what is released.

    `best` is None when every trial failed, and when a law that may do so drew no run: that is the result it was paid for.
    """

    plan: Plan
    best: Best | None
    submission: str
    drew_nothing: bool = False


def silent(_: str) -> None:
    """Nobody is listening."""


def winners_of(fixed: Mapping[str, Any]) -> dict[str, int]:
    """Arm -> index of its winner, of what a vault recorded for a release; earlier versions recorded one winner, or none."""
    if "winners" in fixed:
        return dict(fixed["winners"])
    return {} if fixed["winner"] is None else {"": fixed["winner"]}
