"""A trial in a pack is the trial alone: to rounding beside its own backend, and bit for bit in any company and on any seat."""

from __future__ import annotations

import dataclasses
import math
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from networks import gradients
from oracles import clipped
from small import blobs, spoilt, table, without
from test_rounding import NORM, drifting

from sweeper.backends import packed_layers
from sweeper.backends.choice import problem_of
from sweeper.backends.vmapped import Pack
from sweeper.checks import FieldError
from sweeper.clip.adaptive_quantile import AdaptiveQuantileClip
from sweeper.clip.base import BLOCK
from sweeper.clip.decay import Decay
from sweeper.clip.fixed import FixedClip
from sweeper.clip.heavy_tail import HeavyTailClip
from sweeper.clip.none import NoClip
from sweeper.clip.normalise import Normalise
from sweeper.clip.per_layer import PerLayerClip
from sweeper.clip.private_quantile import PrivateQuantileClip
from sweeper.data.sampling import PoissonSampler
from sweeper.launch.part import PartProblem
from sweeper.models.convnet import ConvNet
from sweeper.models.linear import Logistic, Softmax, Squared, Svm
from sweeper.models.mlp import Mlp
from sweeper.models.module import ModuleModel
from sweeper.seeds import SAMPLING, Streams, secret_from_seed
from sweeper.spec.protocols import Description
from sweeper.step.backtracking import Backtracking
from sweeper.step.coupled import CoupledStep
from sweeper.step.exponential_search import ExponentialSearch
from sweeper.step.fixed import FixedStep
from sweeper.step.noisy_min import NoisyMinSearch
from sweeper.step.none import NoStep
from sweeper.step.theory import TheoryStep
from sweeper.trainers.blsgd import DpBlgd, DpBlsgd, DpBlsgdAc
from sweeper.trainers.dp_adam import DpAdam
from sweeper.trainers.dp_agd import DpAgd
from sweeper.trainers.dp_nsgd import DpNsgd
from sweeper.trainers.dp_sgd import DpSgd
from sweeper.trainers.non_private import NonPrivate
from sweeper.trainers.objective_perturbation import ObjectivePerturbation
from sweeper.trainers.output_perturbation_sgd import OutputPerturbationSgd
from sweeper.trainers.privgene import PrivGene

ROWS, SEATS, LENGTH, STEPS = 150, 4, 80, 8
SECRET = secret_from_seed("packs")
STRONG = {"l2": 0.05, "penalise_bias": True, "scale": "unit-norm"}
MODELS: dict[str, tuple[Any, int]] = {  # and its classes
    "logistic": (Logistic(l2=0.01), 2),
    "softmax": (Softmax(l2=0.01), 5),
    "svm": (Svm(**STRONG), 2),
    "squared": (Squared(), 2),
    "mlp": (Mlp(hidden=(9, 7), l2=0.01), 5),
    "mlp-tanh": (Mlp(hidden=(6,), activation="tanh"), 3),
    "convnet": (ConvNet(layers=(5, "pool", 4), kernel=3, padded=True), 5),
    "convnet-mean": (ConvNet(layers=(3, "pool"), kernel=2, pool="average", activation="tanh", picture=(1, 3, 4)), 3),
}
SGD, FIXED, STEP = DpSgd(batch_size=40, steps=STEPS), FixedClip(clip_norm=0.5), FixedStep(learning_rate=0.5)
SEARCHING = Backtracking(initial=8.0, candidates=10, alpha=0.01)
RUNS: dict[str, tuple[Any, Any, Any]] = {
    "dp-sgd": (SGD, FIXED, STEP),
    "dp-sgd, tail": (dataclasses.replace(SGD, average="tail", radius=2.0, momentum=0.5), Decay(clip_norm=0.5), CoupledStep(c=0.5)),
    "dp-sgd, fixed size": (dataclasses.replace(SGD, sampling="without-replacement"), AdaptiveQuantileClip(clip_norm=0.5), STEP),
    "dp-sgd, layers": (SGD, PerLayerClip(clip_norm=0.5), SEARCHING),
    "dp-sgd, search": (SGD, FIXED, ExponentialSearch(initial=8.0, candidates=10)),
    "dp-adam": (DpAdam(batch_size=40, steps=STEPS), Normalise(), FixedStep(learning_rate=0.05)),
    "dp-nsgd": (DpNsgd(batch_size=40, steps=STEPS), Normalise(), STEP),
    "dp-blsgd": (DpBlsgd(batch_size=40, steps=STEPS), FIXED, SEARCHING),
    "dp-blsgd-ac": (DpBlsgdAc(batch_size=40, steps=STEPS), Decay(clip_norm=0.5, schedule="raise"), SEARCHING),
    "dp-blgd": (DpBlgd(steps=STEPS), AdaptiveQuantileClip(clip_norm=0.5), NoisyMinSearch(initial=8.0, candidates=5)),
    "dp-agd": (DpAgd(steps=STEPS), PerLayerClip(clip_norm=0.5), NoisyMinSearch(initial=8.0, candidates=5)),
    "privgene": (PrivGene(steps=STEPS, population=10, parents=2), NoClip(), NoStep()),
    "non-private": (NonPrivate(method="sgd", batch_size=40, steps=STEPS), NoClip(), STEP),  # L-BFGS makes much of rounding
}
CONVEX: dict[str, tuple[Any, Any, Any]] = {  # of logistic alone: they need bounds
    "private quantile": (SGD, PrivateQuantileClip(quantile=0.5, epsilon=3.0), STEP),
    "heavy tail": (
        SGD,
        HeavyTailClip(moment_order=2.0, moment=3.0, gamma=0.5),
        TheoryStep(distance=2.0, theorem="6.2"),
    ),
    "objective": (ObjectivePerturbation(), NoClip(), NoStep()),
    "output": (OutputPerturbationSgd(batch_size=30, steps=10), NoClip(), FixedStep(learning_rate=0.2)),
}
CASES = [(model, run) for model in MODELS for run in RUNS] + [("logistic", run) for run in CONVEX]
RUNS |= CONVEX


