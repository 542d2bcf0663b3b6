"""Any torch module on the training rows of a table: per-record gradients by Opacus' rules, our sampler, noise and ledger.

Of Opacus only the rules for single layers are used: no engine, no accountant, no optimiser, no data loader, no stand-in layer.
Records are worked off in batches of a few fixed public sizes (see sizes.py), so that neither memory nor results depend on how many
rows a draw has. Before the first batch the module is looked at on made-up records (see examine.py).
Shapes: n training rows, B records of one micro-batch, J step sizes, K outputs, d features, P parameters, L trained tensors.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from sweeper import seeds
from sweeper.backends.examine import Examination, examined
from sweeper.backends.per_record import Engine, passes
from sweeper.backends.records import Part
from sweeper.backends.sizes import cut, filled
from sweeper.backends.stored import StoredRows
from sweeper.backends.torch_state import global_randomness
from sweeper.backends.user_module import UserModule, bind, dropouts, state_of, trained_of, training, user_module
from sweeper.checks import FieldError
from sweeper.data.table import Table
from sweeper.models.module import ModuleModel
from sweeper.spec.protocols import Description, Terms

if TYPE_CHECKING:
    from sweeper.seeds import Streams


class ModuleProblem:
    """A user's module on the training rows of a table. Holds its own copy of them: float32, or one byte a feature if `pixels`.

    A null record's loss is left out, so that its term is exactly zero. A record whose features or gradient are not finite, or on
    which the module raises an error, is made one, and counted. One problem serves one trial at a time, any number in turn.
    """

    def __init__(
        self, *, model: ModuleModel, description: Description, table: Table, rows: np.ndarray, pixels: bool = False
    ) -> None:
        """`pixels`, a public statement of the source: features are k/255, whole k. Others are rounded to that, one by one."""
        self.model, self.rows, self.nonfinite = model, len(rows), 0
        self.examination: Examination = examined(model, description)
        self._user: UserModule = user_module(model)
        self._description = description
        self._stored = StoredRows(description=description, table=table, rows=rows, pixels=pixels)
        self._again()
        self._draws = bool(dropouts(self._module))
        self._sizes = self.examination.sizes
        self._chunk_Bd = torch.empty(self._sizes[-1], description.features)
        self._random: Tensor | None = None  # where the trial's own generator stands; before `start`, a fixed one

    def _again(self) -> None:
        """A new module, with the parameters of the one before, if there was one."""
        before = getattr(self, "_trained", None)
        self._module: nn.Module = self._user.again()
        self._trained = trained_of(self._module)
        self._engine = Engine(self._user, self._module, self.examination.ways, self.examination.copied)
        for parameter, value in zip(self._trained, before or (), strict=before is not None):
            parameter.data = value.data
        self._state = state_of(self._module, self._user.loss_function) if self._user.alone else None

    def _unmoved(self) -> None:
        """What goes one at a time may do something else with one record in a thousand, which no made-up ones showed: if it left
        anything, the next record meets a new module.
        """
        if self._state is not None and self._state != state_of(self._module, self._user.loss_function):
            self._again()

    @property
    def chunk(self) -> int:
        """Records worked off at once."""
        return self._sizes[-1]

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(parameter.numel() for parameter in self._trained)

    def start(self, streams: Streams) -> Tensor:
        """What the user's function gives the trained parameters, with torch's randomness from the trial's own stream."""
        self._random = streams.torch_generator(seeds.DROPOUT).get_state()
        trained = trained_of(self._user.built(streams))
        return torch.cat([parameter.detach().flatten() for parameter in trained]).clone()

    def state(self) -> Any:
        """Where dropout's random numbers stand."""
        return self._random

    def restore(self, state: Any) -> None:
        """Go on with the random numbers of `state()`."""
        self._random = state

    def batch(self, rows_B: np.ndarray) -> ModuleBatch:
        return ModuleBatch(self, torch.from_numpy(rows_B))

    @property
    def curvature(self) -> None:
        """Nobody says that a module is convex in its parameters."""
        return None

    def label_counts(self, rows: np.ndarray | None = None) -> Tensor:
        """Rows with each label [classes]; broken ones are counted as left out."""
        counts_K, broken = self._stored.label_counts(self._description.classes, rows)
        self.nonfinite += broken
        return counts_K

    def constant(self, label: int) -> Tensor:
        """Refused: no parameters of a module are known to give every row one label."""
        raise FieldError(
            "model.kind", self.model.kind, "has no known parameters that give every row one label", "Use a linear model."
        )

    def released(self, params_P: Tensor) -> Tensor:
        return params_P

    @property
    def lipschitz_range(self) -> tuple[float, float | None]:
        return 0.0, None

    def lipschitz_sum(self, terms: Callable[[Tensor], Tensor], rows: np.ndarray | None = None) -> Tensor:
        """Refused: nothing bounds the gradient of a module's record at every parameter."""
        rule = "bounds no record's gradient, so that there are no Lipschitz constants to add up"
        raise FieldError("model.kind", self.model.kind, rule, "Use a linear model, or a policy that asks for none.")

    def penalty(self, params_P: Tensor) -> float:
        """l2 / 2 times the squared norm of the weights."""
        weights = self._weights(params_P) if self.model.l2 else []
        return 0.5 * self.model.l2 * sum(float(weight.double().square().sum()) for weight in weights)

    def add_penalty_(self, gradient_P: Tensor, params_P: Tensor) -> None:
        if self.model.l2:
            for gradient, weights in zip(self._weights(gradient_P), self._weights(params_P), strict=True):
                gradient.add_(weights, alpha=self.model.l2)

    def _weights(self, vector_P: Tensor) -> list[Tensor]:
        """The parts of a vector that belong to parameters of two or more dimensions."""
        parts = vector_P.split(self.layers)
        return [part for part, parameter in zip(parts, self._trained, strict=True) if parameter.dim() > 1]

    def clipped_sum(
        self,
        rows_B: Tensor,
        params_P: Tensor,
        factors: Callable[[Tensor], Tensor],
        by_layer: bool = False,
        counted: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, float]:
        """What `ModuleBatch.sum_and_count` returns."""
        self._same_parameters()
        bind(self._trained, params_P)
        sum_P, count = torch.zeros(params_P.shape, dtype=torch.float64), 0.0
        sums = [part.view(p.shape) for part, p in zip(sum_P.split(self.layers), self._trained, strict=True)]
        with self._randomness():
            # of records that go alone, one number of a draw, and from it those of each: none uses up another's
            base = int(torch.randint(2**62, ())) if self._user.alone else 0
            for at, (rows, size) in enumerate(cut(rows_B, self._sizes)):
                features_Bd, marks_B, labels_B = self._gathered(rows, size)
                if self._user.alone:
                    torch.manual_seed((base + at) % 2**62)
                self.nonfinite += int(marks_B.isnan().sum())
                wanted_B, found_B = marks_B == 1, torch.zeros(size, dtype=torch.bool)
                for parts, real_B in passes(features_Bd, labels_B, wanted_B, self._parts, self._again):
                    found_B |= real_B
                    squares_BL = torch.stack([p.squares() if p else marks_B.new_zeros(size) for p in parts], dim=1)
                    if not math.isfinite(squares_BL.sum()):
                        wrong_B = ~squares_BL.sum(dim=1).isfinite()
                        self.nonfinite += int((wrong_B & real_B).sum())
                        squares_BL[wrong_B], real_B = 0.0, real_B & ~wrong_B  # as null records
                    squares_BL[~real_B] = 0.0
                    for part in parts:
                        if part is not None:
                            part.silence(~real_B)
                    own_BL = squares_BL[: len(rows)]  # callbacks see no rows that fill up
                    norms_BL = own_BL if by_layer else own_BL.sum(dim=1, keepdim=True)
                    if counted is not None:
                        terms_B = counted(norms_BL)
                        count += float(terms_B.masked_fill(~real_B[: len(rows)], 0.0).sum(dtype=torch.float64))
                    found = filled(factors(norms_BL), size)
                    each = found.unbind(dim=1) if by_layer else [found] * len(parts)
                    for total, part, factors_B in zip(sums, parts, each, strict=True):
                        if part is not None:
                            total.add_(part.sum(factors_B))
                self.nonfinite += int((wanted_B & ~found_B).sum())
                self._unmoved()
            if self._user.alone:
                torch.manual_seed(base)  # wherever records left it
        return sum_P, count

    def losses_along(self, rows_B: Tensor, params_P: Tensor, direction_P: Tensor, sizes: Sequence[float], terms: Terms) -> Tensor:
        """What `ModuleBatch.losses_along` returns."""
        sums_J, moved_P = torch.zeros(len(sizes), dtype=torch.float64), torch.empty_like(params_P)
        self._module.eval()
        try:
            for rows, size in cut(rows_B, self._sizes):
                features_Bd, marks_B, labels_B = self._gathered(rows, size)
                losses, good_B, here = [], marks_B == 1, len(rows)
                for at in (params_P, *sizes):
                    there_P = at if isinstance(at, Tensor) else torch.sub(params_P, direction_P, alpha=at, out=moved_P)
                    bind(self._trained, there_P)
                    losses_B, found_B = marks_B.new_zeros(size), torch.zeros(size, dtype=torch.bool)
                    for some_B, real_B in passes(features_Bd, labels_B, marks_B == 1, self._losses, self._again_resting):
                        losses_B, found_B = torch.where(found_B, losses_B, some_B), found_B | real_B
                    self._unmoved()
                    self._module.eval()
                    good_B &= found_B
                    losses.append(losses_B[:here].unsqueeze(1))
                there_BJ = torch.cat(losses[1:], dim=1) if len(sizes) else losses[0].new_empty(here, 0)
                terms_BJ = terms(losses[0], there_BJ).masked_fill(~good_B[:here].unsqueeze(1), 0.0)
                sums_J += terms_BJ.sum(dim=0, dtype=torch.float64)
        finally:
            training(self._module)
        return sums_J

    def _again_resting(self) -> None:
        self._again()
        self._module.eval()

    def _parts(self, features_Bd: Tensor, labels_B: Tensor, real_B: Tensor) -> list[Part | None]:
        return self._engine.parts(features_Bd, labels_B, real_B)

    def _losses(self, features_Bd: Tensor, labels_B: Tensor, real_B: Tensor) -> Tensor:
        return self._engine.losses(features_Bd, labels_B)

    def _gathered(self, rows: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Features, marks and labels of rows, and null records after them up to this size."""
        features_Bd, here = self._chunk_Bd[:size], len(rows)
        _, found_B, rows_labels_B = self._stored.gather(rows, features_Bd[:here])
        features_Bd[here:] = 0.0
        marks_B, labels_B = found_B.new_zeros(size), rows_labels_B.new_zeros(size)
        marks_B[:here], labels_B[:here] = found_B, rows_labels_B
        return features_Bd, marks_B, labels_B

    def _same_parameters(self) -> None:
        """What is trained was fixed when the norms' rules were checked: a parameter that joins later would not be clipped."""
        now = trained_of(self._module)
        if len(now) != len(self._trained) or any(a is not b for a, b in zip(now, self._trained, strict=True)):
            rule = "changed which of its parameters are trained while it was in training"
            raise FieldError("model.module", self.model.module, rule, "Freeze and unfreeze in the function that builds it.")

    @contextlib.contextmanager
    def _randomness(self) -> Any:
        """torch's global generator at the trial's own place, for the layers that draw from it."""
        if not (self._draws or self._user.alone):
            yield
            return
        with global_randomness(self._random) as where:
            yield
            self._random = where()


class ModuleBatch:
    """One minibatch of a module's problem."""

    def __init__(self, problem: ModuleProblem, rows_B: Tensor) -> None:
        self._problem, self._rows_B = problem, rows_B

    def sum(self, params_P: Tensor, factors: Callable[[Tensor], Tensor], *, by_layer: bool = False) -> Tensor:
        """Sum of factor times gradient, a new [P] in float64, by micro-batches; `factors` sees squared norms [B, 1].

        by_layer: `factors` sees squared norms [B, L], one for each trained parameter tensor, and gives a factor for each.
        Sensitivity (zero-out): that of the policy behind `factors`, if the module maps each record by itself. A null record's term
        is zero; so is that of a record whose squared norm is not finite in float32.
        """
        return self._problem.clipped_sum(self._rows_B, params_P, factors, by_layer)[0]

    def sum_and_count(
        self, params_P: Tensor, factors: Callable[[Tensor], Tensor], counted: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, float]:
        """`sum`, and the sum of `counted` over the records that are neither null nor left out."""
        return self._problem.clipped_sum(self._rows_B, params_P, factors, False, counted)

    def exact_sum(self, params_P: Tensor) -> Tensor:
        """Refused: it is for trainers that need convex losses."""
        kind = self._problem.model.kind
        raise FieldError("model.kind", kind, "is not known to be convex, and bounds no record's gradient", "Use a linear model.")

    def losses_along(self, params_P: Tensor, direction_P: Tensor, sizes: Sequence[float], terms: Terms) -> Tensor:
        """Sums [J] of terms of the losses here [B, 1] and at each size along the direction [B, J]; null records add 0.

        One forward pass in evaluation mode for each size. A loss may be infinite or NaN: what it counts as is for `terms`.
        """
        return self._problem.losses_along(self._rows_B, params_P, direction_P, sizes, terms)
