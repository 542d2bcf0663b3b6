"""A sweep's file: does it load, what does it cost, is its data there, does its model train, is there room. Opens no data."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from sweeper import catalog, planning
from sweeper.checks import RequestError
from sweeper.data.split import split_sizes
from sweeper.doctor import data_cache, machine
from sweeper.doctor.finding import FAIL, OK, WARN, Verdict, refused
from sweeper.doctor.machine import GB
from sweeper.doctor.reachable import Ray
from sweeper.planning import Plan
from sweeper.privacy.ledger import Ledger
from sweeper.privacy.refusals import no_budget
from sweeper.report.tables import human_epsilon
from sweeper.spec.sweep import DataSpec, SweepSpec
from sweeper.store.home import Home
from sweeper.store.vault_files import directory_of

PROCESS = 0.5 * GB  # of a driver or a worker before it holds a row: torch, Ray, Opacus; measured
PARAMETER = 32  # bytes for each number of a model in a trial: itself, sum, noise, gradient, two moments of Adam
MICROBATCH = 0.25 * GB  # of a user's module: see sweeper.backends.examine


class SweepFile:
    """One file, and what is known of it so far."""

    def __init__(self, file: str, home: Home) -> None:
        """Reads the file, and keeps what is wrong with it for `loads`.

        Raises:
          RequestError: there is no such file.
        """
        self.file, self.home = file, home
        self.spec: SweepSpec | None = None
        self.plan: Plan | None = None  # once it is priced
        self.trains = False  # until its gradients are found to be right
        self._wrong: Exception | None = None
        try:
            self.spec = catalog.load_spec(file)
        except Exception as error:  # `loads` raises it: it is a finding
            if not Path(file).is_file():
                raise
            self._wrong = error

    def loads(self) -> Iterator[Verdict]:
        if self._wrong is not None:
            raise self._wrong
        arms = f", {len(self._spec.arms)} arms" if self._spec.arms else ""
        yield Verdict(OK, f"{self._spec.name}: {self._spec.model.kind} on {self._spec.data.source.kind}{arms}")
        if directory_of(self.home.path, self._spec.name).exists():
            fix = f"sweeper resume {self._spec.name}, or run it under another name: sweeper run {self.file} --name NAME"
            yield Verdict(WARN, f"a sweep named {self._spec.name} was run in this home", fix)

    def priced(self) -> Iterator[Verdict]:
        self.plan = plan = planning.plan(self._spec)
        text = f"epsilon {human_epsilon(plan.guarantee.epsilon)} at delta {plan.guarantee.delta:g}"
        runs = f"{plan.expected_trials:.3g} runs expected"
        if not plan.spec.data.public and not math.isfinite(plan.guarantee.epsilon):
            yield Verdict(FAIL, f"{text}: it protects nothing", "Give it more noise.")
        else:
            yield Verdict(OK, f"{text}, {runs}" + (", as if private" if plan.spec.data.public else ""))

    def paid(self) -> Iterator[Verdict]:
        """What a reservation would be told now."""
        plan, name = self.plan, self._spec.budget_of
        assert plan is not None
        if plan.spec.data.public:
            yield Verdict(OK, "data.public is true: nothing is charged")
            return
        if not self.home.ledger_exists():
            yield refused(no_budget(name, plan.guarantee))
            return
        ledger = Ledger(self.home.ledger_uri)
        why = ledger.refusal(name, plan.event, plan.guarantee)
        if why is not None:
            yield refused(RequestError(why))
            return
        budget, after = ledger.budget(name), ledger.after(name, plan.event, plan.guarantee).epsilon
        assert budget is not None
        spent = ledger.spent(name).epsilon
        of = f"of {budget.epsilon:g} at delta {budget.delta:g}"
        yield Verdict(OK, f"{name}: spent {spent:.2f}, after this sweep {after:.2f} {of}")

    def data(self) -> Iterator[Verdict]:
        """Whether its files are here; none is opened."""
        for data in filter(None, (self._spec.data, self._proxy)):
            source: Any = data.source
            if not source.present(str(self.home.cache)):
                yield self._missing(source)
            elif (package := str(getattr(source, "module", "")).partition(":")[0].partition(".")[0]) and not _found(package):
                fix = "Install its package, run from the folder that holds it, or set PYTHONPATH."
                yield Verdict(FAIL, f"{source.module}: no package {package} is found", fix)
            elif (path := getattr(source, "path", None)) and not os.access(path, os.R_OK):
                yield Verdict(FAIL, f"{path} cannot be read", f"chmod u+r {path}")
            else:
                yield Verdict(OK, f"{source.kind} is here, unopened: {data.rows:,} rows, stated by {data.rows_stated_by}")

    def _missing(self, source: Any) -> Verdict:
        files = data_cache.files_of(source)
        if files is None:
            return Verdict(FAIL, f"{source.path} is no file", "A path is relative to the sweep's file, or absolute.")
        if files.origins:
            return Verdict(WARN, f"{source.kind} is not here yet; sweeper run fetches it", f"sweeper data fetch {source.kind}")
        fix = f"sweeper data fetch {source.kind} says where to get it."
        return Verdict(FAIL, f"{source.kind} is not here, and no package index holds it", fix)

    @property
    def _proxy(self) -> DataSpec | None:
        """The public table that a search runs on."""
        kind = getattr(self._spec.protocol, "proxy", None)
        return None if kind is None else DataSpec(source=catalog.resolve("data", kind)(), public=True)

    def model(self) -> Iterator[Verdict]:
        """Its per-record gradients, on made-up records."""
        from sweeper.doctor import gradients

        model, source = self._spec.model, self._spec.data.source
        if getattr(model, "backend", None) == "opacus":
            from sweeper.backends.examine import examined

            found = examined(cast(Any, model), source.description)
            yield Verdict(OK, found.line())
            for line in (*found.replaced, *found.notes):
                yield Verdict(OK, line)
            self.trains = True
            return
        made = gradients.compared(model, source.description, pixels=bool(getattr(source, "pixels", False)))
        text = (
            f"{made.parameters:,} parameters; per-record gradients, norms and clipped sums differ from autograd by {made.worst:.1g}"
        )
        self.trains = made.worst <= gradients.TOLERANCE
        if self.trains:
            yield Verdict(OK, f"{text} ({made.records} made-up records)")
        else:
            fix = "Do not run it: a fault of sweeper, or of this version of torch. Compare torch with constraints.txt."
            yield Verdict(FAIL, f"{text}, and at most {gradients.TOLERANCE:g} can be rounding", fix)

    def step(self) -> Iterator[Verdict]:
        """At the noise of the plan, where there is one."""
        from sweeper.doctor.dry_run import one_step

        yield from one_step(self._spec, self.plan.noises if self.plan else {}, split_sizes(self._spec.data)[0])

    def footprint(self, ray: Ray) -> Iterator[Verdict]:
        """An estimate from the public shape: the table twice with the driver, and its training rows with every trial."""
        spec, room = self._spec, max(1, ray.room)
        description = spec.data.source.description
        table = spec.data.rows * (4 * description.features + 9)
        trial = self._trial_bytes(split_sizes(spec.data)[0])
        free, whole = machine.free_memory(), PROCESS + 2 * table + room * trial
        text = f"about {whole / GB:.1f} GB: the table {table / GB:.2f} GB, a trial {trial / GB:.1f} GB, {room} at once"
        shared = machine.free_shared_memory()
        if ray.there:
            yield Verdict(OK, f"a trial takes about {trial / GB:.1f} GB on its node, beside a table of {table / GB:.2f} GB")
        elif free is not None and whole > free:
            fits = max(1, int((free - PROCESS - 2 * table) / trial))
            fix = f"Set resources: {{max_concurrent: {fits}}}, or use a larger machine."
            yield Verdict(WARN, f"{text}; {free / GB:.1f} GB are free", fix)
        elif shared is not None and table > shared:
            yield Verdict(WARN, f"{text}; the table does not fit into /dev/shm", "Start the container with a larger --shm-size.")
        else:
            yield Verdict(OK, text)

    def _trial_bytes(self, train_rows: int) -> float:
        spec = self._spec
        source, each = spec.data.source, 1 if getattr(spec.data.source, "pixels", False) else 4
        if getattr(spec.model, "backend", None) == "opacus":
            from sweeper.backends.examine import examined

            parameters, more = examined(cast(Any, spec.model), source.description).parameters, MICROBATCH
        else:
            parameters, more = spec.model.parameters(source.description), 0.0
        return PROCESS + train_rows * (each * (source.description.features + 1) + 16) + PARAMETER * parameters + more

    @property
    def _spec(self) -> SweepSpec:
        assert self.spec is not None, "the file did not load"
        return self.spec


def _found(package: str) -> bool:
    """Whether Python finds a package, here or on its path. Nothing of it runs."""
    if package in sys.modules:
        return True
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        return importlib.util.find_spec(package) is not None
    finally:
        sys.path.remove(here)
