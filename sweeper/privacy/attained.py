"""What one explicit score of select-best costs: a lower bound on the price, to show how near to the best possible it is."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sweeper import checks
from sweeper.privacy.laws import RunCountLaw
from sweeper.privacy.loss import Floats, LossPmf, PrivacyLoss
from sweeper.privacy.selection import select_best

ROUNDS = 20  # halvings of the stretch between 0 and the price
LARGEST = 700.0  # nats, e^LARGEST is the largest number used


def attained_epsilon(trial: PrivacyLoss, law: RunCountLaw, delta: float) -> float:
    """An epsilon that the best of K runs of `trial` needs at delta, for a score that is the worst or nearly so.

    Guarantee: a LOWER bound. If the trial is the given pair, releasing the best run under this score is not (epsilon', delta)-DP
    for any smaller epsilon'. The price of `select_best` is never below it, and no analysis that does not know the score can be.
    Relation: that of `trial`, the larger of both directions and of all parts. Units: nats.
    Exactness: below the price by 0.01% of epsilon or less on DP-SGD and Gaussian trials at delta 1e-5 and 1e-6; by more where the
    winners take up much mass (large delta) or the loss has few values.
    Source: ALGORITHMS.md section 8; README.md of this folder, section "Selection".
    """
    checks.probability(delta=delta)
    found = 0.0
    for part in trial.parts:
        for pmf in part:
            found = max(found, _epsilon(pmf, law, delta, found))
    return found


def attained_delta(trial: PrivacyLoss, law: RunCountLaw, epsilon: float) -> float:
    """Hockey-stick divergence at epsilon of the best of K runs under an explicit score: a lower bound. See `attained_epsilon`."""
    checks.real(-LARGEST, LARGEST, epsilon=epsilon)
    return max((_Curve(pmf, law).delta(epsilon) for part in trial.parts for pmf in part), default=0.0)


def _epsilon(pmf: LossPmf, law: RunCountLaw, delta: float, floor: float) -> float:
    """Bisection between `floor`, returned when this direction does not pass it, and the price."""
    curve = _Curve(pmf, law)
    if curve.unbounded() > delta:
        return math.inf
    if curve.delta(floor) <= delta:
        return floor
    low, high = floor, min(select_best(PrivacyLoss(((pmf, pmf),)), law).epsilon(delta), LARGEST)
    for _ in range(ROUNDS):
        middle = 0.5 * (low + high)
        if curve.delta(middle) > delta:
            low = middle
        else:
            high = middle
    return low


class _Curve:
    """One direction of a trial with the curve (a, b) that fills the lowest losses first, and the hull of its lines.

    Outcome i of loss l gains most when the outcomes that beat it are the lowest losses up to P-mass a, a maximising
    h(a) - e^(epsilon - l) h(B(a)). That is a line's value on an upper hull in t = e^(epsilon - l).
    """

    def __init__(self, pmf: LossPmf, law: RunCountLaw) -> None:
        self.pmf, self.law = pmf, law
        with np.errstate(divide="ignore"):
            q = np.exp(np.minimum(np.log(pmf.mass) - pmf.losses, 0.0))
        self.bare = max(0.0, 1.0 - float(np.sum(q)))  # Q-mass without P-mass: the outcomes that beat all others
        self.p, self.q = np.append(pmf.mass, pmf.infinity), np.append(q, 0.0)
        self.losses = np.append(pmf.losses, np.inf)
        self.a = np.minimum(np.cumsum(np.append(0.0, pmf.mass)), 1.0)
        self.b = np.minimum(self.bare + np.cumsum(np.append(0.0, q)), 1.0)
        self.starts, self.kept = _hull(law.slope(self.a), law.slope(self.b))

    def unbounded(self) -> float:
        """Mass that the best of K has where the other table gives none: infinite losses, ranked first."""
        return self.pmf.infinity * float(self.law.slope(np.array([self.pmf.infinity / 2]))[0])

    def delta(self, epsilon: float) -> float:
        """The divergence of the score that ranks a winner where its best `a` is, and everything else lowest loss first.

        The winners themselves take up mass that the maximum did not see, which is why this is below the price. Equal ranks: the
        higher loss is better. Runs of one loss are ranked by a coin. An outcome of P-mass p that the outcomes of P-mass a beat
        wins with the integral of h from a to a + p; likewise its Q-mass.
        """
        t = np.exp(np.minimum(epsilon - self.losses, LARGEST))
        line = self.kept[np.searchsorted(self.starts, t, side="right") - 1]
        gain = self.law.slope(self.a[line]) - t * self.law.slope(self.b[line])
        rank = np.where(gain > 0, self.a[line], np.append(self.a[:-1], 1.0))
        order = np.lexsort((-self.losses, rank))
        won = _integrals(self.law, np.append(0.0, np.cumsum(self.p[order])), above=False)
        lost = _integrals(self.law, self.bare + np.append(0.0, np.cumsum(self.q[order])), above=True)
        return float(np.sum(np.maximum(won - math.exp(epsilon) * lost, 0.0)))


def _integrals(law: RunCountLaw, ends: Floats, above: bool) -> Floats:
    """Integrals of h between consecutive ends, from above or from below: h is convex, so chords lie above it, midpoints below.

    Stretches on which h falls by more than 1% are cut.
    """
    ends = np.minimum(ends, 1.0)
    logs = np.log(np.maximum(law.slope(ends), 1e-300))
    pieces = np.clip(np.ceil((logs[:-1] - logs[1:]) / 1e-2), 1, 500).astype(np.int64)
    owner = np.repeat(np.arange(len(pieces)), pieces)
    width = np.diff(ends)[owner] / pieces[owner]
    start = ends[owner] + (np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * width
    if above:
        height = 0.5 * (law.slope(start) + law.slope(np.minimum(start + width, 1.0)))
    else:
        height = law.slope(np.minimum(start + 0.5 * width, 1.0))
    return np.asarray(np.bincount(owner, weights=height * width, minlength=len(pieces)), dtype=np.float64)


def _hull(intercepts: Floats, slopes: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """The upper envelope of the lines intercept - t * slope, t >= 0, both falling along the arrays: (start of each, its index).

    The first start is 0. A line that is below the envelope everywhere is left out.
    """
    starts, kept = [0.0], [0]
    y, x = intercepts.tolist(), slopes.tolist()
    for i in range(1, len(y)):
        if x[i] >= x[kept[-1]]:
            continue  # the same slope, not higher
        start = (y[kept[-1]] - y[i]) / (x[kept[-1]] - x[i])
        while len(kept) > 1 and start <= starts[-1]:
            starts.pop()
            kept.pop()
            start = (y[kept[-1]] - y[i]) / (x[kept[-1]] - x[i])
        starts.append(max(start, 0.0))
        kept.append(i)
    return np.array(starts), np.array(kept)
