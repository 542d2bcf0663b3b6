"""What every trainer that clips no gradient must keep. A new one is a row of TRAINERS. (dp-agd clips: see test_trainer.py.)"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from small import blobs, spoilt, without

from sweeper import catalog
from sweeper.backends.closed_form import LinearProblem, evaluate
from sweeper.backends.layered import LayeredProblem
from sweeper.checks import FieldError
from sweeper.clip.fixed import FixedClip
from sweeper.clip.none import NoClip
from sweeper.data.table import Table
from sweeper.launch.part import PartProblem
from sweeper.models.linear import Logistic, Softmax, Svm
from sweeper.models.mlp import Mlp
from sweeper.privacy import accountant
from sweeper.privacy.events import event_from_dict
from sweeper.seeds import Streams, secret_from_seed
from sweeper.step.coupled import CoupledStep
from sweeper.step.fixed import FixedStep
from sweeper.step.none import NoStep
from sweeper.trainers.majority import Majority
from sweeper.trainers.non_private import NonPrivate
from sweeper.trainers.objective_perturbation import ObjectivePerturbation
from sweeper.trainers.output_perturbation_gd import OutputPerturbationGd
from sweeper.trainers.output_perturbation_sgd import OutputPerturbationSgd
from sweeper.trainers.privgene import PrivGene

STRONG = {"l2": 0.05, "penalise_bias": True, "scale": "unit-norm"}
TRAINERS: dict[str, tuple[Any, Any, Any]] = {  # with a step policy and a model
    "output-sgd": (OutputPerturbationSgd(batch_size=12, steps=40), FixedStep(learning_rate=0.2), Logistic()),
    "output-sgd-softmax": (OutputPerturbationSgd(batch_size=12, steps=40), FixedStep(learning_rate=0.2), Softmax(l2=0.01)),
    "output-sgd-strong": (OutputPerturbationSgd(batch_size=12, steps=40), NoStep(), Svm(**STRONG)),
    "output-sgd-tail": (OutputPerturbationSgd(batch_size=12, steps=40, average="tail"), NoStep(), Logistic(**STRONG)),
    "output-gd": (OutputPerturbationGd(steps=20), NoStep(), Logistic(**STRONG)),
    "output-gd-fixed": (OutputPerturbationGd(steps=20), FixedStep(learning_rate=0.2), Softmax()),
    "objective": (ObjectivePerturbation(), NoStep(), Logistic(**STRONG)),
    "objective-svm": (ObjectivePerturbation(), NoStep(), Svm(l2=0.01)),
    "privgene": (PrivGene(steps=25, population=30, parents=3, mutation_rate=0.5), NoStep(), Softmax(l2=0.01)),
    "majority": (Majority(), NoStep(), Softmax()),
}
OPEN: dict[str, tuple[Any, Any, Any]] = {  # and those that promise nothing
    "non-private": (NonPrivate(steps=20), NoStep(), Softmax(l2=0.01)),
    "non-private-sgd": (NonPrivate(steps=20, method="sgd", batch_size=12), FixedStep(learning_rate=0.5), Logistic()),
    "non-private-adam": (NonPrivate(steps=20, method="adam", batch_size=12), FixedStep(learning_rate=0.05), Logistic()),
}
ALL = TRAINERS | OPEN
every_trainer = pytest.mark.parametrize("name", ALL)
every_private = pytest.mark.parametrize("name", TRAINERS)
ROWS, SECRET = 60, secret_from_seed("unclipped")


def made(name: str, classes: int = 2) -> tuple[Table, Any]:
    binary = ALL[name][2].binary
    full, description = blobs(ROWS, 6, 2 if binary else classes)
    return full, dataclasses.replace(description, norm_bound=7**0.5)


def problem(name: str, full: Table, description: Any) -> LinearProblem:
    return LinearProblem(model=ALL[name][2], description=description, table=full, rows=np.arange(ROWS))


def fit(name: str, spied: Any, *, noise: float = 1.0, trial: int = 0, **more: Any) -> Any:
    trainer, step, _ = ALL[name]
    return trainer.fit(spied, NoClip(), step, noise, Streams(SECRET, trial), **more)


@every_trainer
def test_a_run_again_is_the_same_bits_and_another_trial_shares_nothing(name):
    full, description = made(name, 4)
    shared = problem(name, full, description)
    ends = [fit(name, spied, trial=t).params_P for spied, t in ((shared, 0), (problem(name, full, description), 0), (shared, 1))]
    assert torch.equal(ends[0], ends[1])
    assert ends[0].dtype == torch.float32
    if ALL[name][0].kind not in ("majority", "non-private"):
        assert torch.isclose(ends[0], ends[2]).float().mean() < 0.2


@every_trainer
def test_a_broken_record_is_left_out(name):
    """NaN in one record: the run is, to the bit, the one where that record is null; and a counter says so."""
    full, description = made(name, 4)
    broken, null = (fit(name, problem(name, t, description)) for t in (spoilt(full, 4, np.nan), without(full, 4)))
    assert broken.params_P.isfinite().all()
    assert torch.equal(broken.params_P, null.params_P)
    assert broken.sealed["nonfinite"] > 0 == null.sealed["nonfinite"]


@every_private
def test_a_record_beyond_the_stated_bound_is_left_out(name):
    """A source that breaks its word does not break the noise: the row is treated as null."""
    full, description = made(name, 4)
    long, null = (fit(name, problem(name, t, description)) for t in (spoilt(full, 4, 3.0), without(full, 4)))
    assert torch.equal(long.params_P, null.params_P)


@every_trainer
def test_an_empty_table_runs(name):
    full, description = made(name, 4)
    assert fit(name, problem(name, without(full, *range(ROWS)), description)).params_P.isfinite().all()


@every_trainer
def test_it_learns_and_a_million_times_the_noise_destroys_accuracy(name):
    full, description = made(name, 4)

    def accuracy(noise: float, trial: int) -> float:
        shared = problem(name, full, description)
        params_P = shared.released(fit(name, shared, noise=noise, trial=trial).params_P)
        return evaluate(ALL[name][2], params_P, full, np.arange(ROWS)) / ROWS

    if ALL[name][0].kind != "majority":
        assert accuracy(0.02, 0) > 0.8
    noisy = np.mean([accuracy(1e6, trial) for trial in range(12)])
    assert noisy > 0.8 if name in OPEN else noisy < 0.72


@every_trainer
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_a_part_trains_as_the_same_table_without_the_other_rows(name, share):
    """share 1: with the whole table's divisor, as the null table is."""
    full, description = made(name, 4)
    inside = np.random.default_rng(0).random(ROWS) < share
    part = fit(name, PartProblem(problem(name, full, description), inside), share=share)
    null = fit(name, problem(name, without(full, *np.flatnonzero(~inside)), description), share=share)
    scale = float(null.params_P.norm())
    assert float((part.params_P - null.params_P).norm()) <= 1e-3 * scale


