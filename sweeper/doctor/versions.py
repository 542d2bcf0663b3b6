"""Python and the packages: their versions against what the installed package itself asks for, and whether they load."""

from __future__ import annotations

import importlib
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.doctor.finding import FAIL, OK, WARN, Verdict, raised

if TYPE_CHECKING:
    from packaging.requirements import Requirement

PACKAGE = "sweeper"
DEVICE = Path("/dev/nvidia0")
LOADED = {  # a package -> the module of ours that cannot do without it
    "torch": "sweeper.backends.layered",
    "opacus": "sweeper.backends.user_module",
    "ray": "sweeper.launch.tune",
    "mlflow": "sweeper.store.connection",
}


def python() -> Iterator[Verdict]:
    from packaging.specifiers import SpecifierSet

    wanted, found = metadata.metadata(PACKAGE)["Requires-Python"] or "", platform.python_version()
    if SpecifierSet(wanted).contains(found, prereleases=True):
        yield Verdict(OK, f"{found} (wants {wanted})")
    else:
        fix = f"Make another virtual environment: python3.11 -m venv .venv, and install {PACKAGE} into it."
        yield Verdict(FAIL, f"{found} runs this, and {PACKAGE} wants {wanted}", fix)


def named(name: str) -> Iterator[Verdict]:
    """One of the packages in LOADED: its version, and whether our part that uses it loads."""
    wanted = next((found for found in required() if found.name == name), None)
    if wanted is None:
        yield Verdict(WARN, f"is not among what {PACKAGE} asks for", "Install the package again: pip install -e .")
        return
    verdict = of(wanted)
    if verdict.word == FAIL:
        yield verdict
        return
    try:
        importlib.import_module(LOADED[name])
    except Exception as error:  # also what a broken library raises while it is loaded
        fix = f"pip install --force-reinstall '{wanted}'"
        yield Verdict(FAIL, f"{metadata.version(name)} does not load ({raised(error)})", fix)
        return
    yield verdict


def others() -> Iterator[Verdict]:
    """The packages that are asked for besides, one line for all that are right."""
    rest = [found for found in required() if found.name not in LOADED]
    verdicts = [(found, of(found)) for found in rest]
    for found, verdict in verdicts:
        if verdict.word != OK:
            yield verdict._replace(text=f"{found.name} {verdict.text}")
    right = sum(verdict.word == OK for _, verdict in verdicts)
    yield Verdict(OK, f"{right} of {len(rest)} as asked for: " + ", ".join(f.name for f, v in verdicts if v.word == OK))


def extras() -> Iterator[Verdict]:
    """What needs an extra says so itself; here only which are complete."""
    parts = []
    for extra in metadata.metadata(PACKAGE).get_all("Provides-Extra") or ():
        wrong = [found.name for found in required(extra) if of(found).word != OK]
        parts.append(f"{extra} " + (f"lacks {', '.join(wrong)}" if wrong else "complete"))
    yield Verdict(OK, "; ".join(parts) or "none")


def of(wanted: Requirement, seen: frozenset[str] = frozenset()) -> Verdict:
    """A requirement against what is installed, what its own extras ask for included."""
    from packaging.requirements import Requirement

    fix = f"pip install '{wanted}'"
    try:
        found = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return Verdict(FAIL, f"is not installed, and {PACKAGE} wants {wanted}", fix)
    if not wanted.specifier.contains(found, prereleases=True):
        return Verdict(FAIL, f"{found} is installed, and {PACKAGE} wants {wanted.specifier}", fix)
    if wanted.name not in seen:
        for extra in sorted(wanted.extras):
            for text in metadata.requires(wanted.name) or ():
                part = Requirement(text)
                if _of_extra(part, extra) and of(part, seen | {wanted.name}).word != OK:
                    return Verdict(FAIL, f"{found} lacks {part.name} of its extra {extra}", fix)
    return Verdict(OK, f"{found} (wants {wanted.specifier or 'any'})")


def required(extra: str | None = None) -> list[Requirement]:
    """What the installed package asks for, always or for one of its extras.

    Raises:
      importlib.metadata.PackageNotFoundError: it is not installed.
    """
    from packaging.requirements import Requirement

    wanted = [Requirement(text) for text in metadata.requires(PACKAGE) or ()]
    if extra is not None:
        return [found for found in wanted if _of_extra(found, extra)]
    return [found for found in wanted if found.marker is None or found.marker.evaluate({"extra": ""})]


def _of_extra(found: Requirement, extra: str) -> bool:
    """Whether it is asked for with the extra and not without."""
    return found.marker is not None and not found.marker.evaluate({"extra": ""}) and found.marker.evaluate({"extra": extra})


def cuda() -> Iterator[Verdict]:
    """Trials run on processors. A graphics card matters where a sweep asks Ray for one."""
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
        yield Verdict(OK, f"{torch.version.cuda}: {', '.join(names)}")
    elif DEVICE.exists():
        rule = f"{DEVICE} is here, and torch {torch.__version__} does not see it"
        yield Verdict(WARN, rule, "Install the build of torch for its driver, if a sweep asks for resources.gpu.")
    elif torch.version.cuda is not None:
        yield Verdict(OK, f"torch is built for CUDA {torch.version.cuda} and sees no device; trials run on processors")
    else:
        yield Verdict(OK, f"not in this build of torch ({torch.__version__}); trials run on processors")
