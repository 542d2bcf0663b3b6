"""The ways that `plan --suggest` weighs: each meets the bill, their order is that of the gradient's noise, and what is recommended
can be pasted."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sweeper.catalog import load_spec, sweep_from_dict
from sweeper.checks import FieldError, RequestError
from sweeper.planning import plan
from sweeper.planning.suggest import AS_WRITTEN, Option, Suggestion, suggest
from sweeper.privacy import accountant
from sweeper.privacy.events import (
    Composed,
    DiscreteLaplace,
    Disjoint,
    Event,
    ExponentialMechanism,
    Gaussian,
    PoissonSubsampled,
    PrivateQuantile,
    Repeated,
    SelectBest,
)
from sweeper.privacy.laws import law_from_dict, run_count_law
from sweeper.report.suggest_text import suggest_text, yaml_text
from tests.tiny_sweeps import tiny

ROOT = Path(__file__).parents[2]
DELTA = 1e-5
STEPS = 100
CLIP = {"policy": "fixed", "range": [0.05, 2.0], "scale": "log"}
COUPLED = {"policy": "coupled", "range": [0.3, 10.0], "scale": "log"}
WAYS = [
    AS_WRITTEN,
    "clip and step searched",
    "clip and coupled step searched",
    "normalise, step searched",
    "normalise, line search",
    "clip searched, line search",
    "private quantile, step searched",
    "adaptive quantile, step searched",
    "theory on a private quantile",
    "middle setting",
]


def sweep(**sections: Any) -> dict[str, Any]:
    return tiny(**{"trainer": {"kind": "dp-sgd", "batch_size": 256, "steps": STEPS}} | sections)


@cache
def plain() -> Suggestion:
    """A sweep of clip norm and coupled step size at epsilon 2, mean 10 geometric."""
    return suggest(sweep_from_dict(sweep()))


def option(found: Suggestion, name: str) -> Option:
    (one,) = (o for o in found.options if o.name == name)
    return one


def price(step: Event, before: Event | None = None, law: dict[str, Any] | None = None, rows: int = 26_129) -> float:
    """The bill of a sweep of 100 steps, written out."""
    training: Event = Repeated(PoissonSubsampled(256 / rows, step), STEPS)
    if before is not None:
        training = Composed((before, training))
    trial = Disjoint((training, DiscreteLaplace(0.1)))
    return accountant.epsilon(trial if law is None else SelectBest(trial, law_from_dict(law)), DELTA)


def test_every_way_is_there_once():
    found = plain()
    assert sorted(o.name for o in found.options) == sorted(WAYS)
    assert found.skipped == ()
    assert [o.name for o in suggest(sweep_from_dict(sweep())).options] == [o.name for o in found.options]


def test_every_way_spends_the_bill_and_no_more():
    for o in plain().options:
        assert 0.997 * 2.0 <= o.epsilon <= 2.0 + 1e-9, o.name
        assert o.epsilon_one_trial <= o.epsilon
        assert (o.epsilon_one_trial == o.epsilon) == (not o.searched)


def test_the_bills_are_those_of_events_written_out():
    rows = plan(sweep_from_dict(sweep())).train_rows
    z = {o.name: o.noise_multiplier for o in plain().options}
    law = {o.name: o.law for o in plain().options}

    def search(noise: float) -> Event:
        return Composed((Gaussian(noise / math.sqrt(0.8)), ExponentialMechanism(math.sqrt(0.8) / noise)))

    written = {
        AS_WRITTEN: (Gaussian(z[AS_WRITTEN]), None),
        "clip and step searched": (Gaussian(z["clip and step searched"]), None),
        "normalise, line search": (search(z["normalise, line search"]), None),
        "clip searched, line search": (search(z["clip searched, line search"]), None),
        "private quantile, step searched": (Gaussian(z["private quantile, step searched"]), PrivateQuantile(0.3)),
        "theory on a private quantile": (Gaussian(z["theory on a private quantile"]), PrivateQuantile(0.3)),
        "middle setting": (Gaussian(z["middle setting"]), None),
    }
    for name, (step, before) in written.items():
        assert option(plain(), name).epsilon == pytest.approx(price(step, before, law[name], rows), rel=1e-9), name
        wrong = price(Gaussian(1.5 * z[name]), None, law[name], rows)
        assert option(plain(), name).epsilon > 1.2 * wrong


def test_what_is_left_for_the_gradient():
    for o in plain().options:
        z = o.noise_multiplier
        if o.name.endswith("line search"):
            assert o.gradient_noise == pytest.approx(z / math.sqrt(0.8))
        elif o.name.startswith("adaptive"):
            assert o.gradient_noise == pytest.approx(z / math.sqrt(0.99))
        else:
            assert o.gradient_noise == z


def test_dimensions_and_chances_are_those_of_the_rule():
    """A third of a range, three quarters of a clip norm beside a coupled step; a guess is good with the same chance."""
    expected = {
        AS_WRITTEN: (1 / 4, 1),
        "clip and step searched": (1 / 9, 1),
        "clip and coupled step searched": (1 / 4, 1),
        "normalise, step searched": (1 / 3, 1),
        "normalise, line search": (1, 1),
        "clip searched, line search": (1 / 3, 1),
        "private quantile, step searched": (1 / 3, 1),
        "adaptive quantile, step searched": (1 / 3, 1),
        "theory on a private quantile": (1, 1 / 3),
        "middle setting": (1, 1 / 4),
    }
    for o in plain().options:
        share, guess = expected[o.name]
        assert o.dimensions == pytest.approx(-math.log(share) / math.log(3))
        assert o.chance == pytest.approx(guess * (1.0 if o.law is None else law_from_dict(o.law).chance(share)))
        assert o.reaches == (o.name not in ("theory on a private quantile", "middle setting", AS_WRITTEN) or o.chance >= 0.8)
        assert o.expected_trials == (1.0 if o.law is None else law_from_dict(o.law).mean_trials())


def test_the_law_is_the_cheapest_with_the_chance():
    o = option(plain(), "clip and coupled step searched")
    rows = plan(sweep_from_dict(sweep())).train_rows
    step = Gaussian(o.noise_multiplier)
    rivals = [
        run_count_law("tnb", eta=eta, mean=mean, max_trials=5 * mean) for eta in (0, 1, 2, 4) for mean in (7, 9, 12, 16, 24, 40)
    ]
    able = [rival for rival in rivals if rival.chance(1 / 4) >= 0.8]
    assert len(able) > 6
    bills = [price(step, None, rival.to_dict(), rows) for rival in able]
    assert o.epsilon <= min(bills) * (1 + 3e-3)
    assert max(bills) > 1.1 * o.epsilon


def test_the_order_is_that_of_the_gradients_noise_among_those_that_reach_the_chance():
    found = plain()
    assert [o.reaches for o in found.options] == sorted((o.reaches for o in found.options), reverse=True)
    able = [float(f"{o.gradient_noise:.3g}") for o in found.options if o.reaches]
    assert able == sorted(able)
    assert found.recommended is found.options[0]
    assert "least noise on the gradient of the" in found.reason(found.options[0])


def test_a_chance_that_is_asked_for_moves_the_laws():
    low, high = (suggest(sweep_from_dict(sweep()), chance=chance) for chance in (0.5, 0.95))
    a, b = (option(found, "clip and coupled step searched") for found in (low, high))
    assert a.chance >= 0.5
    assert b.chance >= 0.95
    assert a.expected_trials < b.expected_trials
    assert a.noise_multiplier < b.noise_multiplier
    assert not option(high, AS_WRITTEN).reaches
    assert option(low, AS_WRITTEN).reaches


def test_ranges_are_those_of_the_sweep():
    """The middle of 0.05 .. 2 on the log scale is 0.316: c 0.3 .. 10 is a step size of 0.949 .. 31.6 there."""
    both = option(plain(), "clip and step searched").paste["space"]
    assert both["clip"] == CLIP
    assert both["step"] == {"policy": "fixed", "range": [0.949, 31.6], "scale": "log"}
    assert option(plain(), "normalise, step searched").paste["space"]["step"]["range"] == [0.3, 10.0]
    written = {
        "clip": {"policy": "fixed", "value": 0.5},
        "step": {"policy": "fixed", "values": [1.0, 2.0, 4.0], "schedule": "cosine"},
    }
    found = suggest(sweep_from_dict(sweep(space=written)))
    assert option(found, "clip and step searched").paste["space"] == {
        "clip": {"policy": "fixed", "range": [0.0833, 3.0], "scale": "log"},
        "step": {"policy": "fixed", "values": [1.0, 2.0, 4.0], "schedule": "cosine"},
    }
    coupled = option(found, "clip and coupled step searched").paste["space"]["step"]
    assert coupled == {"policy": "coupled", "values": [0.5, 1.0, 2.0], "schedule": "cosine"}
    assert option(found, "middle setting").paste["space"]["clip"] == {"policy": "fixed", "value": 0.5}


SWEEPS: dict[str, dict[str, Any]] = {
    "epsilon": {},
    "noise": {"privacy": {"noise_multiplier": 1.3, "delta": DELTA}},
    "grid": {"protocol": {"kind": "release-all", "trials": 9}, "search": {"kind": "grid", "points": 3}},
    "subsample-tune": {"protocol": {"kind": "subsample-tune", "law": "tnb", "eta": 2, "mean_trials": 12, "tune_fraction": 0.2}},
    "without-replacement": {"trainer": {"kind": "dp-sgd", "batch_size": 256, "steps": STEPS, "sampling": "without-replacement"}},
}


@pytest.mark.parametrize("name", SWEEPS)
def test_every_way_pasted_into_the_file_plans_to_the_bill_shown(name, tmp_path):
    data = sweep(**SWEEPS[name])
    found = suggest(sweep_from_dict(data))
    assert found.drops_search == ("search" in data)
    for place, o in enumerate(found.options):
        kept = {key: value for key, value in data.items() if key not in o.paste and (key != "search" or o.name == AS_WRITTEN)}
        file = tmp_path / f"{place}.yaml"
        file.write_text(_file(o, kept))
        again = plan(load_spec(file))
        assert again.guarantee.epsilon == o.epsilon, o.name
        assert again.noise_multiplier == o.noise_multiplier
        assert again.epsilon_one_trial == o.epsilon_one_trial


def _file(o: Option, kept: dict[str, Any]) -> str:
    return "\n".join([*(f"{key}: {json.dumps(value)}" for key, value in kept.items()), yaml_text(o.paste)])


def test_a_given_noise_is_taken_as_its_bill():
    data = sweep(**SWEEPS["noise"])
    found = suggest(sweep_from_dict(data))
    assert found.epsilon == plan(sweep_from_dict(data)).guarantee.epsilon
    assert option(found, AS_WRITTEN).noise_multiplier == 1.3
    best = found.recommended
    assert best.paste["privacy"] == {"delta": DELTA, "unit": "record", "epsilon": found.epsilon}


def test_a_protocol_that_draws_its_runs_is_kept():
    found = suggest(sweep_from_dict(sweep(**SWEEPS["subsample-tune"])))
    protocol = option(found, "normalise, step searched").paste["protocol"]
    assert (protocol["kind"], protocol["tune_fraction"]) == ("subsample-tune", 0.2)
    grid = suggest(sweep_from_dict(sweep(**SWEEPS["grid"])))
    assert option(grid, "normalise, step searched").paste["protocol"]["kind"] == "select-best"
    assert option(grid, AS_WRITTEN).chance is None
    assert not option(grid, AS_WRITTEN).reaches


def test_what_a_sweep_does_not_allow_is_left_out_with_the_reason():
    found = suggest(sweep_from_dict(sweep(**SWEEPS["without-replacement"])))
    assert [row.name for row in found.skipped] == ["normalise, line search", "clip searched, line search"]
    assert all("only sums are priced" in row.reason for row in found.skipped)
    assert found.recommended.name == "normalise, step searched"


def test_a_trainer_with_searches_of_its_own_keeps_them():
    trainer = {"kind": "dp-blsgd", "batch_size": 256, "steps": 20}
    step = {"policy": "backtracking", "ratio": 0.5}
    found = suggest(sweep_from_dict(sweep(trainer=trainer, space={"clip": CLIP, "step": step})))
    assert option(found, "normalise, line search").paste["space"]["step"] == step
    assert {row.name for row in found.skipped} >= {"clip and step searched", "middle setting"}


def test_the_best_way_may_be_the_one_that_is_written():
    best = plain().recommended
    found = suggest(sweep_from_dict(sweep(**best.paste)))
    assert found.recommended.name == AS_WRITTEN
    assert found.recommended.noise_multiplier == best.noise_multiplier
    assert "keep the file as it is" in suggest_text(found.to_dict(), "x.yaml")


def test_what_cannot_be_weighed_is_refused():
    arms = {name: {"clip": CLIP, "step": COUPLED} for name in ("a", "b")}
    data = {key: value for key, value in sweep().items() if key != "space"}
    with pytest.raises(RequestError, match="this sweep has arms"):
        suggest(sweep_from_dict(data | {"arms": arms}))
    with pytest.raises(RequestError, match="needs a finite bill"):
        suggest(sweep_from_dict(sweep(privacy={"noise_multiplier": 1e-4, "delta": DELTA})))
    for chance in (0.0, 1.0, math.nan):
        with pytest.raises(FieldError, match="chance"):
            suggest(sweep_from_dict(sweep()), chance=chance)
    with pytest.raises(FieldError, match=r"privacy\.epsilon = 0\.01 cannot be reached"):
        suggest(sweep_from_dict(sweep(privacy={"epsilon": 0.01, "delta": DELTA})))


def test_progress_counts_to_the_end():
    heard: list[tuple[int, int]] = []
    suggest(sweep_from_dict(sweep()), say=lambda done, count: heard.append((done, count)))
    assert heard == [(done, len(WAYS)) for done in range(len(WAYS))]


SUGGEST_AND_TELL = """
import json, sys
from sweeper.catalog import load_spec
from sweeper.planning.suggest import suggest
found = suggest(load_spec(sys.argv[1]))
print(found.recommended.gradient_noise, *(name for name in sys.argv[2:] if name in sys.modules))
"""


def test_suggesting_loads_nothing_heavy_and_with_a_warm_cache_no_numpy(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(json.dumps(sweep()))

    def run(*names: str) -> list[str]:
        command = [sys.executable, "-c", SUGGEST_AND_TELL, str(file), *names]
        environment = {**os.environ, "SWEEPER_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()

    names = ("torch", "ray", "mlflow", "opacus", "pandas", "numpy", "scipy")
    cold = run(*names)
    assert set(cold[1:]) == {"numpy", "scipy"}
    assert run(*names) == cold[:1]