@every_private
def test_only_the_answer_is_released(name):
    full, description = made(name, 4)
    heard: list[int] = []
    fitted = fit(name, problem(name, full, description), on_step=heard.append)
    assert fitted.trace == {}
    assert fitted.chosen == {}
    assert heard == list(range(1, ALL[name][0].steps + 1))
    assert SECRET.hex() not in repr(fitted.sealed)


@every_private
def test_its_event_falls_with_the_noise_and_never_raises(name):
    """Calibration asks at any multiplier; next to no noise promises nothing."""
    trainer, step, _ = TRAINERS[name]
    events = [trainer.event(1000, z, NoClip(), step) for z in (0.0, 0.01, 0.1, 0.5, 2.0, 50.0, 1e3, 1e7)]
    assert events[0].unprotected
    assert all(event.relation == "zero-out" for event in events)
    assert all(event_from_dict(event.to_dict()) == event for event in events)
    prices = [accountant.epsilon(event, 1e-5) for event in events[3:]]
    assert prices == sorted(prices, reverse=True)
    assert prices[-1] < 1e-3


@every_private
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0])
def test_its_noise_can_be_calibrated(name, epsilon):
    trainer, step, _ = TRAINERS[name]
    noise = accountant.calibrate(lambda z: trainer.event(1000, z, NoClip(), step), epsilon, 1e-5)
    assert 0.97 * epsilon < accountant.epsilon(trainer.event(1000, noise, NoClip(), step), 1e-5) <= epsilon


@every_trainer
def test_other_policies_are_refused_with_the_reason(name):
    trainer, step, _ = ALL[name]
    assert list(trainer.faults(NoClip(), step)) == []
    (of_clip,) = trainer.faults(FixedClip(clip_norm=1.0), step)
    assert of_clip.field == "space.clip.policy"
    assert str(of_clip).startswith(f"space.clip.policy = 'fixed' has no part in trainer {trainer.kind}: ")
    (of_step,) = trainer.faults(NoClip(), CoupledStep(c=1.0))
    assert of_step.field == "space.step.policy"
    assert trainer.kind in of_step.rule


