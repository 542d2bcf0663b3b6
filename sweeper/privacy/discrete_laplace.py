"""The two-sided geometric (discrete Laplace) distribution, drawn exactly: integers and coin flips only, no floating point.

Floating-point Laplace noise leaks through its low bits (Mironov 2012); whole-number noise on a whole-number count cannot.
"""

from __future__ import annotations

from fractions import Fraction

from sweeper import checks
from sweeper.seeds import BitSource


def discrete_laplace(bits: BitSource, epsilon: float) -> int:
    """A draw X with P[X = x] proportional to exp(-epsilon |x|), x any whole number.

    Guarantee: count + X is epsilon-DP for a whole-number count of sensitivity 1; event `DiscreteLaplace(epsilon)`.
    Relation: zero-out, one record changes the count by at most 1.  Units: epsilon in nats.
    Exactness: exact for the binary fraction that the float `epsilon` is (nothing is rounded), given uniform bits.
    Source: Canonne, Kamath, Steinke 2020, "The Discrete Gaussian for Differential Privacy", Algorithm 2.

    >>> from sweeper.seeds import Streams, secret_from_seed
    >>> bits = Streams(secret_from_seed(0), 0).bits("score")
    >>> all(isinstance(discrete_laplace(bits, 0.1), int) for _ in range(3))
    True
    """
    checks.positive(epsilon=epsilon)
    rate = Fraction(epsilon)  # s/t in the paper's letters
    s, t = rate.numerator, rate.denominator
    while True:
        u = bits.randbelow(t)
        if not _bernoulli_exp(bits, u, t):
            continue
        v = 0
        while _bernoulli_exp(bits, 1, 1):
            v += 1
        size = (u + t * v) // s  # u + t v is geometric with ratio exp(-1/t)
        negative = bits.randbits(1)
        if negative and size == 0:  # else zero would be drawn twice as often
            continue
        return -size if negative else size


def _bernoulli_exp(bits: BitSource, numerator: int, denominator: int) -> bool:
    """True with probability exp(-numerator/denominator), for a fraction in [0, 1] (same paper, Algorithm 1)."""
    k = 1
    while bits.randbelow(denominator * k) < numerator:
        k += 1
    return k % 2 == 1
