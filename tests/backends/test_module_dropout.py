"""Dropout in a user's module: the trial's own numbers, the same masks wherever a layer is computed again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small import blobs
from torch import nn

from sweeper.backends.opacus import ModuleProblem
from sweeper.backends.user_module import bind, trained_of, user_module
from sweeper.checks import FieldError
from sweeper.clip.fixed import FixedClip
from sweeper.models.module import ModuleModel
from sweeper.seeds import Streams, secret_from_seed
from sweeper.step.fixed import FixedStep
from sweeper.trainers.dp_sgd import DpSgd

FULL, DESCRIPTION = blobs(60, 12, 3)
STREAMS = Streams(secret_from_seed("dropout"), 0)
MODELS = {
    "between layers": ModuleModel(module="user_nets:Dropping"),
    "inside a layer with parameters": ModuleModel(module="user_nets:RootedWithDropout"),
    "inside an encoder": ModuleModel(module="user_nets:Encoding", replace=True),
    "between recurrent layers": ModuleModel(
        module="user_nets:Recurrent", args={"num_layers": 2, "dropout": 0.4}, replace=True, microbatch=64
    ),
}
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def problem(model: ModuleModel) -> ModuleProblem:
    return ModuleProblem(model=model, description=DESCRIPTION, table=FULL, rows=np.arange(60))


@every_model
def test_gradients_go_through_the_masks_of_the_losses(model: ModuleModel) -> None:
    """Against autograd through one pass of the whole batch, from the same place of torch's generator; other masks are refused.

    The batch of 60 is filled up to 64, and masks are drawn for all of them.
    """
    built = problem(model)
    params_P = built.start(STREAMS)
    random = built.state()
    found = built.batch(np.arange(60)).sum(params_P, lambda squares_BL: torch.ones(len(squares_BL)))

    def loop(state: torch.Tensor) -> torch.Tensor:
        module = user_module(model).built()
        bind(trained_of(module), params_P.clone())
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            outputs = module(nn.functional.pad(torch.from_numpy(FULL.features), (0, 0, 0, 4)))[:60]
        loss = nn.functional.cross_entropy(outputs, torch.from_numpy(FULL.labels), reduction="sum")
        return torch.cat([part.flatten() for part in torch.autograd.grad(loss, trained_of(module))])

    expected = loop(random)
    assert (found - expected).norm() < 1e-5 * expected.norm()
    assert (found - loop(built.state())).norm() > 0.02 * expected.norm()


@every_model
def test_evaluation_drops_nothing_and_draws_nothing(model: ModuleModel) -> None:
    built = problem(model)
    params_P = built.start(STREAMS)
    before, everywhere = built.state(), torch.get_rng_state()
    losses = [
        built.batch(np.arange(60)).losses_along(params_P, params_P, [0.0, 0.1], lambda here, there: here - there) for _ in range(2)
    ]
    assert losses[0][0] == 0.0
    assert torch.equal(*losses)
    labels = [user_module(model).predict(params_P, torch.from_numpy(FULL.features)) for _ in range(2)]
    assert torch.equal(*labels)
    assert torch.equal(built.state(), before)
    assert torch.equal(torch.get_rng_state(), everywhere)


class Kept:
    """A place to keep a run's state, due after every round."""

    def __init__(self) -> None:
        self.content: bytes | None = None
        self.resumed_from = 0

    def load(self) -> bytes | None:
        return self.content

    def due(self) -> bool:
        return True

    def save(self, content: bytes) -> None:
        self.content = content


class Lost(Exception):
    pass


@every_model
def test_a_run_that_is_lost_goes_on_with_the_same_masks(model: ModuleModel) -> None:
    def fit(**more: object) -> torch.Tensor:
        trainer, clip, step = DpSgd(batch_size=20, steps=6), FixedClip(clip_norm=0.5), FixedStep(learning_rate=0.3)
        return trainer.fit(problem(model), clip, step, 0.5, STREAMS, **more).params_P

    def lost_after_three(done: int) -> None:
        if done == 3:
            raise Lost

    whole, keep = fit(), Kept()
    with pytest.raises(Lost):
        fit(keep=keep, on_step=lost_after_three)
    assert torch.equal(fit(keep=keep), whole)
    assert keep.resumed_from == 3


def test_masks_that_cannot_be_drawn_again_are_refused() -> None:
    from sweeper.backends.examine import examined

    with pytest.raises(FieldError, match="has the module itself, whose dropout draws other numbers"):
        examined(ModuleModel(module="user_nets:DrawnOnce"), DESCRIPTION)
