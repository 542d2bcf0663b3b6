"""The interfaces. Each has a contract suite under tests/contracts that every implementation runs.

Shapes: B records of a chunk, L layers, P parameters, J candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy
    from torch import Tensor

    from sweeper.checks import FieldError
    from sweeper.privacy.events import Event
    from sweeper.privacy.release import Part
    from sweeper.seeds import Streams
    from sweeper.spec.curvature import Curvature


USER = "the user"  # who states the figures of a table of the user's own


@dataclass(frozen=True, kw_only=True)
class Description:
    """What is public about a table. Stated by its publisher or by the user; never computed from private rows."""

    rows: int  # n
    features: int  # width after encoding, bias column not included
    classes: int
    test_rows: tuple[int, int] | None = None  # [first, after last) of the rows the publisher set aside, if any
    ids: bool = False  # rows have public keys, and these, not positions, decide who is held out
    stated_by: str = ""  # where the figures come from
    norm_bound: float | None = None  # no record has ||[x, 1]|| above it, whatever it holds; None: nothing promises one


class DataSource(Protocol):
    """A table and its public description. `load` is the only thing in the project that opens data."""

    kind: ClassVar[str]

    @property
    def description(self) -> Description: ...
    def present(self, cache: str) -> bool:
        """Whether the files are there; opens none."""
        ...

    def fetch(self, cache: str) -> list[str]:
        """Put the files under the cache directory; their paths."""
        ...

    def digest(self, cache: str) -> str:
        """What the ledger knows the table by. For the curator only."""
        ...

    def load(self, cache: str) -> Any:
        """The rows as a sweeper.data.table.Table, from files under the cache directory. Never fetches."""
        ...


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The public numbers of one run: what a policy may know before it starts."""

    rows: int  # training rows; of a secret part of them, the expected number
    batch_size: float  # expected batch; sums are divided by it
    steps: int
    parameters: int  # P
    noise_multiplier: float  # of the gradient's sum, in units of its sensitivity
    relation: str = "zero-out"


class Model(Protocol):
    """A model family with its loss. Parameters are one flat float32 vector params_P."""

    kind: ClassVar[str]

    def parameters(self, description: Description) -> int:
        """P, the length of the parameter vector."""
        ...


class Clip(Protocol):
    """Squared per-record norms [B, L layers] -> factors, and the sensitivity of the sum that they guarantee.

    A policy is frozen; one that moves while a run goes on gives the next policy. See sweeper/clip/base.py for each method.
    """

    kind: ClassVar[str]
    searched: ClassVar[str]  # the field that `range:` or `value:` set
    costs: ClassVar[Mapping[str, int]]  # field that changes the event -> 1: a larger value costs more, -1: less, 0: not ordered
    absent: ClassVar[bool]  # stands for no policy
    by_layer: ClassVar[bool]  # wants norms per layer, and gives a factor for each
    counts: ClassVar[bool]  # asks for a noisy count beside the sum

    @property
    def raises(self) -> bool:
        """Moves when a trainer raises its gradient budget."""
        ...

    @property
    def sensitivity(self) -> float:
        """Largest norm of one record's term in the sum (zero-out)."""
        ...

    def factors(self, squared_norms_BL: Tensor) -> Tensor: ...
    def sum_event(self, noise_multiplier: float) -> Event: ...
    def sum_noise(self, noise_multiplier: float) -> float: ...
    def asks(self, rows: int, relation: str) -> Event | None: ...
    def prepare(self, facts: Facts, problem: Problem, streams: Streams) -> Clip: ...
    def at(self, step: int, steps: int) -> Clip: ...
    def counted(self, squared_norms_BL: Tensor) -> Tensor: ...
    def count_std(self, noise_multiplier: float) -> float: ...
    def moved(self, mean_count: float) -> Clip: ...
    def raised(self) -> Clip: ...