def section(trainer: dict[str, Any], model: dict[str, Any], step: dict[str, Any] | None = None, **data: Any) -> dict[str, Any]:
    return {
        "name": "unclipped",
        "data": {"source": "adult", **data},
        "model": model,
        "trainer": trainer,
        "privacy": {"epsilon": 1.0, "delta": 1e-5},
        "protocol": {"kind": "no-tuning"},
        "space": {"clip": {"policy": "none"}, "step": step or {"policy": "none"}},
    }


GD, SGD = {"kind": "output-perturbation-gd", "steps": 10}, {"kind": "output-perturbation-sgd", "steps": 10, "batch_size": 5}
OBJECTIVE, LOGISTIC = {"kind": "objective-perturbation"}, {"kind": "logistic"}
UNBOUNDED = {"source": {"module": "a.b:c", "rows": 40000, "features": 3, "classes": 2}}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (section(GD, {"kind": "mlp"}), "model.kind = 'mlp' does not go with trainer output-perturbation-gd, whose noise"),
        (section(OBJECTIVE, {"kind": "squared"}), "model.kind = 'squared' does not go with trainer objective-perturbation: its"),
        (section(OBJECTIVE, {"kind": "softmax"}), "model.kind = 'softmax' is refused in trainer objective-perturbation: its proof"),
        (section(GD, LOGISTIC, **UNBOUNDED), "data.source = 'module' states no bound on the length of a row"),
        (section(GD, LOGISTIC | {"scale": "unit-norm"}, **UNBOUNDED), "model.scale = 'unit-norm' needs a public bound"),
        (section(SGD, LOGISTIC), "space.step.policy = 'none' leaves steps to trainer output-perturbation-sgd"),
        (section(SGD, LOGISTIC | {"l2": 0.1}), "strongly convex objectives alone: model.l2 above 0, model.penalise_bias true"),
        (section(SGD, LOGISTIC, {"policy": "fixed", "value": 0.62}), "must be at most 2 / smoothness = 0.6154"),
        (section(OBJECTIVE | {"delta": 1e-5}, LOGISTIC), "trainer.delta = 1e-05 must be well below privacy.delta = 1e-05"),
        (section({"kind": "non-private"}, LOGISTIC), "trainer.kind = 'non-private' protects nothing, and the table is not"),
        (section(GD | {"average": "random"}, LOGISTIC), "trainer.average = 'random' must be one of last, tail"),
        (section({"kind": "non-private", "method": "sgd"}, LOGISTIC, public=True), "trainer.batch_size is missing in method sgd"),
        (section({"kind": "majority"}, LOGISTIC, {"policy": "none", "value": 3}), "space.step.value sets nothing"),
    ],
)
def test_what_a_model_or_table_does_not_promise_is_refused_by_name(spec, said):
    with pytest.raises(FieldError) as refused:
        catalog.sweep_from_dict(spec)
    assert said in str(refused.value)


def test_a_range_of_step_sizes_is_checked_at_its_top():
    wide = section(SGD, LOGISTIC, {"policy": "fixed", "range": [0.1, 0.7]})
    wide["protocol"] = {"kind": "select-best", "mean_trials": 5}
    with pytest.raises(FieldError, match=r"space.step.learning_rate = 0.7 must be at most 2 / smoothness"):
        catalog.sweep_from_dict(wide)
    wide["space"]["step"]["range"] = [0.1, 0.6]
    assert catalog.sweep_from_dict(wide).trainer.kind == "output-perturbation-sgd"


@pytest.mark.parametrize("name", ["privgene", "majority", "non-private", "non-private-sgd"])
def test_networks_go_with_trainers_that_need_no_convexity(name):
    trainer, step, _ = ALL[name]
    full, description = blobs(ROWS, 6, 4)
    shared = LayeredProblem(model=Mlp(hidden=(5,)), description=description, table=full, rows=np.arange(ROWS))
    fitted = trainer.fit(shared, NoClip(), step, 1.0, Streams(SECRET, 0))
    assert fitted.params_P.shape == (sum(shared.layers),)
    assert fitted.params_P.isfinite().all()


@pytest.mark.parametrize("name", ["output-sgd", "output-gd", "objective"])
def test_a_problem_that_promises_nothing_is_refused_before_it_is_read(name):
    full, description = made(name)
    loose = dataclasses.replace(description, norm_bound=None)
    with pytest.raises(FieldError, match="nothing bounds what a record can do"):
        fit(name, problem(name, full, loose))