def given(model: str, pixels: bool = False, full: Any = None) -> dict[str, Any]:
    """What a problem or a pack is built from: some records are null, one is broken."""
    kind, classes = MODELS[model]
    made, description = blobs(ROWS, 12, classes)
    full = spoilt(without(made, *range(5, ROWS, 11)), 4, math.nan) if full is None else full
    bounded = dataclasses.replace(description, norm_bound=math.sqrt(13))
    return {"model": kind, "description": bounded, "table": full, "rows": np.arange(ROWS), "pixels": pixels}


def fit(problem: Any, run: str, trial: int, noise: float = 0.3) -> Any:
    trainer, clip, step = RUNS[run]
    return trainer.fit(problem, clip, step, noise, Streams(SECRET, trial))


def packed(pack: Pack, trials: dict[int, tuple[str, int]]) -> dict[int, Any]:
    """Seat -> (run, trial): what each trial gives."""
    found: dict[int, Any] = {}

    def work(seat: int, run: str, trial: int) -> None:
        problem = pack.seat(seat)
        with pack.meeting.at_work(seat):
            found[trial] = fit(problem, run, trial)
            problem.released(found[trial].params_P)

    pack.meeting.run({seat: partial(work, seat, run, trial) for seat, (run, trial) in trials.items()})
    return found


def of(model: str, *, seats: int = SEATS, length: int = LENGTH, **more: Any) -> Pack:
    return Pack(**given(model, **more), seats=seats, length=length)


def same(one: Any, other: Any) -> bool:
    return torch.equal(one.params_P, other.params_P) and one.trace == other.trace and one.sealed == other.sealed


@pytest.mark.parametrize(("model", "run"), CASES, ids=[f"{model}, {run}" for model, run in CASES])
def test_a_trial_in_a_pack_is_the_trial_alone_but_for_rounding(model: str, run: str) -> None:
    found = packed(of(model), {seat: (run, trial) for trial, seat in enumerate((2, 0, 3))})
    for trial in range(3):
        alone = fit(problem_of(**given(model)), run, trial)
        ours = found[trial]
        assert torch.linalg.norm(ours.params_P - alone.params_P) <= 1e-5 * torch.linalg.norm(alone.params_P)
        assert ours.params_P.dtype == alone.params_P.dtype
        assert {k: v for k, v in ours.sealed.items() if k != "by_step"} == pytest.approx(
            {k: v for k, v in alone.sealed.items() if k != "by_step"}, rel=1e-5
        )
        assert set(ours.trace) == set(alone.trace)
        for key, column in alone.trace.items():
            assert ours.trace[key] == pytest.approx(column, rel=1e-5), key
    if run != "privgene" and found[0].params_P.any():  # a search that takes no step stays at the start; children share genes
        assert torch.isclose(found[0].params_P, found[1].params_P, rtol=1e-6).float().mean() < 0.3