@dataclass(kw_only=True)
class Look:
    """What a step policy may see at one iteration. The batch and its problem answer with sums only."""

    clip: Clip
    step: int
    steps: int
    noise_multiplier: float  # of the whole step: gradient and search together
    divisor: float  # public, of sums over the batch
    params_P: Tensor
    gradient_P: Tensor  # noisy mean gradient, penalty included
    direction_P: Tensor  # what is subtracted, times the step size
    batch: Batch
    problem: Problem
    draws: numpy.random.Generator  # of the trial's search stream


class Step(Protocol):
    """The step size at an iteration. See sweeper/step/base.py for each method."""

    kind: ClassVar[str]
    searched: ClassVar[str]
    costs: ClassVar[Mapping[str, int]]
    absent: ClassVar[bool]  # stands for no policy
    searches: ClassVar[bool]  # asks each minibatch something
    scaled: ClassVar[bool]  # its sizes are in units of the gradient's scale

    def event(self, noise_multiplier: float) -> Event | None: ...
    def gradient_noise(self, noise_multiplier: float) -> float: ...
    def prepare(self, facts: Facts, clip: Clip) -> Step: ...
    def size(self, look: Look) -> float: ...


class Batch(Protocol):
    """One trial, one minibatch: all that backends differ in. Nothing per-record leaves it; null records add nothing to any sum."""

    def sum(self, params_P: Tensor, factors: Callable[[Tensor], Tensor], *, by_layer: bool = False) -> Tensor:
        """Sum over the batch of factor times gradient, [P]. `factors` maps squared norms [B, L] to [B], once per chunk.

        by_layer: L is the number of layers of the problem (else 1), and factors are [B, L], one for each layer's part.
        A record whose gradient is not finite contributes zero.
        """
        ...

    def sum_and_count(
        self, params_P: Tensor, factors: Callable[[Tensor], Tensor], counted: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, float]:
        """`sum`, and the sum of a number per record, which `counted` makes of its squared norm."""
        ...

    def losses_along(self, params_P: Tensor, direction_P: Tensor, sizes: Sequence[float], terms: Terms) -> Tensor:
        """Sums [J] in float64 of `terms` over the batch: losses at params_P and at params_P - size * direction_P, no penalty."""
        ...

    def exact_sum(self, params_P: Tensor) -> Tensor:
        """Sum of gradients in float64, at params_P in float64, clipped by nothing. Of models that bound them: see `curvature`."""
        ...


Terms = Callable[["Tensor", "Tensor"], "Tensor"]  # losses here [B, 1] and there [B, J] -> what is summed [B, J]


class Problem(Protocol):
    """A model on the training rows of a table."""

    rows: int  # public number of training rows
    nonfinite: int  # terms left out so far because they were not finite; sealed

    @property
    def layers(self) -> tuple[int, ...]:
        """How many parameters each layer of `sum(by_layer=True)` has."""
        ...

    def start(self, streams: Streams) -> Tensor:
        """Initial params_P."""
        ...

    @property
    def curvature(self) -> Curvature | None:
        """Public bounds on a record's loss; None: the model is not convex, or nothing bounds its gradients."""
        ...

    def batch(self, rows_B: Any) -> Batch:
        """The minibatch with these row positions."""
        ...

    def state(self) -> Any:
        """What a run in progress changes of the problem itself (random numbers it draws); picklable, to be kept with the run."""
        ...

    def restore(self, state: Any) -> None:
        """Put back what `state` gave."""
        ...

    def label_counts(self, rows: Any = None) -> Tensor:
        """How many training rows (or of these) have each label [classes], int64. Null records and broken ones add nothing."""
        ...

    def constant(self, label: int) -> Tensor:
        """Parameters of the model that gives every row this label."""
        ...

    def released(self, params_P: Tensor) -> Tensor:
        """The parameters for features as the source gives them: others than those trained where a model is scaled."""
        ...

    def add_penalty_(self, gradient_P: Tensor, params_P: Tensor) -> None:
        """Add the gradient of the model's penalty, which no data enters, in place."""
        ...

    def penalty(self, params_P: Tensor) -> float:
        """The model's penalty, which no data enters."""
        ...

    @property
    def lipschitz_range(self) -> tuple[float, float | None]:
        """Public bounds on the records' Lipschitz constants, from below and, where there is one, from above."""
        ...

    def lipschitz_sum(self, terms: Callable[[Tensor], Tensor], rows: Any = None) -> Tensor:
        """Sum [J] in float64 over all training rows (or these) of terms [B, J] of their Lipschitz constants [B].

        A record's constant bounds the norm of its gradient at every params_P. Null records add nothing.
        """
        ...


