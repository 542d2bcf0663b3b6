"""One step of every trial's kind, by the code that runs trials, on made-up records. Nothing is opened, charged or kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

import numpy as np

from sweeper import seeds
from sweeper.checks import RequestError
from sweeper.doctor import made_up
from sweeper.doctor.finding import FAIL, OK, WARN, Verdict, raised, refused
from sweeper.launch.candidate import trial_spec
from sweeper.launch.open_data import OpenData
from sweeper.launch.worker import Worker
from sweeper.seeds import Streams
from sweeper.spec.sweep import SweepSpec

LEAST_ROWS = 1024
MOST_BYTES = 1 << 30  # of the made-up table
HELD_OUT = 64


def one_step(spec: SweepSpec, noises: Mapping[str, float], train_rows: int) -> Iterator[Verdict]:
    """Of each arm: a trial with the middle of its space and a single step, trained and scored."""
    for arm, own in spec.by_arm().items():
        yield _of_arm(own, noises.get(arm, 1.0), train_rows, arm)


def _of_arm(spec: SweepSpec, noise_multiplier: float, train_rows: int, arm: str) -> Verdict:
    source, trainer = spec.data.source, spec.trainer
    most = max(HELD_OUT, MOST_BYTES // (4 * source.description.features))
    settings = {field.name for field in fields(trainer)}  # type: ignore[arg-type]
    if "steps" in settings:
        trainer = replace(trainer, steps=1)  # type: ignore[type-var]
    if getattr(trainer, "batch_size", None) and 2 * trainer.batch_size > most:  # type: ignore[attr-defined]
        trainer = replace(trainer, batch_size=most // 2)  # type: ignore[type-var]
    batch = getattr(trainer, "batch_size", None) or 1
    rows = min(train_rows, most, max(LEAST_ROWS, 2 * batch))
    table = made_up.table(source.description, rows + HELD_OUT, tokens=bool(getattr(spec.model, "integers", False)))
    data = OpenData(spec.data, table, np.arange(rows), np.arange(rows, rows + HELD_OUT))
    candidate = {name: domain.at(0.5) for name, domain in spec.space.searched()}
    trial = replace(trial_spec(spec, noise_multiplier, 0, candidate, arm=arm), trainer=trainer)
    name = f"arm {arm}: " if arm else ""
    try:
        sealed = Worker(data).run(trial, Streams(seeds.secret_from_seed("doctor"), 0)).sealed
    except RequestError as error:
        found = refused(error)
        return found._replace(text=name + found.text)
    except Exception as error:
        return Verdict(FAIL, name + raised(error), "Mend the model's code; if it is not yours, report this line.")
    if sealed["diverged"]:
        rule = f"{name}parameters were not finite after it, at the middle of the space and noise {noise_multiplier:.3g}"
        return Verdict(WARN, rule, "Search smaller step sizes.")
    seconds = sealed["seconds_training"]
    return Verdict(OK, f"{name}{trainer.kind} on {rows:,} made-up records in {seconds:.2g} s, and a score")
