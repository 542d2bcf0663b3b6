"""What every trainer must keep. A new trainer is one row of TRAINERS; a new problem one row of PROBLEMS."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from heard import HeardSearch, HeardStep
from oracles import AIM, FALSE_ALARM, REJECTED, scale_p_value
from small import blobs, spoilt, without

from sweeper.backends.closed_form import LinearProblem, evaluate
from sweeper.clip.decay import Decay
from sweeper.clip.fixed import FixedClip
from sweeper.clip.normalise import Normalise
from sweeper.data.sampling import SAMPLERS
from sweeper.launch.part import PartProblem
from sweeper.models.linear import Logistic, Softmax
from sweeper.privacy.event_renyi import renyi_cost
from sweeper.privacy.events import (
    Composed,
    ExponentialMechanism,
    FixedSizeSampled,
    Gaussian,
    PoissonSubsampled,
    RenyiBound,
    Repeated,
    ZeroConcentrated,
    event_from_dict,
)
from sweeper.seeds import SAMPLING, Streams, secret_from_seed
from sweeper.step.fixed import FixedStep
from sweeper.trainers.blsgd import DpBlgd, DpBlsgd, DpBlsgdAc
from sweeper.trainers.dp_adam import DpAdam
from sweeper.trainers.dp_agd import DpAgd
from sweeper.trainers.dp_nsgd import DpNsgd
from sweeper.trainers.dp_sgd import DpSgd
from sweeper.trainers.line_searched import LineSearched

TRAINERS = {
    "dp-sgd": DpSgd(batch_size=8, steps=20),
    "dp-sgd-momentum": DpSgd(batch_size=8, steps=20, momentum=0.9),
    "dp-sgd-tail": DpSgd(batch_size=8, steps=20, average="tail"),
    "dp-sgd-random": DpSgd(batch_size=8, steps=20, average="random"),
    "dp-sgd-radius": DpSgd(batch_size=8, steps=20, radius=50.0),
    "dp-sgd-without-replacement": DpSgd(batch_size=8, steps=20, sampling="without-replacement"),
    "dp-adam": DpAdam(batch_size=8, steps=20),
    "dp-adam-corrected": DpAdam(batch_size=8, steps=20, bias_correct_noise=True, noise_floor=1e-4),
    "dp-nsgd": DpNsgd(batch_size=8, steps=20),
    "dp-nsgd-over-noise": DpNsgd(batch_size=8, steps=20, step_over_noise=True, sampling="without-replacement"),
    "dp-blsgd": DpBlsgd(batch_size=8, steps=20),
    "dp-blsgd-retries": DpBlsgd(batch_size=8, steps=20, retries=3, average="tail"),
    "dp-blsgd-never": DpBlsgd(batch_size=8, steps=20, budget="never", average="random"),
    "dp-blsgd-ac": DpBlsgdAc(batch_size=8, steps=20, radius=50.0),
    "dp-blgd": DpBlgd(steps=20),
    "dp-agd": DpAgd(steps=20),
}
FULL_BATCH = {"dp-blgd", "dp-agd"}
BATCHED = {name: trainer for name, trainer in TRAINERS.items() if trainer.kind not in FULL_BATCH}
POISSON = {name: trainer for name, trainer in BATCHED.items() if trainer.sampling == "poisson"}
MODELS = {"logistic": (Logistic(), 2), "softmax": (Softmax(), 10), "softmax-l2": (Softmax(l2=0.01), 10)}
every_trainer = pytest.mark.parametrize("trainer", TRAINERS.values(), ids=TRAINERS)
every_batched = pytest.mark.parametrize("trainer", BATCHED.values(), ids=BATCHED)
every_poisson = pytest.mark.parametrize("trainer", POISSON.values(), ids=POISSON)
every_model = pytest.mark.parametrize(("model", "classes"), MODELS.values(), ids=MODELS)
SECRET = secret_from_seed("trainers")
SHARE = 0.2  # of a step's budget that a search has


def problem(model, full, description) -> LinearProblem:
    return LinearProblem(model=model, description=description, table=full, rows=np.arange(description.rows))


def clip_for(trainer, clip_norm: float = 0.7):
    if trainer.kind == "dp-nsgd":
        return Normalise(r=1e-6)
    return Decay(clip_norm=clip_norm, schedule="raise") if trainer.kind == "dp-blsgd-ac" else FixedClip(clip_norm=clip_norm)


def step_for(trainer, size: float = 0.5, **settings):
    if isinstance(trainer, LineSearched):
        return HeardSearch(step=size, share=SHARE)
    return HeardStep(learning_rate=size / 10 if trainer.kind == "dp-adam" else size, **settings)


def divisor(trainer, rows: int) -> int:
    return trainer.expected_batch(rows)


def first_batch(trainer, rows: int, trial: int = 0) -> np.ndarray:
    if trainer.kind in FULL_BATCH:
        return np.arange(rows)
    sampler = SAMPLERS[trainer.sampling](rows=rows, batch_size=trainer.batch_size)
    return sampler.draw(Streams(SECRET, trial).generator(SAMPLING))


class Spy:
    """A problem that remembers the rows of every batch and the parameters it was asked about."""

    def __init__(self, inner: LinearProblem) -> None:
        self.inner, self.rows, self.batches, self.params = inner, inner.rows, [], []

    @property
    def nonfinite(self) -> int:
        return self.inner.nonfinite

    @property
    def layers(self) -> tuple[int, ...]:
        return self.inner.layers

    def start(self, streams: Streams) -> torch.Tensor:
        return self.inner.start(streams)

    def add_penalty_(self, gradient_P: torch.Tensor, params_P: torch.Tensor) -> None:
        self.inner.add_penalty_(gradient_P, params_P)

    def batch(self, rows_B: np.ndarray) -> Spy:
        self.batches.append(rows_B.copy())
        self.batch_of = self.inner.batch(rows_B)
        return self

    def sum(self, params_P: torch.Tensor, factors, *, by_layer: bool = False) -> torch.Tensor:
        self.params.append(params_P.clone())
        return self.batch_of.sum(params_P, factors, by_layer=by_layer)


def fit(trainer, spied, *, noise_multiplier=1.0, trial=0, clip=None, step=None, **more):
    clip, step = clip or clip_for(trainer), step or step_for(trainer)
    return trainer.fit(spied, clip, step, noise_multiplier, Streams(SECRET, trial), **more)


def reset(trainer, **changes):
    if trainer.kind in FULL_BATCH:
        changes.pop("batch_size", None)
    return dataclasses.replace(trainer, **changes)


@every_trainer
@pytest.mark.parametrize("clip_norm", [0.01, 0.7, 20.0])
def test_noise_is_the_multiplier_times_the_sensitivity(trainer, clip_norm):
    """On null records alone the gradient is noise. Sizes 2/3 and 3/2 of what is stated are rejected."""
    full, description = blobs(10, 2000, 10)
    clip, step = clip_for(trainer, clip_norm), step_for(trainer)
    fit(
        reset(trainer, steps=1),
        problem(Softmax(), without(full, *range(10)), description),
        noise_multiplier=1.3,
        clip=clip,
        step=step,
    )
    noise = step.heard.gradients[0].numpy() * divisor(trainer, 10)
    stated = (1.3 / np.sqrt(1 - SHARE) if step.searches else 1.3) * clip.sensitivity
    assert scale_p_value(noise, stated) > FALSE_ALARM
    for wrong in (2 / 3, 3 / 2):
        assert scale_p_value(noise, stated * wrong) < REJECTED


@every_trainer
def test_noise_keeps_its_scale_at_every_step_and_is_fresh(trainer):
    full, description = blobs(10, 500, 10)
    step = step_for(trainer, **({} if isinstance(trainer, LineSearched) else {"schedule": "cosine"}))
    fit(trainer, problem(Softmax(), without(full, *range(10)), description), noise_multiplier=2.0, step=step)
    noise = [gradient_P.double().numpy() * divisor(trainer, 10) for gradient_P in step.heard.gradients]
    assert len(noise) == trainer.steps
    stated = (2.0 / np.sqrt(1 - SHARE) if step.searches else 2.0) * clip_for(trainer).sensitivity
    assert min(scale_p_value(n, stated) for n in noise) > FALSE_ALARM / len(noise)
    table = np.corrcoef(noise) - np.eye(len(noise))
    assert np.abs(table).max() * np.sqrt(noise[0].size) < 6.5  # 190 pairs: false alarm 1.5e-8


@every_trainer
def test_steps_move_by_the_noisy_gradient_of_their_size(trainer):
    """Of trainers whose direction is the gradient: iterates differ by step size times it, projected on the ball if there is one."""
    full, description = blobs(60, 6, 10)
    step = step_for(trainer)
    fit(trainer, problem(Softmax(l2=0.01), full, description), step=step)
    if trainer.kind == "dp-adam" or getattr(trainer, "momentum", 0.0):
        assert len(step.heard.params) == trainer.steps  # their directions have float64 loops of their own: tests/trainers
        return
    radius = trainer.radius or np.inf
    for here, gradient, there in zip(step.heard.params, step.heard.gradients, step.heard.params[1:], strict=False):
        gradient = gradient / gradient.norm() if trainer.kind == "dp-agd" else gradient
        moved = here.double() - 0.5 * gradient.double()
        moved *= min(1.0, radius / float(moved.norm()))
        assert torch.allclose(moved, there.double(), rtol=1e-5, atol=1e-6)


@every_batched
@pytest.mark.parametrize("radius", [0.01, 0.5])
def test_iterates_stay_in_the_ball(trainer, radius):
    full, description = blobs(60, 6, 10)
    step = step_for(trainer)
    fitted = fit(reset(trainer, radius=radius), problem(Softmax(), full, description), step=step)
    norms = [float(params_P.norm()) for params_P in [*step.heard.params, fitted.params_P]]
    assert max(norms) <= radius * (1 + 1e-6)
    assert max(norms) > 0.99 * radius


def inside(trainer, step, noise_multiplier: float):
    """What one batch is asked, by hand."""
    if not step.searches:
        return Gaussian(noise_multiplier)
    return Composed(
        (
            Gaussian(noise_multiplier / np.sqrt(1 - SHARE)),
            ExponentialMechanism(float(np.sqrt(4 * SHARE)) / noise_multiplier),  # eps^2/8 = share / (2 z^2)
        )
    )


@every_trainer
@pytest.mark.parametrize(("rows", "batch_size", "steps"), [(10, 1, 1), (10, 10, 3), (999, 7, 50), (1000, 7, 50), (1001, 7, 33)])
def test_the_event_is_what_the_run_does(trainer, rows, batch_size, steps):
    """Length of the ledger == steps taken; sampling probability and divisor come from public numbers alone."""
    changed, step = reset(trainer, batch_size=batch_size, steps=steps), step_for(trainer)
    event = changed.event(rows, 1.1, clip_for(trainer), step)
    asked = inside(trainer, step, 1.1)
    if isinstance(trainer, LineSearched):
        q = divisor(changed, rows) / rows
        one_round = ZeroConcentrated(1 / (2 * 1.1**2)) if q == 1 else PoissonSubsampled(q, asked)
        assert isinstance(event, ZeroConcentrated if q == 1 else RenyiBound)
        if getattr(trainer, "retries", None) is None:  # else see tests/trainers/test_blsgd.py
            cost = one_round.rho if q == 1 else renyi_cost(one_round, event.order)[0]
            assert event.rho == pytest.approx(steps * cost, rel=5e-3)
    else:
        poisson, fixed = PoissonSubsampled(batch_size / rows, asked), FixedSizeSampled(rows, batch_size, Gaussian(1.1))
        assert event == Repeated({"poisson": poisson, "without-replacement": fixed}[trainer.sampling], steps)
    assert event_from_dict(event.to_dict()) == event
    assert event.relation == changed.relation
    full, description = blobs(rows, 3, 2)
    spy, heard = Spy(problem(Logistic(), full, description)), []
    sealed = fit(changed, spy, noise_multiplier=1.1, step=step, on_step=heard.append).sealed
    assert len(spy.batches) == steps
    assert heard == list(range(1, steps + 1))
    assert sealed["mean_batch_size"] == pytest.approx(np.mean([len(b) for b in spy.batches]))
    if trainer.kind in FULL_BATCH or trainer.sampling == "without-replacement":
        assert all(len(set(b.tolist())) == divisor(changed, rows) for b in spy.batches)
    if divisor(changed, rows) == rows:  # sampling probability 1: everybody, always
        assert all(sorted(b) == list(range(rows)) for b in spy.batches)


@every_trainer
def test_no_row_count_or_batch_size_loses_a_step(trainer):
    clip, step = clip_for(trainer), step_for(trainer)
    for rows in range(1, 3000, 97 if isinstance(trainer, LineSearched) else 13):
        for batch_size in {1, rows // 3 or 1, rows}:
            changed = reset(trainer, batch_size=batch_size)
            event = changed.event(rows, 1.0, clip, step)
            if isinstance(trainer, LineSearched):
                terms = changed.terms(rows, 1.0, clip, step)
                assert trainer.steps * terms.start <= terms.capacity < (trainer.steps + 1e-6) * terms.start
                assert event.rho == terms.capacity
            else:
                assert event.count == trainer.steps
                sampler = SAMPLERS[trainer.sampling](rows=rows, batch_size=batch_size)
                assert event.event == sampler.event(inside(trainer, step, 1.0))


@every_poisson
def test_an_empty_batch_takes_a_noise_step(trainer):
    full, description = blobs(6, 3, 2)
    spy, step = Spy(problem(Logistic(), full, description)), step_for(trainer)
    fit(reset(trainer, batch_size=1, steps=40), spy, step=step)
    assert len(spy.batches) == 40
    empty = [t for t, rows in enumerate(spy.batches[:-1]) if len(rows) == 0]
    assert len(empty) > 5  # each is empty with probability (5/6)^6 = 0.33
    for t in empty:
        assert step.heard.gradients[t].abs().min() > 1e-4  # noise in every coordinate
        assert not torch.equal(step.heard.params[t], step.heard.params[t + 1])


@every_trainer
@every_model
@pytest.mark.parametrize("batch_size", [15, 30])
def test_the_divisor_is_public(trainer, model, classes, batch_size):
    """Without noise, D and D minus one record take the same batches and have gradients at most sensitivity / b apart."""
    full, description = blobs(30, 6, classes)
    one_step, clip = reset(trainer, batch_size=batch_size, steps=1), clip_for(trainer)
    drawn = first_batch(one_step, 30)
    spies, steps = [Spy(problem(model, t, description)) for t in (full, without(full, drawn[0]))], [step_for(trainer) for _ in "12"]
    for spy, step in zip(spies, steps, strict=True):
        fit(one_step, spy, noise_multiplier=0.0, step=step)
    b = divisor(one_step, 30)
    assert (len(drawn) == b) == (trainer.kind in FULL_BATCH or trainer.sampling == "without-replacement" or b == 30)
    assert all(np.array_equal(drawn, spy.batches[0]) for spy in spies)
    sums = [step.heard.gradients[0].double().numpy() * b for step in steps]
    assert 0 < np.linalg.norm(sums[0] - sums[1]) <= clip.sensitivity * (1 + 1e-5)
    summed = problem(model, full, description).batch(drawn).sum(torch.zeros(len(sums[0])), clip.factors)
    assert sums[0] == pytest.approx(summed.double().numpy(), rel=1e-5, abs=1e-6)


@every_trainer
def test_a_replaced_record_moves_a_sum_by_at_most_twice_the_clip_norm(trainer):
    """Without noise: this is what the event of a fixed size counts, at the same noise for its multiplier."""
    full, description = blobs(30, 6, 2)
    other = dataclasses.replace(full, features=full.features.copy(), labels=full.labels.copy())
    one_step, tight = reset(trainer, batch_size=15, steps=1), clip_for(trainer, 0.01)
    drawn = first_batch(one_step, 30)
    other.labels[drawn[0]] = 1 - other.labels[drawn[0]]  # its gradient then points the other way
    steps = [step_for(trainer) for _ in "12"]
    for table, step in zip((full, other), steps, strict=True):
        fit(one_step, problem(Logistic(), table, description), noise_multiplier=0.0, clip=tight, step=step)
    gradients = [step.heard.gradients[0].double() for step in steps]
    moved = float((gradients[0] - gradients[1]).norm()) * divisor(one_step, 30)
    assert moved == pytest.approx(2 * AIM * tight.sensitivity, rel=1e-4)


@every_poisson
@pytest.mark.parametrize("share", [0.1, 0.9])
def test_a_part_trains_as_the_same_table_without_the_other_rows(trainer, share):
    """Same batches, rows outside null, and the divisor is the public share of the batch: nothing else tells the two apart."""
    full, description = blobs(200, 6, 2)
    inside = np.random.default_rng(0).random(200) < share
    whole = problem(Logistic(), full, description)
    hidden = problem(Logistic(), without(full, *np.flatnonzero(~inside)), description)
    steps = [step_for(trainer) for _ in "123"]
    part_P = fit(trainer, PartProblem(whole, inside), share=share, step=steps[0]).params_P
    null_P = fit(trainer, hidden, share=share, step=steps[1]).params_P
    assert torch.allclose(part_P, null_P, rtol=1e-4, atol=1e-5)
    fit(trainer, hidden, step=steps[2])
    first = [step.heard.gradients[0] for step in steps]
    assert torch.allclose(first[0], first[1], rtol=1e-4, atol=1e-6)
    assert torch.allclose(first[0] * share, first[2], rtol=1e-4, atol=1e-6)
    spy = Spy(whole)
    fit(trainer, PartProblem(spy, inside), share=share)
    assert all(inside[rows].all() for rows in spy.batches)
    assert sum(map(len, spy.batches)) > 0


@every_trainer
def test_the_share_divides_sums_and_noise_alike(trainer):
    full, description = blobs(30, 6, 2)
    steps = [step_for(trainer) for _ in "12"]
    for share, step in zip((1.0, 0.25), steps, strict=True):
        fit(reset(trainer, steps=1), problem(Logistic(), full, description), step=step, share=share)
    assert torch.allclose(steps[1].heard.gradients[0], 4 * steps[0].heard.gradients[0], rtol=1e-5)


@every_trainer
@every_model
def test_a_record_that_is_not_finite_is_left_out_and_the_run_goes_on(trainer, model, classes):
    full, description = blobs(30, 6, classes)
    params_P, sealed, _, _ = fit(trainer, problem(model, spoilt(full, 4, np.nan), description))
    clean_P, clean_sealed, _, _ = fit(trainer, problem(model, without(full, 4), description))
    assert params_P.isfinite().all()
    assert torch.equal(params_P, clean_P)
    assert sealed["nonfinite"] > 0
    assert clean_sealed["nonfinite"] == 0


@every_trainer
def test_the_count_of_what_was_left_out_is_per_trial(trainer):
    full, description = blobs(30, 6, 2)
    shared = problem(Logistic(), spoilt(full, 4, np.nan), description)
    counts = [fit(trainer, shared).sealed["nonfinite"] for _ in range(2)]
    assert counts[0] == counts[1] > 0


@every_trainer
@every_model
def test_a_run_again_is_the_same_bits_and_another_trial_shares_nothing(trainer, model, classes):
    full, description = blobs(200, 6, classes)
    shared = problem(model, full, description)
    spies = [Spy(s) for s in (shared, problem(model, full, description), shared)]
    steps = [step_for(trainer) for _ in spies]
    ends = [fit(trainer, spy, trial=t, step=step).params_P for spy, t, step in zip(spies, (0, 0, 1), steps, strict=True)]
    assert torch.equal(ends[0], ends[1])
    assert all(np.array_equal(a, b) for a, b in zip(spies[0].batches, spies[1].batches, strict=True))
    assert not torch.isclose(ends[0], ends[2]).any()
    assert not torch.isclose(steps[0].heard.gradients[0], steps[2].heard.gradients[0]).any()
    if trainer.kind not in FULL_BATCH:
        same = [set(a.tolist()) == set(b.tolist()) for a, b in zip(spies[0].batches, spies[2].batches, strict=True)]
        assert not any(same)


@every_trainer
def test_batches_do_not_depend_on_data_noise_or_policy(trainer):
    full, description = blobs(200, 6, 2)
    spies = [Spy(problem(Logistic(), t, description)) for t in (full, without(full, *range(100)), full)]
    fit(trainer, spies[0])
    fit(trainer, spies[1], noise_multiplier=5.0)
    fit(trainer, spies[2], clip=clip_for(trainer, 0.01), step=step_for(trainer, 3.0))
    for other in spies[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(spies[0].batches, other.batches, strict=True))


@every_trainer
def test_it_learns_and_a_million_times_the_noise_destroys_accuracy(trainer):
    full, description = blobs(1000, 20, 10)
    longer, shared, rows = reset(trainer, batch_size=100, steps=100), problem(Softmax(), full, description), np.arange(1000)

    def accuracy(noise_multiplier: float, trial: int) -> float:
        params_P = fit(longer, shared, noise_multiplier=noise_multiplier, trial=trial).params_P
        return evaluate(Softmax(), params_P, full, rows) / 1000

    assert accuracy(0.0, 0) > 0.95
    assert accuracy(1.0, 0) > 0.8
    assert np.mean([accuracy(1e6, trial) for trial in range(6)]) < 0.35  # guessing is right one time in ten


@every_trainer
def test_the_secret_stays_inside_and_what_leaves_is_plain(trainer):
    full, description = blobs(30, 6, 2)
    _, sealed, chosen, trace = fit(trainer, problem(Logistic(), full, description))
    assert isinstance(sealed, Mapping)
    assert SECRET.hex() not in repr((sealed, chosen, trace))
    assert all(isinstance(v, (int, float, str, type(None), dict)) for v in sealed.values())
    json.dumps([sealed, chosen, trace], allow_nan=False)
    assert {len(column) for column in trace.values()} == {trainer.steps}
    assert {"step", "step_size", "clip_norm"} <= set(trace)


@every_trainer
@pytest.mark.parametrize("steps", [1, 99, 100, 101, 450])
def test_a_trace_has_at_most_a_hundred_points_and_the_last_step(trainer, steps):
    full, description = blobs(30, 2, 2)
    trace = fit(reset(trainer, steps=steps, radius=1.0), problem(Logistic(), full, description)).trace
    assert min(steps, 30) <= len(trace["step"]) <= 101
    assert trace["step"][0] == 0
    assert trace["step"][-1] == steps - 1
    assert trace["step"] == sorted(set(trace["step"]))
    assert {len(column) for column in trace.values()} == {len(trace["step"])}


GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "params.json").read_text())


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_runs_are_those_of_before(name):
    """Streams, order of sums and updates of DP-SGD, as they were when the file was written (tests/golden)."""
    row = GOLDEN[name]
    full, description = blobs(300, 12, 10, seed=3)
    step = FixedStep(learning_rate=1.5, schedule="cosine", warmup=0.1)
    made = DpSgd(**row["trainer"])
    params_P = made.fit(
        problem(Softmax(**row["model"]), full, description), FixedClip(clip_norm=0.5), step, 1.2, Streams(SECRET, 7)
    ).params_P
    assert [float(params_P[i]) for i in row["at"]] == pytest.approx(row["values"], rel=1e-5)
    assert float(params_P.double().norm()) == pytest.approx(row["norm"], rel=1e-5)