class Fitted(NamedTuple):
    """What a trainer gives back. `chosen` and `trace` are inside its price, `sealed` is not."""

    params_P: Tensor
    sealed: Mapping[str, Any]  # diagnostics
    chosen: Mapping[str, float]  # settings that the run itself found: a clip norm, a step size
    trace: Mapping[str, list[float]]  # at some steps, all at most MOST_TRACED: step, step size, clip norm, budget left


class Trainer(Protocol):
    """One optimiser. Its event is known before any data is opened."""

    kind: ClassVar[str]
    steps: int

    @property
    def relation(self) -> str:
        """The neighbour relation that its sampler is priced for."""
        ...

    def expected_batch(self, rows: int) -> int:
        """The public expected number of records in a batch; sums are divided by it."""
        ...

    def event(self, rows: int, noise_multiplier: float, clip: Any, step: Any) -> Event:
        """All that `fit` asks of `rows` training rows, with policies at the dearest of their searched settings."""
        ...

    def faults(self, clip: Any, step: Any) -> Iterator[FieldError]:
        """Why it does not run with these policies."""
        ...

    def assumes(self, spec: Any) -> Iterator[FieldError]:
        """What it needs of model and data that the spec does not promise."""
        ...

    def fit(
        self, problem: Problem, clip: Any, step: Any, noise_multiplier: float, streams: Streams, *, share: float = 1.0
    ) -> Fitted:
        """`share`: of the rows that the problem lets into a batch; public."""
        ...


class Search(Protocol):
    """Where candidates come from. Sees the public space and public randomness only."""

    @property
    def kind(self) -> str: ...
    @property
    def iid(self) -> bool:
        """Candidates are independent draws from one public law, with replacement."""
        ...

    def trials(self, space: Any) -> int | None:
        """How many candidates there are; None: as many as are asked for."""
        ...

    def candidates(self, space: Any, count: int, uniforms: Iterator[float]) -> list[dict[str, Any]]:
        """`count` candidates: a value for each searched name."""
        ...

    def values(self, domain: Any) -> str:
        """What it tries of a domain, for people."""
        ...


class ReleaseProtocol(Protocol):
    """What may be seen of a sweep and what that costs. Draws the number of runs and prices it."""

    kind: ClassVar[str]
    runs_one: ClassVar[bool]  # exactly one run, so nothing may be searched
    releases_all: ClassVar[bool]  # every trial becomes visible
    final_run: ClassVar[bool]  # after the search one run of the winning setting, which is the answer
    drawn: ClassVar[bool]  # how many runs is drawn in secret, and candidates must be i.i.d. draws
    visible: ClassVar[str]  # one sentence for the user

    @property
    def max_trials(self) -> int:
        """The most runs that can happen; what a reservation covers."""
        ...

    def total(self, trial: Event) -> Event:
        """The event of the whole sweep from the event of one trial."""
        ...

    def unsealed(self, trial: Event, runs: int) -> Event:
        """The event of a sweep of this many runs, the final one not counted, if every one of them is released."""
        ...

    def part(self, *, final: bool) -> Part | None:
        """The secret part of the training rows that a run of the search, or the final one, may use; None: all of them."""
        ...

    def draw_count(self, uniforms: Iterator[float]) -> int:
        """How many runs to make, the final one not counted. A secret where `drawn`."""
        ...

    def faults(self, spec: Any) -> Iterator[FieldError]:
        """Rules between the protocol and the rest of the spec."""
        ...
