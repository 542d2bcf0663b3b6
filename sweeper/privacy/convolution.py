"""Convolutions of loss laws whose rounding is bounded and counted against the sweep, down to the far tail.

A measure here is an array of masses over consecutive grid losses. A result is the exact convolution plus some mass, minus some
mass that was added again at a higher loss (or is handed back as lost). Either only raises a profile, so that no step can
under-report.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Factors = list[tuple[Floats, int]]  # measures and how often each is taken
TAIL = 1e-15  # mass that one composition may move to infinity to keep arrays short
DIRECT = 10_000_000  # products up to which a convolution is summed directly
DUST = 1e-150  # masses below it are dropped before a direct sum: products below 1e-308 take a hundred times as long
UNIT = 2.0**-52  # twice the largest relative error of one operation
CRUMB = 1e-16  # mass that one convolution may lose at the upper end of a factor
RAISED = 1e-10  # share of a factor that may move up at its lower end: no divergence of the convolution rises by a larger share
CENTRE = 1e-4  # the tilted law is centred about where this much mass lies above
WRAPPED = 1e-4  # share of the tilted law that may wrap around into its own tail
FINEST = 0.125  # of the binary log of an exponent: closeness of the best
LEAST_PLACE = -20.0
LARGEST_POWER = 600.0  # log of the largest number used in a moment


def convolved(a: Floats, b: Floats) -> tuple[Floats, float]:
    """(mass, lost): the convolution of two measures, and a mass that was dropped and must be counted at infinity.

    Directly while that is quick: a sum of k products of positive numbers is right to k units in the last place of itself, which
    are added. By transform otherwise.
    """
    if len(a) * len(b) <= DIRECT:
        lost = float(np.sum(a[a < DUST]) * np.sum(b) + np.sum(b[b < DUST]) * np.sum(a))  # exactly 0 where there is none
        rounding = 1.0 + UNIT * (min(len(a), len(b)) - 1)
        return rounding * np.convolve(np.where(a < DUST, 0.0, a), np.where(b < DUST, 0.0, b)), lost
    (first_a, core_a, lost_a), (first_b, core_b, lost_b) = (_core(mass, RAISED * float(np.sum(mass)), CRUMB) for mass in (a, b))
    mass, first, size = np.zeros(len(a) + len(b) - 1), first_a + first_b, len(core_a) + len(core_b) - 1
    mass[first : first + size] = _transformed(_Moments([(core_a, 1), (core_b, 1)]), 0, size - 1)
    return mass, lost_a * float(np.sum(b)) + lost_b * float(np.sum(a))


def self_convolved(mass: Floats, count: int) -> tuple[int, Floats, float]:
    """(first, masses, lost): `count` copies convolved, from index `first` on, and a bound on the mass that is left out.

    The range is cut where Chernoff's bound leaves TAIL/4 on each side, counted as TAIL/2 because the bound itself is rounded. What
    lies below moves up to the first index; what lies above must be counted at infinity.
    """
    if count == 1:
        return 0, mass, 0.0
    first, core, lost = _core(mass, CRUMB / count, CRUMB / count)
    if len(core) == 1:
        return first * count, core**count, lost * count
    most, moments = count * (len(core) - 1), _Moments([(core, count)])
    high = min(most, moments.reach(TAIL / 4)[1])
    low = min(high, max(0, most - _Moments([(core[::-1], count)]).reach(TAIL / 4)[1]))
    masses = _transformed(moments, low, high)
    masses[0] += TAIL / 2 if low > 0 else 0.0
    return first * count + low, masses, lost * count + (TAIL / 2 if high < most else 0.0)


def _core(mass: Floats, raised: float, lost: float) -> tuple[int, Floats, float]:
    """(first, cells, lost): without at most `raised` at the lower end, which moves up, and at most `lost` at the upper."""
    low = int(np.searchsorted(np.cumsum(mass), raised))
    high = len(mass) - int(np.searchsorted(np.cumsum(mass[::-1]), lost))
    if high <= low:
        return 0, mass, 0.0
    cells = mass[low:high].copy()
    cells[0] += float(np.sum(mass[:low]))
    return low, cells, float(np.sum(mass[high:]))


class _Moments:
    """Exponential moments of a convolution, at powers of 2 times a first guess of the exponent, each computed once."""

    def __init__(self, factors: Factors) -> None:
        self.factors = factors
        self.centres = [round(_mean(mass)) for mass, _ in factors]
        self.offset = sum(count * centre for (_, count), centre in zip(factors, self.centres, strict=True))
        variance = sum(count * _variance(mass) for mass, count in factors)
        self.first = min(math.sqrt(2 * math.log(1 / CENTRE) / max(variance, 1e-12)), 1e3)
        self.known: dict[float, float] = {}

    def exponent(self, place: float) -> float:
        return self.first * math.exp2(place)

    def log(self, place: float) -> float:
        """Log of the moment of (sum of indices - offset) at an exponent above 0; infinite where it is not representable."""
        if place not in self.known:
            self.known[place] = self._log(self.exponent(place))
        return self.known[place]

    def _log(self, exponent: float) -> float:
        total = 0.0
        for (mass, count), centre in zip(self.factors, self.centres, strict=True):
            if exponent * max(len(mass) - centre, 1) > LARGEST_POWER:
                return math.inf
            total += count * math.log(_dot(mass, np.exp(exponent * (np.arange(len(mass)) - centre))))
        return total

    def reach(self, share: float) -> tuple[float, int]:
        """(place, index): by Chernoff's bound at most `share` of the mass lies above the index; the best of the exponents."""

        def bound(place: float) -> float:
            return (self.log(place) - math.log(share)) / self.exponent(place)

        place, step = 0.0, 1.0
        while not math.isfinite(bound(place)):
            place -= 1.0
        while step >= FINEST:
            nearby = min((place + step, max(place - step, LEAST_PLACE)), key=bound)
            if bound(nearby) < bound(place):
                place = nearby
            else:
                step /= 2
        return place, self.offset + math.ceil(bound(place)) + 1

    def tilt(self, size: int) -> float:
        """The place whose exponent tilts the law to where CENTRE lies above, or a smaller one: `size` indices must hold it.

        At most WRAPPED of the tilted law may lie `size` or more above the start of its tail, by Chernoff's bound on that law at
        an exponent known already.
        """
        most = sum(count * (len(mass) - 1) for mass, count in self.factors) - self.offset
        place = self.reach(CENTRE)[0]
        while place > LEAST_PLACE:
            beyond, theta, base = self.start(place) + size, self.exponent(place), self.log(place)
            larger = [other for other, log in self.known.items() if other > place and math.isfinite(log)]
            logs = [self.log(other) - base - (self.exponent(other) - theta) * beyond for other in larger]
            if beyond > most or min(logs, default=0.0) < math.log(WRAPPED):
                break
            place -= FINEST
        return place

    def start(self, place: float) -> int:
        """Where tilting back multiplies by 1 or less: the tail starts there. Relative to the offset."""
        return math.ceil(self.log(place) / self.exponent(place))


