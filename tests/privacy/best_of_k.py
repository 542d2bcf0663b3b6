"""Best of K by enumeration, and the theorem's integral evaluated directly. Shares no code with the package.

Laws are cases of tests/run_counts.py; pairs are given as the masses of P and Q on the same outcomes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

import numpy as np
from run_counts import Case
from scipy.special import ndtr


def strict_orders(outcomes: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every ranking without ties, worst score first."""
    return (tuple((i,) for i in order) for order in permutations(range(outcomes)))


def weak_orders(items: Sequence[int]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every ranking with ties allowed, worst score first (75 of four outcomes)."""
    if not items:
        yield ()
        return
    for subset in range(1, 2 ** len(items)):
        first = tuple(x for i, x in enumerate(items) if subset >> i & 1)
        rest = [x for i, x in enumerate(items) if not subset >> i & 1]
        for tail in weak_orders(rest):
            yield (first, *tail)


class Rankings:
    """Many rankings of the same outcomes, as sets (bit masks) of the outcomes strictly worse, and not better, than each."""

    def __init__(self, orders: list[tuple[tuple[int, ...], ...]]) -> None:
        outcomes = sum(len(group) for group in orders[0])
        self.worse = np.zeros((len(orders), outcomes), dtype=int)
        self.equal = np.zeros((len(orders), outcomes), dtype=int)
        for row, order in enumerate(orders):
            below = 0
            for group in order:
                members = sum(1 << i for i in group)
                self.worse[row, list(group)], self.equal[row, list(group)] = below, members
                below |= members
        self.members = np.array([[mask >> i & 1 for i in range(outcomes)] for mask in range(2**outcomes)])

    def winners(self, mass: np.ndarray, case: Case) -> np.ndarray:
        """[rankings, outcomes]: the law of the best of K. Ties are broken at random: a group shares its chance by mass."""
        total = self.members @ mass
        best_is_within = case.generating(np.minimum(total, 1.0))  # P[all K runs fall into the set]
        chance = best_is_within[self.worse | self.equal] - best_is_within[self.worse]
        group = total[self.equal]
        return mass * chance / np.where(group > 0, group, 1.0)


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilons: np.ndarray, nothing: float = 0.0) -> np.ndarray:
    """sum [p - e^eps q]_+ over the last axis, for each epsilon: [epsilons, orders]. `nothing`: mass of one more outcome of both."""
    found = np.maximum(p[None] - np.exp(epsilons)[:, None, None] * q[None], 0.0).sum(axis=-1)
    return found + nothing * np.maximum(-np.expm1(epsilons), 0.0)[:, None]


def worst_of_all_orders(p_BN: np.ndarray, q_BN: np.ndarray, case: Case, epsilons_E: np.ndarray) -> np.ndarray:
    """[B, E]: the largest divergence of the best of K over all N! rankings without ties, for many pairs at once.

    The outcome that ranks just above a set S of worse ones wins f(S and it) - f(S), whatever the order within S. So the worst
    ranking of a set is the worst of what its top outcome adds to the worst ranking of the rest.
    """
    outcomes = p_BN.shape[1]
    sets = np.array([[mask >> i & 1 for mask in range(2**outcomes)] for i in range(outcomes)])
    f_p, f_q = (case.generating(np.minimum(mass @ sets, 1.0)) for mass in (p_BN, q_BN))
    factor_E, worst = np.exp(epsilons_E), np.zeros((2**outcomes, len(p_BN), len(epsilons_E)))
    for mask in range(1, 2**outcomes):
        for rest in (mask ^ (1 << i) for i in range(outcomes) if mask >> i & 1):
            gain = (f_p[:, mask] - f_p[:, rest])[:, None] - factor_E * (f_q[:, mask] - f_q[:, rest])[:, None]
            np.maximum(worst[mask], worst[rest] + np.maximum(gain, 0.0), out=worst[mask])
    return worst[-1] + case.nothing * np.maximum(1.0 - factor_E, 0.0)


def _nodes(p: np.ndarray, q: np.ndarray, share: np.ndarray) -> tuple[np.ndarray, ...]:
    """(p, q, a, b): outcomes lowest loss first (last axis), and the curve (a, B(a)) at these shares of each of them."""
    order = np.argsort(np.divide(p, q, out=np.full_like(p, np.inf), where=q > 0), axis=-1)
    p, q = (np.take_along_axis(mass, order, axis=-1) for mass in (p, q))
    a, b = (((np.cumsum(z, axis=-1) - z)[..., None] + share * z[..., None]).reshape(*z.shape[:-1], -1) for z in (p, q))
    return p, q, np.minimum(a, 1.0), np.minimum(b, 1.0)


def theorem(p: np.ndarray, q: np.ndarray, case: Case, epsilons: np.ndarray) -> np.ndarray:
    """The theorem's integral for a discrete pair, the maximum over a taken on a fine set of nodes: never above its value."""
    p, q, a, b = _nodes(p, q, np.append(0.0, np.geomspace(1e-6, 1.0, 400)))
    h_a, h_b = case.derivative(1 - a), case.derivative(1 - b)
    values = [np.maximum(p[:, None] * h_a - np.exp(eps) * q[:, None] * h_b, 0.0).max(axis=1).sum() for eps in epsilons]
    return np.array(values) + case.nothing * np.maximum(-np.expm1(epsilons), 0.0)


def theorem_from_above(
    p_BN: np.ndarray, q_BN: np.ndarray, case: Case, epsilons_E: np.ndarray, cells: int = 12, mistake: str = ""
) -> np.ndarray:
    """[B, E]: the theorem's integral for many pairs, never below its value: in every cell a is rounded down and b up.

    With a mistake it evaluates a wrong theorem: `exchanged`, h(B(a)) and h(a) in each other's place; `reversed`, h(1 - s) for h;
    `wrong end`, a rounded up and b down.
    """
    p, q, a, b = _nodes(p_BN, q_BN, np.linspace(0.0, 1.0, cells + 1))
    h_a, h_b = (case.derivative(s if mistake == "reversed" else 1 - s) for s in (a, b))
    h_a, h_b = (h_a[:, 1:], h_b[:, :-1]) if mistake == "wrong end" else (h_a[:, :-1], h_b[:, 1:])
    if mistake == "exchanged":
        h_a, h_b = h_b, h_a
    found = np.zeros((len(p), len(epsilons_E)))
    for i in range(p.shape[1]):
        for e, eps in enumerate(epsilons_E):
            found[:, e] += np.maximum((p[:, i, None] * h_a - np.exp(eps) * q[:, i, None] * h_b).max(axis=1), 0.0)
    return found + case.nothing * np.maximum(-np.expm1(epsilons_E), 0.0)


def _cells(edges: np.ndarray) -> np.ndarray:
    """Normal masses between edges, accurate in both tails."""
    return np.where(edges[:-1] < 0, np.diff(ndtr(edges)), -np.diff(ndtr(-edges)))


class GaussianTrial:
    """N(mu, 1) against N(0, 1), best of K, on the exact curves a = Phi(y), b = Phi(y + mu)."""

    def __init__(self, mu: float, case: Case, nodes: int = 1_500, points: int = 4_000) -> None:
        self.mu, self.case = mu, case
        self.y = np.concatenate([[-80.0], np.linspace(-9 - mu, 9, nodes), [80.0]])
        self.x = np.linspace(mu - 9, mu + 9, points)
        self.weights = np.exp(-((self.x - mu) ** 2) / 2) / np.sqrt(2 * np.pi) * (self.x[1] - self.x[0])
        self.losses = mu * self.x - mu**2 / 2
        self.h_a, self.h_b = case.derivative(ndtr(-self.y)), case.derivative(ndtr(-self.y - mu))

    def delta(self, epsilon: float) -> float:
        """The theorem's integral, from below: the maximum is over nodes."""
        gain = self.h_a[:, None] - np.exp(np.minimum(epsilon - self.losses, 600.0)) * self.h_b[:, None]
        return float(self.weights @ np.maximum(gain.max(axis=0), 0.0))

    def attained(self, epsilon: float, cells: int = 40_000) -> float:
        """Exact hockey-stick divergence of one explicit score: an outcome of loss l ranks where the theorem's maximum for l is.

        Outcomes that the maximum does not concern (h(a) L < e^eps h(b)) rank lowest loss first; the best rank is a = 0.
        """
        edges = np.linspace(min(-9.0, self.mu - 9), self.mu + 9, cells + 1)
        p, q = _cells(edges - self.mu), _cells(edges)
        losses = self.mu * 0.5 * (edges[1:] + edges[:-1]) - self.mu**2 / 2
        rank = ndtr(edges[1:] - self.mu)  # P-mass of the outcomes of lower loss
        grid = np.linspace(losses[0], losses[-1], 2_000)
        gain = self.h_a[:, None] - np.exp(np.minimum(epsilon - grid, 600.0)) * self.h_b[:, None]
        best = np.where(gain.max(axis=0) > 0, ndtr(self.y)[gain.argmax(axis=0)], 2.0)
        wanted = np.interp(losses, grid, best)
        rank = np.where(wanted <= 1.0, wanted, rank)
        order = np.lexsort((-losses, rank))  # best first; of equal ranks the highest loss first
        x, y = (np.cumsum(mass[order][::-1])[::-1] for mass in (p, q))  # not strictly better, the outcome itself included
        won = p[order] * self.case.derivative(np.clip(x - p[order], 0.0, 1.0))
        return float(np.maximum(won - np.exp(epsilon) * q[order] * self.case.derivative(np.minimum(y, 1.0)), 0.0).sum())
