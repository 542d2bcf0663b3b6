"""SweepSpec: the whole request, public, frozen, checked on construction. No field ever holds anything learnt from data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy.event import REPLACE_ONE, ZERO_OUT
from sweeper.spec.protocols import USER, DataSource, Model, ReleaseProtocol, Search, Trainer
from sweeper.spec.refused import no_noise, noiseless
from sweeper.spec.search import MOST_POINTS, RandomSearch
from sweeper.spec.space import Space

if TYPE_CHECKING:
    from sweeper.privacy.release import Part

MOST_STEPS = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """Which table, which rows are held out, and whether it is public."""

    source: DataSource
    holdout: float | str = 0.2  # fraction of rows by keyed hash of position, or "test": the rows the source itself sets aside
    public: bool = False  # True: nothing sealed, nothing charged, the bill shown "as if private"
    n: int | None = None  # table length if the user states another than the source's public description
    split_key: str = "sweeper"  # public key of the hash
    n_holdout: int | None = None  # how many rows the hash of their public ids holds out; for sources with ids

    def __post_init__(self) -> None:
        checks.flag(public=self.public)
        if self.holdout == "test":
            if self.source.description.test_rows is None:
                raise FieldError(
                    "holdout", "test", f"needs a source with rows of its own set aside; {self.source.kind} has none", "Try 0.2."
                )
        elif isinstance(self.holdout, str):
            raise FieldError("holdout", self.holdout, "must be a fraction below 1, or the word test")
        else:
            checks.real(0.0, 1.0, open_high=True, holdout=self.holdout)
        if self.n is not None:
            checks.whole(2, 100_000_000, n=self.n)
            if self.source.description.stated_by == USER:
                raise FieldError("n", self.n, "is stated by data.source.rows", "Leave n out.")
        if self.n_holdout is not None:
            checks.whole(1, self.rows - 1, n_holdout=self.n_holdout)
            if not self.source.description.ids or not self.holdout:
                why = "is for rows with public ids, some of them held out: of others the number follows from data.holdout"
                raise FieldError("n_holdout", self.n_holdout, why, "Leave it out.")
        if not isinstance(self.split_key, str):
            raise FieldError("split_key", self.split_key, "must be text")
        if not self.split_key.isprintable():  # also what UTF-8 cannot write
            raise FieldError("split_key", self.split_key, "must be printable text")

    @property
    def rows(self) -> int:
        """Public table length n."""
        return self.source.description.rows if self.n is None else self.n

    @property
    def rows_stated_by(self) -> str:
        return USER if self.n is not None or self.source.description.stated_by == USER else f'source "{self.source.kind}"'


@dataclass(frozen=True, kw_only=True)
class PrivacySpec:
    """The WHOLE bill: everything the sweep releases, tuning included. Give epsilon (noise is calibrated) or noise_multiplier."""

    delta: float
    epsilon: float | None = None
    noise_multiplier: float | None = None
    unit: str = "record"
    budget_of: str | None = None  # name in the ledger; default: the data source's kind
    relation: str | None = None  # zero-out or replace-one; default: the sampler's, which alone decides it

    def __post_init__(self) -> None:
        checks.probability(delta=self.delta)
        if (self.epsilon is None) == (self.noise_multiplier is None):
            both = f"and noise_multiplier = {checks.show(self.noise_multiplier)} are both given: one decides the other"
            neither = "is missing, and so is noise_multiplier: one must be given"
            raise FieldError(
                "epsilon",
                checks.MISSING if self.epsilon is None else self.epsilon,
                neither if self.epsilon is None else both,
                "Keep epsilon to have the noise calibrated, or noise_multiplier to have the run priced.",
            )
        if self.epsilon is not None:
            checks.positive(epsilon=self.epsilon)
        if self.noise_multiplier is not None:
            checks.real(0.0, 1e9, open_low=True, noise_multiplier=self.noise_multiplier)
        if self.unit == "user":
            raise FieldError("unit", "user", "is refused: nothing here bounds what one user contributes", "Use unit: record.")
        checks.one_of(("record",), unit=self.unit)
        if self.relation is not None:
            checks.one_of((ZERO_OUT, REPLACE_ONE), relation=self.relation)
        if self.budget_of is not None:
            checks.name(budget_of=self.budget_of)


@dataclass(frozen=True, kw_only=True)
class ScoreSpec:
    """The number candidates are compared by. It is part of every trial, so it is part of the price."""

    metric: str = "accuracy"
    split: str = "holdout"  # holdout or training
    epsilon: float = 0.1  # of the noise on the count of correct records

    def __post_init__(self) -> None:
        checks.one_of(("accuracy",), metric=self.metric)
        checks.one_of(("holdout", "training"), split=self.split)
        if noiseless(self.epsilon):
            raise no_noise(self.epsilon)
        checks.positive(epsilon=self.epsilon)
        checks.real(1e-6, 100.0, epsilon=self.epsilon)  # below it a score is noise alone, above it is not private


AUTO, MOST_PACKED = "auto", 128


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one trial needs. Changes speed only, never privacy."""

    cpu: float = 1.0
    gpu: float = 0.0
    max_concurrent: int | None = None  # default: as many trials as fit the free CPUs and GPUs
    pack: int | str | None = None  # trials that share a device in one worker; auto, the default: measured on a GPU, 1 on a CPU

    def __post_init__(self) -> None:
        checks.positive(cpu=self.cpu)
        checks.non_negative(gpu=self.gpu)
        if self.pack is not None and self.pack != AUTO:
            checks.whole(1, MOST_PACKED, pack=self.pack)
        if self.max_concurrent is not None:
            checks.whole(1, max_concurrent=self.max_concurrent)


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One of several spaces that a sweep compares: a selection of its own, with a winner of its own."""

    space: Space
    trainer: Trainer = None  # type: ignore[assignment]  # None: the sweep's, which SweepSpec fills in


@dataclass(frozen=True, kw_only=True)
class SweepSpec:
    """One sweep. Same spec, same law of candidates, same price.

    With arms it has neither a space nor a trainer: every arm has its own, and `of_arm` gives the sweep of one arm.
    """

    name: str
    data: DataSpec
    model: Model
    privacy: PrivacySpec
    protocol: ReleaseProtocol
    trainer: Trainer = None  # type: ignore[assignment]  # None with arms alone, so that nobody takes one arm's for all
    space: Space = None  # type: ignore[assignment]
    arms: Mapping[str, Arm] = field(default_factory=dict, hash=False)
    search: Search = field(default_factory=RandomSearch)
    score: ScoreSpec = field(default_factory=ScoreSpec)
    resources: Resources = field(default_factory=Resources)
    kind: ClassVar[str] = "sweep"

    def __post_init__(self) -> None:
        checks.name(name=self.name)
        for found in self._arm_faults() if self.arms else self._faults():
            raise found

    def of_arm(self, name: str) -> SweepSpec:
        """The sweep that an arm is by itself, its bill not yet shared with the others. "" is a sweep without arms."""
        if not name and not self.arms:
            return self
        arm = self.arms[name]
        return replace(self, arms={}, space=arm.space, trainer=arm.trainer)

    def by_arm(self) -> dict[str, SweepSpec]:
        """Name of the arm -> its sweep, in the order of the file; {"": this sweep} without arms."""
        return {name: self.of_arm(name) for name in self.arms or ("",)}

    def _arm_faults(self) -> Iterator[FieldError]:
        """Rules of arms, and those between sections for each of them. Fills in the sweep's trainer where an arm has none."""
        if self.space is not None:
            hint = "Move clip and step of space into an arm, or leave arms out."
            yield FieldError("arms", checks.MISSING, "and space are both given: arms are several spaces", hint)
        if len(self.arms) < 2:
            yield FieldError(
                "arms", checks.MISSING, "must be at least 2 to compare", "Add one, or write its clip and step under space."
            )
        filled = {}
        for name, arm in self.arms.items():
            checks.name(arms=name)
            trainer = self.trainer if arm.trainer is None else arm.trainer
            if trainer is None:
                hint = "Give the arm a trainer, or the sweep one for all arms."
                yield FieldError(f"arms.{name}.trainer", checks.MISSING, "is missing, and the sweep has none", hint)
            filled[name] = replace(arm, trainer=trainer)
        object.__setattr__(self, "arms", filled)
        object.__setattr__(self, "trainer", None)
        for name in self.arms:
            try:
                self.of_arm(name)
            except FieldError as error:
                yield FieldError(in_arm(name, error.field), error.value, error.rule, error.hint)
        first, relations = next(iter(filled)), {name: arm.trainer.relation for name, arm in filled.items()}
        for name, relation in relations.items():
            if relation != relations[first] and not self.data.public:
                yield FieldError(
                    f"arms.{name}.trainer.sampling",
                    getattr(filled[name].trainer, "sampling", filled[name].trainer.kind),
                    f"is priced for {relation} and arm {first} for {relations[first]}: the arms add up to one bill, which "
                    "speaks of one relation",
                    "Use one sampling in all arms, or compare them on data.public: true.",
                )

    def _faults(self) -> Iterator[FieldError]:
        """Rules between sections; rules inside one section are the section's own."""
        if self.space is None or self.trainer is None:
            field = "trainer" if self.trainer is None else "space"
            yield FieldError(field, checks.MISSING, "is missing", "Give trainer and space, or arms.")
        rows = self.data.rows
        if self.privacy.delta >= 1 / rows:
            hint = f"Try delta: {_below(1 / rows):.0e}."
            stated = f"must be below 1/n = {1 / rows:.2g} (n = {rows:,}, stated by {self.data.rows_stated_by})"
            yield FieldError("privacy.delta", self.privacy.delta, stated, hint)
        if self.score.split == "holdout" and self.data.holdout == 0.0:
            yield FieldError("score.split", "holdout", "needs held-out rows, and data.holdout is 0", "Set data.holdout: 0.2.")
        classes = self.data.source.description.classes
        if getattr(self.model, "binary", False) and classes != 2:
            yield FieldError(
                "model.kind",
                self.model.kind,
                f"needs 2 classes; {self.data.source.kind} has {classes}",
                "Use model: {kind: softmax}.",
            )
        if getattr(self.model, "scale", None) and self.data.source.description.norm_bound is None:
            rule = f"needs a public bound on the length of a row, and source {self.data.source.kind} states none"
            yield FieldError("model.scale", self.model.scale, rule, "Leave it out.")  # type: ignore[attr-defined]
        if hasattr(self.model, "stack"):  # a network: its layers must fit the rows
            try:
                self.model.stack(self.data.source.description.features, classes)
            except FieldError as error:
                yield error.within("model")
        searched = [name for name, _ in self.space.searched()]
        if self.protocol.runs_one and searched:
            yield FieldError(
                f"space.{searched[0]}",
                checks.MISSING,
                f"is searched, but protocol {self.protocol.kind} runs one setting",
                "Give it a value, or use protocol: {kind: select-best, mean_trials: 12}.",
            )
        if not self.protocol.runs_one and not searched:
            yield FieldError(
                "space",
                checks.MISSING,
                f"searches nothing, so protocol {self.protocol.kind} would pay for choosing among equals",
                "Give a range, or use protocol: {kind: no-tuning}.",
            )
        yield from self._search_faults(len(searched))
        if self.privacy.relation not in (None, self.trainer.relation):
            sampling = getattr(self.trainer, "sampling", self.trainer.kind)
            yield FieldError(
                "privacy.relation",
                self.privacy.relation,
                f"does not match the sampler: trainer.sampling {sampling} is priced for {self.trainer.relation}",
                "Leave relation out, or use trainer.sampling: "
                f"{'without-replacement' if self.privacy.relation == REPLACE_ONE else 'poisson'}.",
            )
        if self.trainer.steps > MOST_STEPS:
            yield FieldError("trainer.steps", self.trainer.steps, f"must be at most {MOST_STEPS:,}")
        if (batch_size := self.trainer.expected_batch(rows)) > rows:
            yield FieldError("trainer.batch_size", batch_size, f"must be at most the number of rows, {rows:,}")
        yield from self._policy_faults()
        yield from self.protocol.faults(self)

    def _policy_faults(self) -> Iterator[FieldError]:
        """Policies that this trainer, model or table does not go with."""
        clip, step = self.space.clip.middle(), self.space.step.middle()
        if clip.public_only and not self.data.public:
            yield FieldError(
                "space.clip.policy",
                clip.kind,
                "is refused: it is computed from the rows, and of private rows that is a release which nothing here pays for",
                "Use policy: private-quantile, which is priced, or data.public: true for a benchmark.",
            )
        if clip.lipschitz and not hasattr(self.model, "lipschitz"):
            yield FieldError(
                "space.clip.policy",
                clip.kind,
                f"needs a bound on every record's gradient, and model {self.model.kind} has none",
                "Use policy: adaptive-quantile, or normalise.",
            )
        if step.kind == "theory":
            yield from self._theory_faults(clip, step)
        yield from self.trainer.faults(clip, step)
        if hasattr(self.trainer, "assumes"):
            yield from self.trainer.assumes(self)

    def _theory_faults(self, clip: Any, step: Any) -> Iterator[FieldError]:
        """A theorem's step size with another's clip norm, with other constants, or on a loss that it does not speak of."""
        theorem = step.theorem
        if not hasattr(self.model, "parameters"):
            rule = f"needs the number of parameters before data is opened, and model {self.model.kind} is built later"
            yield FieldError("space.step.policy", step.kind, rule, "Use policy: fixed, coupled, or a search.")
            return
        if clip.kind != "heavy-tail" and theorem != "5.4":
            rule = f"gives the clip norm too, and clip policy {clip.kind} gives another"
            hint = f"Use clip: {{policy: heavy-tail, theorem: '{theorem}', ...}}, or theorem: '5.4'."
            yield FieldError("space.step.theorem", theorem, rule, hint)
        if clip.kind == "heavy-tail" and theorem != clip.theorem:
            rule = f"is not the theorem of the clip norm, {clip.theorem}: together they are the setting of neither"
            yield FieldError("space.step.theorem", theorem, rule, f"Use theorem: '{clip.theorem}'.")
        if theorem != "N.1" and hasattr(self.model, "stack"):
            rule = f"speaks of convex losses, and model {self.model.kind} has none"
            yield FieldError("space.step.theorem", theorem, rule, "Use theorem: 'N.1', or a linear model.")
        if clip.kind == "heavy-tail" and theorem == "N.1":
            for part in ("distance", "smoothness"):
                ours, theirs = getattr(step, part), getattr(clip, part)
                if ours != theirs:
                    rule = f"is not the {part} of the clip norm, {checks.show(theirs)}: one theorem has one"
                    yield FieldError(f"space.step.{part}", ours, rule, "Give both policies the same value, not searched.")

    def _search_faults(self, searched: int) -> Iterator[FieldError]:
        """A search with a number of candidates of its own must be told by the protocol. (planning refuses what has no price.)"""
        if self.protocol.runs_one and self.search != RandomSearch():
            hint = "Leave search out."
            yield FieldError("search.kind", self.search.kind, f"has nothing to search: {self.protocol.kind} runs one setting", hint)
        count = self.search.trials(self.space) if searched else None
        if count is None or self.protocol.drawn:
            return
        if count > MOST_POINTS:
            yield FieldError("search.points", checks.MISSING, f"makes more than {MOST_POINTS:,} points", "Lower it.")
        elif count != self.protocol.max_trials:
            rule = f"is not the number of points of the grid, {count:,}, which all run"
            yield FieldError("protocol.trials", self.protocol.max_trials, rule, f"Set protocol.trials: {count}.")

    @property
    def budget_of(self) -> str:
        """What the ledger calls the table: the user's word, the name of a file of the user's own, or the source's kind."""
        own: str = getattr(self.data.source, "budget_name", self.data.source.kind)
        return self.privacy.budget_of or own


def too_few_arms() -> FieldError:
    return FieldError("arms", checks.MISSING, "must be at least 2 to compare", "Add one, or write its clip and step under space.")


def in_arm(name: str, field: str) -> str:
    """Where a field of an arm's own sweep stands in the file; "" is a sweep without arms."""
    if not name:
        return field
    if field == "space" or field.startswith("space."):
        return f"arms.{name}{field.removeprefix('space')}"
    return f"arms.{name}.{field}" if field == "trainer" or field.startswith("trainer.") else field


def _below(limit: float) -> float:
    """A round power of ten well below a limit."""
    power = 1.0
    while power >= limit:
        power /= 10
    return power


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """One candidate, complete: all that a worker must know, and nothing about data."""

    index: int  # position in the Vault; sealed
    model: Model
    trainer: Trainer
    clip: Any
    step: Any
    noise_multiplier: float
    candidate: Mapping[str, Any]  # searched name -> value
    data: DataSpec
    score: ScoreSpec
    part: Part | None = None  # the training rows it may use; None: all
    arm: str = ""  # whose candidate it is, in a sweep with arms