def _transformed(moments: _Moments, low: int, high: int) -> Floats:
    """The convolution of all factors at the indices low ... high, by two discrete Fourier transforms.

    One transform is of the measures as they are. Its rounding is an absolute one: it is nothing beside the bulk of the mass and
    much beside a tail of 1e-9. So the tail comes from a second transform, of the measures tilted by e^(theta i), whose bulk lies
    there, tilted back; above the index where the factor of tilting back is 1 it is the closer of the two. Rounding is bounded as
    `_product` says. In the tail the bound is added to every cell. Below, where mass may be missing, the sum of the bounds is
    added to the first cell of the tail, above all of them.
    Mass outside low ... high appears inside it, because indices wrap around: that only adds to what is there.
    """
    factors = moments.factors
    size = _fast_length(max(high - low + 1, *(len(mass) for mass, _ in factors)))
    place = moments.tilt(size)
    theta, log_moment = moments.exponent(place), moments.log(place)
    tilted, rounding = [], UNIT * 64
    for (mass, count), centre in zip(factors, moments.centres, strict=True):
        powers = theta * (np.arange(len(mass)) - centre)
        weighted = mass * np.exp(powers)
        tilted.append((weighted / np.sum(weighted), count))
        rounding += UNIT * count * (64 + 2 * max(abs(powers[0]), abs(powers[-1])))  # of powers, of sums, of the log moment
    index = np.arange(low - moments.offset, high - moments.offset + 1)
    plain, noise = _product(factors, moments.centres, size)
    tail, tail_noise = _product(tilted, moments.centres, size)
    first = min(max(moments.start(place) - int(index[0]), 0), len(index) - 1)
    mass = np.maximum(plain[index % size], 0.0)
    back = np.exp(log_moment - theta * index[first:]) * (1.0 + rounding)
    mass[first:] = (np.maximum(tail[index[first:] % size], 0.0) + tail_noise) * back
    mass[first] += noise * first
    return mass


