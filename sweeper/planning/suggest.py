"""Which settings to search, which to couple or infer: the ways to do it at one total bill, priced. Opens no data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sweeper import catalog, checks
from sweeper.checks import FieldError, RequestError
from sweeper.planning.chosen import fields_of, weighed
from sweeper.planning.dimensions import spared
from sweeper.planning.good_part import GOOD, GOOD_COUPLED, dimensions_in, good_guesses, good_shares, product
from sweeper.planning.options import Way, ways
from sweeper.planning.priced import Plan, plan
from sweeper.planning.trial import noise_for, trial_event
from sweeper.privacy import accountant
from sweeper.privacy.release import AUTO, DrawnRuns, SelectBestProtocol
from sweeper.spec.codec import spec_to_dict
from sweeper.spec.search import RandomSearch
from sweeper.spec.space import Space
from sweeper.spec.sweep import SweepSpec

CHANCE = 0.8  # to draw a good setting
MOST_CHANCE = 0.99  # sought for what is searched beside a guess
AS_WRITTEN = "as written"
LAW_FIELDS = {
    "law",
    "eta",
    "mean_trials",
    "max_trials",
    "trials",
    "probability",
    "may_return_nothing",
    "chance",
    "top",
    "max_epsilon",
}
Say = Callable[[int, int], None]  # (ways priced, ways in all)


@dataclass(frozen=True, kw_only=True)
class Option:
    """One way to spend the bill, and what it leaves for the gradient."""

    name: str
    searched: tuple[str, ...]
    dimensions: float  # searched ones, one with a good part of a third counting 1
    guessed: tuple[str, ...]  # fixed, and nobody knows whether well
    chance: float | None  # to draw a good setting; None: candidates are no random draws
    reaches: bool  # the chance asked for
    expected_trials: float
    law: dict[str, Any] | None
    noise_multiplier: float
    gradient_noise: float  # multiplier of the noise on the gradient's sum, in units of its sensitivity
    epsilon_one_trial: float
    epsilon: float
    removes: tuple[str, ...]
    paste: dict[str, Any]  # sections of the file


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A way that this sweep does not allow, and why."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """The ways, those that reach the chance first, the least noise on the gradient first."""

    name: str
    epsilon: float
    delta: float
    chance: float
    options: tuple[Option, ...]
    skipped: tuple[Skipped, ...]
    drops_search: bool  # the sweep has a search of its own, which only its own protocol goes with

    @property
    def recommended(self) -> Option | None:
        return next((option for option in self.options if option.reaches), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        best = self.recommended
        return {
            "name": self.name,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "chance": self.chance,
            "good": GOOD,
            "good_coupled": GOOD_COUPLED,
            "recommended": None if best is None else best.name,
            "reason": "" if best is None else self.reason(best),
            "options": [vars(option) | {"searched": list(option.searched)} for option in self.options],
            "drops_search": self.drops_search,
            "skipped": [vars(row) for row in self.skipped],
        }

    def reason(self, best: Option) -> str:
        """Why this one, in a sentence or two."""
        able = sum(option.reaches for option in self.options)
        written = next(option for option in self.options if option.name == AS_WRITTEN)
        against = ""
        if written is not best:
            chance = "no chance to quote" if written.chance is None else f"a chance of {written.chance:.0%}"
            against = f", against {written.gradient_noise:.3g} as written" + ("" if written.reaches else f", which has {chance}")
        of = f"of the {able} ways with a chance of {self.chance:.0%} or more" if able > 1 else "the only way with such a chance"
        first = f"It leaves the least noise on the gradient {of}: a multiplier of {best.gradient_noise:.3g}{against}."
        if not best.searched:
            return f"{first} It searches nothing: {', and '.join(best.removes)}."
        rest = f": {', and '.join(best.removes)}" if best.removes else ""
        return f"{first} It searches {' and '.join(best.searched)} in about {best.expected_trials:.2g} runs{rest}."


def nobody(done: int, count: int) -> None:
    """Tell nobody."""


def suggest(spec: SweepSpec, *, chance: float = CHANCE, say: Say = nobody) -> Suggestion:
    """Price the ways to search this sweep's space at its total bill.

    Raises:
      RequestError: the sweep itself cannot be planned, has arms or no finite bill.
    """
    checks.probability(chance=chance)
    if spec.arms:
        raise RequestError(
            "plan --suggest weighs the ways to search one space, and this sweep has arms; give it one arm's clip and step"
        )
    written = plan(spec)
    epsilon = spec.privacy.epsilon or written.guarantee.epsilon
    if not math.isfinite(epsilon):
        raise RequestError("plan --suggest needs a finite bill to spend, and this sweep's is infinite. Give privacy.epsilon")
    every, options, skipped = list(ways(spec.space)), [], []
    for done, way in enumerate((None, *every)):
        say(done, len(every) + 1)
        name = AS_WRITTEN if way is None else way.name
        try:
            options.append(_as_written(written, chance) if way is None else _weigh(way, written, epsilon, chance))
        except FieldError as error:
            skipped.append(Skipped(name=name, reason=str(error)))
    order = {option.name: place for place, option in enumerate(options)}

    def rank(option: Option) -> tuple[bool, float, float, int]:
        return not option.reaches, float(f"{option.gradient_noise:.3g}"), option.expected_trials, order[option.name]

    return Suggestion(
        name=spec.name,
        epsilon=epsilon,
        delta=spec.privacy.delta,
        chance=chance,
        options=tuple(sorted(_distinct(options), key=rank)),
        skipped=tuple(skipped),
        drops_search=spec.search != RandomSearch(),
    )


def _distinct(options: list[Option]) -> list[Option]:
    """Without a way that is the sweep as it is written, law and all."""
    return [option for place, option in enumerate(options) if all(option.paste != other.paste for other in options[:place])]


def _as_written(written: Plan, chance: float) -> Option:
    sections = spec_to_dict(written.spec)
    paste = {key: sections[key] for key in ("protocol", "space")}
    return _option(AS_WRITTEN, written.spec, written.train_rows, written.noise_multiplier, chance, paste)


def _weigh(way: Way, written: Plan, epsilon: float, chance: float) -> Option:
    """A way with the cheapest law that reaches the chance, its noise calibrated to the bill."""
    base = spec_to_dict(written.spec)
    base.pop("search", None)
    privacy = {key: value for key, value in base["privacy"].items() if key != "noise_multiplier"} | {"epsilon": epsilon}
    paste: dict[str, Any] = {"space": {"clip": way.clip, "step": way.step}}
    if not written.calibrated:
        paste["privacy"] = privacy
    protocol = {"kind": "no-tuning"}
    if way.searches:
        protocol = _drawn_runs(written.spec)
        protocol |= _law(catalog.sweep_from_dict(base | paste | {"protocol": protocol}).space, written, chance)
    spec = catalog.sweep_from_dict(base | {"privacy": privacy, "protocol": protocol} | paste)
    noise = noise_for(spec, written.train_rows)
    return _option(way.name, spec, written.train_rows, noise, chance, {"protocol": protocol} | paste)


def _drawn_runs(spec: SweepSpec) -> dict[str, Any]:
    """The sweep's own protocol without its law, where it draws its number of runs; else select-best."""
    if not isinstance(spec.protocol, DrawnRuns):
        return {"kind": SelectBestProtocol.kind}
    own = spec_to_dict(spec)["protocol"]
    return {key: value for key, value in own.items() if key not in LAW_FIELDS}


