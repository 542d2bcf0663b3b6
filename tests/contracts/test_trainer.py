"""What every trainer must keep. A new trainer is one row of TRAINERS; a new problem one row of PROBLEMS."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from oracles import FALSE_ALARM, REJECTED, scale_p_value
from small import blobs, spoilt, without

from sweeper.backends.closed_form import LinearProblem, evaluate
from sweeper.clip.fixed import FixedClip
from sweeper.data.sampling import SAMPLERS
from sweeper.launch.part import PartProblem
from sweeper.models.linear import Logistic, Softmax
from sweeper.privacy.events import FixedSizeSampled, Gaussian, PoissonSubsampled, Repeated
from sweeper.seeds import SAMPLING, Streams, secret_from_seed
from sweeper.step.coupled import CoupledStep
from sweeper.step.fixed import FixedStep
from sweeper.trainers.dp_sgd import DpSgd

TRAINERS = {
    "dp-sgd": DpSgd(batch_size=8, steps=20),
    "dp-sgd-momentum": DpSgd(batch_size=8, steps=20, momentum=0.9),
    "dp-sgd-tail": DpSgd(batch_size=8, steps=20, average="tail"),
    "dp-sgd-without-replacement": DpSgd(batch_size=8, steps=20, sampling="without-replacement"),
}
POISSON = {name: trainer for name, trainer in TRAINERS.items() if trainer.sampling == "poisson"}
MODELS = {"logistic": (Logistic(), 2), "softmax": (Softmax(), 10), "softmax-l2": (Softmax(l2=0.01), 10)}
every_trainer = pytest.mark.parametrize("trainer", TRAINERS.values(), ids=TRAINERS)
every_poisson = pytest.mark.parametrize("trainer", POISSON.values(), ids=POISSON)
every_model = pytest.mark.parametrize(("model", "classes"), MODELS.values(), ids=MODELS)
CLIP, STEP = FixedClip(clip_norm=0.7), FixedStep(learning_rate=0.5)
SECRET = secret_from_seed("trainers")


def problem(model, full, description) -> LinearProblem:
    return LinearProblem(model=model, description=description, table=full, rows=np.arange(description.rows))


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


def fit(trainer, spied, *, noise_multiplier=1.0, trial=0, clip=CLIP, step=STEP):
    fitted = trainer.fit(spied, clip, step, noise_multiplier, Streams(SECRET, trial))
    return fitted.params_P, fitted.sealed


def reset(trainer, **changes):
    return dataclasses.replace(trainer, **changes)


@every_trainer
@pytest.mark.parametrize("clip_norm", [0.01, 0.7, 20.0])
def test_noise_is_the_multiplier_times_the_sensitivity(trainer, clip_norm):
    """One step on null records alone: params = -(step size / batch_size) noise. Sizes 2/3 and 3/2 of it are rejected."""
    full, description = blobs(10, 2000, 10)
    nothing = without(full, *range(10))
    clip = FixedClip(clip_norm=clip_norm)
    params_P, _ = fit(reset(trainer, steps=1), problem(Softmax(), nothing, description), noise_multiplier=1.3, clip=clip)
    noise = params_P.numpy() * -trainer.batch_size / STEP.learning_rate
    assert scale_p_value(noise, 1.3 * clip_norm) > FALSE_ALARM
    for wrong in (2 / 3, 3 / 2):
        assert scale_p_value(noise, 1.3 * clip_norm * wrong) < REJECTED


@every_trainer
def test_noise_keeps_its_scale_at_every_step_and_is_fresh(trainer):
    """Differences between iterates on null records give each step's noise, whatever the momentum."""
    full, description = blobs(10, 500, 10)
    spy = Spy(problem(Softmax(), without(full, *range(10)), description))
    fit(trainer, spy, noise_multiplier=2.0, step=FixedStep(learning_rate=0.5, schedule="cosine"))
    rates = [FixedStep(learning_rate=0.5, schedule="cosine").learning_rate_at(CLIP, t, trainer.steps) for t in range(trainer.steps)]
    velocities = [(a - b).double().numpy() / r for a, b, r in zip(spy.params, spy.params[1:], rates, strict=False)]
    noise = [now - trainer.momentum * before for now, before in zip(velocities, [0.0, *velocities], strict=False)]
    noise = [n * trainer.batch_size for n in noise]
    assert len(noise) == trainer.steps - 1
    assert min(scale_p_value(n, 2.0 * CLIP.sensitivity) for n in noise) > FALSE_ALARM / len(noise)
    table = np.corrcoef(noise) - np.eye(len(noise))
    assert np.abs(table).max() * np.sqrt(noise[0].size) < 6.5  # 171 pairs: false alarm 1.4e-8
    assert not (np.diff(rates) > 0).any()  # the schedule did change under it


