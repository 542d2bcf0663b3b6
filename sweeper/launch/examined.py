"""A model of the user's own, looked at before anything is reserved or opened."""

from __future__ import annotations

from sweeper.launch.outcome import Say
from sweeper.spec.sweep import SweepSpec


def examine_model(spec: SweepSpec, say: Say) -> None:
    """Build a user's module, compare its per-record gradients with a loop, and say how they are made. Opens no data.

    Raises:
      FieldError: it cannot be trained record by record.
    """
    if getattr(spec.model, "backend", None) != "opacus":
        return
    from sweeper.backends.examine import examined

    found = examined(spec.model, spec.data.source.description)
    say(f"{spec.model.module}: {found.line()}")
    for line in (*found.replaced, *found.notes):
        say(f"  {line}")