def _product(factors: Factors, centres: list[int], size: int) -> tuple[Floats, float]:
    """(values, noise): the circular convolution, index 0 where all are at their centres; no value is off by more than noise.

    With e = 4 UNIT log2(size), a transform of positive numbers of sum s is right to e s in every coefficient, because each of
    the log2(size) stages rounds partial sums that s bounds, and to e in the Euclidean norm relative to its own (Higham 2002,
    Theorem 24.2). A power of a coefficient is right to count |F|^(count - 1) times its error. A value averages the errors of
    coefficients: the mean of products is at most a maximum times a mean, and at most a product of Euclidean norms; the smaller
    of the two is taken.
    """

    def means(numbers: Floats) -> tuple[float, float]:
        return 2 * float(np.sum(numbers)) / size, math.sqrt(2 * _dot(numbers, numbers) / size)

    logs, sums = np.zeros(size // 2 + 1, dtype=np.complex128), np.zeros(size // 2 + 1)
    error, slips = 4 * UNIT * math.log2(size), []
    for (mass, count), centre in zip(factors, centres, strict=True):
        spectrum = np.fft.rfft(_wrapped(mass, centre, size))
        total = float(np.sum(mass))
        largest = np.log(np.abs(spectrum) + error * total)
        sums += count * largest
        slips.append((count * total, count * math.sqrt(_dot(mass, mass)), largest))
        spectrum[np.abs(spectrum) < 1e-300] = 1e-300
        logs += count * np.log(spectrum)
    powers = np.exp(logs)
    noise = error * min(means(np.abs(powers))) + UNIT * means(np.abs(powers) * (4.0 + np.abs(logs)))[0]
    for total, norm, largest in slips:
        mean, root = means(np.exp(sums - largest))
        noise += error * min(total * mean, norm * root)
    return np.fft.irfft(powers, size), 1.1 * noise


def _wrapped(mass: Floats, centre: int, size: int) -> Floats:
    around = np.zeros(size)
    around[: len(mass) - centre] = mass[centre:]
    around[size - centre :] = mass[:centre]
    return around


def _dot(a: Floats, b: Floats) -> float:
    """In pairs, which keeps more digits than BLAS, and in this thread alone."""
    return float(np.sum(a * b))


def _mean(mass: Floats) -> float:
    return _dot(mass, np.arange(len(mass), dtype=np.float64)) / float(np.sum(mass))


def _variance(mass: Floats) -> float:
    away = np.arange(len(mass)) - _mean(mass)
    return _dot(mass, away * away) / float(np.sum(mass))


def _fast_length(least: int) -> int:
    """The smallest 2^a 3^b 5^c, a >= 1, b and c at most 2, that is not below `least`."""
    odd = (1, 3, 5, 9, 15, 25, 45, 75, 225)
    return min(factor << max(1, math.ceil(math.log2(max(least, 1) / factor))) for factor in odd)
