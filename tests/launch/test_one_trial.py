"""A trial without Ray: what it releases, what it keeps sealed, and that the same streams give the same bits."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from bad_trainers import POISON, Failing
from oracles import FALSE_ALARM, REJECTED, frequency_p_value
from tiny_sweeps import spec_of

from sweeper.backends import choice
from sweeper.data.split import secret_part
from sweeper.launch.candidate import trial_spec
from sweeper.launch.open_data import OpenData
from sweeper.launch.worker import Worker, guarded
from sweeper.privacy.discrete_laplace import discrete_laplace
from sweeper.privacy.release import Part
from sweeper.seeds import SCORE, Streams, secret_from_seed
from sweeper.spec.protocols import Fitted
from sweeper.spec.sweep import ScoreSpec, TrialSpec

SECRET = secret_from_seed("one trial")
CANDIDATE = {"clip.clip_norm": 0.25, "step.c": 2.0}


def trial(index: int = 0, candidate: dict[str, float] = CANDIDATE, **changes: Any) -> TrialSpec:
    return dataclasses.replace(trial_spec(spec_of(), 0.9, index, candidate), **changes)


def correct_rows(params: bytes, adult: OpenData, rows: np.ndarray) -> int:
    """By the definition, in float64: how many of these rows a logistic model with these parameters gets right."""
    weights_D = np.frombuffer(params, dtype="<f4").astype(np.float64)
    table = adult.table
    logits = table.features[rows].astype(np.float64) @ weights_D[:-1] + weights_D[-1]
    return int((((logits > 0) == (table.labels[rows] == 1)) & table.valid[rows]).sum())


@pytest.mark.parametrize("split", ["holdout", "training"])
def test_the_score_is_a_noisy_count_over_the_public_number_of_rows(adult: OpenData, split: str) -> None:
    result = Worker(adult).run(trial(score=ScoreSpec(split=split, epsilon=0.1)), Streams(SECRET, 0))
    rows = adult.holdout_rows if split == "holdout" else adult.train_rows
    noisy = result.released["score"] * len(rows)
    assert noisy == pytest.approx(round(noisy), abs=1e-6)
    assert abs(result.sealed["correct"] - correct_rows(result.released["params"], adult, rows)) <= 2  # float32 at the boundary
    assert abs(noisy - result.sealed["correct"]) <= math.log(1 / FALSE_ALARM) / 0.1  # P[|X| >= t] < 2 exp(-0.1 t)


def test_the_noise_on_the_score_is_discrete_laplace_of_the_stated_epsilon(adult: OpenData) -> None:
    """A fixed model scored 3,000 times, each time with the streams of another trial."""

    class Fixed:
        steps = 20

        def fit(self, problem: Any, *_: Any, **__: Any) -> Any:
            return Fitted(torch.zeros(problem.outputs * (adult.table.features.shape[1] + 1)), {}, {}, {})

    some = OpenData(adult.spec, adult.table, adult.train_rows[:10], adult.holdout_rows[:50])
    worker, epsilon = Worker(some), 0.4
    fixed = trial(trainer=Fixed(), score=ScoreSpec(epsilon=epsilon))
    draws = []
    for index in range(3000):
        result = worker.run(fixed, Streams(SECRET, index))
        draws.append(round(result.released["score"] * 50) - result.sealed["correct"])
    counts, values = np.array([draws.count(k) for k in range(-60, 61)]), np.arange(-60, 61)
    assert counts.sum() == 3000
    assert frequency_p_value(counts, law(epsilon, values)) > FALSE_ALARM
    for wrong in (2 / 3, 3 / 2):
        assert frequency_p_value(counts, law(epsilon * wrong, values)) < REJECTED


def law(epsilon: float, values: np.ndarray) -> np.ndarray:
    """P[X = x] proportional to exp(-epsilon |x|)."""
    return np.exp(-epsilon * np.abs(values)) * (1 - math.exp(-epsilon)) / (1 + math.exp(-epsilon))


def test_what_is_released_and_what_is_sealed(adult: OpenData) -> None:
    result = Worker(adult).run(trial(), Streams(SECRET, 0))
    assert set(result.released) == {"score", "settings", "params", "trace"}
    assert result.released["settings"] == {"learning_rate": 8.0, "clip_norm": 0.25, "c": 2.0, "schedule": "constant", "warmup": 0.0}
    assert {"correct", "diverged", "mean_batch_size", "nonfinite", "seconds_training"} <= set(result.sealed)


def test_the_same_secret_and_index_give_the_same_bits(adult: OpenData) -> None:
    first, other = Worker(adult), Worker(adult)
    once = first.run(trial(3), Streams(SECRET, 3)).released
    first.run(trial(4), Streams(SECRET, 4))  # a worker keeps nothing of one trial for the next
    again, elsewhere = first.run(trial(3), Streams(SECRET, 3)).released, other.run(trial(3), Streams(SECRET, 3)).released
    assert once == again == elsewhere


@pytest.mark.parametrize("streams", [Streams(SECRET, 1), Streams(secret_from_seed("another"), 0)])
def test_another_index_or_secret_gives_other_noise(adult: OpenData, streams: Streams) -> None:
    """Of 20 steps with noise, each of the parameters differs: two independent normal sums are never equal in 100 places."""
    worker = Worker(adult)
    ours = np.frombuffer(worker.run(trial(), Streams(SECRET, 0)).released["params"], dtype="<f4")
    theirs = np.frombuffer(worker.run(trial(), streams).released["params"], dtype="<f4")
    assert (ours != theirs).mean() > 0.99


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_a_failing_trial_is_contained(adult: OpenData, how: str, capfd: pytest.CaptureFixture[str]) -> None:
    failing = trial(trainer=Failing(batch_size=64, steps=20, how=how))
    outcome = guarded(Worker(adult), failing, Streams(SECRET, 0))
    assert outcome.result is None
    assert "Traceback" in outcome.error
    assert f"{how.removesuffix('e')}" in outcome.error
    assert POISON in outcome.error
    assert outcome.output == f"printed {POISON}\ncomplained {POISON}\n"
    assert capfd.readouterr() == ("", "")


def test_a_trial_that_diverges_has_no_score(adult: OpenData) -> None:
    outcome = guarded(Worker(adult), trial(trainer=Failing(batch_size=64, steps=20, how="diverge")), Streams(SECRET, 0))
    assert outcome.result is not None
    assert outcome.result.released["score"] is None
    assert outcome.result.sealed["diverged"] is True
    assert outcome.error == ""
    assert not np.isfinite(np.frombuffer(outcome.result.released["params"], dtype="<f4")).all()


def test_a_huge_step_diverges_through_the_real_trainer(adult: OpenData) -> None:
    huge = trial(candidate={"clip.clip_norm": 1e-3, "step.c": 1e30}, model=dataclasses.replace(spec_of().model, l2=1.0))
    outcome = guarded(Worker(adult), huge, Streams(SECRET, 0))
    assert outcome.result is not None
    assert outcome.result.released["score"] is None


def test_a_very_long_print_is_cut_from_its_beginning(adult: OpenData) -> None:
    class Chatty:
        def run(self, *_: Any) -> Any:
            print("x" * 100_000 + "end")

    outcome = guarded(Chatty(), trial(), Streams(SECRET, 0))  # type: ignore[arg-type]
    assert len(outcome.output) == 20_000
    assert outcome.output.endswith("end\n")


TUNE, REST = Part(fraction=0.1, rest=False), Part(fraction=0.1, rest=True)


class Touched(choice.LinearProblem):
    """A problem that remembers which of its rows were asked for."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.touched = np.zeros(self.rows, dtype=bool)

    def batch(self, rows_B: np.ndarray) -> Any:
        self.touched[rows_B] = True
        return super().batch(rows_B)


