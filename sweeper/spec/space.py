"""What is searched and how it is paid for. Candidates are i.i.d. draws from a public law; nothing here sees data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from sweeper import checks
from sweeper.checks import FieldError

MOST_CORNERS = 4_096


@dataclass(frozen=True, kw_only=True)
class Range:
    """An interval to draw from, uniformly on the linear or the log scale."""

    low: float
    high: float
    scale: str = "linear"  # linear or log

    def __post_init__(self) -> None:
        checks.one_of(("linear", "log"), scale=self.scale)
        for bound in (self.low, self.high):
            if isinstance(bound, bool) or not isinstance(bound, (int, float)) or not math.isfinite(bound):
                raise FieldError("range", [self.low, self.high], "must be two finite numbers [low, high]")
        if self.low > self.high:
            raise FieldError(
                "range", [self.low, self.high], "has its low end above its high end", f"Try [{self.high:g}, {self.low:g}]."
            )
        if self.low == self.high:
            raise FieldError(
                "range", [self.low, self.high], "is empty: both ends are the same", f"Use value: {self.low:g} instead."
            )
        if self.scale == "log" and self.low <= 0:
            raise FieldError(
                "range", [self.low, self.high], "must be above 0 on a log scale", "Use scale: linear, or raise the low end."
            )

    def at(self, uniform: float) -> float:
        """The value at a point in [0, 1) of the law."""
        if self.scale == "log":
            return math.exp(math.log(self.low) + uniform * (math.log(self.high) - math.log(self.low)))
        return self.low + uniform * (self.high - self.low)

    def ends(self) -> tuple[float, float]:
        return float(self.low), float(self.high)

    def __str__(self) -> str:
        return f"{'log ' if self.scale == 'log' else ''}{self.low:g} .. {self.high:g}"


@dataclass(frozen=True, kw_only=True)
class Choices:
    """A finite list to draw from, each value equally likely."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.values, tuple) or not self.values:
            raise FieldError("values", self.values, "must be a list of at least one value")
        if len(set(map(repr, self.values))) != len(self.values):
            raise FieldError("values", list(self.values), "must not repeat a value")

    def at(self, uniform: float) -> Any:
        return self.values[min(int(uniform * len(self.values)), len(self.values) - 1)]

    def ends(self) -> tuple[Any, ...]:
        return self.values

    def __str__(self) -> str:
        return " | ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in self.values)


Domain = Range | Choices


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True, kw_only=True)
class PolicySpace:
    """A policy kind with some settings fixed and some searched.

    `settings` maps field names of the policy class to a value or to a Domain. Construction builds the policy at every end of
    every domain, and at the corners where several meet, so that no candidate can be invalid.
    """

    policy: type[Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    kind: ClassVar[str] = "space"

    def __post_init__(self) -> None:
        known = [f.name for f in fields(self.policy)]
        costs = getattr(self.policy, "costs", {})
        for key in self.settings:
            if costs.get(key) == 0 and isinstance(self.settings[key], (Range, Choices)):
                rule = "cannot be searched: it changes what every trial asks of data, in a way that has no dearest value"
                raise FieldError(key, checks.MISSING, rule, "Give it a value, or compare values as arms.")
            if costs.get(key) and isinstance(self.settings[key], Choices) and not all(map(_number, self.settings[key].values)):
                rule = "must list numbers: it changes what every trial asks of data, and the dearest value is priced"
                raise FieldError(key, list(self.settings[key].values), rule, "Leave out what is not a number.")
            if key not in known:
                raise FieldError(key, checks.MISSING, f"is not a field of {self.policy.kind}{checks.suggestion(key, known)}")
        object.__setattr__(self, "settings", dict(sorted(self.settings.items())))
        middle = {key: value.at(0.5) for key, value in self.searched()}
        for key, domain in self.searched():
            for end in domain.ends():
                self._build({**middle, key: end})
        self._build(middle)
        for corner in itertools.islice(itertools.product(*(domain.ends() for _, domain in self.searched())), MOST_CORNERS):
            self._build(dict(zip(middle, corner, strict=True)))

    def __hash__(self) -> int:
        return hash((self.policy, tuple((k, repr(v)) for k, v in self.settings.items())))

    def searched(self) -> Iterator[tuple[str, Domain]]:
        """The searched fields, in the order of their names."""
        return ((key, value) for key, value in self.settings.items() if isinstance(value, (Range, Choices)))

    def draw(self, uniforms: Iterator[float]) -> Any:
        """One policy, its searched fields drawn from the public law."""
        return self._build({key: domain.at(next(uniforms)) for key, domain in self.searched()})

    def middle(self) -> Any:
        """The policy with its searched fields in the middle of their domains."""
        return self._build({key: domain.at(0.5) for key, domain in self.searched()})

    def dearest(self, cheapest: bool = False) -> Any:
        """The policy whose event costs most (or least) among all candidates; fields that change no event are in the middle."""
        costs = getattr(self.policy, "costs", {})
        chosen = {}
        for key, domain in self.searched():
            sign = costs.get(key, 0) * (-1 if cheapest else 1)
            chosen[key] = domain.at(0.5) if sign == 0 else max(domain.ends(), key=lambda end, sign=sign: sign * end)  # type: ignore[misc]
        return self._build(chosen)

    def build(self, chosen: Mapping[str, Any]) -> Any:
        """The policy with its searched fields set to `chosen`."""
        wanted = {key for key, _ in self.searched()}
        if set(chosen) != wanted:
            raise ValueError(f"settings {sorted(chosen)} do not match the searched fields {sorted(wanted)}")
        return self._build(chosen)

    def _build(self, chosen: Mapping[str, Any]) -> Any:
        fixed = {key: value for key, value in self.settings.items() if not isinstance(value, (Range, Choices))}
        return self.policy(**fixed, **chosen)


@dataclass(frozen=True, kw_only=True)
class Space:
    """The searched settings: one clip policy and one step policy, each with fixed and searched fields."""

    clip: PolicySpace
    step: PolicySpace

    def searched(self) -> Iterator[tuple[str, Domain]]:
        """Names like `clip.clip_norm` with their domains, in a fixed order."""
        for part in ("clip", "step"):
            for key, domain in getattr(self, part).searched():
                yield f"{part}.{key}", domain

    def draw(self, uniforms: Iterator[float]) -> dict[str, Any]:
        """One candidate: a value for each searched name."""
        return {name: domain.at(next(uniforms)) for name, domain in self.searched()}

    def build(self, candidate: Mapping[str, Any]) -> tuple[Any, Any]:
        """The candidate's (clip policy, step policy)."""
        parts = []
        for part in ("clip", "step"):
            chosen = {name.split(".", 1)[1]: value for name, value in candidate.items() if name.startswith(part + ".")}
            parts.append(getattr(self, part).build(chosen))
        return parts[0], parts[1]