def _law(space: Space, written: Plan, chance: float) -> dict[str, Any]:
    """The cheapest law that reaches the chance, or all but a sure draw where a guess makes that impossible.

    Laws are weighed on one trial of the sweep as it is written: which one wins hardly depends on the trial (privacy/auto_law.py).
    """
    needed = min(chance / product(good_guesses(space)), MOST_CHANCE)
    asked = SelectBestProtocol(law=AUTO, chance=needed, top=product(good_shares(space)))
    law = dict(weighed(written.trial_event, written.spec.privacy.delta, asked, None)[0].law)
    return {key: value for key, value in fields_of(law).items() if value is not None}


def _option(name: str, spec: SweepSpec, train_rows: int, noise: float, chance: float, paste: dict[str, Any]) -> Option:
    one, delta = trial_event(spec, train_rows, noise), spec.privacy.delta
    clip, step = spec.space.clip.dearest(), spec.space.step.dearest()
    shares, guesses = good_shares(spec.space), good_guesses(spec.space)
    found = _chance(spec, product(shares))
    found = None if found is None else found * product(guesses)
    protocol = spec.protocol
    drawn = protocol.run_counts() if isinstance(protocol, DrawnRuns) else None
    return Option(
        name=name,
        searched=tuple(shares),
        dimensions=dimensions_in(product(shares)),
        guessed=tuple(guesses),
        chance=found,
        reaches=found is not None and found >= chance - 1e-9,
        expected_trials=float(protocol.max_trials) if drawn is None else drawn.mean_trials(),
        law=None if drawn is None else drawn.to_dict(),
        noise_multiplier=noise,
        gradient_noise=clip.sum_noise(step.gradient_noise(noise)),
        epsilon_one_trial=accountant.epsilon(one, delta),
        epsilon=accountant.epsilon(protocol.total(one), delta),
        removes=tuple(text for part in ("clip", "step") if (text := spared(spec.space, part))),
        paste=paste,
    )


def _chance(spec: SweepSpec, share: float) -> float | None:
    """That a candidate lies in a part of the space of this share."""
    protocol = spec.protocol
    if isinstance(protocol, DrawnRuns):
        return protocol.run_counts().chance(share)
    if protocol.runs_one:
        return share
    return 1.0 - (1.0 - share) ** protocol.max_trials if spec.search.iid else None
