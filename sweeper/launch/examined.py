"""A model of the user's own, looked at before anything is reserved or opened."""

from __future__ import annotations

from typing import Any

from sweeper.launch.outcome import Say
from sweeper.spec.sweep import SweepSpec


def examine_model(spec: SweepSpec, say: Say) -> None:
    """Build a user's module, compare its per-record gradients with autograd's, and say how they are made. Opens no data.

    Raises:
      FieldError: it cannot be trained record by record.
    """
    if getattr(spec.model, "backend", None) != "opacus":
        return
    say(f"{spec.model.module}: looking at it on made-up records")
    found = examination_of(spec, lambda text: say(f"  {text}"))
    say(f"{spec.model.module}: {found.line()}")
    for line in (*found.replaced, *found.notes):
        say(f"  {line}")


def examination_of(spec: SweepSpec, say: Say = lambda _: None) -> Any:
    """What this process found out about a user's module; None for the models of this package."""
    if getattr(spec.model, "backend", None) != "opacus":
        return None
    from sweeper.backends.examine import examined

    return examined(spec.model, spec.data.source.description, say)


def take_over(spec: SweepSpec, found: Any) -> None:
    """Have a worker's process go by what the driver's found out, if the module is the same there.

    Raises:
      FieldError: it is another one.
    """
    if found is not None:
        from sweeper.backends.examine import known

        known(spec.model, spec.data.source.description, found)
