"""How many trials share a device: rows of a round by the sampler's law, seats by what was measured and what fits."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from tiny_sweeps import spec_of

from sweeper.checks import RequestError
from sweeper.launch import pack_size
from sweeper.launch.candidate import trial_spec
from sweeper.launch.pack_size import MOST_ROWS, SIZES, bytes_for, length_for, measured, packable, seats_for
from sweeper.models.convnet import ConvNet
from sweeper.models.linear import Logistic, Softmax
from sweeper.models.mlp import Mlp
from sweeper.models.module import ModuleModel
from sweeper.spec.protocols import Description
from sweeper.spec.sweep import TrialSpec
from sweeper.trainers.blsgd import DpBlgd
from sweeper.trainers.dp_sgd import DpSgd
from sweeper.trainers.majority import Majority
from sweeper.trainers.objective_perturbation import ObjectivePerturbation

PICTURES = Description(rows=60_000, features=784, classes=10)
GIB = 2**30


def beyond(n: int, q: float, k: int) -> float:
    """P[Binomial(n, q) > k], term by term."""
    log_q, log_p = math.log(q), math.log1p(-q)
    terms = (
        math.exp(math.lgamma(n + 1) - math.lgamma(j + 1) - math.lgamma(n - j + 1) + j * log_q + (n - j) * log_p)
        for j in range(k + 1, min(n, k + 3000) + 1)
    )
    return math.fsum(terms)


@pytest.mark.parametrize(("batch_size", "rows"), [(1, 60_000), (64, 26_131), (500, 60_000), (40, 120), (1500, 60_000)])
def test_a_batch_is_longer_than_a_round_once_in_a_trillion(batch_size: int, rows: int) -> None:
    length = length_for(DpSgd(batch_size=batch_size, steps=10), Softmax(), PICTURES, rows)
    assert length % 16 == 0
    assert beyond(rows, batch_size / rows, length) < 1e-12
    assert beyond(rows, batch_size / rows, length - 17) > 1e-12  # no longer than it must be


def test_long_batches_and_large_networks_take_several_rounds() -> None:
    assert length_for(DpBlgd(steps=10), Logistic(), PICTURES, 60_000) == MOST_ROWS
    assert length_for(DpBlgd(steps=10), Logistic(), PICTURES, 100) == 112  # the whole table is one batch
    assert length_for(DpSgd(batch_size=5000, steps=10), Softmax(), PICTURES, 60_000) == MOST_ROWS
    colours = ConvNet(layers=(32, 64, "pool", 128, 128, "pool", 256, 256, "pool", 1024, 512), kernel=3, padded=True)
    large = Description(rows=50_000, features=3072, classes=10)
    assert length_for(DpSgd(batch_size=500, steps=10), colours, large, 50_000) == 16
    assert length_for(DpSgd(batch_size=500, steps=10), Mlp(), PICTURES, 60_000) == length_for(
        DpSgd(batch_size=500, steps=10), Softmax(), PICTURES, 60_000
    )


def test_length_reads_nothing_but_public_numbers() -> None:
    """It is the same for every candidate of one trainer, whatever the rest of its setting."""
    for momentum in (0.0, 0.9):
        assert length_for(DpSgd(batch_size=500, steps=10, momentum=momentum), Softmax(), PICTURES, 60_000) == 672


def test_what_a_pack_is_for() -> None:
    trial = trial_spec(spec_of(), 0.9, 0, {"clip.clip_norm": 0.1, "step.c": 1.0})
    assert packable(trial)
    assert packable(dataclasses.replace(trial, model=Mlp()))
    assert not packable(dataclasses.replace(trial, model=ModuleModel(module="user_nets:network")))
    for trainer in (Majority(), ObjectivePerturbation()):
        assert not packable(dataclasses.replace(trial, trainer=trainer))


# ---- seats, from measurements made up here ----


def timed(fixed: float, each: float) -> dict[int, float]:
    """Seconds of a joint step: something for the call, something for each trial."""
    return {seats: fixed + each * seats for seats in SIZES}


def seats(seconds: dict[int, float], *, memory: float = 80 * GIB, each: float = GIB / 100, trials: int = 1000) -> int:
    return seats_for(seconds, shared=GIB, each=round(each), memory=round(memory), trials=trials)


@pytest.mark.parametrize(
    ("fixed", "each", "wanted"),
    [
        (0.0, 1e-3, 1),  # a device that is busy with one trial gains nothing
        (1e-3, 0.0, 128),  # one that is idle takes all that there are
        (10e-3, 1e-3, 128),  # 64: 1.16 ms a trial, 128: 1.08 ms, which is 7% less
        (5e-3, 1e-3, 64),  # 64: 1.08 ms, 128: 1.04 ms, which is not worth it
        (1e-3, 1e-3, 32),  # 32: 1.03 ms, 128: 1.008 ms, 2% less; 16: 1.06 ms, of which 128 takes 5% off
    ],
)
def test_the_smallest_pack_to_which_a_larger_one_adds_little(fixed: float, each: float, wanted: int) -> None:
    assert seats(timed(fixed, each)) == wanted


def test_memory_and_the_public_number_of_trials_bound_it() -> None:
    idle = timed(1e-3, 0.0)
    assert seats(idle, memory=80 * GIB, each=GIB) == 32  # 64 of 63 GiB do not fit into 80% of 80, less the rows
    assert seats(idle, memory=83 * GIB, each=GIB) == 64
    assert seats(idle, trials=1) == 1
    assert seats(idle, trials=12) == 16  # seats beyond the trials stay empty
    assert seats({1: 1e-3, 2: 1e-3}, trials=1000) == 2  # what was not measured is not chosen
    with pytest.raises(RequestError, match=r"needs about 41 GiB on the device, and 40 GiB are there"):
        seats(idle, memory=40 * GIB, each=40 * GIB)


def test_bytes_count_rows_parameters_and_a_round() -> None:
    shared, each = bytes_for(Softmax(), PICTURES, 60_000, length=672, pixels=True)
    assert shared == 60_000 * (785 + 16)
    assert 2 * 672 * 785 * 4 < each < 3 * 672 * 785 * 4
    assert bytes_for(Softmax(), PICTURES, 60_000, length=672, pixels=False)[0] == 60_000 * (4 * 785 + 16)
    larger = bytes_for(Mlp(hidden=(2048,)), PICTURES, 60_000, length=672, pixels=True)[1]
    assert larger > 28 * 2048 * 794  # every parameter as itself, where a line goes, in sums


def adult_trial(**changes: Any) -> TrialSpec:
    return dataclasses.replace(trial_spec(spec_of(), 0.9, 0, {"clip.clip_norm": 0.1, "step.c": 1.0}), **changes)


def test_it_is_measured_on_rows_made_up_for_it() -> None:
    trial = adult_trial()
    found = measured(trial, trial.data.source.description, length=112, pixels=False, device="cpu", sizes=(1, 2, 4), steps=3)
    assert set(found) <= {1, 2, 4}
    assert 1 in found
    assert all(0 < seconds < 10 for seconds in found.values())
    assert seats_for(found, shared=0, each=1, memory=GIB, trials=40) in found


def test_it_ends_where_memory_does(monkeypatch: pytest.MonkeyPatch) -> None:
    class Small(pack_size.Pack):
        def __init__(self, *, seats: int, **given: Any) -> None:
            if seats > 2:
                raise torch.OutOfMemoryError("no room")
            super().__init__(seats=seats, **given)

    monkeypatch.setattr(pack_size, "Pack", Small)
    monkeypatch.setattr(pack_size, "_seconds", lambda pack, trial, steps: steps * 1e-3)
    trial = adult_trial()
    found = measured(trial, trial.data.source.description, length=112, pixels=False, device="cpu")
    assert found == pytest.approx({1: 1e-3, 2: 1e-3})


def test_it_ends_where_more_trials_gain_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_size, "_seconds", lambda pack, trial, steps: steps * 1e-3 * max(4, pack.seats))
    trial = adult_trial()
    found = measured(trial, trial.data.source.description, length=112, pixels=False, device="cpu")
    assert found == pytest.approx({1: 4e-3, 2: 4e-3, 4: 4e-3, 8: 8e-3})


def test_auto_is_one_on_a_cpu_and_what_was_measured_and_fits_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = adult_trial()
    given = {"pixels": False, "share": 0.5, "trials": 40}
    description = trial.data.source.description
    assert pack_size.chosen(trial, description, 26_131, device="cpu", **given) == (1, 128)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (1, 2 * GIB))
    monkeypatch.setattr(pack_size, "measured", lambda *_, **__: timed(1e-3, 0.0))
    assert pack_size.chosen(trial, description, 26_131, device="cuda", **given) == (64, 128)
    monkeypatch.setattr(pack_size, "bytes_for", lambda *_, **__: (GIB // 2, GIB // 32))
    assert pack_size.chosen(trial, description, 26_131, device="cuda", **given) == (8, 128)  # 0.8 GiB less the rows: 9 of them
    alone = dataclasses.replace(trial, trainer=ObjectivePerturbation())
    assert pack_size.chosen(alone, description, 26_131, device="cuda", **given)[0] == 1