@every_trainer
@pytest.mark.parametrize(("rows", "batch_size", "steps"), [(10, 1, 1), (10, 10, 3), (999, 7, 50), (1000, 7, 50), (1001, 7, 33)])
def test_the_event_is_what_the_run_does(trainer, rows, batch_size, steps):
    """Length of the ledger == steps taken; sampling probability and divisor come from public numbers alone."""
    changed = reset(trainer, batch_size=batch_size, steps=steps)
    event = changed.event(rows, 1.1, CLIP, STEP)
    poisson, fixed = PoissonSubsampled(batch_size / rows, Gaussian(1.1)), FixedSizeSampled(rows, batch_size, Gaussian(1.1))
    assert event == Repeated({"poisson": poisson, "without-replacement": fixed}[trainer.sampling], steps)
    assert event.relation == changed.relation
    full, description = blobs(rows, 3, 2)
    spy, heard = Spy(problem(Logistic(), full, description)), []
    sealed = changed.fit(spy, CLIP, STEP, 1.1, Streams(SECRET, 0), on_step=heard.append).sealed
    assert len(spy.batches) == event.count == steps
    assert heard == list(range(1, steps + 1))
    assert sealed["mean_batch_size"] == pytest.approx(np.mean([len(b) for b in spy.batches]))
    if trainer.sampling == "without-replacement":
        assert all(len(set(b.tolist())) == batch_size for b in spy.batches)
    if batch_size == rows:  # sampling probability 1: everybody, always
        assert all(sorted(b) == list(range(rows)) for b in spy.batches)


