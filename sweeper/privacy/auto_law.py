"""law: auto. The law of the number of runs of the largest chance of a good setting at a bill, or of the smallest bill at a chance.

All of it is arithmetic on public numbers: the trial's event, delta, and what is asked. Opens no data, draws nothing, and gives the
same answer for the same question. Tried are the truncated negative binomial laws of eight eta, binomial laws of three
probabilities and fixed counts, each conditioned on K <= max_trials, or on five times its mean where that is smaller.

Which law wins: measured at delta 1e-5 on DP-SGD trials of noise 1 and 2 and Gaussian trials of noise 1 and 5, where the winners
are the same but for ties. The bills are those of the DP-SGD trial of noise 1 (q 0.01, 2,000 steps, 2.58 for one run), top 10%:

  chance   winner    E[K]   bill   next best       binomial, p near 1/2   fixed K
  0.2      eta 0      2.3   3.00   eta 0.25 3.00                          4.72
  0.4      eta 0.5    6.3   3.51   eta 0.25 3.52   3.92                   6.01
  0.6      eta 1     13     3.94   eta 0.5  3.95   4.94                   7.86
  0.8      eta 1     35     4.42   eta 2    4.47   6.57                  10.12
  0.9      eta 1     79     4.81   eta 2    4.83   8.13                  11.59
  0.95     eta 2     69     5.14   eta 1    5.16   9.55                  13.00
  0.99     eta 2    179     5.74   eta 4    6.05  12.50                  15.58

A law of small eta pays little for its long tail but often runs once, so eta must rise with the chance that is wanted, and with a
small max_trials: at most 10 runs and chance 0.5, eta 4 (4.10); 0.62, eta 16 (5.66). Binomial and fixed counts win only where no
other law is left (10 runs, chance 0.65: fixed, 8.27), or where a bill has room for any law and the fewest runs decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy.laws import BinomialAtLeastOne, FixedCount, RunCountLaw, TruncatedNegativeBinomial

if TYPE_CHECKING:
    from sweeper.privacy.events import Event
    from sweeper.privacy.loss import PrivacyLoss

ETAS = (1.0, 0.5, 2.0, 0.0, 0.25, 4.0, 8.0, 16.0)  # the likely winners first: others need only show that they are no better
PROBABILITIES = (0.25, 0.5, 0.75)
LARGEST_MEAN = 1_000.0
MOST = 2_000  # runs that a chosen law may make, where no max_trials is given
ENOUGH = 0.99  # no larger chance is sought with what is left of a bill
TIE = 1e-3  # relative difference of bills, or difference of chances, that does not count: then the fewer runs win
COARSEST = 1e-2  # nats between the losses of the first grid
HALVINGS = 12  # of it
ROUNDS = 24  # halvings on a logarithmic scale, of a mean or a probability
NEAR = 1e-3  # relative distance below the bill at which a search for its chance ends


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A law, its chance to draw a candidate of the best `top` of the space, its bill on the search's grid, and E[K]."""

    law: RunCountLaw
    chance: float
    epsilon: float
    mean_trials: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The law chosen. `epsilon` is an upper bound from a coarse grid; the account asks accountant.epsilon for its own."""

    law: RunCountLaw
    chance: float
    epsilon: float
    table: tuple[Tried, ...]  # best first; of each family the law that answers the question


def choose(
    trial: Event | Callable[[float], PrivacyLoss],
    *,
    delta: float,
    top: float = 0.1,
    chance: float | None = None,
    epsilon: float | None = None,
    max_trials: int | None = None,
) -> Choice:
    """The law of smallest bill among those that draw one of the best `top` of the space with this chance at least; or, given
    epsilon, the law of largest chance among those whose bill is at most epsilon. Ties: fewer expected runs.

    `trial`: an event, or what makes its loss on a grid of a given interval. `max_trials`: no law that can make more runs.

    Raises:
      FieldError: both or neither of chance and epsilon; a chance that no law of so few runs has; a bill that one run exceeds.
    """
    checks.probability(delta=delta, top=top)
    if (chance is None) == (epsilon is None):
        raise FieldError("chance", chance or checks.MISSING, "or epsilon must be given, and not both", "Try chance: 0.6.")
    if max_trials is not None:
        checks.whole(1, 100_000, max_trials=max_trials)
    search = _Search(_settled(trial, delta), delta, top, max_trials or MOST)
    if chance is not None:
        checks.probability(chance=chance)
        found = [search.tried(family.law(chance)) for family in search.families() if family.most >= chance]
        if not found:
            rule = f"to see one of the best {top:g} of the space needs more than {search.most:,} runs"
            raise FieldError("chance", chance, rule, "Lower chance, raise max_trials, or ask for a larger top.")
        best = min(row.epsilon for row in found)
        found.sort(
            key=lambda row: (row.epsilon > best * (1 + TIE), row.mean_trials if row.epsilon <= best * (1 + TIE) else row.epsilon)
        )
    else:
        assert epsilon is not None
        found = search.within(epsilon)
        most = max(row.chance for row in found)
        found.sort(key=lambda row: (row.chance < most - TIE, row.mean_trials if row.chance >= most - TIE else -row.chance))
    return Choice(law=found[0].law, chance=found[0].chance, epsilon=found[0].epsilon, table=tuple(found))


def _settled(trial: Event | Callable[[float], PrivacyLoss], delta: float) -> PrivacyLoss:
    """The trial's loss on the first grid that moves its epsilon by less than 1% from one twice as coarse."""
    from sweeper.privacy import accountant

    if callable(trial):
        make = trial
    elif math.isinf(accountant.epsilon(trial, delta)):
        raise _unprotected()
    else:
        make = partial(accountant.privacy_loss, trial)
    interval, before = COARSEST, make(COARSEST).epsilon(delta)
    for _ in range(HALVINGS):
        interval /= 2
        loss = make(interval)
        value = loss.epsilon(delta)
        if math.isinf(value):
            break
        if before - value <= 1e-2 * max(value, 1e-2):
            return loss
        before = value
    raise _unprotected()


