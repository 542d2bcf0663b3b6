"""A sweep with arms from plan to release and beyond: a winner for each, interrupted between arms, unsealed over all of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_sweeps import armed, secret_drawing

from sweeper import cli, service
from sweeper.catalog import sweep_from_dict
from sweeper.launch import tune
from sweeper.launch.candidate import trial_spec
from sweeper.launch.driver import Driver
from sweeper.launch.open_data import OpenData
from sweeper.launch.outcome import Finished, silent
from sweeper.launch.worker import Worker
from sweeper.planning import Plan, again
from sweeper.privacy import accountant
from sweeper.privacy.events import Composed, DiscreteLaplace, Disjoint, Repeated, event_from_dict
from sweeper.privacy.ledger import Ledger
from sweeper.privacy.release import Part
from sweeper.seeds import SWEEP, Streams
from sweeper.store.home import Home
from sweeper.store.vault import Vault
from sweeper.store.vault_rows import FINAL, SEARCH, SETTLED, Row

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("ray_session")]
COUNTS = {"wide": 2, "low": 3, "slow": 1}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, data_cache: str) -> Iterator[Home]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWEEPER_DATA", f"{data_cache}/data")
        home = Home(tmp_path_factory.mktemp("house")).ensure()
        service.set_budget("adult", 1000.0, 1e-4, home=home)
        yield home


@pytest.fixture(scope="module")
def finished(ray_session: Any, house: Home) -> Finished:
    """Three arms on private data; the driver ends after the first arm's trials, and another one goes on."""
    spec = sweep_from_dict(armed())
    plan, run_stage = service.plan(spec), tune.run_stage

    def first_arm_only(vault: Vault, root: Any, stage: tune.Stage, progress: Any = None) -> bool:
        own = tuple(row.index for row in vault.rows(arm="wide"))
        assert run_stage(vault, root, replace(stage, indices=own), progress)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune, "run_stage", first_arm_only)
        with pytest.raises(KeyboardInterrupt):
            Driver(house, silent).run(plan, secret_drawing(COUNTS, spec), "test")
    with Vault.open(house.path, "armed") as vault:
        assert {row.arm for row in vault.rows() if row.state == SETTLED} == {"wide"}
    assert charge(house, "armed") == ("reserved", plan)
    return service.resume("armed", home=house)


def charge(home: Home, sweep: str) -> tuple[str, Any]:
    """State of a sweep's charge, and what was charged if it is not what its plan says."""
    (found,) = [r for r in Ledger(home.ledger).reservations() if r.sweep == sweep]
    with Vault.open(home.path, sweep) as vault:
        plan = again(sweep_from_dict(vault.meta("spec")), vault.meta("plan"))
    return found.state, plan if event_from_dict(found.event) == plan.event else found.event


def rows_of(home: Home, sweep: str) -> tuple[bytes, list[Row]]:
    with Vault.open(home.path, sweep) as vault:
        return vault.secret(), vault.rows()


def bits(row: Row) -> dict[str, Any]:
    return {"score": row.score, "settings": row.settings, "trace": row.trace, "params": row.params}


def best_rows(rows: Sequence[Row]) -> dict[str, Row]:
    return {arm: max((row for row in rows if row.arm == arm), key=lambda row: row.score or 0.0) for arm in COUNTS}


def test_every_arm_ran_its_own_candidates_at_its_own_noise(finished: Finished, house: Home, adult: OpenData) -> None:
    secret, rows = rows_of(house, "armed")
    plan = finished.plan
    assert [row.arm for row in rows] == [arm for arm, count in COUNTS.items() for _ in range(count)]
    assert [row.index for row in rows] == list(range(6))
    assert [row.attempts for row in rows] == [1] * 6
    worker = Worker(adult)
    for row in rows:
        own = plan.spec.of_arm(row.arm)
        assert (
            bits(row)
            == worker.run(trial_spec(own, plan.noises[row.arm], row.index, row.candidate), Streams(secret, row.index)).released
        )
    assert plan.noises["slow"] != plan.noises["wide"]
    uniforms = Streams(secret, SWEEP).bits("candidates/low").uniforms()
    assert [row.candidate for row in rows if row.arm == "low"] == [plan.spec.of_arm("low").space.draw(uniforms) for _ in range(3)]


