"""A run that goes on from the state of any of its steps, on another problem, ends in the bits of the run that kept them all."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small import blobs

from sweeper.backends.closed_form import LinearProblem
from sweeper.backends.opacus import ModuleProblem
from sweeper.clip.adaptive_quantile import AdaptiveQuantileClip
from sweeper.clip.decay import Decay
from sweeper.clip.fixed import FixedClip
from sweeper.clip.normalise import Normalise
from sweeper.clip.private_quantile import PrivateQuantileClip
from sweeper.launch.part import PartProblem
from sweeper.models.linear import Softmax
from sweeper.models.module import ModuleModel
from sweeper.seeds import Streams, secret_from_seed
from sweeper.spec.protocols import Fitted, Problem
from sweeper.step.backtracking import Backtracking
from sweeper.step.fixed import FixedStep
from sweeper.trainers.blsgd import DpBlsgd, DpBlsgdAc
from sweeper.trainers.dp_adam import DpAdam
from sweeper.trainers.dp_nsgd import DpNsgd
from sweeper.trainers.dp_sgd import DpSgd

ROWS, STEPS = 120, 9
FULL, DESCRIPTION = blobs(ROWS, 6, 3)
STREAMS = Streams(secret_from_seed("checkpoints"), 5)
SIZES, SEARCH = FixedStep(learning_rate=0.3, schedule="cosine"), Backtracking(alpha=0.01, initial=8.0, candidates=10)
FLAT, MOVING = FixedClip(clip_norm=0.5), AdaptiveQuantileClip(clip_norm=0.5)
SGD, LINES = DpSgd(batch_size=40, steps=STEPS), DpBlsgd(batch_size=40, steps=STEPS)
RUNS: dict[str, tuple[Any, Any, Any]] = {  # what the suite's matrix has no row for
    "momentum": (replace(SGD, momentum=0.9), FLAT, SIZES),
    "momentum, moving clip": (replace(SGD, momentum=0.9), MOVING, SIZES),
    "tail": (replace(SGD, average="tail", tail_fraction=0.7), FLAT, SIZES),
    "random": (replace(SGD, average="random"), FLAT, SIZES),
    "ball": (replace(SGD, radius=0.2), FLAT, SIZES),
    "fixed batches": (replace(SGD, sampling="without-replacement", momentum=0.5), MOVING, SIZES),
    "a search, moving clip": (replace(SGD, momentum=0.5), MOVING, SEARCH),
    "a quantile asked first": (replace(SGD, average="tail"), PrivateQuantileClip(quantile=0.5, epsilon=3.0), SIZES),
    "adam": (DpAdam(batch_size=40, steps=STEPS, bias_correct_noise=True, average="tail"), MOVING, SIZES),
    "nsgd over noise": (DpNsgd(batch_size=40, steps=STEPS, step_over_noise=True, momentum=0.5), Normalise(r=0.01), SIZES),
    "line search, tail": (replace(LINES, average="tail"), MOVING, SEARCH),
    "line search, random": (replace(LINES, average="random", budget="always"), FLAT, SEARCH),
    "line search, retries": (replace(LINES, retries=3), FLAT, SEARCH),
    "line search, lower clip": (
        DpBlsgdAc(batch_size=40, steps=STEPS, budget="always"),
        Decay(clip_norm=0.5, schedule="raise"),
        SEARCH,
    ),
}


class States:
    """Keeps the state of every step, and gives back the one it was made with."""

    def __init__(self, found: bytes | None = None) -> None:
        self.found, self.resumed_from = found, 0
        self.all: list[bytes] = []

    def load(self) -> bytes | None:
        return self.found

    def due(self) -> bool:
        return True

    def save(self, content: bytes) -> None:
        self.all.append(content)


def linear() -> LinearProblem:
    return LinearProblem(model=Softmax(l2=0.01), description=DESCRIPTION, table=FULL, rows=np.arange(ROWS))


def part() -> PartProblem:
    return PartProblem(module(), np.arange(ROWS) % 3 > 0)


def module() -> ModuleProblem:
    """Of a module with a dropout layer."""
    table, description = blobs(ROWS, 12, 3)
    return ModuleProblem(model=ModuleModel(module="user_nets:Choosy"), description=description, table=table, rows=np.arange(ROWS))


def fit(name: str, problem: Problem, keep: States | None, heard: Callable[[int], None] | None = None) -> Fitted:
    trainer, clip, step = RUNS[name]
    fitted: Fitted = trainer.fit(problem, clip, step, 0.8, STREAMS, heard, keep=keep)
    return fitted


def same(one: Fitted, other: Fitted) -> bool:
    return torch.equal(one.params_P, other.params_P) and one[1:] == other[1:]


@pytest.mark.parametrize("name", RUNS)
def test_it_goes_on_from_any_of_its_steps(name: str) -> None:
    whole, states = fit(name, linear(), None), States()
    assert same(fit(name, linear(), states), whole)  # keeping states changes nothing
    assert len(states.all) >= 3
    for at, state in enumerate(states.all, start=1):
        heard: list[int] = []
        further = States(state)
        assert same(fit(name, linear(), further, heard.append), whole)
        assert further.resumed_from == at
        assert heard == list(range(at + 1, len(states.all) + 1))  # no step is taken again
        if further.all:  # lost again at the next step, which is kept too
            again = States(further.all[0])
            assert same(fit(name, linear(), again), whole)
            assert again.resumed_from == at + 1


@pytest.mark.parametrize("problem", [module, part])
def test_layers_that_draw_go_on_where_they_stood(problem: Callable[[], Problem]) -> None:
    whole, states = fit("momentum", problem(), None), States()
    fit("momentum", problem(), states)
    assert same(fit("momentum", problem(), States(states.all[4])), whole)
    run, drawn, left_out = pickle.loads(states.all[4])
    earlier = pickle.loads(states.all[3])[1]
    assert not torch.equal(drawn, earlier)
    wrong = fit("momentum", problem(), States(pickle.dumps((run, earlier, left_out))))
    assert not torch.equal(wrong.params_P, whole.params_P)  # the test would see it


@pytest.mark.parametrize("generator", ["noise", "draws", "counting", "rule", "answer", "policy"])
def test_every_part_of_the_state_is_needed(generator: str) -> None:
    """With one part of an earlier step in its place the run is another: so the tests above look at all of them."""
    name, states = "adam", States()
    whole = fit(name, linear(), states)
    run, own, left_out = pickle.loads(states.all[6])
    earlier, _, _ = pickle.loads(states.all[3])
    setattr(run, generator, getattr(earlier, generator))
    assert not same(fit(name, linear(), States(pickle.dumps((run, own, left_out)))), whole)


def test_names_that_share_a_generator_still_share_it() -> None:
    states = States()
    fit("tail", linear(), states)
    run, _, _ = pickle.loads(states.all[0])
    assert run.searching is run.draws
    assert run.counting is run.draws


def test_a_problem_that_served_other_trials_counts_from_where_it_is() -> None:
    states, used = States(), linear()
    whole = fit("momentum", linear(), states)
    used.nonfinite = 17  # of the trials before
    assert same(fit("momentum", used, States(states.all[2])), whole)


def test_the_state_of_another_kind_of_run_is_unused() -> None:
    lines = States()
    fit("line search, tail", linear(), lines)
    again = States(lines.all[0])
    assert same(fit("momentum", linear(), again), fit("momentum", linear(), None))
    assert again.resumed_from == 0
