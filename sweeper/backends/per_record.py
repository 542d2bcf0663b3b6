"""One micro-batch through a user's module: each record's loss, and what its gradient is made of.

Shapes: B records, d features, L trained parameters (tensors).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from sweeper.backends.recorder import Overwritten, Recorder, repeated_in
from sweeper.backends.records import Part, parts_of
from sweeper.backends.user_module import FIELD, trained_of
from sweeper.checks import FieldError

if TYPE_CHECKING:
    from sweeper.backends.user_module import UserModule

Found = TypeVar("Found")


class Engine:
    """A module with recorders on its owners. ways: how each owner's gradients are made, by its name; copied: see Recorder."""

    def __init__(self, user: UserModule, module: nn.Module, ways: Mapping[str, str], copied: frozenset[str] = frozenset()) -> None:
        self.user, self.module, self.ways = user, module, dict(ways)
        self.trained = trained_of(module)
        self.recorder = Recorder(module, self.fault, copied)
        self.activations, self.unused = 0, set(range(len(self.trained)))  # numbers of the last micro-batch; parts never met
        self.repeated: set[str] = set()  # owners whose gradients are sums over calls
        self.precision = user.model.precision

    def fault(self, rule: str, hint: str = "") -> FieldError:
        return FieldError(FIELD, self.user.model.module, rule, hint)

    def losses(self, features_Bd: Tensor, labels_B: Tensor) -> Tensor:
        """Each record's loss [B], without a graph."""
        with torch.no_grad(), self.rounded():
            return self.user.losses(self.module(self.user.shaped(features_Bd)), labels_B)

    def parts(self, features_Bd: Tensor, labels_B: Tensor, real_B: Tensor) -> list[Part | None]:
        """What the gradient by each trained parameter is made of [L]; records that are not real have derivatives of 0.

        Raises:
          Overwritten, LayerFailed: the ways do not serve the module; after its examination they do.
        """
        recorder = self.recorder
        recorder.calls, recorder.on = [], True
        try:
            with torch.enable_grad(), self.rounded():
                outputs = self.module(self.user.shaped(features_Bd))
            with torch.enable_grad():
                losses_B = self.user.losses(outputs, labels_B)
                total = torch.where(real_B, losses_B, 0.0).sum()
        finally:
            recorder.on = False
            calls, recorder.calls = recorder.calls, []
        if overwritten := {call.name for call in calls if call.overwritten}:
            raise Overwritten(overwritten)
        deltas = torch.autograd.grad(total, [call.output for call in calls], allow_unused=True)
        self.activations = sum(sum(value.numel() for value in call.inputs) + 2 * call.output.numel() for call in calls)
        self.repeated |= repeated_in(calls)
        found = parts_of(calls, deltas, self.ways, self.trained, len(labels_B), self.fault)
        self.unused -= {place for place, part in enumerate(found) if part is not None}
        return found

    def rounded(self) -> Any:
        """Forward passes in the model's precision."""
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.precision == "bfloat16")


def without_offenders(features_Bd: Tensor, labels_B: Tensor, run: Callable[[], Found]) -> tuple[Found, Tensor]:
    """What `run` gives of these records, and which of them [B] had to be left out because the module raises an error on them.

    Those are made rows of zeros with label 0, in place, as if they were null records: an error that one record can cause must not
    end a trial, because whether a trial ends can be seen. Random numbers are those of a run that met no error.
    """
    good_B, random = torch.ones(len(labels_B), dtype=torch.bool), torch.get_rng_state()
    try:
        return run(), ~good_B
    except Exception:
        kept_Bd, kept_B = features_Bd.clone(), labels_B.clone()
        for at in range(len(labels_B)):
            features_Bd.zero_(), labels_B.zero_()
            features_Bd[at], labels_B[at] = kept_Bd[at], kept_B[at]
            good_B[at] = _runs(run)
        features_Bd.copy_(kept_Bd), labels_B.copy_(kept_B)
        if bool(good_B.all()):
            raise  # no record's doing
        features_Bd[~good_B], labels_B[~good_B] = 0.0, 0
        torch.set_rng_state(random)
        return run(), ~good_B


def _runs(run: Callable[[], Any]) -> bool:
    try:
        run()
    except Exception:
        return False
    return True
