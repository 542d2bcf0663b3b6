"""Subsampling of any mechanism whose loss is known, and what runs on ONE batch composed before it is amplified."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr

from sweeper import checks
from sweeper.privacy.convolution import Floats
from sweeper.privacy.loss import LossPmf, PrivacyLoss, from_points, normalised, point
from sweeper.privacy.profile import largest

COARSEST = 5e-3  # nats; widest inner grid
LARGEST_TILT = 1e4  # order over noise beyond which a batch's Renyi cost is taken to be that of all rows


def poisson_subsampled(inner: PrivacyLoss, sampling_probability: float, interval: float) -> PrivacyLoss:
    """Loss of `inner` run on a batch that holds every record independently with probability q = sampling_probability.

    Guarantee: with (P, Q) dominating `inner` (record present against absent), q P + (1 - q) Q against Q dominates the whole;
    with (P, Q) dominating absent against present, P against (1 - q) P + q Q does. All that happens on one batch must be in
    `inner`: batch-mates are composed first and amplified once. Two amplified losses of one batch composed are NOT a bound.
    Relation: zero-out (or add/remove). Units: nats; `inner` on its own grid, the answer on one of `interval`.
    Exactness: the two mixtures of the discretised pair, atom by atom, then chords of the profile on the new grid.
    Source: Zhu, Dong, Wang 2022, Theorem 11.
    """
    checks.real(0.0, 1.0, sampling_probability=sampling_probability)
    checks.positive(interval=interval)
    q = sampling_probability
    if q == 0:
        return point(interval)
    return PrivacyLoss(tuple((_present(a, q, interval), _absent(b, q, interval)) for a, b in inner.parts)).pruned()


def fixed_size_sampled(inner: PrivacyLoss, fraction: float, interval: float) -> PrivacyLoss:
    """Loss of `inner` run on a uniformly random set of a fixed number of records, `fraction` q of all.

    Guarantee: with delta_M the profile of `inner` under replace-one, both directions, the sampled mechanism's profile is at most
    q delta_M(e) at log(1 + q (e^e - 1)), e >= 0, and what duality makes of it below 0.
    Proof. Tables differ in one record, x or x'. Batches without it have law M_0 on both; with it, M_1 or M_1'. Advanced joint
    convexity: the divergence of q M_1 + (1-q) M_0 from q M_1' + (1-q) M_0 at that epsilon is q times that of M_1 from a mixture of
    M_0 and M_1' at e. A batch with x turns into one without it by replacing x with a uniformly drawn other record, and into one
    with x' by replacing it with x': neighbouring batches, both. Below 0, delta(-e) = 1 - e^-e + e^-e delta(e) for a relation
    without direction. Of the two mixtures of `poisson_subsampled` the first has this profile above 0 and the second below, where
    each is the larger one. So a law whose profile is the larger of both dominates, in both directions, and composes.
    Relation: replace-one, for `inner` too: its pair must dominate both directions (it is symmetric, or the larger of both).
    Exactness: of one run attained at every epsilon (all other records at one end of the clipped range, this one moved from end to
    end); of compositions an upper bound, as no one pair of tables attains both sides of 0.
    Units, grid: as `poisson_subsampled`. Source: Balle, Barthe, Gaboardi 2018, Theorem 9; Zhu, Dong, Wang 2022, section 4.
    """
    checks.real(0.0, 1.0, open_low=True, fraction=fraction)
    checks.positive(interval=interval)
    both = [_present(law, fraction, interval) for part in inner.parts for law in part]
    both += [_absent(law, fraction, interval) for part in inner.parts for law in part]
    law = largest(both)
    return PrivacyLoss(((law, law),))


def fixed_size_renyi(noise_multiplier: float, fraction: float, order: float) -> float:
    """Renyi divergence of a Gaussian sum on a uniformly random set of records, `fraction` q of all, both directions.

    Guarantee: moments are averages of profiles: exp((a-1) D_a) - 1 is a (a-1) times the integral over g > 1 of (g^(a-2) + g^(-a-1))
    delta(log g), where the second term stands for g below 1, by duality. delta is at most q delta_M(log v) at g = 1 - q + q v
    (`fixed_size_sampled`), delta_M that of the Gaussian. It is below the Theorem 27 of Wang, Balle, Kasiviswanathan 2019.
    Relation: replace-one; noise_multiplier over what a REPLACED record moves the sum by. Units: nats.
    Numerically: Gauss-Legendre on panels narrower than the integrand's bends, right to 1e-12, raised by 1e-9.
    Source: moments as averages of profiles, Liese and Vajda 2006.
    """
    checks.positive(noise_multiplier=noise_multiplier)
    checks.real(0.0, 1.0, open_low=True, fraction=fraction)
    checks.real(1.0, open_low=True, order=order)
    mu, q, a = 1 / noise_multiplier, fraction, order
    if mu * (a + 1) > LARGEST_TILT:  # nothing is gained by sampling at such an order
        return a * mu * mu / 2
    far = mu * mu * (a + 1) + 14 * mu  # the integrand's bulk lies 14 standard deviations below
    bent = min(far, 40.0 - math.log(q))  # beyond it g is q v
    edges = np.linspace(0.0, bent, math.ceil(bent / min(mu, 1.0)) + 32)
    if bent < far:
        edges = np.concatenate([edges, np.linspace(bent, far, math.ceil((far - bent) / mu) + 1)[1:]])
    nodes, weights = np.polynomial.legendre.leggauss(20)
    half = np.diff(edges)[:, None] / 2
    t = edges[:-1, None] + half * (nodes + 1)  # log v
    high, low = log_ndtr(mu / 2 - t / mu), log_ndtr(-mu / 2 - t / mu)
    with np.errstate(divide="ignore"):
        log_delta = high + np.log(-np.expm1(np.minimum(t + low - high, 0.0)))
    tilted = _tilt(t, q)  # log g
    logs = np.logaddexp((a - 2) * tilted, -(a + 1) * tilted) + log_delta + t + np.log(half * weights)
    top = float(logs.max())
    log_sum = top + math.log(float(np.sum(np.exp(logs - top)))) + math.log(a * (a - 1) * q * q * (1 + 1e-9))
    return float(np.logaddexp(0.0, log_sum)) / (a - 1)


def inner_interval(sampling_probability: float, interval: float) -> float:
    """A grid for the inner loss, as wide as it may be without adding much to the error of a final grid of `interval`.

    Near 0, where nearly all mass is, sampling shrinks losses by q and what the inner grid adds to their variance by q^2: an
    inner grid 1 / (4 q) times wider adds a sixteenth of what the final grid does.
    """
    return min(interval / min(1.0, 4 * sampling_probability), COARSEST) if sampling_probability else COARSEST


def _present(pmf: LossPmf, q: float, interval: float) -> LossPmf:
    """q P + (1 - q) Q against Q: the loss l becomes log(1 - q + q e^l)."""
    other = _other_mass(pmf)
    bare = max(0.0, 1.0 - float(np.sum(other)))  # Q-mass where P has none: the loss log(1 - q), nothing if q is 1
    losses, mass = _tilt(pmf.losses, q), q * pmf.mass + (1 - q) * other
    if q < 1:
        losses, mass = np.append(losses, math.log1p(-q)), np.append(mass, (1 - q) * bare)
    return _on_grid(interval, losses, mass, q * pmf.infinity)


def _absent(pmf: LossPmf, q: float, interval: float) -> LossPmf:
    """P against (1 - q) P + q Q: the loss l becomes -log(1 - q + q e^-l); an infinite one becomes -log(1 - q)."""
    losses, mass = -_tilt(-pmf.losses, q), pmf.mass
    if q < 1:
        losses, mass = np.append(losses, -math.log1p(-q)), np.append(mass, pmf.infinity)
    return _on_grid(interval, losses, mass, pmf.infinity if q == 1 else 0.0)


def _other_mass(pmf: LossPmf) -> Floats:
    """Q-mass of every finite loss, e^-l times its P-mass."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.exp(np.minimum(np.log(pmf.mass) - pmf.losses, 0.0)))


def _tilt(losses: Floats, q: float) -> Floats:
    """log(1 - q + q e^l), right to 1e-16 of itself near 0 and without overflow."""
    small = np.log1p(q * np.expm1(np.minimum(losses, 30.0))) if q < 1 else losses
    return np.asarray(np.where(losses <= 30.0, small, losses + math.log(q) + np.log1p((1 - q) / q * np.exp(-np.abs(losses)))))


def _on_grid(interval: float, losses: Floats, mass: Floats, infinity: float) -> LossPmf:
    """Atoms moved to the grid; rounding's surplus (Q-mass of an approximate pair) is cut from the lowest losses."""
    kept = mass > 0
    if not kept.any():  # all of it at infinity
        return LossPmf(interval=interval, lowest=0, mass=np.zeros(1), infinity=infinity)
    pmf = from_points(interval, losses[kept], mass[kept], 0.0)
    return normalised(interval, pmf.lowest, pmf.mass, infinity)
