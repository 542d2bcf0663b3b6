"""Poisson subsampling of any mechanism whose loss is known, and what runs on ONE batch composed before it is amplified."""

from __future__ import annotations

import math

import numpy as np

from sweeper import checks
from sweeper.privacy.loss import Floats, LossPmf, PrivacyLoss, from_points, normalised, point

COARSEST = 5e-3  # nats; widest inner grid


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