def touched(adult: OpenData, monkeypatch: pytest.MonkeyPatch, index: int, part: Part | None, streams: Streams) -> np.ndarray:
    monkeypatch.setattr(choice, "LinearProblem", Touched)
    worker = Worker(adult)
    worker.run(trial(index, part=part, trainer=dataclasses.replace(spec_of().trainer, batch_size=5_000)), streams)
    (problem,) = worker._problems.values()
    assert isinstance(problem, Touched)
    return problem.touched


def test_tuning_and_final_runs_never_touch_a_row_of_the_other(adult: OpenData, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 steps of 5,000 rows of 26,131: a row that may be drawn is drawn with probability 1 - 0.81^20 = 0.985."""
    part = secret_part(len(adult.train_rows), 0.1, Streams(SECRET, 0))
    tuned = [touched(adult, monkeypatch, index, TUNE, Streams(SECRET, index)) for index in (0, 1)]
    final = touched(adult, monkeypatch, 2, REST, Streams(SECRET, 2))
    for seen in tuned:
        assert not (seen & final).any()
        assert not (seen & ~part).any()
        assert seen.sum() > 0.95 * part.sum()
    assert not (final & part).any()
    assert final.sum() > 0.95 * (~part).sum()
    assert touched(adult, monkeypatch, 3, None, Streams(SECRET, 3))[part].sum() > 0.95 * part.sum()  # final: all
    other = secret_from_seed("another")
    assert (touched(adult, monkeypatch, 0, TUNE, Streams(other, 0)) & final).any()  # another sweep tunes on another part


@pytest.mark.parametrize("part", [TUNE, REST], ids=["tune", "rest"])
def test_a_score_on_training_rows_sees_the_part_alone_over_its_public_size(adult: OpenData, part: Part) -> None:
    streams = Streams(SECRET, 0)
    result = Worker(adult).run(trial(part=part, score=ScoreSpec(split="training", epsilon=50.0)), streams)
    inside = secret_part(len(adult.train_rows), 0.1, streams) ^ part.rest
    correct = correct_rows(result.released["params"], adult, adult.train_rows[inside])
    assert abs(result.sealed["correct"] - correct) <= 2  # float32 at the boundary
    noise = discrete_laplace(streams.bits(SCORE), 50.0)
    assert result.released["score"] * part.share * len(adult.train_rows) == pytest.approx(result.sealed["correct"] + noise)


def test_a_score_on_held_out_rows_is_that_of_all_of_them(adult: OpenData) -> None:
    result = Worker(adult).run(trial(part=TUNE), Streams(SECRET, 0))
    assert abs(result.sealed["correct"] - correct_rows(result.released["params"], adult, adult.holdout_rows)) <= 2
    noisy = result.released["score"] * len(adult.holdout_rows)
    assert noisy == pytest.approx(round(noisy), abs=1e-6)
