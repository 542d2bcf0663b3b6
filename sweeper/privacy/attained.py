"""What the worst score of select-best costs: a lower bound on the price, to show how near to the best possible it is.

A score orders the outcomes of a trial, best first. Those that the attacker counts, W, are won with the mass by which f(remaining
P-mass) falls while they are passed, f the generating function of K; likewise for Q. Some order of blocks N1 W1 N2 W2 ... (N: not
counted) is the worst. At it, moving a little of an outcome of masses p, q from block to block gains p A - q B, with A = 0 in N1,
f'(x_1) in W1, f'(x_1) - f'(x'_1) in N2, that and f'(x_2) in W2, and so on, x_k and x'_k being the P-mass that remains at the start
and end of W_k. So each outcome sits where its L A - B is largest, and since f' rises, A rises along N1 N2 ... and from there along
... W2 W1: the worst order takes the lowest remaining losses, uncounted, or the highest remaining, counted, and nothing else.
"""

from __future__ import annotations

import math

import numpy as np

from sweeper import checks
from sweeper.privacy.convolution import Floats
from sweeper.privacy.laws import RunCountLaw
from sweeper.privacy.loss import LossPmf, PrivacyLoss
from sweeper.privacy.selection import select_best

ROUNDS = 20  # halvings of the stretch between 0 and the price
LARGEST = 700.0  # nats, e^LARGEST is the largest number used
GROUPS = 600  # outcomes that are told apart; neighbouring losses beyond are one outcome, which can only lower the answer
PIECES = 3_000  # stretches in which h is integrated along one order


def attained_epsilon(trial: PrivacyLoss, law: RunCountLaw, delta: float) -> float:
    """An epsilon that the best of K runs of `trial` needs at delta, for the worst score.

    Guarantee: a LOWER bound. If the trial is the given pair, releasing the best run under this score is not (epsilon', delta)-DP
    for any smaller epsilon'. The price of `select_best` is never below it, and no analysis that does not know the score can be.
    Relation: that of `trial`, the larger of both directions and of all parts. Units: nats.
    Exactness: the worst of all scores up to GROUPS (0.02% of epsilon). The price lies above it by 0.005% (tnb) to 0.05%
    (binomial) on a DP-SGD trial of noise 1 at delta 1e-5; for a fixed K, whose winners take up much of what remains, by 4%
    (K = 2), 9% (K = 10), 18% (K = 50): there the theorem, and with it the price, is not the best possible.
    Source: the argument at the top of this file; sweeper/privacy/README.md, section "Selection".
    """
    checks.probability(delta=delta)
    found = 0.0
    for part in trial.parts:
        for pmf in part:
            found = max(found, _epsilon(pmf, law, delta, found))
    return found


def attained_delta(trial: PrivacyLoss, law: RunCountLaw, epsilon: float) -> float:
    """Hockey-stick divergence at epsilon of the best of K runs under the worst score: a lower bound. See `attained_epsilon`."""
    checks.real(-LARGEST, LARGEST, epsilon=epsilon)
    return max((_Orders(pmf, law).delta(epsilon) for part in trial.parts for pmf in part), default=0.0)


def _epsilon(pmf: LossPmf, law: RunCountLaw, delta: float, floor: float) -> float:
    """Bisection between `floor`, returned when this direction does not pass it, and the price."""
    orders = _Orders(pmf, law)
    if orders.unbounded() > delta:
        return math.inf
    if orders.delta(floor) <= delta:
        return floor
    low, high = floor, min(select_best(PrivacyLoss(((pmf, pmf),)), law).epsilon(delta), LARGEST)
    for _ in range(ROUNDS):
        middle = 0.5 * (low + high)
        if orders.delta(middle) > delta:
            low = middle
        else:
            high = middle
    return low


class _Orders:
    """One direction of a trial, and for every set of outcomes of neighbouring losses what its highest wins when it ranks first.

    won[n][i], lost[n][i]: P- and Q-mass that outcome i + n - 1 wins when exactly the outcomes i ... i + n - 1 remain. Under P the
    integral of f' over its mass from below (midpoints), under Q from above (chords): f' is convex.
    """

    def __init__(self, pmf: LossPmf, law: RunCountLaw) -> None:
        self.pmf, self.law = pmf, law
        p, q = _outcomes(pmf, law)
        self.count, pieces = len(p), max(2, PIECES // len(p))
        x, y = (np.append(np.cumsum(mass[::-1])[::-1], 0.0) for mass in (p, q))
        shares = np.arange(pieces + 1)[:, None] / pieces
        self.won: list[Floats] = [np.zeros(0)]
        self.lost: list[Floats] = [np.zeros(0)]
        for n in range(1, self.count + 1):
            p_last, q_last = p[n - 1 :], q[n - 1 :]
            x_left, y_left = x[: self.count + 1 - n] - x[n:], y[: self.count + 1 - n] - y[n:]
            inner = law.derivative(np.clip(x_left - (shares[1:] - 0.5 / pieces) * p_last, 0.0, 1.0))
            ends = law.derivative(np.clip(y_left - shares * q_last, 0.0, 1.0))
            self.won.append(np.asarray(inner.sum(axis=0) * p_last / pieces))
            self.lost.append(np.asarray((ends.sum(axis=0) - 0.5 * (ends[0] + ends[-1])) * q_last / pieces))

    def unbounded(self) -> float:
        """Mass that the best of K has where the other table gives none: infinite losses, ranked first."""
        return self.pmf.infinity * float(self.law.slope(np.array([self.pmf.infinity / 2]))[0])

    def delta(self, epsilon: float) -> float:
        """The largest divergence of an order that takes from the two ends. A run that was not made shows at epsilon below 0."""
        factor = math.exp(epsilon)
        best = np.zeros(self.count + 1)  # of what remains, by its first outcome
        for n in range(1, self.count + 1):
            counted = np.maximum(self.won[n] - factor * self.lost[n], 0.0)
            best = np.maximum(best[:-1] + counted, best[1:])
        return float(best[0]) + self.law.nothing * max(0.0, -math.expm1(epsilon))


def _outcomes(pmf: LossPmf, law: RunCountLaw) -> tuple[Floats, Floats]:
    """(P, Q) masses of at most GROUPS outcomes in the order of their losses, the one of infinite loss last.

    Q-mass without P-mass is left out: it ranks before all, and the rest then sums to less than 1. Groups are even in loss between
    where 1e-4 / E[K] of Q lies below and 1e-13 of P above.
    """
    some = pmf.mass > 0
    p, losses = pmf.mass[some], pmf.losses[some]
    q = np.exp(np.minimum(np.log(p) - losses, 0.0))
    q = q / max(1.0, float(np.sum(q)))
    if len(p) > GROUPS - 1:
        below, above = np.cumsum(q) <= 1e-4 / law.mean_trials(), np.cumsum(p[::-1])[::-1] <= 1e-13
        kept = losses[~below & ~above]
        edges = np.linspace(kept[0], kept[-1], GROUPS - 2)
        group = np.searchsorted(edges, losses)
        p, q = (np.asarray(np.bincount(group, weights=mass), dtype=np.float64) for mass in (p, q))
    if pmf.infinity > 0:
        p, q = np.append(p, pmf.infinity), np.append(q, 0.0)
    return p, q