def test_each_arm_has_one_winner_and_the_best_of_them_says_whose_it_is(finished: Finished, house: Home) -> None:
    _, rows = rows_of(house, "armed")
    winners, frame = best_rows(rows), service.trials("armed", home=house)
    assert dict(zip(frame["arm"], frame["score"], strict=True)) == {arm: row.score for arm, row in winners.items()}
    assert len(frame) == len(set(frame["id"])) == 3
    assert frame["is_best"].all()
    assert frame["model_uri"].notna().all()
    assert dict(zip(frame["arm"], frame["noise_multiplier"], strict=True)) == finished.plan.noises
    assert set(frame["epsilon"]) == {finished.plan.guarantee.epsilon}
    best = finished.best
    assert best is not None
    assert (best.score, best.arm) == max((row.score or 0.0, arm) for arm, row in winners.items())
    assert best.epsilon == finished.plan.guarantee.epsilon <= 2.0
    assert charge(house, "armed") == ("committed", finished.plan)
    groups = service.compare("armed", home=house)
    assert dict(zip(groups["arm"], groups["epsilon"], strict=True)) == {arm.name: arm.epsilon for arm in finished.plan.arms}
    assert list(groups["score"]) == sorted(frame["score"], reverse=True)


def test_the_summary_shows_every_arm(finished: Finished, house: Home, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("SWEEPER_HOME", str(house.path))
    assert cli._finish(finished, cli._parser().parse_args(["resume", "armed"])) == 0
    said = capsys.readouterr().out
    best = finished.best
    assert best is not None
    for part in (*COUNTS, "clip_policy", f"arm {best.arm}", "sweeper compare armed --by arm"):
        assert part in said
    assert cli._finish(finished, cli._parser().parse_args(["resume", "armed", "--json"])) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["arm"], sorted(arm["arm"] for arm in told["arms"])) == (best.arm, sorted(COUNTS))
    assert cli.main(["compare", "armed", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"] == told["arms"]


def traced(row: Row) -> set[float]:
    values = [value for name, values in (row.trace or {}).items() if name != "step" for value in values]
    return {value for value in values if len(repr(value)) > 8}


def outside(home: Home) -> bytes:
    """All bytes of a home but the vault's."""
    files = [f for f in home.path.rglob("*") if f.is_file() and f.relative_to(home.path).parts[0] != "vault"]
    return b"".join(f.read_bytes() for f in files)


def test_a_winners_trace_is_published_and_a_sealed_one_is_nowhere(finished: Finished, house: Home) -> None:
    from mlflow import MlflowClient

    _, rows = rows_of(house, "armed")
    winners = best_rows(rows)
    client = MlflowClient(tracking_uri=house.mlflow_uri)
    experiment = client.get_experiment_by_name("armed")
    runs = {
        run.data.tags["sweeper.arm"]: run for run in client.search_runs([experiment.experiment_id], "tags.`sweeper.role` = 'trial'")
    }
    for arm, row in winners.items():
        file = client.download_artifacts(runs[arm].info.run_id, "trace.json")
        assert json.loads(Path(file).read_text()) == row.trace
        history = client.get_metric_history(runs[arm].info.run_id, "trace/step_size")
        assert [(p.step, p.value) for p in sorted(history, key=lambda p: p.step)] == [
            (int(step), size) for step, size in zip((row.trace or {})["step"], (row.trace or {})["step_size"], strict=True)
        ]
    shown = set.union(*map(traced, winners.values()))
    hidden = set.union(*map(traced, rows)) - shown
    assert len(hidden) >= 3
    content, inside = outside(house), (house.vault / "armed" / "vault.db").read_bytes()
    for value in hidden:
        assert repr(value).encode() not in content
        assert repr(value).encode() in inside
    assert all(repr(value).encode() in content for value in shown)
    assert b"gradient_norm_0.5" not in content  # by_step stays in the vault
    assert b"gradient_norm_0.5" in inside


def test_unsealing_is_priced_and_published_over_all_arms(finished: Finished, house: Home) -> None:
    """After everything else here: what was sealed is public then."""
    quote = service.unseal_quote("armed", home=house)
    assert (quote["most"], quote["arms"]) == (3 * 40, 3)
    assert quote["unsealed_epsilon"] == pytest.approx(finished.plan.epsilon_unsealed)
    done = service.unseal("armed", home=house)
    assert done["trials"] == 6
    ones = {arm.name: arm.trial_event.parts[0] for arm in finished.plan.arms}  # type: ignore[attr-defined]
    ran = Disjoint(
        (Composed(tuple(Repeated(ones[arm], count) for arm, count in COUNTS.items())), Repeated(DiscreteLaplace(0.1), 6))
    )
    assert done["epsilon"] == pytest.approx(accountant.epsilon(ran, 1e-5), rel=1e-3)
    groups = service.compare("armed", home=house)
    assert dict(zip(groups["arm"], groups["n"], strict=True)) == COUNTS
    for arm, epsilon in zip(groups["arm"], groups["epsilon"], strict=True):
        own = Disjoint((Repeated(ones[arm], COUNTS[arm]), Repeated(DiscreteLaplace(0.1), COUNTS[arm])))
        assert epsilon == pytest.approx(accountant.epsilon(own, 1e-5), rel=1e-3)
    assert len(service.trials("armed", home=house)) == 6
    assert service.best("armed", home=house).epsilon == done["epsilon"]


def test_a_driver_that_ends_between_two_final_runs_is_gone_on_with(
    house: Home, adult: OpenData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of subsample-tune each arm tunes on a part of its own, and has a final run on the others; sealed in turn, once each."""
    tune_on = {"kind": "subsample-tune", "law": "fixed", "trials": 2, "tune_fraction": 0.25}
    data, real = armed("parts", protocol=tune_on), Vault.add
    del data["arms"]["wide"]

    def one_then_end(self: Vault, *given: Any) -> int:
        if self.count(FINAL):
            raise KeyboardInterrupt
        return real(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Vault, "add", one_then_end)
        with pytest.raises(KeyboardInterrupt):
            service.run(data, home=house)
    finished = service.resume("parts", home=house)
    secret, rows = rows_of(house, "parts")
    final = [row for row in rows if row.stage == FINAL]
    assert [row.arm for row in final] == ["low", "slow"]
    worker, plan = Worker(adult), finished.plan
    parts = {}
    for row in rows:
        part = Part(fraction=0.25, rest=row.stage == FINAL)
        own = trial_spec(plan.spec.of_arm(row.arm), plan.noises[row.arm], row.index, row.candidate, final=part.rest, arm=row.arm)
        assert own.part == part
        assert bits(row) == worker.run(own, Streams(secret, row.index)).released
        parts[row.arm] = own
    for row in final:
        searched = [other for other in rows if other.arm == row.arm and other.stage == SEARCH]
        assert row.candidate in [other.candidate for other in searched if other.score == max(o.score or 0.0 for o in searched)]
    frame = service.trials("parts", home=house)
    assert dict(zip(frame["arm"], frame["score"], strict=True)) == {row.arm: row.score for row in final}
    assert service.resume("parts", home=house) == finished
    shared = worker.run(replace(parts["slow"], arm=""), Streams(secret, final[1].index)).released
    assert shared["params"] != final[1].params  # with the part of a sweep without arms it is another run


def test_a_plan_of_arms_is_what_the_vault_keeps(finished: Finished, house: Home) -> None:
    with Vault.open(house.path, "armed") as vault:
        stored = vault.meta("plan")
    assert isinstance(finished.plan, Plan)
    assert stored == json.loads(json.dumps(finished.plan.to_dict()))
    assert math.isfinite(stored["unseal_epsilon"])