def _unprotected() -> FieldError:
    return FieldError("trial", checks.MISSING, "has no finite epsilon at this delta", "Add noise to one run first.")


class Family(NamedTuple):
    """Laws in a row: `law` is the one of this chance at least, for chances up to `most`."""

    law: Callable[[float], RunCountLaw]
    most: float


class _Search:
    """Laws of each family by their chance, and bills on one grid, each computed once."""

    def __init__(self, loss: PrivacyLoss, delta: float, top: float, most: int) -> None:
        self.loss, self.delta, self.top, self.most = loss, delta, top, most
        self.bills: dict[RunCountLaw, float] = {}
        self.slope = 0.2 * max(loss.epsilon(delta), 1e-3)  # of bills against log odds of the chance, which is nearly straight

    def tried(self, law: RunCountLaw) -> Tried:
        from sweeper.privacy.selection import select_best

        if law not in self.bills:
            self.bills[law] = select_best(self.loss, law).epsilon(self.delta)
        return Tried(law=law, chance=law.chance(self.top), epsilon=self.bills[law], mean_trials=law.mean_trials())

    def families(self) -> Iterator[Family]:
        if self.most > 1:
            for eta in ETAS:
                yield Family(partial(self._tnb, eta), self._tnb_law(eta, LARGEST_MEAN).chance(self.top))
            for probability in PROBABILITIES:
                most = BinomialAtLeastOne(trials=self.most, probability=probability).chance(self.top)
                yield Family(partial(self._binomial, probability), most)
        yield Family(self._fixed, FixedCount(trials=self.most).chance(self.top))

    def _tnb_law(self, eta: float, mean: float) -> RunCountLaw:
        return TruncatedNegativeBinomial(eta=eta, mean=mean, max_trials=min(self.most, max(1, round(5 * mean))))

    def _tnb(self, eta: float, chance: float) -> RunCountLaw:
        mean = _smallest(lambda m: self._tnb_law(eta, m).chance(self.top) >= chance, 1 + 1e-6, LARGEST_MEAN)
        return self._tnb_law(eta, _rounded_up(mean))

    def _binomial(self, probability: float, chance: float) -> RunCountLaw:
        trials = self._fewest(lambda n: n > 1 and BinomialAtLeastOne(trials=n, probability=probability).chance(self.top) >= chance)
        smaller = _smallest(
            lambda p: BinomialAtLeastOne(trials=trials, probability=p).chance(self.top) >= chance, 1e-6, probability
        )
        return BinomialAtLeastOne(trials=trials, probability=min(_rounded_up(smaller), probability))

    def _fixed(self, chance: float) -> RunCountLaw:
        return FixedCount(trials=self._fewest(lambda n: FixedCount(trials=n).chance(self.top) >= chance))

    def _fewest(self, enough: Callable[[int], bool]) -> int:
        """The smallest number of runs that is enough; `most` is."""
        low, high = 0, self.most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high

    def within(self, epsilon: float) -> list[Tried]:
        """Of each family the law of the largest chance that costs at most epsilon; families that fall behind are left where
        they were seen to."""
        checks.positive(epsilon=epsilon)
        once = self.tried(FixedCount(trials=1))
        if once.epsilon > epsilon:
            rule = f"is below the bill of a single run, {once.epsilon:.4g}"
            raise FieldError("epsilon", epsilon, rule, "Raise it, or add noise to the run.")
        found, best = [once], once.chance
        for family in self.families():
            row = self._largest(family, best, epsilon)
            if row is not None:
                found.append(row)
                best = max(best, row.chance)
        return found

    def _largest(self, family: Family, chance: float, epsilon: float) -> Tried | None:
        """By the secant of the bill in the log odds of the chance, from a chance that is to be beaten; None if it is not."""
        if family.most < chance:
            return None
        best = self.tried(family.law(chance))
        if best.epsilon > epsilon:
            return None
        low, high, above = _log_odds(best.chance), _log_odds(min(family.most, ENOUGH)), math.inf
        for _ in range(ROUNDS):
            if high - low < 1e-6 or best.epsilon > epsilon * (1 - NEAR):
                break
            slope = self.slope if math.isinf(above) else (above - best.epsilon) / (high - low)
            middle = low + (epsilon * (1 - NEAR / 2) - best.epsilon) / slope
            if math.isinf(above):
                middle = min(middle, high)
            else:
                middle = min(max(middle, low + 0.05 * (high - low)), high - 0.05 * (high - low))
            row = self.tried(family.law(min(1 / (1 + math.exp(-middle)), family.most)))
            if row.epsilon > epsilon:
                high, above = middle, row.epsilon
            else:
                reached = max(middle, min(_log_odds(row.chance), high))
                self.slope = max((row.epsilon - best.epsilon) / (reached - low), 1e-3 * self.slope)
                best, low = row, reached
        return best


def _log_odds(chance: float) -> float:
    return math.log(max(chance, 1e-12) / max(1 - chance, 1e-12))


def _smallest(enough: Callable[[float], bool], low: float, high: float) -> float:
    """The smallest number in [low, high] that is enough, from above; `high` is."""
    if enough(low):
        return low
    for _ in range(ROUNDS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _rounded_up(value: float) -> float:
    """To four digits, so that a plan reads well."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.10g}")
