"""The ways to search a space that `plan --suggest` weighs, as sections of a file: what is searched, what is found or inferred.

Ranges are those of the sweep where it has them. A step size and a coupled one are turned into each other at the middle clip norm,
and one value becomes the range of a factor AROUND on either side of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from sweeper import catalog
from sweeper.spec.space import Choices, Domain, PolicySpace, Range, Space

CLIP = Range(low=0.05, high=2.0, scale="log")  # where the sweep has no range of its own
C = Range(low=0.3, high=10.0, scale="log")  # step size times clip norm
AROUND = 6.0
QUANTILE_EPSILON = 0.3  # of a clip norm that is asked once
DISTANCE = 1.0  # of the optimum from the start, where theory asks for it and nobody knows
Section = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Way:
    """The two sections of a space."""

    name: str
    clip: Section
    step: Section

    @property
    def searches(self) -> bool:
        values = [item for section in (self.clip, self.step) for item in section.items()]
        return any(key in ("range", "values") or isinstance(value, dict) for key, value in values)


def ways(space: Space) -> Iterator[Way]:
    """In the order in which they are shown where nothing else tells them apart."""
    clip, c, step = _domains(space)
    normalise = {"policy": "normalise"}
    search = _own(space.step) if space.step.policy.searches else {"policy": "exponential-search"}
    quantile = {"policy": "private-quantile", "value": "g-min", "epsilon": QUANTILE_EPSILON}
    adaptive = {"policy": "adaptive-quantile", "value": _rounded(_middle(clip))}
    fixed_clip = _clip_kind(space) | _written(clip)
    fixed_step = {"policy": "fixed"} | _written(step) | _kept(space, "fixed")
    coupled = {"policy": "coupled"} | _written(c) | _kept(space, "coupled")
    middle = _rounded(_middle(clip)), _rounded(_middle(c))
    yield Way(name="clip and step searched", clip=fixed_clip, step=fixed_step)
    yield Way(name="clip and coupled step searched", clip=fixed_clip, step=coupled)
    yield Way(name="normalise, step searched", clip=normalise, step=fixed_step | _written(c))
    yield Way(name="normalise, line search", clip=normalise, step=search)
    yield Way(name="clip searched, line search", clip=fixed_clip, step=search)
    yield Way(name="private quantile, step searched", clip=quantile, step=coupled)
    yield Way(name="adaptive quantile, step searched", clip=adaptive, step=coupled)
    yield Way(name="theory on a private quantile", clip=quantile, step={"policy": "theory", "theorem": "5.4", "distance": DISTANCE})
    yield Way(
        name="middle setting",
        clip=_clip_kind(space) | {"value": middle[0]},
        step={"policy": "coupled", "value": middle[1]} | _kept(space, "coupled"),
    )


def _domains(space: Space) -> tuple[Domain, Domain, Domain]:
    """Of a clip norm, of a coupled step size, of a step size."""
    clip = _wide(space.clip.settings.get("clip_norm", CLIP))
    middle = _middle(clip)
    given = space.step.settings.get(space.step.policy.searched)
    if space.step.policy.kind == "coupled":
        c = _wide(given)
        return clip, c, _times(c, 1 / middle)
    if space.step.policy.kind == "fixed":
        step = _wide(given)
        return clip, _times(step, middle), step
    return clip, C, _times(C, 1 / middle)


def _wide(domain: Any) -> Domain:
    if isinstance(domain, (Range, Choices)):
        return domain
    return Range(low=_rounded(domain / AROUND), high=_rounded(domain * AROUND), scale="log")


def _times(domain: Domain, factor: float) -> Domain:
    if isinstance(domain, Choices):
        return Choices(values=tuple(_rounded(value * factor) for value in domain.values))
    return Range(low=_rounded(domain.low * factor), high=_rounded(domain.high * factor), scale=domain.scale)


def _middle(domain: Domain) -> float:
    return float(domain.at(0.5))


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _written(domain: Domain) -> Section:
    if isinstance(domain, Choices):
        return {"values": list(domain.values)}
    return {"range": [domain.low, domain.high], "scale": domain.scale}


def _own(part: PolicySpace) -> Section:
    """The sweep's own policy as it is written."""
    section: Section = {"policy": part.policy.kind}
    for key, value in part.settings.items():
        if not isinstance(value, (Range, Choices)):
            section[key] = value
        elif key == part.policy.searched:
            section |= _written(value)
        else:
            section[key] = _written(value)
    return section


def _clip_kind(space: Space) -> Section:
    """The sweep's own way to clip to a norm that is given, without the norm; else a fixed norm."""
    own = space.clip
    if own.policy.searched != "clip_norm" or own.policy.counts:
        return {"policy": "fixed"}
    return {key: value for key, value in _own(own).items() if key not in ("range", "values", "scale", "clip_norm")}


def _kept(space: Space, kind: str) -> Section:
    """Settings with one value of the sweep's own step policy that this one has too: a schedule, a warm-up."""
    own: PolicySpace = space.step
    policy = catalog.resolve("step", kind)
    known = {f.name for f in fields(policy)} - {policy.searched}
    return {key: value for key, value in own.settings.items() if key in known and not isinstance(value, (Range, Choices))}
