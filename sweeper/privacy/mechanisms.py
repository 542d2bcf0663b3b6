"""Mechanisms: one answer each, with noise of its own. All parameters are public.

Relation: zero-out, with sensitivities of ONE record's term appearing or vanishing, unless wrapped in `ReplaceOne`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy.event import LEAST_NOISE, Event, as_float

LARGEST_EPSILON = 600.0  # nats; beyond it nothing is protected and e^epsilon leaves float64


@dataclass(frozen=True)
class Gaussian(Event):
    """Gaussian mechanism on a sum: noise of standard deviation noise_multiplier times the sum's zero-out sensitivity.

    Guarantee: the privacy profile of N(1, s^2) against N(0, s^2), s = noise_multiplier (Balle and Wang 2018, Theorem 8).
    Sensitivity: of ONE record's contribution appearing or vanishing. noise_multiplier 0 protects nothing (epsilon infinite).
    """

    noise_multiplier: float
    kind: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        checks.real(0.0, 1e9, noise_multiplier=self.noise_multiplier)
        as_float(self, "noise_multiplier")

    @property
    def unprotected(self) -> bool:
        return self.noise_multiplier < LEAST_NOISE


@dataclass(frozen=True)
class AdaptiveQuantileStep(Event):
    """One step that releases a noisy clipped sum AND a noisy count of clipped records (adaptive clip norm), on one batch.

    Guarantee: that of ONE Gaussian of multiplier noise_multiplier z. The count of bits b_i - 1/2 carries noise of standard
    deviation count_noise s (each bit moves it by 1/2), the gradient sum the multiplier (z^-2 - (2 s)^-2)^(-1/2): together a
    Gaussian in one dimension more whose sensitivity over noise is exactly 1/z. Dividing by public constants is free.
    Sensitivity: zero-out. Source: Andrew, Thakkar, McMahan, Ramaswamy 2021, Theorem 1.
    """

    noise_multiplier: float
    count_noise: float
    kind: ClassVar[str] = "adaptive-quantile-step"

    def __post_init__(self) -> None:
        checks.real(0.0, 1e9, open_low=True, noise_multiplier=self.noise_multiplier, count_noise=self.count_noise)
        as_float(self, "noise_multiplier", "count_noise")
        if self.noise_multiplier >= 2 * self.count_noise:
            raise FieldError(
                "count_noise",
                self.count_noise,
                f"must be above noise_multiplier/2 = {self.noise_multiplier / 2:g}: the count alone would cost more than the step",
                f"Try {self.noise_multiplier * 5:g}.",
            )

    @property
    def gradient_noise_multiplier(self) -> float:
        """What the gradient sum must carry, in units of its sensitivity; a little more than noise_multiplier."""
        return math.sqrt(1 / (self.noise_multiplier**-2 - (2 * self.count_noise) ** -2))

    @property
    def unprotected(self) -> bool:
        return self.noise_multiplier < LEAST_NOISE


@dataclass(frozen=True)
class Laplace(Event):
    """One number plus Laplace noise of scale noise_multiplier times its sensitivity.

    Guarantee: 1/noise_multiplier-DP; the exact loss law is used. Sensitivity: absolute change when one record appears or
    vanishes. Source: Dwork, McSherry, Nissim, Smith 2006.
    """

    noise_multiplier: float
    kind: ClassVar[str] = "laplace"

    def __post_init__(self) -> None:
        checks.real(1.0 / LARGEST_EPSILON, 1e9, noise_multiplier=self.noise_multiplier)
        as_float(self, "noise_multiplier")


@dataclass(frozen=True)
class DiscreteLaplace(Event):
    """Two-sided geometric noise, P[X = x] proportional to exp(-epsilon |x|), on an integer count of zero-out sensitivity 1.

    Guarantee: epsilon-DP (Ghosh, Roughgarden, Sundararajan 2009). A count over a public size is post-processing.
    """

    epsilon: float
    kind: ClassVar[str] = "discrete-laplace"

    def __post_init__(self) -> None:
        checks.real(0.0, 1000.0, open_low=True, epsilon=self.epsilon)
        as_float(self, "epsilon")


@dataclass(frozen=True)
class ApproximateDp(Event):
    """Any mechanism that is (epsilon, delta)-DP and of which nothing else is known. delta 0: pure DP.

    Guarantee: the profile of the (epsilon, delta) randomised response, which every such mechanism stays below. Relation: the one
    in which it is (epsilon, delta)-DP. Source: Kairouz, Oh, Viswanath 2015.
    """

    epsilon: float
    delta: float = 0.0
    kind: ClassVar[str] = "approximate-dp"

    def __post_init__(self) -> None:
        checks.real(0.0, LARGEST_EPSILON, open_low=True, epsilon=self.epsilon)
        checks.real(0.0, 1.0, open_high=True, delta=self.delta)
        as_float(self, "epsilon", "delta")


@dataclass(frozen=True)
class ExponentialMechanism(Event):
    """One choice, Pr[j] proportional to exp(-epsilon u_j / (2 B)), among candidates whose score one record moves by at most B.

    Guarantee: epsilon-DP and epsilon-bounded-range, also when the scores depend on earlier answers (a line search that saw the
    noisy gradient); rho = epsilon^2/8 zCDP. The number of candidates costs nothing.
    Sensitivity: B bounds the change of EACH score when one record appears or vanishes, either way. Scores that a record can only
    raise (or only lower) may use exp(-epsilon u_j / B) for the same epsilon.
    Source: McSherry and Talwar 2007; bounded range: Dong, Durfee, Rogers 2020; zCDP: Cesar and Rogers 2021.
    """

    epsilon: float
    kind: ClassVar[str] = "exponential-mechanism"

    def __post_init__(self) -> None:
        checks.real(0.0, LARGEST_EPSILON, open_low=True, epsilon=self.epsilon)
        as_float(self, "epsilon")


@dataclass(frozen=True)
class PrivateQuantile(Event):
    """A quantile of per-record numbers by the exponential mechanism over a public grid, asked ONCE before training.

    Guarantee: epsilon-bounded-range, as `ExponentialMechanism`. Of a quantile that its run asks first, the two tables and what was
    known before the run settle where its range of losses lies. So each place of the range is composed with the rest of the run by
    itself, and the dearest counts (exponential.py, `pieces`), which costs less than all places at once.
    A run is a composition, first of all or inside another event, that has the quantile at its head. Where the run stands behind
    other answers (the final run of subsample-tune, later runs of release-all), or is one of several, its place may depend on them:
    then the largest profile of its places stands for the whole run (`profile.fused`). A quantile asked after something else of its
    own run is priced as an exponential mechanism. simplify.py tells them apart.
    Sensitivity: rank utilities move by max(p, 1 - p) under zero-out, by 1 under replace-one; the sampler must use that.
    Source: ALGORITHMS: u_j = -|(1-p) #{G_i <= g_j} - p #{G_i > g_j}|; Dong, Durfee, Rogers 2020.
    """

    epsilon: float
    kind: ClassVar[str] = "private-quantile"

    def __post_init__(self) -> None:
        checks.real(0.0, LARGEST_EPSILON, open_low=True, epsilon=self.epsilon)
        as_float(self, "epsilon")


@dataclass(frozen=True)
class NoisyMin(Event):
    """The candidate with the smallest noisy sum of losses clipped to [0, B] wins (Lee and Kifer 2018).

    Guarantee: zero-out makes the scores monotone (a record only raises them). With Gumbel noise of scale B/epsilon: Pr[j]
    proportional to exp(-epsilon F_j / B), epsilon-bounded-range, rho = epsilon^2/8. With the paper's Laplace noise of scale
    B/epsilon: epsilon-DP, rho = epsilon^2/2. Under replace-one scores are not monotone: refused there.
    Source: Dwork and Roth 2014, section 3.3 (monotone report-noisy-max); Cesar and Rogers 2021; Bun and Steinke 2016, Prop. 3.3.
    """

    epsilon: float
    noise: str = "gumbel"
    kind: ClassVar[str] = "noisy-min"

    def __post_init__(self) -> None:
        checks.real(0.0, LARGEST_EPSILON, open_low=True, epsilon=self.epsilon)
        checks.one_of(("gumbel", "laplace"), noise=self.noise)
        as_float(self, "epsilon")


@dataclass(frozen=True)
class AboveThresholdLaplace(Event):
    """Noisy queries against one noisy threshold until the first is above it, Laplace noise of these scales.

    Guarantee: epsilon-DP with epsilon = 1/threshold_noise + 2/query_noise, however many queries are asked.
    Sensitivity: scales are in units of what one record moves each query by, either way. Source: Lyu, Su, Li 2017, Theorem 2.
    """

    threshold_noise: float
    query_noise: float
    kind: ClassVar[str] = "above-threshold-laplace"

    def __post_init__(self) -> None:
        checks.real(0.0, 1e9, open_low=True, threshold_noise=self.threshold_noise, query_noise=self.query_noise)
        as_float(self, "threshold_noise", "query_noise")
        checks.real(0.0, LARGEST_EPSILON, epsilon=self.epsilon)

    @property
    def epsilon(self) -> float:
        return 1.0 / self.threshold_noise + 2.0 / self.query_noise


@dataclass(frozen=True)
class AboveThresholdGaussian(Event):
    """Noisy queries against one noisy threshold until the first is above it, or `searches` were asked; Gaussian noise.

    Guarantee: the pair of sweeper/privacy/sparse_vector.py, both directions at once; its cost grows with `searches`. (The
    formula of Chen and Lee 2020 for it is below the truth for long searches; a test shows it.)
    Sensitivity: standard deviations are in units of what one record moves each query by, either way.
    Source: the game W_k in sparse_vector.py; Renyi by the recursion V_k there.
    """

    threshold_noise: float
    query_noise: float
    searches: int
    kind: ClassVar[str] = "above-threshold-gaussian"

    def __post_init__(self) -> None:
        checks.real(LEAST_NOISE, 1e9, threshold_noise=self.threshold_noise)
        checks.real(0.2, 1e9, query_noise=self.query_noise)
        checks.whole(0, 1000, searches=self.searches)
        as_float(self, "threshold_noise", "query_noise")


def merged(multipliers: list[float]) -> float:
    """The noise multiplier of one Gaussian that costs what several on the same records cost together."""
    return 1 / math.sqrt(math.fsum(multiplier**-2 for multiplier in multipliers))
