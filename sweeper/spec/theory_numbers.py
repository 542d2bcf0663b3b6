"""The numbers that the settings of Das et al. 2023 are made of. Public: they depend on a run's public facts alone."""

from __future__ import annotations

from sweeper.spec.protocols import Facts


def phi_squared(facts: Facts) -> float:
    """phi^2 = sigma^2 d / (b^2 T), sigma the gradient's multiplier as calibrated.

    Under the noise that the paper calibrates, sigma^2 = nu T b^2 log(1/delta) / (n eps)^2, it is the paper's
    phi^2 = nu d log(1/delta) / (n eps)^2.
    """
    return (facts.noise_multiplier / facts.batch_size) ** 2 * facts.parameters / facts.steps


def s_of(facts: Facts) -> float:
    """S = 1/T + phi^2: what stands where the paper has its own T, for the T that is actually run."""
    return 1.0 / facts.steps + phi_squared(facts)
