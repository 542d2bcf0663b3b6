"""The line search of `sweeper price`: one search a step on the step's own minibatch, from the flags that describe it."""

from __future__ import annotations

from dataclasses import dataclass

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy import accountant
from sweeper.privacy.events import AboveThresholdGaussian, AboveThresholdLaplace, Event, ExponentialMechanism

SEARCHES = ("exponential", "laplace", "gaussian")
CANDIDATES = 20  # of a search against a noisy threshold, unless stated
LARGEST_GAUSSIAN = 20.0  # nats; a dearer search has noise below what the game W_k is computed for
THRESHOLD_SHARE = 1 / (1 + 4 ** (1 / 3))
QUERY_OVER_THRESHOLD = 2**0.5


@dataclass(frozen=True, kw_only=True)
class LineSearch:
    """One search among step sizes, by its cost `epsilon` or by its noise scales (units: what one record moves a query by).

    exponential: the exponential mechanism; `epsilon` is its bounded range, and the number of candidates costs nothing.
    laplace: AboveThreshold with Laplace noise; `epsilon` = 1/threshold_noise + 2/query_noise. It is split 1 : 4^(1/3), which makes
    the variance of one comparison, 2 threshold_noise^2 + 2 query_noise^2, the smallest (Lyu, Su, Li 2017, section 4.2).
    gaussian: AboveThreshold with Gaussian noise, at most `candidates` queries; `epsilon` is what one search costs by itself at
    the bill's delta, all of the batch looked at. query_noise = 2^(1/2) threshold_noise, which for one query (losses of variance
    1/threshold_noise^2 + 4/query_noise^2) makes the variance of the comparison the smallest.
    """

    kind: str
    epsilon: float | None = None
    threshold_noise: float | None = None
    query_noise: float | None = None
    candidates: int | None = None

    def __post_init__(self) -> None:
        checks.one_of(SEARCHES, line_search=self.kind)
        noises = {"threshold_noise": self.threshold_noise, "query_noise": self.query_noise}
        given = [name for name, value in noises.items() if value is not None]
        if self.epsilon is None and not given:
            other = "" if self.kind == "exponential" else ", or --threshold-noise and --query-noise"
            raise FieldError(
                "line_search_epsilon", checks.MISSING, f"is missing: --line-search {self.kind} needs its cost{other}", "Try 0.25."
            )
        if self.kind == "exponential" and given:
            raise FieldError(
                given[0], noises[given[0]], "is for searches against a threshold, not for exponential", "Leave it out."
            )
        if self.epsilon is not None and given:
            raise FieldError(given[0], noises[given[0]], "cannot be given with line_search_epsilon: each follows from the other")
        for name in noises:
            if given and name not in given:
                raise FieldError(name, checks.MISSING, f"is missing: it belongs to {given[0].replace('_', ' ')}", "Give both.")
        if self.candidates is not None and self.kind != "gaussian":
            raise FieldError(
                "line_search_steps", self.candidates, f"costs nothing with --line-search {self.kind}, however many", "Leave it out."
            )
        if self.epsilon is not None:
            largest = LARGEST_GAUSSIAN if self.kind == "gaussian" else 100.0
            checks.real(0.0, largest, open_low=True, line_search_epsilon=self.epsilon)
        checks.whole(1, 1000, line_search_steps=self.queries)
        if given:
            self._of_noise()

    @property
    def queries(self) -> int:
        return CANDIDATES if self.candidates is None else self.candidates

    def event(self, delta: float) -> Event:
        """The mechanism. A Gaussian one given by `epsilon` is calibrated at `delta`."""
        if self.kind == "exponential":
            assert self.epsilon is not None
            return ExponentialMechanism(self.epsilon)
        if self.epsilon is None:
            return self._of_noise()
        if self.kind == "laplace":
            return _laplace_of(self.epsilon)
        return self._gaussian_of(self.epsilon, delta)

    def _of_noise(self) -> Event:
        assert self.threshold_noise is not None
        assert self.query_noise is not None
        if self.kind == "laplace":
            return AboveThresholdLaplace(self.threshold_noise, self.query_noise)
        return AboveThresholdGaussian(self.threshold_noise, self.query_noise, self.queries)

    def _gaussian_of(self, epsilon: float, delta: float) -> Event:
        def make(threshold_noise: float) -> Event:
            return AboveThresholdGaussian(threshold_noise, QUERY_OVER_THRESHOLD * threshold_noise, self.queries)

        try:
            return make(accountant.calibrate(make, epsilon, delta))
        except FieldError as error:
            if error.field != "epsilon":
                raise
            raise FieldError("line_search_epsilon", epsilon, error.rule, "Give --threshold-noise and --query-noise.") from None


def _laplace_of(epsilon: float) -> AboveThresholdLaplace:
    """Scales with 1/threshold_noise + 2/query_noise = epsilon."""
    threshold = epsilon * THRESHOLD_SHARE
    return AboveThresholdLaplace(1 / threshold, 2 / (epsilon - threshold))
