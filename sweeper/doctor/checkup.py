"""All that is looked at, in order; what cannot be looked at is said too."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

from sweeper.checks import RequestError
from sweeper.doctor import data_cache, machine, place, reachable, versions
from sweeper.doctor.finding import FAIL, Check, Finding, Verdict, raised, refused
from sweeper.doctor.reachable import Ray
from sweeper.doctor.sweep_file import SweepFile
from sweeper.spec.sweep import Resources
from sweeper.store.home import Home

Watch = Callable[[str], AbstractContextManager[object]]  # around the check of this name, which may take seconds
Hear = Callable[[Finding], object]  # each finding as soon as it is there

PACKAGES, MACHINE, HOME, SERVICES, SWEEP = "packages", "machine", "home", "services", "sweep"


def examine(file: str | None, home: Home, *, watch: Watch = lambda _: nullcontext(), hear: Hear = lambda _: None) -> list[Finding]:
    """Everything of this machine and home, and of a sweep's file if one is given.

    Raises:
      RequestError: there is no such file.
    """
    findings = []
    sweep = None if file is None else SweepFile(file, home)
    for check in _checks(sweep, home):
        with watch(check.name), contextlib.redirect_stdout(sys.stderr):  # what a user's module prints is no finding
            found = [
                Finding(group=check.group, name=check.name, word=verdict.word, text=verdict.text, fix=verdict.fix)
                for verdict in _looked(check)
            ]
        for finding in found:
            hear(finding)
        findings += found
    return findings


def _looked(check: Check) -> list[Verdict]:
    """What a check says; an error is a finding as well, without the words of errors that nobody foresaw beside addresses."""
    try:
        return list(check.look())
    except RequestError as error:
        return [refused(error)]
    except (Exception, SystemExit) as error:
        if type(error).__name__ in ("WorkFailed", "StoreError"):
            return [refused(error)]
        what = type(error).__name__ if check.group == SERVICES else raised(error)
        return [Verdict(FAIL, f"could not be looked at ({what})", "Mend what fails above first; else report it, with this line.")]


def _checks(sweep: SweepFile | None, home: Home) -> Iterator[Check]:
    """In an order in which one may look at what those before it found."""
    yield Check(group=PACKAGES, name="Python", look=versions.python)
    for name in versions.LOADED:
        yield Check(group=PACKAGES, name=name, look=lambda name=name: versions.named(name))  # type: ignore[misc]
    yield Check(group=PACKAGES, name="others", look=versions.others)
    yield Check(group=PACKAGES, name="extras", look=versions.extras)
    yield Check(group=MACHINE, name="CUDA", look=versions.cuda)
    yield Check(group=MACHINE, name="processors", look=machine.cpus)
    yield Check(group=MACHINE, name="threads", look=machine.threads)
    yield Check(group=MACHINE, name="memory", look=machine.memory)
    yield Check(group=MACHINE, name="/dev/shm", look=machine.shared_memory)
    yield Check(group=MACHINE, name="temporary", look=machine.temporary_folder)
    for name, look in (("writable", place.writable), ("mode", place.mode), ("disk", place.disk), ("data", data_cache.files)):
        yield Check(group=HOME, name=name, look=lambda look=look: look(home))  # type: ignore[misc]
    yield Check(group=SERVICES, name="MLflow", look=lambda: reachable.mlflow(home))
    yield Check(group=SERVICES, name="ledger", look=lambda: reachable.ledger(home))
    ray = Ray(sweep.spec.resources if sweep and sweep.spec else Resources())
    yield Check(group=SERVICES, name="Ray", look=ray.look)
    if sweep is not None:
        yield Check(group=SWEEP, name="file", look=sweep.loads)
        if sweep.spec is not None:
            yield from _of_sweep(sweep, ray)


def _of_sweep(sweep: SweepFile, ray: Ray) -> Iterator[Check]:
    """`ray`: asked for room for a trial of this sweep."""
    yield Check(group=SWEEP, name="price", look=sweep.priced)
    if sweep.plan is not None:
        yield Check(group=SWEEP, name="budget", look=sweep.paid)
    yield Check(group=SWEEP, name="table", look=sweep.data)
    yield Check(group=SWEEP, name="gradients", look=sweep.model)
    if sweep.trains:
        yield Check(group=SWEEP, name="dry step", look=sweep.step)
        yield Check(group=SWEEP, name="footprint", look=lambda: sweep.footprint(ray))
    yield Check(group=SWEEP, name="resources", look=ray.fits)
