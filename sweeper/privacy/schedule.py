"""Long compositions whose steps differ in one noise multiplier (a schedule), priced at a few multipliers instead of all.

Theorem. Write d_m for the profile of N(m, 1) against N(0, 1), and T(m) = 2 Phi(m/2) - 1 for its value at epsilon 0, the total
variation. At every real epsilon d_m is convex in T: for a < m < b and share = (T(m) - T(a)) / (T(b) - T(a)),

    d_m(epsilon) <= (1 - share) d_a(epsilon) + share d_b(epsilon).

Proof. With x = epsilon/m - m/2 the derivative of d_m in m is phi(x), so that the second is -x phi(x) dx/dm = x phi(x) (epsilon/m^2
+ 1/2) = phi(x) (epsilon^2/m^3 - m/4). T' = phi(m/2) and T'' = -(m/4) T'. A function d of m is convex in T when d'' T' >= d' T'',
here phi(x) (epsilon^2/m^3 - m/4) >= -phi(x) m/4, which holds. QED

So a Gaussian of multiplier s is dominated by a coin, seen by all, that picks one of multiplier `loud` < s with probability `share`,
else one of multiplier `quiet` > s. What is composed with it on the same batch, Poisson sampling and the fixed-size bound are
increasing and linear in the profile (the last one the larger of two such), so the same coin dominates the whole step.

Steps between the same two nodes. Let J be the number of coins that fall on `loud`. The composition given J costs more the larger
J is, and J is stochastically at most Binomial(n, 1 - (product of (1 - share))^(1/n)): make two coins equal at a time, which keeps
the chance that both fall on `quiet` and raises the chance that both fall on `loud` (Boland, Singh, Cukic 2002). So all n steps are
n runs of one coin, of that larger share. `quiet` is the first node above s and `loud` the second below it, so that shares stay
below about a half and little is lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import erf, erfc

from sweeper.privacy.combined import Composed, Repeated
from sweeper.privacy.convolution import Floats
from sweeper.privacy.event import LEAST_NOISE, Event
from sweeper.privacy.mechanisms import Gaussian
from sweeper.privacy.sampled import FixedSizeSampled, PoissonSubsampled

FEW = 24  # distinct multipliers up to which every step is priced as it is
NODES = 64  # multipliers at which a longer schedule is priced
BINS = 512  # of the histogram that places the nodes
ROUNDED = 1e-9  # relative, by which a share is raised: more than what rounding takes away


@dataclass(frozen=True)
class Family:
    """Steps that differ in the noise multiplier of their one Gaussian only."""

    template: Event  # with noise multiplier 1
    counts: tuple[tuple[float, int], ...]  # rising multipliers, and the steps of each

    def member(self, noise_multiplier: float) -> Event:
        return _with(self.template, noise_multiplier)


@dataclass(frozen=True)
class Steps:
    """`count` steps, each dominated by one of multiplier `loud` with probability `share`, else one of multiplier `quiet`."""

    quiet: float
    loud: float
    share: float
    count: int


@lru_cache(maxsize=16)
def families(events: tuple[Event, ...]) -> tuple[list[Family], list[Event]]:
    """The long schedules among the parts of a simplified composition, and all other parts."""
    found: dict[Event, dict[float, int]] = {}
    origin: dict[Event, list[Event]] = {}
    others: list[Event] = []
    for event in events:
        base, count = (event.event, event.count) if isinstance(event, Repeated) else (event, 1)
        multiplier = _multiplier(base)
        if multiplier is None:
            others.append(event)
            continue
        template = _with(base, 1.0)
        counts = found.setdefault(template, {})
        counts[multiplier] = counts.get(multiplier, 0) + count
        origin.setdefault(template, []).append(event)
    short = [template for template, counts in found.items() if len(counts) <= FEW]
    others += [event for template in short for event in origin[template]]
    return [Family(template, tuple(sorted(counts.items()))) for template, counts in found.items() if template not in short], others


@lru_cache(maxsize=16)
def bracketed(family: Family) -> list[Steps]:
    """All steps of a family between nodes; every step is in one of them."""
    multipliers, nodes = _nodes(family)
    above = np.searchsorted(nodes, multipliers, side="left")  # nodes[above - 1] < s <= nodes[above]
    found = []
    for place in np.unique(above):
        quiet, loud = float(nodes[place]), float(nodes[max(place - 2, 0)])
        members = [family.counts[i] for i in np.flatnonzero(above == place)]
        shares = [_share(quiet, s, loud) for s, _ in members]
        count = sum(n for _, n in members)
        logs = -math.inf if max(shares) == 1 else math.fsum(n * math.log1p(-x) for x, (_, n) in zip(shares, members, strict=True))
        found.append(Steps(quiet=quiet, loud=loud, share=-math.expm1(logs / count), count=count))
    return found


def rounded_down(family: Family) -> list[Event]:
    """The steps with every multiplier lowered to a node: dearer by a percent or two, for what can only be asked of events."""
    multipliers, nodes = _nodes(family)
    counts: dict[float, int] = {}
    for (_, n), node in zip(family.counts, nodes[np.searchsorted(nodes, multipliers, side="right") - 1].tolist(), strict=True):
        counts[node] = counts.get(node, 0) + n
    return [Repeated(family.member(node), n) for node, n in counts.items()]


def _nodes(family: Family) -> tuple[Floats, Floats]:
    """The multipliers, and nodes: one below the smallest, both ends, closer where the steps cost more. Any choice is sound.

    What a gap of width w adds to the cost is about the cost in it times w^2 times how fast costs bend there; the sum is least when
    gaps go with the cube root of that density.
    """
    multipliers, counts = (np.array(column) for column in zip(*family.counts, strict=True))
    low, high = math.log(multipliers[0]), math.log(multipliers[-1])
    sharp = np.minimum(multipliers**-2.0, 30.0)
    bend = counts * np.expm1(sharp) * (sharp * np.exp(sharp) / np.expm1(sharp)) ** 2
    edges = np.linspace(low, high, BINS + 1)
    density, _ = np.histogram(np.log(multipliers), edges, weights=bend)
    closeness = np.cbrt(density / density.sum()) + 1e-3
    placed = np.interp(np.linspace(0.0, 1.0, NODES), np.concatenate([[0.0], np.cumsum(closeness)]) / closeness.sum(), edges)
    nodes = np.exp(placed)
    nodes[0], nodes[-1] = multipliers[0], multipliers[-1]
    below = max(nodes[0] ** 2 / nodes[1], min(nodes[0], 2 * LEAST_NOISE))
    return multipliers, np.concatenate([[below], nodes])


def _share(quiet: float, multiplier: float, loud: float) -> float:
    """How far the total variation at `multiplier` lies from that at `quiet` towards that at `loud`, rounded up."""
    if multiplier >= quiet:
        return 0.0
    whole = _variation(1 / quiet, 1 / loud)
    if quiet < loud * (1 + 1e-6) or whole < 1e-250:  # too near to each other for float64: all of it is loud
        return 1.0
    return min(_variation(1 / quiet, 1 / multiplier) / whole * (1 + ROUNDED), 1.0)


def _variation(a: float, b: float) -> float:
    """T(b) - T(a)."""
    a, b = a / math.sqrt(8), b / math.sqrt(8)
    return float(erf(b) - erf(a)) if a < 1 else float(erfc(a) - erfc(b))


def _multiplier(event: Event) -> float | None:
    """The noise multiplier of a step's only Gaussian; None for what is no such step."""
    if isinstance(event, FixedSizeSampled):
        return event.event.noise_multiplier
    if not isinstance(event, PoissonSubsampled):
        return None
    if isinstance(event.event, Gaussian):
        return event.event.noise_multiplier
    if isinstance(event.event, Composed):
        gaussians = [part.noise_multiplier for part in event.event.events if isinstance(part, Gaussian)]
        return gaussians[0] if len(gaussians) == 1 else None
    return None


def _with(event: Event, noise_multiplier: float) -> Event:
    """A step with another noise multiplier."""
    if isinstance(event, FixedSizeSampled):
        return replace(event, event=Gaussian(noise_multiplier))
    if isinstance(event, PoissonSubsampled):
        return replace(event, event=_with(event.event, noise_multiplier))
    if isinstance(event, Composed):
        return Composed(tuple(_with(part, noise_multiplier) if isinstance(part, Gaussian) else part for part in event.events))
    return Gaussian(noise_multiplier)