MIXED = {0: ("dp-sgd", 0), 1: ("dp-sgd, layers", 1), 2: ("dp-blsgd", 2), 3: ("dp-sgd, fixed size", 3)}


@pytest.mark.parametrize("model", MODELS)
def test_the_same_bits_in_any_company_and_on_any_seat(model: str) -> None:
    """Packs {a, b, c, d}, {a}, {c, a} with seats exchanged, one that served others before, and pixels or not."""
    once = packed(of(model), MIXED)
    used = of(model)
    for trials in ({0: MIXED[0]}, {0: MIXED[2], 3: MIXED[0]}, {2: MIXED[1], 1: MIXED[3]}, {3: MIXED[0], 2: MIXED[1], 0: MIXED[3]}):
        for pack in (of(model), used):
            for trial, fitted in packed(pack, trials).items():
                assert same(fitted, once[trial]), (trials, trial)


@pytest.mark.parametrize("model", ["softmax", "mlp", "convnet"])
def test_pixels_are_the_same_numbers(model: str) -> None:
    floats, bytes_ = (packed(of(model, pixels=pixels), {1: ("dp-sgd", 0)})[0] for pixels in (False, True))
    assert torch.linalg.norm(floats.params_P - bytes_.params_P) <= 1e-5 * torch.linalg.norm(floats.params_P)


def test_more_hands_change_no_bit() -> None:
    few, many = (packed(Pack(**given("softmax"), seats=SEATS, length=LENGTH, hands=h), MIXED) for h in (1, 4))
    assert all(same(few[trial], many[trial]) for trial in few)


@pytest.mark.parametrize("model", ["softmax", "mlp", "convnet"])
def test_what_lies_in_rows_that_nobody_drew_changes_no_bit(model: str) -> None:
    """Rounds are filled up with row 0, whose contents must weigh nothing: for one seat, and for the seats that are empty."""
    full, _ = blobs(ROWS, 12, MODELS[model][1])
    changed = table(full.features.copy(), full.labels)
    changed.features[0] *= -1e4
    sums = []
    for one in (full, changed):
        problem = of(model, full=one).seat(1)
        params_P = torch.linspace(-1, 1, sum(problem.layers))
        batch = problem.batch(np.arange(1, ROWS))
        sums += [batch.sum(params_P, FIXED.factors), batch.losses_along(params_P, params_P, [0.1], lambda here, there: there)]
    assert torch.equal(sums[0], sums[2])
    assert torch.equal(sums[1], sums[3])


@pytest.mark.parametrize("model", ["softmax", "mlp", "convnet"])
def test_what_is_left_out_is_counted_for_whoever_drew_it_and_nobody_else(model: str) -> None:
    """Row 0, which fills up every round, is broken; and one trial's parameters are."""
    full, _ = blobs(ROWS, 12, MODELS[model][1])
    pack = of(model, full=spoilt(full, 0, math.nan))
    usual = torch.linspace(-0.5, 0.5, sum(pack.alone.layers))
    params = {0: usual, 1: torch.full_like(usual, math.nan), 2: usual}
    rows = {0: np.arange(1, 30), 1: np.arange(1, 48), 2: np.arange(20)}
    seats, sums = [pack.seat(seat) for seat in range(3)], {}

    def work(seat: int) -> None:
        sums[seat] = seats[seat].batch(rows[seat]).sum(params[seat], FIXED.factors)

    pack.meeting.run({seat: partial(work, seat) for seat in range(3)})
    assert [problem.nonfinite for problem in seats] == [0, 47, 1]
    assert not sums[1].any()
    assert sums[0].isfinite().all()
    assert sums[0].any()


def test_nobody_waits_for_a_trial_that_is_done_training() -> None:
    """One is scored until the other has made all of its steps."""
    pack, other_done = of("softmax"), threading.Event()

    def scored() -> None:
        problem = pack.seat(0)
        problem.released(fit(problem, "dp-sgd", 0).params_P)
        assert other_done.wait(30)

    def longer() -> None:
        DpSgd(batch_size=40, steps=3 * STEPS).fit(pack.seat(1), FIXED, STEP, 0.3, Streams(SECRET, 1))
        other_done.set()

    pack.meeting.run({0: scored, 1: longer})


