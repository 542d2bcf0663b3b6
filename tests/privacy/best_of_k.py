"""Best of K by enumeration, and the theorem's integral evaluated directly. Shares no code with the package.

Laws are given as the list P[K = 1], P[K = 2], ...; pairs as the masses of P and Q on the same outcomes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

import numpy as np
from scipy import stats
from scipy.special import ndtr

LONGEST = 4_000  # runs beyond which the laws of these tests have no mass left in float64


def count_masses(eta: float, mean: float, max_trials: int | None = None) -> np.ndarray:
    """P[K = k], k = 1, 2, ..., of the truncated negative binomial, from scipy's laws, gamma by bisection on its mean."""
    k = np.arange(1, LONGEST + 1)

    def masses(gamma: float) -> np.ndarray:
        if eta == 0:
            return stats.logser.pmf(k, 1 - gamma)
        return stats.nbinom.pmf(k, eta, gamma) / -np.expm1(eta * np.log(gamma))

    low, high = 1e-4, 1 - 1e-12
    for _ in range(100):
        gamma = 0.5 * (low + high)
        low, high = (gamma, high) if float(k @ masses(gamma)) > mean else (low, gamma)
    found = masses(gamma)[:max_trials]
    if max_trials is not None:
        return found / found.sum()
    return found[: int(np.flatnonzero(found > 1e-18)[-1]) + 1]


def generating(masses: np.ndarray, x: np.ndarray) -> np.ndarray:
    """f(x) = E[x^K]."""
    return np.polynomial.polynomial.polyval(x, np.append(0.0, masses))


def slope(masses: np.ndarray, s: np.ndarray) -> np.ndarray:
    """h(s) = f'(1 - s)."""
    return np.polynomial.polynomial.polyval(1 - s, masses * np.arange(1, len(masses) + 1))


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

    def winners(self, mass: np.ndarray, law: np.ndarray) -> np.ndarray:
        """[rankings, outcomes]: the law of the best of K. Ties are broken at random: a group shares its chance by mass."""
        total = self.members @ mass
        best_is_within = generating(law, np.minimum(total, 1.0))  # P[all K runs fall into the set]
        chance = best_is_within[self.worse | self.equal] - best_is_within[self.worse]
        group = total[self.equal]
        return mass * chance / np.where(group > 0, group, 1.0)


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilons: np.ndarray) -> np.ndarray:
    """sum [p - e^eps q]_+ over the last axis, for each epsilon: [epsilons, orders]."""
    return np.maximum(p[None] - np.exp(epsilons)[:, None, None] * q[None], 0.0).sum(axis=-1)


def theorem(p: np.ndarray, q: np.ndarray, law: np.ndarray, epsilons: np.ndarray, mistake: str = "") -> np.ndarray:
    """The theorem's integral for a discrete pair, the maximum over a taken on a fine set of nodes: never above its value.

    With a mistake it evaluates a wrong theorem: `exchanged`, h(B(a)) and h(a) in each other's place; `wrong end`, h(1 - s) for h.
    """
    order = np.argsort(np.divide(p, q, out=np.full_like(p, np.inf), where=q > 0))
    p, q = p[order], q[order]
    share = np.append(0.0, np.geomspace(1e-6, 1.0, 400))
    a = (np.cumsum(p) - p)[:, None] + share * p[:, None]
    b = (np.cumsum(q) - q)[:, None] + share * q[:, None]
    ends = [np.minimum(x, 1.0).ravel() for x in (a, b)]
    h_a, h_b = (slope(law, 1 - s if mistake == "wrong end" else s) for s in ends)
    if mistake == "exchanged":
        h_a, h_b = h_b, h_a
    values = [np.maximum(p[:, None] * h_a - np.exp(eps) * q[:, None] * h_b, 0.0).max(axis=1).sum() for eps in epsilons]
    return np.array(values)


def _cells(edges: np.ndarray) -> np.ndarray:
    """Normal masses between edges, accurate in both tails."""
    return np.where(edges[:-1] < 0, np.diff(ndtr(edges)), -np.diff(ndtr(-edges)))


class GaussianTrial:
    """N(mu, 1) against N(0, 1), best of K, on the exact curves a = Phi(y), b = Phi(y + mu). h is a function of arrays."""

    def __init__(self, mu: float, h: object, nodes: int = 1_500, points: int = 4_000) -> None:
        self.mu, self.h = mu, h
        self.y = np.concatenate([[-80.0], np.linspace(-9 - mu, 9, nodes), [80.0]])
        self.x = np.linspace(mu - 9, mu + 9, points)
        self.weights = np.exp(-((self.x - mu) ** 2) / 2) / np.sqrt(2 * np.pi) * (self.x[1] - self.x[0])
        self.losses = mu * self.x - mu**2 / 2
        self.h_a, self.h_b = h(ndtr(self.y)), h(ndtr(self.y + mu))

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
        a = np.cumsum(p[order]) - p[order]
        b = np.cumsum(q[order]) - q[order]
        return float(np.maximum(p[order] * self.h(a + p[order]) - np.exp(epsilon) * q[order] * self.h(b), 0.0).sum())
