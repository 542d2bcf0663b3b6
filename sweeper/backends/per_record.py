"""One micro-batch through a user's module: each record's loss, and what its gradient is made of.

Shapes: B records, d features, K outputs, L trained parameters (tensors).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from sweeper.backends.recorder import Overwritten, Recorder, repeated_in
from sweeper.backends.records import Part, parts_of
from sweeper.backends.torch_state import in_users_code
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
        self.halved = False  # whether the module rounds by itself

    def fault(self, rule: str, hint: str = "") -> FieldError:
        return FieldError(FIELD, self.user.model.module, rule, hint)

    def outputs(self, features_Bd: Tensor) -> Tensor:
        """Of the module [B, K], with a graph where gradients are on."""
        with self.rounded():
            found: Tensor = self.module(self.user.shaped(features_Bd))
        return found

    def losses(self, features_Bd: Tensor, labels_B: Tensor) -> Tensor:
        """Each record's loss [B], without a graph."""
        with torch.no_grad(), self.rounded():
            return self.user.losses(self.module(self.user.shaped(features_Bd)), labels_B)

    def parts(self, features_Bd: Tensor, labels_B: Tensor, real_B: Tensor) -> list[Part | None]:
        """What the gradient by each trained parameter is made of [L]; records that are not real have derivatives of 0.

        Raises:
          LayerFailed: the ways do not serve the module; after its examination they do.
        """
        while True:
            random = torch.get_rng_state()
            try:
                return self._parts(features_Bd, labels_B, real_B)
            except Overwritten as found_out:  # once more, with copies in between
                if found_out.names <= self.recorder.copied:
                    raise
                self.recorder.copied |= found_out.names
                torch.set_rng_state(random)

    def _parts(self, features_Bd: Tensor, labels_B: Tensor, real_B: Tensor) -> list[Part | None]:
        recorder = self.recorder
        recorder.calls, recorder.on = [], True
        try:
            with torch.enable_grad():
                outputs = self.outputs(features_Bd)
                with in_users_code():
                    losses_B = self.user.losses(outputs, labels_B)
                total = torch.where(real_B, losses_B, 0.0).sum()
        finally:
            recorder.on = False
            calls, recorder.calls = recorder.calls, []
        if overwritten := {call.name for call in calls if call.overwritten}:
            raise Overwritten(overwritten)
        self.halved |= any(call.output.dtype in (torch.bfloat16, torch.float16) for call in calls)
        deltas = torch.autograd.grad(total, [call.output for call in calls], allow_unused=True)
        self.activations = sum(sum(value.numel() for value in call.inputs) + 2 * call.output.numel() for call in calls)
        self.repeated |= repeated_in(calls)
        found = parts_of(calls, deltas, self.ways, self.trained, len(labels_B), self.fault)
        self.unused -= {place for place, part in enumerate(found) if part is not None}
        return found

    @contextmanager
    def rounded(self) -> Iterator[None]:
        """Forward passes in the model's precision."""
        with in_users_code(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.precision == "bfloat16"):
            yield


def passes(
    features_Bd: Tensor, labels_B: Tensor, real_B: Tensor, run: Callable[[Tensor, Tensor, Tensor], Found], again: Callable[[], None]
) -> Iterator[tuple[Found, Tensor]]:
    """What `run` gives of these records, and of which of them [B] it is: in one pass, or in one for each.

    An error that records can cause must not end a trial, because whether a trial ends can be seen. So a record that raises one
    among rows of zeros, which every module is checked to take, is left out, and nobody else is; if the others still raise one
    together, each goes alone. Random numbers are in any case those of a pass without errors. `again` is called after every error,
    to build anew what it may have left half done.
    """
    random = torch.get_rng_state()
    try:
        found = run(features_Bd, labels_B, real_B)
    except (Exception, SystemExit):
        found = None
    if found is not None:
        yield found, real_B
        return
    again()
    torch.set_rng_state(random)
    zeros_Bd, zeros_B = torch.zeros_like(features_Bd), torch.zeros_like(labels_B)
    try:
        run(zeros_Bd, zeros_B, torch.zeros_like(real_B))  # what fails here as well is no record's doing
    except SystemExit as error:
        raise RuntimeError(f"the module ended the process on rows of zeros (exit code {error.code})") from error
    afterwards, good_B = torch.get_rng_state(), torch.zeros_like(real_B)
    for here_B, _ in _alone(features_Bd, labels_B, real_B, run, random, again):
        good_B |= here_B
    rest_Bd = features_Bd.masked_fill(~good_B.view(-1, *[1] * (features_Bd.dim() - 1)), 0.0)
    torch.set_rng_state(random)
    try:
        together = run(rest_Bd, labels_B.masked_fill(~good_B, 0), good_B)
    except (Exception, SystemExit):  # one that it takes several records to cause
        together = None
        again()
    if together is not None:
        yield together, good_B
    else:
        yield from ((found, here_B) for here_B, found in _alone(features_Bd, labels_B, real_B, run, random, again))
    torch.set_rng_state(afterwards)


def _alone(
    features_Bd: Tensor,
    labels_B: Tensor,
    real_B: Tensor,
    run: Callable[[Tensor, Tensor, Tensor], Found],
    random: Tensor,
    again: Callable[[], None],
) -> Iterator[tuple[Tensor, Found]]:
    """Where the record is [B], and what `run` gives, of each that raises no error among rows of zeros."""
    for at in real_B.nonzero().flatten().tolist():
        one_Bd, one_B, here_B = torch.zeros_like(features_Bd), torch.zeros_like(labels_B), torch.zeros_like(real_B)
        one_Bd[at], one_B[at], here_B[at] = features_Bd[at], labels_B[at], True
        torch.set_rng_state(random)
        try:
            found = run(one_Bd, one_B, here_B)
        except (Exception, SystemExit):
            again()
            continue
        yield here_B, found