@every_trainer
def test_no_row_count_or_batch_size_loses_a_step(trainer):
    for rows in range(1, 3000, 13):
        for batch_size in {1, rows // 3 or 1, rows}:
            event = reset(trainer, batch_size=batch_size).event(rows, 1.0, CLIP, STEP)
            assert event.count == trainer.steps
            assert event.event == SAMPLERS[trainer.sampling](rows=rows, batch_size=batch_size).event(Gaussian(1.0))


@every_poisson
def test_an_empty_batch_takes_a_noise_step(trainer):
    full, description = blobs(6, 3, 2)
    spy = Spy(problem(Logistic(), full, description))
    fit(reset(trainer, batch_size=1, steps=40), spy)
    empty = [t for t, rows in enumerate(spy.batches[:-1]) if len(rows) == 0]
    assert len(empty) > 5  # each is empty with probability (5/6)^6 = 0.33
    velocities = [np.zeros(4)] + [(a - b).double().numpy() / 0.5 for a, b in zip(spy.params, spy.params[1:], strict=False)]
    for t in empty:
        assert np.abs(velocities[t + 1] - trainer.momentum * velocities[t]).min() > 1e-4  # noise in every coordinate


@every_trainer
@every_model
@pytest.mark.parametrize("batch_size", [15, 30])
def test_the_divisor_is_public(trainer, model, classes, batch_size):
    """Without noise, D and D minus one record take the same batches and move apart by at most step / b times sensitivity."""
    full, description = blobs(30, 6, classes)
    one_step = reset(trainer, batch_size=batch_size, steps=1)
    drawn = SAMPLERS[trainer.sampling](rows=30, batch_size=batch_size).draw(Streams(SECRET, 0).generator(SAMPLING))
    spies = [Spy(problem(model, t, description)) for t in (full, without(full, drawn[0]))]
    ends = [fit(one_step, spy, noise_multiplier=0.0)[0].double().numpy() for spy in spies]
    assert (len(drawn) == batch_size) == (trainer.sampling == "without-replacement" or batch_size == 30)
    assert all(np.array_equal(drawn, spy.batches[0]) for spy in spies)
    moved = np.linalg.norm(ends[0] - ends[1]) * batch_size / STEP.learning_rate
    assert 0 < moved <= CLIP.sensitivity * (1 + 1e-5)
    summed = problem(model, full, description).batch(spies[0].batches[0]).sum(torch.zeros(len(ends[0])), CLIP.factors)
    assert ends[0] == pytest.approx(-STEP.learning_rate * summed.double().numpy() / batch_size, rel=1e-5, abs=1e-9)


@every_trainer
def test_a_replaced_record_moves_a_sum_by_at_most_twice_the_clip_norm(trainer):
    """Without noise: this is what the event of a fixed size counts, at the same noise for its multiplier."""
    full, description = blobs(30, 6, 2)
    other = dataclasses.replace(full, features=full.features.copy(), labels=full.labels.copy())
    drawn = SAMPLERS[trainer.sampling](rows=30, batch_size=15).draw(Streams(SECRET, 0).generator(SAMPLING))
    other.labels[drawn[0]] = 1 - other.labels[drawn[0]]  # its gradient then points the other way
    tight = FixedClip(clip_norm=0.01)
    ends = [
        fit(reset(trainer, batch_size=15, steps=1), problem(Logistic(), t, description), noise_multiplier=0.0, clip=tight)[0]
        for t in (full, other)
    ]
    moved = float((ends[0] - ends[1]).double().norm()) * 15 / STEP.learning_rate
    assert moved == pytest.approx(2 * tight.sensitivity, rel=1e-4)


@every_poisson
@pytest.mark.parametrize("share", [0.1, 0.9])
def test_a_part_trains_as_the_same_table_without_the_other_rows(trainer, share):
    """Same batches, rows outside null, and the divisor is the public share of the batch: nothing else tells the two apart."""
    full, description = blobs(200, 6, 2)
    inside = np.random.default_rng(0).random(200) < share
    streams, whole = Streams(SECRET, 0), problem(Logistic(), full, description)
    part_P = trainer.fit(PartProblem(whole, inside), CLIP, STEP, 1.0, streams, share=share).params_P
    hidden = problem(Logistic(), without(full, *np.flatnonzero(~inside)), description)
    null_P = trainer.fit(hidden, CLIP, STEP, 1.0, streams, share=share).params_P
    assert torch.allclose(part_P, null_P, rtol=1e-4, atol=1e-6)
    whole_P = trainer.fit(hidden, CLIP, STEP, 1.0, streams).params_P
    assert not torch.allclose(part_P, whole_P, rtol=0.05)
    spy = Spy(whole)
    trainer.fit(PartProblem(spy, inside), CLIP, STEP, 1.0, streams, share=share)
    assert all(inside[rows].all() for rows in spy.batches)
    assert sum(map(len, spy.batches)) > 0


@every_trainer
def test_the_share_divides_sums_and_noise_alike(trainer):
    full, description = blobs(30, 6, 2)
    one, streams = reset(trainer, steps=1), Streams(SECRET, 0)
    ends = [one.fit(problem(Logistic(), full, description), CLIP, STEP, 1.0, streams, share=s)[0] for s in (1.0, 0.25)]
    assert torch.allclose(ends[1], 4 * ends[0], rtol=1e-5)


@every_trainer
@every_model
def test_a_record_that_is_not_finite_is_left_out_and_the_run_goes_on(trainer, model, classes):
    full, description = blobs(30, 6, classes)
    params_P, sealed = fit(trainer, problem(model, spoilt(full, 4, np.nan), description))
    clean_P, clean_sealed = fit(trainer, problem(model, without(full, 4), description))
    assert params_P.isfinite().all()
    assert torch.equal(params_P, clean_P)
    assert sealed["nonfinite"] > 0
    assert clean_sealed["nonfinite"] == 0


@every_trainer
def test_the_count_of_what_was_left_out_is_per_trial(trainer):
    full, description = blobs(30, 6, 2)
    shared = problem(Logistic(), spoilt(full, 4, np.nan), description)
    counts = [fit(trainer, shared)[1]["nonfinite"] for _ in range(2)]
    assert counts[0] == counts[1] > 0


@every_trainer
@every_model
def test_a_run_again_is_the_same_bits_and_another_trial_shares_nothing(trainer, model, classes):
    full, description = blobs(200, 6, classes)
    shared = problem(model, full, description)
    spies = [Spy(s) for s in (shared, problem(model, full, description), shared)]
    ends = [fit(trainer, spy, trial=trial)[0] for spy, trial in zip(spies, (0, 0, 1), strict=True)]
    assert torch.equal(ends[0], ends[1])
    assert all(np.array_equal(a, b) for a, b in zip(spies[0].batches, spies[1].batches, strict=True))
    assert not torch.isclose(ends[0], ends[2]).any()
    same = [set(a.tolist()) == set(b.tolist()) for a, b in zip(spies[0].batches, spies[2].batches, strict=True)]
    assert not any(same)


@every_trainer
def test_batches_do_not_depend_on_data_noise_or_policy(trainer):
    full, description = blobs(200, 6, 2)
    spies = [Spy(problem(Logistic(), t, description)) for t in (full, without(full, *range(100)), full)]
    fit(trainer, spies[0])
    fit(trainer, spies[1], noise_multiplier=5.0)
    fit(trainer, spies[2], clip=FixedClip(clip_norm=0.01), step=CoupledStep(c=3.0))
    for other in spies[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(spies[0].batches, other.batches, strict=True))


@every_trainer
def test_it_learns_and_a_million_times_the_noise_destroys_accuracy(trainer):
    full, description = blobs(1000, 20, 10)
    longer, shared, rows = reset(trainer, batch_size=100, steps=100), problem(Softmax(), full, description), np.arange(1000)

    def accuracy(noise_multiplier: float, trial: int) -> float:
        params_P, _ = fit(longer, shared, noise_multiplier=noise_multiplier, trial=trial)
        return evaluate(Softmax(), params_P, full, rows) / 1000

    assert accuracy(0.0, 0) > 0.95
    assert accuracy(1.0, 0) > 0.8
    assert np.mean([accuracy(1e6, trial) for trial in range(6)]) < 0.35  # guessing is right one time in ten


@every_trainer
def test_the_secret_stays_inside(trainer):
    full, description = blobs(30, 6, 2)
    _, sealed = fit(trainer, problem(Logistic(), full, description))
    assert isinstance(sealed, Mapping)
    assert SECRET.hex() not in repr(sealed)
    assert all(isinstance(v, (int, float, str, type(None), dict)) for v in sealed.values())
