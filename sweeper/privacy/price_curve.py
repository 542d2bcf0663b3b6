"""Epsilon against the expected number of runs, for every protocol and law, at one noise: the points of `sweeper price --curve`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sweeper.privacy import accountant
from sweeper.privacy.events import SelectBest
from sweeper.privacy.laws import RunCountLaw, run_count_law
from sweeper.privacy.price import Bill, run_loss

if TYPE_CHECKING:
    from sweeper.privacy.loss import PrivacyLoss

MEANS = (2, 3, 5, 10, 20, 30, 50, 100)  # expected runs at which every curve has a point
TUNE_FRACTION = 0.1  # of subsample-tune, unless the question names one
GRID = 4e-3  # relative tolerance at which the grid of all points has settled for ten runs of the geometric law
HALVINGS = 50

Say = Callable[[int, int], None]  # (points done, points in all)


@dataclass(frozen=True, kw_only=True)
class Point:
    """epsilon None: infinite. chance: to see at least one candidate of the best tenth of the space."""

    expected_trials: float
    epsilon: float | None
    chance: float


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One protocol, with its law of the number of runs where it has one."""

    protocol: str
    law: str | None
    label: str
    points: tuple[Point, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"points": [asdict(point) for point in self.points]}


def curves(bill: Bill, say: Say | None = None) -> list[Curve]:
    """All curves of one noise multiplier, dearest last. The trial's loss is computed once; every epsilon is an upper bound.

    Guarantee: each point is the whole bill of its protocol at the question's delta, in the relation of the question's trial. Points
    lie up to 0.6% above `price.answer`, for they share one grid.
    """
    priced = _Priced(bill)
    plan = list(_plan(bill))
    count, done, found = len(plan) * len(MEANS), 0, []
    for protocol, name, label, law_of in plan:
        points = []
        for mean in MEANS:
            if say is not None:
                say(done, count)
            law = None if law_of is None else law_of(mean)
            points.append(priced.point(protocol, law, mean))
            done += 1
        found.append(Curve(protocol=protocol, law=name, label=label, points=tuple(points)))
    if say is not None:
        say(done, count)
    return found


LawOf = Callable[[int], RunCountLaw]


def _plan(bill: Bill) -> Iterator[tuple[str, str | None, str, LawOf | None]]:
    """(protocol, law, label, mean -> law)."""
    question = bill.question
    yield "no-tuning", None, "one run, or tuned on public data", None
    fraction = _fraction(bill)
    if not question.batches.fixed_size:
        label = f"subsample-tune {fraction:g}, geometric"
        yield "subsample-tune", "geometric", label, lambda mean: run_count_law("geometric", mean=mean)
    eta = question.eta if question.eta not in (None, 0, 1) else 2.0
    laws: list[tuple[str, str, LawOf]] = [
        ("logarithmic", "logarithmic", lambda mean: run_count_law("logarithmic", mean=mean)),
        ("geometric", "geometric", lambda mean: run_count_law("geometric", mean=mean)),
        ("tnb", f"tnb eta {eta:g}", lambda mean: run_count_law("tnb", eta=eta, mean=mean)),
        ("binomial", "binomial of 2 x mean", lambda mean: run_count_law("binomial", trials=2 * mean, mean=mean)),
    ]
    if question.may_return_nothing:
        laws.append(("poisson", "poisson", lambda mean: run_count_law("poisson", mean=mean, may_be_empty=True)))
    laws.append(("fixed", "fixed number", lambda mean: run_count_law("fixed", trials=mean)))
    for name, label, law_of in laws:
        yield "select-best", name, f"select-best, {label}", law_of
    yield "release-all", None, "release-all", None


def _fraction(bill: Bill) -> float:
    return TUNE_FRACTION if bill.question.tune_fraction is None else bill.question.tune_fraction


class _Priced:
    """Losses of one run on one grid, and what each protocol makes of them."""

    def __init__(self, bill: Bill) -> None:
        question = bill.question
        self.bill, self.delta, self.fraction = bill, question.bill_delta, _fraction(bill)
        self.nothing_protected = bill.trial.unprotected
        if self.nothing_protected:
            return
        sample = SelectBest(bill.trial, run_count_law("geometric", mean=10))
        self.grid = accountant.settled_interval(sample, self.delta, GRID)
        self.trial = run_loss(bill.trial, self.grid)
        self.training = run_loss(question.training(bill.noise_multiplier), self.grid)
        self.score = run_loss(question.score, self.grid) if question.score is not None and question.on_holdout else None
        self.one = self.trial.epsilon(self.delta)

    def point(self, protocol: str, law: RunCountLaw | None, mean: int) -> Point:
        epsilon = math.inf if self.nothing_protected else self._epsilon(protocol, law, mean)
        runs = 1 if protocol == "no-tuning" else mean
        chance = 1 - 0.9**runs if law is None else law.chance(0.1)
        expected = float(mean) if law is None else law.mean_trials()
        return Point(expected_trials=expected, epsilon=epsilon if math.isfinite(epsilon) else None, chance=chance)

    def _epsilon(self, protocol: str, law: RunCountLaw | None, mean: int) -> float:
        from sweeper.privacy.selection import select_best

        if protocol == "no-tuning":
            return self.one
        if law is None:
            return self.trial.self_compose(mean).epsilon(self.delta)
        if protocol == "select-best":
            return select_best(self.trial, law).epsilon(self.delta)
        rows = mixed_epsilon(self.fraction, select_best(self.training, law), self.training, self.delta)
        if self.score is None:
            return rows
        return max(rows, select_best(self.score, law).compose(self.score).epsilon(self.delta))


def mixed_epsilon(fraction: float, first: PrivacyLoss, second: PrivacyLoss, delta: float) -> float:
    """Epsilon at delta of `RandomPart`: the least e with fraction delta_first(e) + (1 - fraction) delta_second(e) <= delta.

    Guarantee: an upper bound, within 1e-14 of the two losses' own value; the dearest direction and part of each counts.
    """
    high = max(first.epsilon(delta), second.epsilon(delta))
    if not math.isfinite(high):
        return high
    low = 0.0
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        if fraction * first.delta(middle) + (1 - fraction) * second.delta(middle) > delta:
            low = middle
        else:
            high = middle
    return high
