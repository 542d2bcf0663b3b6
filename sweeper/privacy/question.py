"""What `sweeper price` is asked: one training run, one protocol, no sweep file; and the events that this means."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy.events import (
    Composed,
    Disjoint,
    Event,
    Gaussian,
    PoissonSubsampled,
    RandomPart,
    Repeated,
    SelectBest,
)
from sweeper.privacy.laws import RunCountLaw
from sweeper.privacy.price_batches import Batches
from sweeper.privacy.price_runs import FLAGS, Runs
from sweeper.privacy.price_search import LineSearch

PROTOCOLS = ("select-best", "release-all", "public-proxy", "no-tuning", "subsample-tune")
SECRET = ("select-best", "subsample-tune")  # protocols whose number of runs is drawn from a law
SPLITS = ("holdout", "training")
FINALS = ("disjoint", "all")


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked: give noise_multiplier to have it priced, or epsilon to have the multiplier found.

    One run: `steps` noisy sums, each with its line search on the same minibatch; before them a private quantile; after them a
    score, a count of correct answers with discrete Laplace noise. The tuning runs of subsample-tune are such runs on their part
    of the rows, with the same probability, steps and noise.
    """

    steps: int | None = None
    delta: float | None = None
    noise_multiplier: float | None = None
    epsilon: float | None = None
    sampling: str = "poisson"
    sampling_probability: float | None = None
    rows: int | None = None
    batch_size: int | None = None
    line_search: str | None = None
    line_search_epsilon: float | None = None
    line_search_steps: int | None = None
    threshold_noise: float | None = None
    query_noise: float | None = None
    quantile_epsilon: float | None = None
    score_epsilon: float | None = None
    score_split: str | None = None
    protocol: str = "no-tuning"
    tune_fraction: float | None = None
    final: str | None = None
    law: str | None = None
    eta: float | None = None
    mean: float | None = None
    max_trials: int | None = None
    trials: int | None = None
    run_probability: float | None = None
    may_return_nothing: bool = False
    chance: float | None = None
    top: float | None = None
    max_epsilon: float | None = None

    def __post_init__(self) -> None:
        for name, example in (("steps", "2000"), ("delta", "1e-5")):
            if getattr(self, name) is None:
                raise FieldError(name, checks.MISSING, f"is missing: a bill needs its {name}", f"Try --{name} {example}.")
        checks.whole(0, 1_000_000_000, steps=self.steps)
        checks.probability(delta=self.delta)
        checks.one_of(PROTOCOLS, protocol=self.protocol)
        self._check_noise()
        self._check_rows()
        self._check_parts()
        self._check_protocol()
        if self.protocol in SECRET:
            _ = self.runs  # refuses what makes no sense

    def _check_noise(self) -> None:
        if (self.noise_multiplier is None) == (self.epsilon is None):
            raise FieldError("noise_multiplier", checks.MISSING, "or epsilon must be given, and not both")
        if self.noise_multiplier is not None:
            checks.real(0.0, 1e9, noise_multiplier=self.noise_multiplier)
        if self.epsilon is not None:
            checks.positive(epsilon=self.epsilon)
            if self.max_epsilon is not None:
                raise FieldError("max_epsilon", self.max_epsilon, "cannot be given with epsilon, the whole bill", "Give --chance.")
            if self.steps == 0 or self.batches.probability == 0:
                raise FieldError("steps", self.steps, "releases nothing, so no noise is needed for any epsilon")

    def _check_rows(self) -> None:
        rows = self.batches.rows
        if rows is not None and self.bill_delta >= 1 / rows:
            rule = f"must be below 1/rows = {1 / rows:.2g}: a delta of 1/n allows one person's record to be published whole"
            raise FieldError("delta", self.delta, rule, f"Try --delta {10 ** math.floor(math.log10(0.1 / rows)):.0e}.")

    def _check_parts(self) -> None:
        if self.line_search is None:
            for name in ("line_search_epsilon", "line_search_steps", "threshold_noise", "query_noise"):
                if getattr(self, name) is not None:
                    raise FieldError(name, getattr(self, name), "belongs to a line search", "Give --line-search exponential.")
        elif self.batches.fixed_size:
            rule = "is priced on Poisson minibatches only: for a batch drawn without replacement no bound of it is proved"
            raise FieldError("line_search", self.line_search, rule, "Use --sampling poisson.")
        else:
            _ = self.search  # refuses what makes no sense
        if self.quantile_epsilon is not None:
            checks.real(0.0, 100.0, open_low=True, quantile_epsilon=self.quantile_epsilon)
        if self.score_epsilon is not None:
            checks.real(0.0, 100.0, open_low=True, score_epsilon=self.score_epsilon)
        if self.score_split is not None:
            checks.one_of(SPLITS, score_split=self.score_split)
            if self.score_epsilon is None:
                raise FieldError(
                    "score_split", self.score_split, "belongs to a score with noise of its own", "Give --score-epsilon 0.1."
                )

    def _check_protocol(self) -> None:
        if self.protocol == "subsample-tune":
            if self.tune_fraction is None:
                rule = "is missing: subsample-tune needs the chance of a row to be in the tuning part"
                raise FieldError("tune_fraction", checks.MISSING, rule, "Try --tune-fraction 0.1.")
            checks.real(0.0, 1.0, open_low=True, open_high=True, tune_fraction=self.tune_fraction)
            if self.final is not None:
                checks.one_of(FINALS, final=self.final)
            if self.batches.fixed_size:
                rule = "speaks of replace-one, and the random tuning part of subsample-tune is priced for zero-out"
                raise FieldError("sampling", self.sampling, rule, "Use --sampling poisson.")
            if self.law == "auto":
                rule = "weighs the best of several runs alone, not with the final run of subsample-tune"
                raise FieldError("law", self.law, rule, "Name the law, or use --protocol select-best.")
        if self.protocol == "release-all":
            if self.trials is None:
                raise FieldError("trials", checks.MISSING, "is missing: release-all needs the number of runs", "Try --trials 10.")
            checks.whole(1, 1_000_000_000, trials=self.trials)
        owners: dict[str, tuple[str, ...]] = dict.fromkeys(("law", *FLAGS), SECRET)
        owners |= {"tune_fraction": ("subsample-tune",), "final": ("subsample-tune",), "trials": ("release-all", *SECRET)}
        for name, protocols in owners.items():
            value = getattr(self, name)
            if value is not None and value is not False and self.protocol not in protocols:
                raise FieldError(name, value, f"belongs to protocol {' or '.join(protocols)}, not {self.protocol}")

    @property
    def bill_delta(self) -> float:
        assert self.delta is not None
        return self.delta

    @cached_property
    def batches(self) -> Batches:
        return Batches(
            sampling=self.sampling,
            sampling_probability=self.sampling_probability,
            rows=self.rows,
            batch_size=self.batch_size,
        )

    @cached_property
    def search(self) -> LineSearch | None:
        if self.line_search is None:
            return None
        return LineSearch(
            kind=self.line_search,
            epsilon=self.line_search_epsilon,
            threshold_noise=self.threshold_noise,
            query_noise=self.query_noise,
            candidates=self.line_search_steps,
        )

    @cached_property
    def runs(self) -> Runs:
        return Runs(law=self.law or "tnb", **{name: getattr(self, name) for name in FLAGS})

    def run_counts(self) -> RunCountLaw:
        return self.runs.run_counts()

    @cached_property
    def search_event(self) -> Event | None:
        return None if self.search is None else self.search.event(self.bill_delta)

    @cached_property
    def score(self) -> Event | None:
        return None if self.score_epsilon is None else self.batches.score(self.score_epsilon)

    @property
    def on_holdout(self) -> bool:
        return self.score is not None and self.score_split != "training"

    def training(self, noise_multiplier: float) -> Event:
        """All that one run asks of a training row."""
        assert self.steps is not None
        steps: Event = Repeated(self.batches.step(Gaussian(noise_multiplier), self.search_event), self.steps)
        if self.quantile_epsilon is not None:
            steps = Composed((self.batches.quantile(self.quantile_epsilon), steps))
        if self.score is not None and not self.on_holdout:
            steps = Composed((steps, self.score))
        return steps

    def trial(self, noise_multiplier: float) -> Event:
        """One run with its score."""
        one = self.training(noise_multiplier)
        return Disjoint((one, self.score)) if self.score is not None and self.on_holdout else one

    def total(self, noise_multiplier: float, law: RunCountLaw | None) -> Event:
        """The whole protocol."""
        if self.protocol == "subsample-tune":
            assert law is not None
            return self._subsample_tune(noise_multiplier, law)
        one = self.trial(noise_multiplier)
        if self.protocol == "select-best":
            return SelectBest(one, law)
        if self.protocol == "release-all":
            assert self.trials is not None
            return Repeated(one, self.trials)
        return one

    def _subsample_tune(self, noise_multiplier: float, law: RunCountLaw) -> Event:
        """A training row is in the tuning part or not; a held-out row is in the scores of all tuning runs and of the final one."""
        assert self.tune_fraction is not None
        one = self.training(noise_multiplier)
        tuned = SelectBest(one, law)
        if self.final == "all":
            rows: Event = Composed((PoissonSubsampled(self.tune_fraction, tuned), one))
        else:
            rows = RandomPart(self.tune_fraction, tuned, one)
        if self.score is None or not self.on_holdout:
            return rows
        return Disjoint((rows, Composed((SelectBest(self.score, law), self.score))))
