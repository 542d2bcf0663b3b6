"""What one Poisson minibatch costs when its inside is known by its Renyi curve only: amp(inner), for the Renyi filter.

How a DP-BLSGD trainer charges a minibatch. All that looks at ONE minibatch is one inner mechanism: its curves add (`composed`), and
their sum is amplified once. Noisy gradient and line search of one attempt:

    attempt = composed(zcdp(1 / (2 * sigma**2)), zcdp(eps**2 / 8))      # Gaussian, exponential-search
    rho = amplified_renyi(attempt, q, order, tight=True)                # a round, charged before it starts
    rho = amplified_renyi(composed(*[attempt] * R), q, order, tight=True)   # `retries: R` on the same minibatch

By default a retry draws a fresh minibatch and is a round of its own. With `retries: R` all R attempts are charged before the first
one starts and none is given back: given that the first answer was a revealing one, a second look at the same batch costs more than
the difference of the two prices. Where budgets of later attempts depend on earlier answers, give for every attempt the dearest
curve that any answers lead to. Two amplified costs of one batch never add up to a bound: two randomised responses of 1 nat cost
0.212 together at q = 0.1 and order 8, and 0.094 as the sum of two amplified ones.

Theorem (ours, for the direction that Zhu and Wang needed a factor for). Let P, Q be any two laws, 0 <= q <= 1, a >= 2 and
w = q (2a - 1) / (3 + 2q (a - 2)), which lies in [0, 1]. With E_a(X|Y) = exp((a - 1) D_a(X|Y)) = integral of X^a Y^(1-a),

    E_a(Q | qP + (1-q)Q)  <=  w E_a(qQ + (1-q)P | P)  +  (1 - w) E_a(qP + (1-q)Q | Q).

Proof. Each of the three is the integral against Q of a function of y = P/Q that is 1 at y = 1; with m = 1 - q + qy, n = 1 - q + q/y
the functions are m^(1-a), y n^a and m^a, their second derivatives a (a-1) q^2 times m^(-a-1), y^-3 n^(a-2) and m^(a-2). Terms
linear in y - 1 integrate to 0, so w y^-3 n^(a-2) + (1-w) m^(a-2) >= m^(-a-1) for all y > 0 is enough. By the inequality of weighted
means the left side is at least (y^-3 n^(a-2))^w (m^(a-2))^(1-w). With y = e^t and l(t) = log(1 - q + q e^t), which is convex, what
is left is

    K(t) = w (-3t + (a-2) l(-t)) + ((1-w)(a-2) + a + 1) l(t) >= 0.

K is convex, K(0) = 0, and K'(0) = -3w - w(a-2)q + ((1-w)(a-2) + a + 1)q = 0 by the choice of w. QED

Both terms on the right are binomial sums at whole orders, with D_l(Q|P) and D_l(P|Q). So where `inner` bounds both directions, the
sum without any factor covers both directions, for every mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from sweeper import checks
from sweeper.checks import FieldError

Curve = Callable[[int], float]  # order l -> bound on both D_l(P|Q) and D_l(Q|P), for every pair of neighbouring batches; nats

HIGHEST_ORDER = 1e6  # the sum has as many terms
FACTOR = 3.0  # Zhu and Wang's, on the terms from the third order on


def zcdp(rho: float) -> Curve:
    """Curve of a rho-zCDP mechanism: Gaussian 1/(2 sigma^2), eps-bounded-range eps^2/8, eps-DP eps^2/2."""
    checks.non_negative(rho=rho)
    return lambda order: order * rho


def composed(*curves: Curve) -> Curve:
    """Curve of mechanisms run one after the other on the same records, each free to read the earlier answers (Mironov 2017)."""
    return lambda order: math.fsum(curve(order) for curve in curves)


def amplified_renyi(inner: Curve, sampling_probability: float, order: float, *, tight: bool = False) -> float:
    """Renyi cost, in both directions, of `inner` run on a batch that holds every record independently with probability q.

    Guarantee: if both D_l(P|Q) and D_l(Q|P) are at most inner(l) for all neighbouring batches and all whole l from 2 to
      ceil(order), then D_order of the subsampled mechanism is at most the returned value, record present against absent and the
      reverse.
    Relation: zero-out (add/remove), Poisson sampling. Not for replace-one, not for batches of fixed size. Units: nats.
    Method, at whole orders a: exp((a-1) rho) = sum_l Binomial(l; a, q) c_l exp((l-1) inner(l)); the terms l = 0 and 1 are their
      probabilities, c_2 = 1.
      By default c_l = 3 for l >= 3 (Zhu and Wang 2019, Theorem 5), or log(1 - q + q exp((a-1) inner(a))) where that is smaller
      (joint convexity of exp((a-1) D_a), both directions), so that sampling never costs more than none.
      tight=True: c_l = 1 for all l. Present against absent the sum is then the divergence itself for a pair that attains the curve.
      Absent against present it is a bound by the theorem at the top of this file, for every curve that bounds both directions;
      Zhu and Wang's Theorem 8 has it for mechanisms that meet a condition on odd moments, such as the Gaussian. The default is
      larger, so it is sound by the same theorem. Its factor costs much: with q = 0.1 and order 20, c_l = 3 alone is 0.026 nats a
      round even when inner releases nothing.
    At other orders: (a-1) D_a is convex in a and 0 at a = 1 for every pair (a log-moment), hence below the chord between the bounds
      at the neighbouring whole orders.
    Several pairs: the batch-mates are a mixture of pairs, and exp((a-1) D_a) is jointly convex, so the worst pair counts.
    Edge cases: q = 0 costs 0; q = 1 the chord of inner; an infinite value up to ceil(order) makes it infinite. A curve that holds
      only outside an event of mass delta0 is not covered.

    >>> round(amplified_renyi(zcdp(0.5), 0.01, 8, tight=True), 7)
    0.0008936
    """
    checks.real(0.0, 1.0, sampling_probability=sampling_probability)
    checks.real(1.0, HIGHEST_ORDER, open_low=True, order=order)
    if sampling_probability == 0:
        return 0.0
    low = math.floor(order)
    part = order - low
    moment = (1 - part) * _log_moment(inner, sampling_probability, low, tight) if part < 1 and low > 1 else 0.0
    if part > 0:
        moment += part * _log_moment(inner, sampling_probability, low + 1, tight)
    return moment / (order - 1)


def _log_moment(inner: Curve, q: float, order: int, tight: bool) -> float:
    """Bound on (order - 1) D_order at a whole order of at least 2.

    The binomial probabilities add up to 1, so the sum less 1 is a sum of terms that are not negative: nothing cancels.
    """
    if q == 1:
        return (order - 1) * _read(inner, order)
    log_q, log_rest, log_factorial = math.log(q), math.log1p(-q), math.lgamma(order + 1)
    terms = []
    for l in range(2, order + 1):  # noqa: E741 - the order of one term, as the formula has it
        exponent = (l - 1) * _read(inner, l)
        if exponent == math.inf:
            return math.inf
        log_choose = log_factorial - math.lgamma(l + 1) - math.lgamma(order - l + 1)
        terms.append(log_choose + l * log_q + (order - l) * log_rest + _log_less_one(exponent, 1.0 if tight or l == 2 else FACTOR))
    top = max(terms)
    if top == -math.inf:
        return 0.0
    slack = 1e-14 * (1 + log_factorial + order * abs(log_q))  # more than what rounding can have taken from any logarithm above
    bound = _log_one_plus(top + math.log(math.fsum(math.exp(term - top) for term in terms)) + slack)
    return bound if tight else min(bound, _log_one_plus(log_q + _log_less_one((order - 1) * _read(inner, order), 1.0) + slack))


def _read(inner: Curve, order: int) -> float:
    value = float(inner(order))
    if not value >= 0:  # NaN too
        raise FieldError(f"inner({order})", value, "must be a Renyi divergence, at least 0")
    return value


def _log_less_one(exponent: float, factor: float) -> float:
    """log(factor e^exponent - 1)."""
    if exponent > 30:
        return exponent + math.log(factor) + math.log1p(-math.exp(-exponent) / factor)
    excess = factor * math.expm1(exponent) + (factor - 1)
    return math.log(excess) if excess > 0 else -math.inf


def _log_one_plus(log_excess: float) -> float:
    """log(1 + e^log_excess)."""
    return log_excess + math.log1p(math.exp(-log_excess)) if log_excess > 0 else math.log1p(math.exp(log_excess))
