"""The interfaces. Each has a contract suite under tests/contracts that every implementation runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from sweeper.checks import FieldError
    from sweeper.privacy.events import Event
    from sweeper.privacy.release import Part
    from sweeper.seeds import Streams


@dataclass(frozen=True, kw_only=True)
class Description:
    """What is public about a table. Stated by its publisher or by the user; never computed from private rows."""

    rows: int  # n
    features: int  # width after encoding, bias column not included
    classes: int
    test_rows: tuple[int, int] | None = None  # [first, after last) of the rows the publisher set aside, if any
    stated_by: str = ""  # where the figures come from


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


class Model(Protocol):
    """A model family with its loss. Parameters are one flat float32 vector params_P."""

    kind: ClassVar[str]

    def parameters(self, description: Description) -> int:
        """P, the length of the parameter vector."""
        ...


class Clip(Protocol):
    """Squared per-record norms [B, L layers] -> factors [B], and the sensitivity of the sum that they guarantee."""

    kind: ClassVar[str]
    searched: ClassVar[str]  # the field that `range:` or `value:` set

    @property
    def sensitivity(self) -> float:
        """Largest norm of one record's term in the sum (zero-out)."""
        ...

    def factors(self, squared_norms_BL: Tensor) -> Tensor: ...


class Step(Protocol):
    """The step size at iteration t."""

    kind: ClassVar[str]
    searched: ClassVar[str]

    def learning_rate_at(self, clip: Clip, step: int, steps: int) -> float:
        """The step size at step 0, ..., steps - 1. (Not `learning_rate`: that is a field of `fixed`.)"""
        ...


class Batch(Protocol):
    """One trial, one minibatch: all that backends differ in. Nothing per-record leaves it."""

    def sum(self, params_P: Tensor, factors: Callable[[Tensor], Tensor]) -> Tensor:
        """Sum over the batch of factor times gradient, [P]. `factors` maps squared norms [B, L] to [B], once per chunk.

        A record whose gradient is not finite contributes zero.
        """
        ...


class Problem(Protocol):
    """A model on the training rows of a table."""

    rows: int  # public number of training rows
    nonfinite: int  # terms left out so far because they were not finite; sealed

    def start(self, streams: Streams) -> Tensor:
        """Initial params_P."""
        ...

    def batch(self, rows_B: Any) -> Batch:
        """The minibatch with these row positions."""
        ...

    def add_penalty_(self, gradient_P: Tensor, params_P: Tensor) -> None:
        """Add the gradient of the model's penalty, which no data enters, in place."""
        ...


class Trainer(Protocol):
    """One optimiser. Its event is known before any data is opened."""

    kind: ClassVar[str]
    batch_size: int
    steps: int

    @property
    def relation(self) -> str:
        """The neighbour relation that its sampler is priced for."""
        ...

    def event(self, rows: int, noise_multiplier: float) -> Event:
        """All that `fit` asks of `rows` training rows."""
        ...

    def fit(
        self, problem: Problem, clip: Any, step: Any, noise_multiplier: float, streams: Streams, *, share: float = 1.0
    ) -> tuple[Tensor, Mapping[str, Any]]:
        """(released params_P, sealed diagnostics). `share`: of the rows that the problem lets into a batch; public."""
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
