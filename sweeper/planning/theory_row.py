"""The numbers of a theorem's settings in this very run: all public, so that `plan` can print them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from sweeper.spec.protocols import Facts
from sweeper.spec.sweep import SweepSpec
from sweeper.spec.theory_numbers import phi_squared, s_of
from sweeper.step.theory import leaves_theorem


def facts_of(spec: SweepSpec, train_rows: int, noise_multiplier: float) -> Facts:
    """The public numbers of the sweep's answer: of its final run, where there is one."""
    clip, step = spec.space.clip.middle(), spec.space.step.middle()
    part = spec.protocol.part(final=True)
    share = 1.0 if part is None else part.share
    return Facts(
        rows=max(1, round(share * train_rows)),
        batch_size=share * spec.trainer.expected_batch(train_rows),
        steps=spec.trainer.steps,
        parameters=spec.model.parameters(spec.data.source.description),
        noise_multiplier=clip.sum_noise(step.gradient_noise(noise_multiplier)),
        relation=spec.trainer.relation,
    )


def theory_settings(spec: SweepSpec, train_rows: int, noise_multiplier: float) -> dict[str, float]:
    """phi_squared, S, and what of clip_norm and learning_rate follows from them before data is opened. Empty without a theorem."""
    clip, step = spec.space.clip.middle(), spec.space.step.middle()
    if step.kind != "theory" and clip.kind != "heavy-tail":
        return {}
    facts = facts_of(spec, train_rows, noise_multiplier)
    found = {"phi_squared": phi_squared(facts), "S": s_of(facts)}
    ready: Any = None
    if clip.known:
        ready = clip
    elif clip.kind == "heavy-tail" and clip.moment is not None:
        ready = clip.prepare(facts, None, None)  # asks neither rows nor randomness
    if ready is not None:
        found["clip_norm"] = ready.sensitivity
        if step.kind == "theory":
            found["learning_rate"] = step.prepare(facts, ready).learning_rate
    return found


def theory_note(spec: SweepSpec, train_rows: int, noise_multiplier: float) -> Iterator[str]:
    """The settings in words, and whether the run leaves a theorem; nothing without one. Searched fields are in their middle."""
    found = theory_settings(spec, train_rows, noise_multiplier)
    if not found:
        return
    said = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in found.items()]
    searched = [name for name, _ in spec.space.searched()]
    yield ("in the middle of the ranges: " if searched else "here ") + ", ".join(said)
    theorems = {getattr(spec.space.clip.middle(), "theorem", ""), getattr(spec.space.step.middle(), "theorem", "")}
    steps, facts = spec.trainer.steps, facts_of(spec, train_rows, noise_multiplier)
    ends = facts.batch_size / math.sqrt((3 if theorems & {"5.4"} else 1) * facts.parameters)
    if facts.noise_multiplier < ends:  # the noise that meets a bill grows with the number of steps
        yield f"T is capped: the paper takes steps until the noise multiplier is {ends:.3g}, not {facts.noise_multiplier:.3g}"
    if getattr(spec.trainer, "average", "random") != "random":
        yield "the theorems bound an iterate drawn uniformly (average: random)"
    if "6.5" in theorems and leaves_theorem(facts):
        needed = 1 / found["phi_squared"]
        yield f"{steps:,} steps are fewer than the {needed:,.0f} that theorem 6.5 needs: this run leaves the theorem"