@pytest.mark.parametrize("model", ["softmax", "mlp", "convnet"])
def test_a_draw_longer_than_a_round_is_worked_off_and_nothing_is_dropped(model: str) -> None:
    """16 rows a round; beside it a trial whose batch is empty, and one of a single row."""
    full, _ = blobs(ROWS, 12, MODELS[model][1])
    pack = of(model, length=16, full=full)
    drawn = {0: np.random.default_rng(0).permutation(ROWS)[:147], 1: np.arange(0), 3: np.array([7])}
    params = {seat: torch.linspace(-0.5, 0.5, sum(pack.alone.layers)) * (1 + seat) for seat in drawn}
    found, seen = {}, []

    def work(seat: int) -> None:
        def factors(squares_BL: torch.Tensor) -> torch.Tensor:
            seen.append((seat, len(squares_BL)))
            return FIXED.factors(squares_BL)

        found[seat] = pack.seat(seat).batch(drawn[seat]).sum(params[seat], factors).numpy()

    pack.meeting.run({seat: partial(work, seat) for seat in drawn})
    assert not found[1].any()
    assert [size for seat, size in seen if seat == 0] == [16] * 9 + [3]
    assert [size for seat, size in seen if seat != 0] == [1]
    for seat in (0, 3):
        of_rows = gradients(
            model.replace("mlp", "mlp-relu"), params[seat].numpy(), full.features[drawn[seat]], full.labels[drawn[seat]]
        )
        expected = clipped(of_rows, 0.5).sum(axis=0)
        assert np.linalg.norm(found[seat] - expected) < 1e-5 * np.linalg.norm(expected)


def test_each_trial_draws_its_own_batches_and_no_two_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that the pack was asked for are, seat by seat, those of the trial's own stream."""
    asked: dict[int, list[list[int]]] = {}
    answer = Pack._answer

    def heard(pack: Pack, questions: Any) -> None:
        for seat, question in questions.items():
            asked.setdefault(seat, []).append(question.rows_B.tolist())
        answer(pack, questions)

    monkeypatch.setattr(Pack, "_answer", heard)
    packed(of("softmax"), {seat: ("dp-sgd", 10 + seat) for seat in range(4)})
    for seat in range(4):
        draws, sampler = Streams(SECRET, 10 + seat).generator(SAMPLING), PoissonSampler(rows=ROWS, batch_size=40)
        assert asked[seat] == [sampler.draw(draws).tolist() for _ in range(STEPS)]
    batches = {tuple(sorted(batch)) for of_seat in asked.values() for batch in of_seat}
    assert len(batches) == 4 * STEPS


def test_one_call_serves_the_whole_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, answer = [], Pack._answer
    monkeypatch.setattr(Pack, "_answer", lambda pack, questions: (sizes.append(len(questions)), answer(pack, questions))[1])
    packed(of("softmax"), {seat: ("dp-sgd", seat) for seat in range(4)})
    assert sizes == [4] * STEPS


def test_rows_outside_a_part_are_never_asked() -> None:
    inside = np.random.default_rng(0).random(ROWS) < 0.5
    part = fit(PartProblem(of("mlp").seat(0), inside), "dp-sgd", 0)
    alone = fit(PartProblem(problem_of(**given("mlp")), inside), "dp-sgd", 0)
    assert torch.linalg.norm(part.params_P - alone.params_P) <= 1e-5 * torch.linalg.norm(alone.params_P)
    assert part.sealed["nonfinite"] == alone.sealed["nonfinite"]


# ---- one trial's end or fault is its own ----


