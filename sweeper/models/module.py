"""Any torch module of the user's own. This file only says which; backends build it and make its per-record gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sweeper import checks
from sweeper.checks import FieldError

CROSS_ENTROPY = "cross-entropy"
AUTO, HOOKS = "auto", "hooks"
PRECISIONS = ("float32", "bfloat16")
LARGEST_MICROBATCH = 128  # records whose gradients may be added in float32: see sweeper.clip.base.BLOCK


@dataclass(frozen=True, kw_only=True)
class ModuleModel:
    """A torch.nn.Module that a function of your own returns, with one output per class, and a loss for each record.

    The module must map each record by itself. That is looked at before data is opened, on made-up records (backends/README.md);
    batch norms and the like are refused by name. Only parameters that require a gradient are trained, priced and released;
    frozen ones must come out of the function alike whenever it is called.
    It is not convex for all we know, and nothing bounds a record's gradient: it has no `curvature` and no `lipschitz`.
    """

    module: str  # package.module:function, which returns the module
    args: dict[str, Any] = field(default_factory=dict, hash=False)  # given to the function, by name
    loss: str = CROSS_ENTROPY  # or package.module:function of (outputs [B, classes], labels [B]), a loss for each record [B]
    shape: tuple[int, ...] | None = None  # of one record, as the module takes it; None: a row of features
    integers: bool = False  # features are whole numbers (tokens), and the module takes int64
    precision: str = PRECISIONS[0]  # bfloat16: forward and backward pass in it; norms, sums and noise stay in float32 or better
    per_record: str = AUTO  # ghost norms where the layers allow; hooks: every record's gradient is built
    microbatch: int | None = None  # records worked off at once; None: what fits in about a quarter of a GB
    l2: float = 0.0  # of a penalty l2/2 times the squared norm of the weights: trained parameters of two or more dimensions
    replace: bool = False  # layers that mix records, by their private stand-ins (batch norm by group norm), and says so
    kind: ClassVar[str] = "module"
    backend: ClassVar[str] = "opacus"
    example: ClassVar[str] = "{module: 'my_package.nets:build', args: {width: 32}}"

    def __post_init__(self) -> None:
        check_name("module", self.module)
        if not isinstance(self.args, dict) or not all(isinstance(key, str) and key.isidentifier() for key in self.args):
            raise FieldError("args", self.args, "must be a mapping from names of parameters to values")
        if self.loss != CROSS_ENTROPY:
            check_name("loss", self.loss, f", or {CROSS_ENTROPY}")
        if self.shape is not None:
            if not isinstance(self.shape, (list, tuple)) or not self.shape:
                raise FieldError("shape", self.shape, "must be a list of whole numbers", "As in shape: [1, 28, 28].")
            for side in self.shape:
                checks.whole(1, shape=side)
            object.__setattr__(self, "shape", tuple(self.shape))
        checks.flag(integers=self.integers, replace=self.replace)
        checks.non_negative(l2=self.l2)
        checks.one_of(PRECISIONS, precision=self.precision)
        checks.one_of((AUTO, HOOKS), per_record=self.per_record)
        if self.microbatch is not None:
            checks.whole(1, LARGEST_MICROBATCH, microbatch=self.microbatch)

    def stack(self, features: int, classes: int) -> tuple[()]:
        """Nothing to show before the module is built; checks that rows of this width have its shape.

        Raises:
          FieldError: they have not.
        """
        if self.shape is not None and math.prod(self.shape) != features:
            raise FieldError(
                "shape", list(self.shape), f"holds {math.prod(self.shape):,} numbers, and a row has {features:,} features"
            )
        return ()


def check_name(name: str, value: Any, otherwise: str = "") -> None:
    """package.module:function.

    Raises:
      FieldError: it is not.
    """
    place, colon, function = str(value).partition(":")
    if not colon or not function.isidentifier() or not all(part.isidentifier() for part in place.split(".")):
        raise FieldError(name, value, f"must be package.module:function{otherwise}")
