"""All kinds of events under one name, and reading them back. Each kind is one class: see the modules imported here."""

from __future__ import annotations

from sweeper.privacy.bounds import RenyiBound, ZeroConcentrated
from sweeper.privacy.combined import NOTHING, Composed, Disjoint, Repeated, ReplaceOne, SelectBest, in_turn
from sweeper.privacy.event import EVENTS, REPLACE_ONE, ZERO_OUT, Event
from sweeper.privacy.event import read_event as event_from_dict
from sweeper.privacy.mechanisms import (
    AboveThresholdGaussian,
    AboveThresholdLaplace,
    AdaptiveQuantileStep,
    ApproximateDp,
    DiscreteLaplace,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    NoisyMin,
    PrivateQuantile,
)
from sweeper.privacy.sampled import FixedSizeSampled, PoissonSubsampled, RandomPart

__all__ = [
    "EVENTS",
    "NOTHING",
    "REPLACE_ONE",
    "ZERO_OUT",
    "AboveThresholdGaussian",
    "AboveThresholdLaplace",
    "AdaptiveQuantileStep",
    "ApproximateDp",
    "Composed",
    "DiscreteLaplace",
    "Disjoint",
    "Event",
    "ExponentialMechanism",
    "FixedSizeSampled",
    "Gaussian",
    "Laplace",
    "NoisyMin",
    "PoissonSubsampled",
    "PrivateQuantile",
    "RandomPart",
    "RenyiBound",
    "Repeated",
    "ReplaceOne",
    "SelectBest",
    "ZeroConcentrated",
    "event_from_dict",
    "in_turn",
]