@pytest.mark.parametrize("model", ["softmax", "mlp"])
def test_others_go_on_when_a_trial_ends_early_diverges_or_raises(model: str) -> None:
    pack, whole = of(model), packed(of(model), MIXED)
    short, wild = DpSgd(batch_size=40, steps=2), FixedStep(learning_rate=1e30)
    caught: list[Exception] = []
    found: dict[str, Any] = {}

    def factors(squares_BL: torch.Tensor) -> torch.Tensor:
        raise ValueError("a policy of its own")

    class Broken(FixedClip):
        @property
        def factors(self) -> Any:  # type: ignore[override]
            return factors

    def raising() -> None:
        try:
            SGD.fit(pack.seat(3), Broken(clip_norm=1.0), STEP, 1.0, Streams(SECRET, 9))
        except ValueError as error:
            caught.append(error)

    def other(name: str, seat: int, trainer: Any, step: Any) -> None:
        found[name] = trainer.fit(pack.seat(seat), FIXED, step, 0.3, Streams(SECRET, seat))

    def usual() -> None:
        found["usual"] = fit(pack.seat(0), "dp-sgd", 0)

    pack.meeting.run({0: usual, 1: partial(other, "short", 1, short, STEP), 2: partial(other, "wild", 2, SGD, wild), 3: raising})
    assert same(found["usual"], whole[0])
    assert found["short"].sealed["steps"] == 2
    assert not found["wild"].params_P.abs().max() < 1e20
    assert [str(error) for error in caught] == ["a policy of its own"]
    assert same(packed(pack, {0: MIXED[0]})[0], whole[0])  # and the pack serves on


def test_a_wrong_question_is_its_askers_fault() -> None:
    problem = of("softmax").seat(0)
    with pytest.raises(IndexError, match=r"\[0, 150\)"):
        problem.batch(np.array([-1])).sum(problem.start(Streams(SECRET, 0)), FIXED.factors)
    with pytest.raises(ValueError, match="params_P must be"):
        problem.batch(np.array([1])).sum(torch.zeros(3), FIXED.factors)
    assert problem.batch(np.array([1])).sum(problem.start(Streams(SECRET, 0)), FIXED.factors).any()


# ---- rounding ----


def moved(model: Any, features: np.ndarray, labels: np.ndarray, length: int) -> float:
    """By how much the sum over the whole table moves when its first record becomes null, in clip norms."""
    full, sums = table(features, labels), []
    description = Description(rows=len(labels), features=features.shape[1], classes=2)
    for rows in (full, without(full, 0)):
        pack = Pack(model=model, description=description, table=rows, rows=np.arange(len(labels)), seats=2, length=length)
        problem = pack.seat(1)
        params_P = problem.start(Streams(secret_from_seed("rounding"), 0))
        sums.append(problem.batch(np.arange(len(labels))).sum(params_P, FixedClip(clip_norm=NORM).factors))
    return float((sums[0] - sums[1]).norm()) / NORM


@pytest.mark.parametrize("fraction", [0.26, 0.3, 0.4, 0.49])
@pytest.mark.parametrize("length", [16, 256, 4096])
def test_a_record_moves_a_sum_by_at_most_the_clip_norm(fraction: float, length: int) -> None:
    found = [moved(Logistic(), *drifting(BLOCK // 2 + extra, BLOCK, fraction), length) for extra in range(4)]
    assert 0.99 < max(found) <= 1.0


def test_a_network_too_and_sums_of_whole_rounds_in_float32_would_not_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [drifting(4096 + climb, 2000, 0.26) for climb in (9, 10, 11, 12)]
    assert max(moved(Mlp(hidden=(1,)), *one, 8192) for one in tables[:1]) <= 1.0
    assert max(moved(Logistic(), *one, 8192) for one in tables) <= 1.0
    monkeypatch.setattr(packed_layers, "BLOCK", 8192)
    assert max(moved(Logistic(), *one, 8192) for one in tables) > 1.0


@pytest.mark.parametrize("precision", ["medium", "high"])
def test_products_are_in_float32_whatever_was_set_before_or_meanwhile(precision: str) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        problem = of("softmax").seat(0)
        assert torch.get_float32_matmul_precision() == "highest"
        torch.set_float32_matmul_precision(precision)
        problem.batch(np.arange(9)).sum(problem.start(Streams(SECRET, 0)), FIXED.factors)
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)


# ---- what it refuses ----


def test_a_module_of_the_users_own_has_no_packed_form() -> None:
    with pytest.raises(FieldError, match=r"model\.kind = 'module' has no form for packs"):
        Pack(**{**given("softmax"), "model": ModuleModel(module="user_nets:network")}, seats=2, length=16)


def test_seats_and_lengths() -> None:
    for length in (0, 15, 40):
        with pytest.raises(FieldError, match="must be a multiple of 16"):
            of("softmax", length=length)
    for seat in (-1, 4):
        with pytest.raises(FieldError, match="must be below 4"):
            of("softmax").seat(seat)
