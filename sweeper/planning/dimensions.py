"""How every setting of a sweep is paid for, with what hangs on it in epsilon. Opens no data.

free             fixed beforehand to a public value, or chosen on public data
post-processing  works on what is private already
changes-event    changes what a trial asks of data; a trial is priced at the dearest value
selected         chosen by looking at private scores: what the tuning bill is for
released         every value that is tried is shown with its trial, and each trial is paid for
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from sweeper.checks import FieldError
from sweeper.planning.good_part import fewer_trials, good_shares, product, with_fewer_runs
from sweeper.planning.theory_row import theory_note
from sweeper.planning.trial import event_with
from sweeper.privacy import accountant
from sweeper.privacy.events import Composed, Event, Gaussian
from sweeper.privacy.release import DrawnRuns
from sweeper.spec.space import Choices, PolicySpace, Range, Space
from sweeper.spec.sweep import SweepSpec

SILENT = 5e-4  # relative: below, a question costs nothing that the account can tell from its own precision


@dataclass(frozen=True, kw_only=True)
class DimensionRow:
    """One setting, or what one policy asks, and how it is paid for.

    epsilon_low, epsilon_high: of `selected` and `released`, the bill of the sweep with this setting fixed, and as it is; of
    `changes-event`, one trial at the cheapest value (or without the question), and as it is priced. None: nothing hangs on it, or
    it is infinite.
    """

    name: str
    values: str
    paid: str
    epsilon_low: float | None = None
    epsilon_high: float | None = None
    note: str = ""


def dimensions(
    spec: SweepSpec, train_rows: int, noise_multiplier: float, one: Event, epsilon: float, epsilon_one: float
) -> list[DimensionRow]:
    """A row for every searched setting, every question that a policy asks of data, and what is fixed.

    `one`, `epsilon_one`: one trial at this noise; `epsilon`: the whole bill.
    """
    return list(_Pricing(spec, train_rows, noise_multiplier, one, epsilon, epsilon_one).rows())


@dataclass(frozen=True)
class _Pricing:
    spec: SweepSpec
    train_rows: int
    noise_multiplier: float
    one: Event
    epsilon: float
    epsilon_one: float

    def rows(self) -> Iterator[DimensionRow]:
        for part in ("clip", "step"):
            space: PolicySpace = getattr(self.spec.space, part)
            removes = spared(self.spec.space, part)
            searched = [self._searched(f"{part}.{key}", domain) for key, domain in space.searched()]
            question = list(self._question(part, space, removes))
            rows = [*searched, *question, *_fixed(part, space)]
            if removes and not rows:
                rows = [DimensionRow(name=f"{part} ({space.policy.kind})", values=_values(space), paid="free")]
            if removes and not question:
                rows[0] = replace(rows[0], note=_joined(rows[0].note, removes))
            yield from rows
        said = list(theory_note(self.spec, self.train_rows, self.noise_multiplier))
        if said:
            yield DimensionRow(name="theory", values="from public numbers", paid="free", note="; ".join(said))

    # Searched settings

    def _searched(self, name: str, domain: Any) -> DimensionRow:
        part, key = name.split(".", 1)
        space: PolicySpace = getattr(self.spec.space, part)
        if space.policy.costs.get(key):
            return self._changing(name, domain, part, space)
        return self._chosen(name, domain)

    def _chosen(self, name: str, domain: Any) -> DimensionRow:
        protocol, values = self.spec.protocol, self.spec.search.values(domain)
        if protocol.kind == "public-proxy":
            return DimensionRow(name=name, values=values, paid="free", note="chosen on public data")
        low, how = self._bill_without(name)
        paid = "released" if protocol.releases_all else "selected"
        note = _joined(self._tuning(name), how)
        return DimensionRow(name=name, values=values, paid=paid, epsilon_low=low, epsilon_high=_finite(self.epsilon), note=note)

    def _tuning(self, name: str) -> str:
        protocol = self.spec.protocol
        if protocol.releases_all:
            return f"every one of the {protocol.max_trials:,} trials is paid for"
        others = [other for other, _ in self.spec.space.searched() if other != name]
        bill = f"the tuning bill of {self.epsilon - self.epsilon_one:.2f}" if math.isfinite(self.epsilon) else "the tuning bill"
        return f"shares {bill} with {' and '.join(others)}" if others else f"is all of {bill}"

    def _bill_without(self, name: str) -> tuple[float | None, str]:
        """The bill of the sweep with this setting alone fixed, at the same noise and the same chance of a good setting."""
        protocol, shares = self.spec.protocol, good_shares(self.spec.space)
        if len(shares) == 1:
            return _finite(self.epsilon_one), f"if fixed, one run would do: bill {_two(self.epsilon_one)}"
        share, larger = product(shares), product({other: of for other, of in shares.items() if other != name})
        if isinstance(protocol, DrawnRuns):
            fewer = with_fewer_runs(protocol, share, larger)
            told = fewer.run_counts().to_dict()
            runs = f"mean {told['mean']:.3g}" if "mean" in told else f"{told['trials']:,}"
            event = fewer.total(self.one)
        else:
            trials = self._trials_without(name, share, larger)
            runs, event = f"{trials:,}", replace(protocol, trials=trials).total(self.one)  # type: ignore[type-var]
        bill = accountant.epsilon(event, self.spec.privacy.delta)
        return _finite(bill), f"if fixed, {runs} runs would do: bill {_two(bill)}"

    def _trials_without(self, name: str, share: float, larger: float) -> int:
        part, key = name.split(".", 1)
        space: PolicySpace = getattr(self.spec.space, part)
        fixed = replace(space, settings={**space.settings, key: space.settings[key].at(0.5)})
        points = self.spec.search.trials(replace(self.spec.space, **{part: fixed}))
        return fewer_trials(self.spec.protocol.max_trials, share, larger) if points is None else points

    # What changes the event

    def _changing(self, name: str, domain: Any, part: str, space: PolicySpace) -> DimensionRow:
        """A searched field that changes what a trial asks: one trial at either end, everything else at its dearest."""
        key = name.split(".", 1)[1]
        sign = space.policy.costs[key]
        ends = sorted(domain.ends(), key=lambda end: sign * end)
        low, high = (self._trial(part, replace(space, settings={**space.settings, key: end})) for end in (ends[0], ends[-1]))
        if high - low <= SILENT * high:  # with these other settings it changes nothing
            return self._chosen(name, domain)
        note = f"one trial {_two(high)} at {ends[-1]:g}, {_two(low)} at {ends[0]:g}; priced at the dearest"
        if self.spec.protocol.kind != "public-proxy":
            note = _joined(note, self._tuning(name))
        values = self.spec.search.values(domain)
        return DimensionRow(
            name=name, values=values, paid="changes-event", epsilon_low=_finite(low), epsilon_high=_finite(high), note=note
        )

    def _trial(self, part: str, space: PolicySpace) -> float:
        spec = replace(self.spec.space, **{part: space})
        event = event_with(self.spec, self.train_rows, self.noise_multiplier, spec.clip.dearest(), spec.step.dearest())
        return accountant.epsilon(event, self.spec.privacy.delta)

    def _question(self, part: str, space: PolicySpace, removes: str) -> Iterator[DimensionRow]:
        """What a policy asks beside the noisy sums: one trial without it, the noise on the gradient being the same."""
        clip, step = self.spec.space.clip.dearest(), self.spec.space.step.dearest()
        noise = step.gradient_noise(self.noise_multiplier)
        asked = clip.asks(self.train_rows, self.spec.trainer.relation)
        if part == "step" and step.searches:
            silent, how = without(self.one, step.event(self.noise_multiplier)), removes or "asked of every minibatch"
        elif part == "clip" and asked is not None:
            silent, how = without(self.one, asked), _joined("asked once, before the first step", removes)
        elif part == "clip" and clip.counts:
            try:
                alone = Gaussian(clip.sum_noise(noise))
            except FieldError as error:  # at this noise nothing is left for the gradient
                raise error.within("space.clip") from None
            silent, how = without(self.one, clip.sum_event(noise), alone), _joined("a noisy count beside every sum", removes)
        else:
            return
        if silent == self.one:
            low, how = None, f"{how}; the trainer pays for it together with the gradient"
        else:
            price = accountant.epsilon(silent, self.spec.privacy.delta)
            low, how = _finite(price), _joined(how, self._difference(price))
        yield DimensionRow(
            name=f"{part} ({space.policy.kind})",
            values=_values(space, *space.policy.costs, "candidates") or _values(space),
            paid="changes-event",
            epsilon_low=low,
            epsilon_high=_finite(self.epsilon_one),
            note=how,
        )

    def _difference(self, low: float) -> str:
        if not math.isfinite(self.epsilon_one):
            return ""
        more = self.epsilon_one - low
        if more <= SILENT * self.epsilon_one:
            return f"no part of one trial's {_two(self.epsilon_one)}, as what a held-out record pays is more"
        return f"+{more:.2g} of one trial's {_two(self.epsilon_one)}"


def without(event: Event, question: Event, instead: Event | None = None) -> Event:
    """The event with `instead`, or nothing, wherever it holds this question. Unchanged where it does not hold it."""
    found = _without(event, question, instead)
    assert found is not None
    return found


def _without(event: Event, question: Event, instead: Event | None) -> Event | None:
    if event == question:
        return instead
    changed: dict[str, Any] = {}
    for f in fields(event):  # type: ignore[arg-type]
        value = getattr(event, f.name)
        if isinstance(value, Event):
            changed[f.name] = _without(value, question, instead)
            if changed[f.name] is None:
                return None
        elif isinstance(value, tuple) and value and all(isinstance(part, Event) for part in value):
            kept = [_without(part, question, instead) for part in value]
            changed[f.name] = tuple(part for part in kept if part is not None)
            if isinstance(event, Composed) and len(changed[f.name]) < 2:
                return changed[f.name][0] if changed[f.name] else None
    return replace(event, **changed)  # type: ignore[type-var]


def spared(space: Space, part: str) -> str:
    """What need not be searched because of the policy, for people; of a coupled step where both are searched."""
    policy = getattr(space, part).policy
    if policy.kind == "coupled" and not {"clip.clip_norm", "step.c"} <= {name for name, _ in space.searched()}:
        return ""
    text: str = policy.removes
    return text


def _fixed(part: str, space: PolicySpace) -> Iterator[DimensionRow]:
    """Settings with a value that no event depends on."""
    paid = "post-processing" if part == "step" else "free"
    note = "of noisy sums" if part == "step" else "fixed beforehand, public"
    for key, value in space.settings.items():
        if not isinstance(value, (Range, Choices)) and key not in space.policy.costs:
            yield DimensionRow(name=f"{part}.{key}", values=_one(value), paid=paid, note=note)


def _values(space: PolicySpace, *named: str) -> str:
    """The named settings of a policy that have one value, given or by default; all of them where none is named."""
    policy, searched = space.middle(), {key for key, _ in space.searched()}
    names = [f.name for f in fields(policy) if f.name not in searched and (not named or f.name in named)]
    said = []
    for name in names:
        value, words = getattr(policy, name), name.replace("_", " ")
        if value is not None:
            said.append(f"{value:,} {words}" if isinstance(value, int) else f"{words} {_one(value)}")
    return ", ".join(said)


def _one(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _two(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "infinite"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
