"""Laws of the number of runs and what they must be: masses and generating functions from scipy and textbooks. No package code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

LONGEST = 4_000  # runs beyond which the laws of these tests have no mass left in float64


def tnb_gamma(eta: float, mean: float) -> float:
    """The success probability that gives the mean, by bisection on scipy's masses."""
    low, high = 1e-4, 1 - 1e-12
    for _ in range(100):
        gamma = 0.5 * (low + high)
        low, high = (gamma, high) if float(np.arange(1, LONGEST + 1) @ _tnb(eta, gamma)) > mean else (low, gamma)
    return gamma


def _tnb(eta: float, gamma: float) -> np.ndarray:
    k = np.arange(1, LONGEST + 1)
    if eta == 0:
        return stats.logser.pmf(k, 1 - gamma)
    return stats.nbinom.pmf(k, eta, gamma) / -np.expm1(eta * np.log(gamma))


def count_masses(eta: float, mean: float, max_trials: int | None = None) -> np.ndarray:
    """P[K = k], k = 1, 2, ..., of the truncated negative binomial, from scipy's laws."""
    found = _tnb(eta, tnb_gamma(eta, mean))[:max_trials]
    if max_trials is not None:
        return found / found.sum()
    return found[: int(np.flatnonzero(found > 1e-18)[-1]) + 1]


def conditioned(masses: np.ndarray, low: int, high: int | None) -> np.ndarray:
    """P[K = 0], P[K = 1], ... given low <= K <= high."""
    kept = np.where(np.arange(len(masses)) >= low, masses, 0.0)[: None if high is None else high + 1]
    return kept / kept.sum()


@dataclass(frozen=True, kw_only=True)
class Case:
    """One law: its name and arguments for `run_count_law`, its masses from K = 0 on, f and f' in closed form where there is one.

    `at` gives the masses of the law whose mean before conditioning is that many times as large.
    """

    name: str
    arguments: dict[str, object]
    at: Callable[[float], np.ndarray]
    closed: tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]] | None = None
    masses: np.ndarray = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "masses", self.at(1.0))

    @property
    def nothing(self) -> float:
        return float(self.masses[0])

    def generating(self, x: np.ndarray) -> np.ndarray:
        """f(x) = E[x^K]."""
        return self.closed[0](x) if self.closed else np.polynomial.polynomial.polyval(x, self.masses)

    def derivative(self, x: np.ndarray) -> np.ndarray:
        """f'(x)."""
        if self.closed:
            return self.closed[1](x)
        return np.polynomial.polynomial.polyval(x, (self.masses * np.arange(len(self.masses)))[1:])

    def __str__(self) -> str:
        return f"{self.name}-" + "-".join(f"{value:g}" for value in self.arguments.values() if not isinstance(value, bool))


def tnb(eta: float, mean: float, max_trials: int | None = None) -> Case:
    name = {0.0: "logarithmic", 1.0: "geometric"}.get(eta, "tnb")
    arguments = {"eta": eta} if name == "tnb" else {}
    arguments |= {"mean": mean} | ({"max_trials": max_trials} if max_trials is not None else {})
    g, closed = tnb_gamma(eta, mean), None
    if max_trials is None and eta == 0:
        closed = (lambda x: np.log1p(-(1 - g) * x) / np.log(g), lambda x: (1 - g) / (1 - (1 - g) * x) / -np.log(g))
    elif max_trials is None:
        scale = g**-eta - 1
        closed = (
            lambda x: ((1 - (1 - g) * x) ** -eta - 1) / scale,
            lambda x: eta * (1 - g) * (1 - (1 - g) * x) ** (-eta - 1) / scale,
        )
    return Case(name=name, arguments=arguments, at=lambda c: np.append(0.0, count_masses(eta, mean * c, max_trials)), closed=closed)


def binomial(trials: int, probability: float, max_trials: int | None = None) -> Case:
    arguments = {"trials": trials, "probability": probability} | ({"max_trials": max_trials} if max_trials is not None else {})

    def masses(c: float) -> np.ndarray:
        return conditioned(stats.binom.pmf(np.arange(trials + 1), trials, probability * c), 1, max_trials)

    return Case(name="binomial", arguments=arguments, at=masses)


def fixed(trials: int) -> Case:
    closed = (lambda x: x**trials, lambda x: trials * x ** (trials - 1))
    return Case(name="fixed", arguments={"trials": trials}, at=lambda c: np.eye(100)[round(trials * c)], closed=closed)


def poisson(mean: float, max_trials: int | None = None) -> Case:
    arguments = {"mean": mean, "may_be_empty": True} | ({"max_trials": max_trials} if max_trials is not None else {})

    def masses(c: float) -> np.ndarray:
        return conditioned(stats.poisson.pmf(np.arange(int(mean * c) + 80), mean * c), 0, max_trials)

    closed = (lambda x: np.exp(mean * (x - 1)), lambda x: mean * np.exp(mean * (x - 1)))
    return Case(name="poisson", arguments=arguments, at=masses, closed=closed if max_trials is None else None)


CASES = [
    *(tnb(0.0, 2.0), tnb(0.0, 10.0), tnb(0.5, 5.0), tnb(1.0, 10.0), tnb(2.0, 20.0)),
    *(tnb(0.0, 10.0, 25), tnb(0.5, 30.0, 40), tnb(1.0, 10.0, 12), tnb(2.0, 12.0, 64), tnb(1.0, 10.0, 1)),
    *(binomial(20, 0.5), binomial(20, 0.5, 12), binomial(60, 0.1), binomial(3, 0.6)),
    *(fixed(1), fixed(2), fixed(10)),
    *(poisson(5.0), poisson(0.3), poisson(6.0, 8)),
]
