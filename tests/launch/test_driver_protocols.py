"""Each release protocol from plan to release through the Python API: what becomes visible, and what is charged."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from bad_trainers import POISON, Failing
from tiny_sweeps import FIXED, SELECT_BEST, secret_drawing, spec_of, tiny

from sweeper import cli, service
from sweeper.checks import RequestError
from sweeper.launch import driver as driver_module
from sweeper.launch.candidate import trial_spec
from sweeper.launch.driver import Driver
from sweeper.launch.open_data import OpenData
from sweeper.launch.outcome import Finished, WorkFailed, silent
from sweeper.launch.worker import Worker
from sweeper.privacy.discrete_laplace import discrete_laplace
from sweeper.privacy.ledger import Ledger
from sweeper.privacy.release import Part
from sweeper.seeds import SCORE, Streams
from sweeper.store.home import Home
from sweeper.store.mlflow import Store
from sweeper.store.release import StoreError
from sweeper.store.vault import Vault
from sweeper.store.vault_rows import FINAL, SEARCH

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("ray_session")]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, data_cache: str) -> Iterator[Home]:
    """One home for the module: its sweeps are told apart by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWEEPER_DATA", f"{data_cache}/data")
        home = Home(tmp_path_factory.mktemp("house")).ensure()
        for data_set in ("adult", "fashion-mnist", "census"):
            service.set_budget(data_set, 1000.0, 1e-4, home=home)
        yield home


@pytest.fixture(scope="module")
def benchmarks(tmp_path_factory: pytest.TempPathFactory, house: Home) -> Home:
    """A home where Adult was never charged, so that it may be used as public."""
    home = Home(tmp_path_factory.mktemp("benchmarks")).ensure()
    service.set_budget("fashion-mnist", 1000.0, 1e-4, home=home)
    return home


@pytest.fixture(scope="module")
def replaced(tmp_path_factory: pytest.TempPathFactory, house: Home) -> Home:
    """A home where Adult is charged for replace-one."""
    home = Home(tmp_path_factory.mktemp("replaced")).ensure()
    service.set_budget("adult", 1000.0, 1e-4, home=home)
    return home


@pytest.fixture(scope="module")
def everything(ray_session: Any, house: Home) -> Finished:
    return service.run(tiny("everything", protocol={"kind": "release-all", "trials": 4}), home=house)


def highest(frame: Any) -> list[tuple[float, float]]:
    """The settings with the highest score: one, but for ties, among which the sweep draws."""
    best = frame[frame["score"] == frame["score"].max()]
    return list(zip(best["clip_norm"], best["learning_rate"], strict=True))


def reservations(home: Home, sweep: str) -> list[str]:
    return [r.state for r in Ledger(home.ledger).reservations() if r.sweep == sweep]


def vault_of(home: Home, sweep: str) -> Vault:
    return Vault.open(home.path, sweep)


def test_release_all_shows_every_trial_and_the_best_is_the_maximum(everything: Finished, house: Home) -> None:
    frame = service.trials("everything", home=house)
    with vault_of(house, "everything") as vault:
        rows = vault.rows()
    assert sorted(frame["score"]) == sorted(row.score for row in rows)
    assert sorted(frame["clip_norm"]) == sorted(row.candidate["clip.clip_norm"] for row in rows)
    assert everything.best is not None
    assert everything.best.score == frame["score"].max()
    assert service.best("everything", home=house) == everything.best
    assert frame["model_uri"].notna().all()
    assert reservations(house, "everything") == ["committed"]
    groups = service.compare("everything", by="step", home=house)
    assert groups["n"].sum() == 4
    assert service.compare_note("everything", home=house) == ""


def test_the_loaded_model_predicts_what_the_vault_holds(everything: Finished, house: Home, adult: OpenData) -> None:
    module = service.load("everything", home=house)
    with vault_of(house, "everything") as vault:
        winner = max(vault.rows(), key=lambda row: row.score)
    weights_D = np.frombuffer(winner.params, dtype="<f4").astype(np.float64)
    features = adult.table.features[adult.holdout_rows[:500]]
    with torch.no_grad():
        logits = module(torch.from_numpy(features.copy())).numpy()[:, 0]
    np.testing.assert_allclose(logits, features.astype(np.float64) @ weights_D[:-1] + weights_D[-1], rtol=1e-4, atol=1e-4)


def test_public_data_is_unsealed_uncharged_and_padded_to_the_schedule(benchmarks: Home) -> None:
    every = 3.0
    spec = spec_of("open", data={"source": "adult", "public": True}, protocol={**SELECT_BEST, "release_every": every})
    said: list[str] = []
    finished = service.run(spec, home=benchmarks, secret=secret_drawing(3, spec), say=said.append)
    frame = service.trials("open", home=benchmarks)
    assert len(frame) == 3
    assert frame["public"].all()
    assert frame["score"].notna().all()
    assert finished.best is not None
    assert finished.best.score == frame["score"].max()
    assert finished.best.public
    assert "as if private" in finished.best.statement
    assert "seeded" in finished.best.statement
    assert finished.best.guarantee["seeded"] is True
    assert reservations(benchmarks, "open") == []
    assert not any("reserved" in line for line in said)
    assert any("of 3 trials" in line for line in said if line.strip())
    with vault_of(benchmarks, "open") as vault:
        waited = vault.meta("release")["released_at"] - vault.meta("started")
    assert waited % every < 0.5  # the next multiple, and the moment it takes to write it down
    with sqlite3.connect(benchmarks.path / "mlflow.db") as db:
        tags = db.execute("SELECT value FROM tags WHERE key = 'sweeper.public'").fetchall()
    assert ("true",) in tags


def test_a_public_proxy_chooses_and_only_the_private_run_is_the_answer(benchmarks: Home) -> None:
    """The proxy's scores are the higher ones here: whoever takes the maximum over all runs is caught."""
    spec = tiny(
        "proxied",
        data={"source": "fashion-mnist", "holdout": 0.2},
        model={"kind": "softmax"},
        protocol={"kind": "public-proxy", "proxy": "adult", "trials": 3},
    )
    finished = service.run(spec, home=benchmarks)
    frame = service.trials("proxied", home=benchmarks)
    proxies, private = frame[frame["metric"] == "proxy_accuracy"], frame[frame["metric"] == "accuracy"]
    assert (len(proxies), len(private)) == (3, 1)
    assert proxies["score"].max() > private["score"].max()
    best = finished.best
    assert best is not None
    assert (best.metric, best.score) == ("accuracy", private["score"].iloc[0])
    assert (best.clip_norm, best.learning_rate) in highest(proxies)
    assert best.epsilon == finished.plan.epsilon_one_trial
    assert reservations(benchmarks, "proxied") == ["committed"]
    assert tuple(service.load("proxied", home=benchmarks).weight.shape) == (10, 784)


def test_subsample_tune_runs_the_winning_setting_on_the_rows_it_was_not_chosen_on(house: Home, adult: OpenData) -> None:
    """Every sealed row, and the released run, bit for bit what a laptop makes of its candidate, its part and its streams."""
    tune = {"kind": "subsample-tune", "law": "fixed", "trials": 3, "tune_fraction": 0.25}
    finished = service.run(tiny("tuned", protocol=tune), home=house)
    with vault_of(house, "tuned") as vault:
        secret, search, (final,) = vault.secret(), vault.rows(SEARCH), vault.rows(FINAL)
    assert [row.index for row in search] == [0, 1, 2]
    parts = [Part(fraction=0.25, rest=False)] * 3 + [Part(fraction=0.25, rest=True)]
    worker, spec, noise = Worker(adult), finished.plan.spec, finished.plan.noise_multiplier
    for row, part in zip([*search, final], parts, strict=True):
        alone = replace(trial_spec(spec, noise, row.index, row.candidate), part=part)
        expected = worker.run(alone, Streams(secret, row.index)).released
        assert {"score": row.score, "settings": row.settings, "trace": row.trace, "params": row.params} == expected
    winner = max(search, key=lambda row: row.score or 0.0)
    assert final.candidate == winner.candidate
    assert final.score != winner.score
    best = finished.best
    assert best is not None
    assert (best.score, best.metric, best.protocol) == (final.score, "accuracy", "subsample-tune")
    assert best.settings == final.settings
    assert len(service.trials("tuned", home=house)) == 1
    assert reservations(house, "tuned") == ["committed"]
    module = service.load("tuned", home=house)
    assert module.weight.detach().numpy().astype("<f4").tobytes() in (final.params or b"")
    held = discrete_laplace(Streams(secret, final.index).bits(SCORE), spec.score.epsilon) + (final.sealed or {})["correct"]
    assert best.score == held / len(adult.holdout_rows)
    open_files = [f for f in house.path.rglob("*") if f.is_file() and "vault" not in f.relative_to(house.path).parts[0]]
    content = b"".join(f.read_bytes() for f in open_files)
    for row in search:
        assert repr(row.score).encode() not in content
        assert (repr(row.candidate["step.c"]).encode() in content) == (row.index == winner.index)


def test_subsample_tune_on_public_data_shows_what_it_tuned_and_answers_with_the_final_run(benchmarks: Home) -> None:
    tune = {"kind": "subsample-tune", "law": "fixed", "trials": 2, "final": "all", "tune_fraction": 0.9}
    finished = service.run(tiny("tuned-open", data={"source": "adult", "public": True}, protocol=tune), home=benchmarks)
    frame = service.trials("tuned-open", home=benchmarks)
    tuned, final = frame[frame["metric"] == "proxy_accuracy"], frame[frame["metric"] == "accuracy"]
    assert (len(tuned), len(final)) == (2, 1)
    assert finished.best is not None
    assert finished.best.score == final["score"].iloc[0]
    assert (finished.best.clip_norm, finished.best.learning_rate) in highest(tuned)


def test_a_grid_runs_every_point_once_and_shows_all(house: Home) -> None:
    grid = tiny("grid", protocol={"kind": "release-all", "trials": 4}, search={"kind": "grid", "points": 2})
    finished = service.run(grid, home=house)
    with vault_of(house, "grid") as vault:
        rows = vault.rows()
    assert [tuple(row.candidate.values()) for row in rows] == [(0.05, 0.3), (0.05, 10.0), (2.0, 0.3), (2.0, 10.0)]
    frame = service.trials("grid", home=house)
    assert sorted(frame["score"]) == sorted(row.score for row in rows)
    assert finished.plan.chance_of_top is None
    assert reservations(house, "grid") == ["committed"]


def test_batches_of_a_fixed_size_are_charged_for_replace_one_and_not_beside_zero_out(
    everything: Finished, house: Home, replaced: Home
) -> None:
    fixed = {"trainer": {"kind": "dp-sgd", "batch_size": 64, "steps": 20, "sampling": "without-replacement"}}
    fixed |= {"protocol": {"kind": "no-tuning"}, "space": FIXED}
    finished = service.run(tiny("fixed-size", **fixed), home=replaced)
    assert finished.best is not None
    assert finished.best.guarantee["relation"] == "replace-one"
    assert "replace-one, per record" in finished.best.statement
    with vault_of(replaced, "fixed-size") as vault:
        assert (vault.rows()[0].sealed or {})["mean_batch_size"] == 64
    with pytest.raises(RequestError, match="zero-out"):
        service.run(tiny("fixed-size", **fixed), home=house)
    assert not (house.vault / "fixed-size").exists()
    with pytest.raises(RequestError, match="replace-one"):
        service.run(tiny("poisson", protocol={"kind": "no-tuning"}, space=FIXED), home=replaced)


POISSON = {"kind": "select-best", "law": "poisson", "mean_trials": 1, "max_trials": 5, "may_return_nothing": True}


def test_a_law_that_drew_no_run_is_charged_and_its_answer_is_no_answer(house: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of("nothing", protocol=POISSON)
    plan = service.plan(spec)
    said: list[str] = []
    monkeypatch.setattr(Driver, "_run_stages", None)  # nothing runs, so no Ray and no data
    finished = Driver(house, said.append).run(plan, secret_drawing(0, spec), "test")
    assert finished.drew_nothing
    assert finished.best is None
    assert reservations(house, "nothing") == ["committed"]
    with vault_of(house, "nothing") as vault:
        assert vault.count() == 0
    with pytest.raises(RequestError, match="sweep nothing drew no run, as its law may: no answer is what it released"):
        service.best("nothing", home=house)
    assert len(service.trials("nothing", home=house)) == 0
    again = service.resume("nothing", home=house)
    assert again.drew_nothing
    assert again.submission == finished.submission
    assert cli._finish(finished, cli._parser().parse_args(["resume", "nothing"])) == 0


def test_a_law_that_might_have_drawn_no_run_and_drew_some_is_a_select_best(house: Home) -> None:
    spec = spec_of("something", protocol=POISSON)
    finished = Driver(house, silent).run(service.plan(spec), secret_drawing(2, spec), "test")
    assert not finished.drew_nothing
    with vault_of(house, "something") as vault:
        assert finished.best is not None
        assert finished.best.score == max(row.score for row in vault.rows())


def test_a_file_charged_under_another_name_is_refused_uncharged_and_runs_under_its_own(everything: Finished, house: Home) -> None:
    again = {"privacy": {"epsilon": 2.0, "delta": 1e-5, "budget_of": "census"}, "protocol": {"kind": "no-tuning"}, "space": FIXED}
    with pytest.raises(RequestError, match=r'already charged under "adult"; use privacy\.budget_of: adult'):
        service.run(tiny("twice", **again), home=house)
    assert reservations(house, "twice") == ["released"]
    assert Ledger(house.ledger).spent("census").epsilon == 0
    assert not (house.vault / "twice").exists()
    again["privacy"]["budget_of"] = "adult"
    assert service.run(tiny("twice", **again), home=house).best is not None
    assert reservations(house, "twice") == ["released", "committed"]


def test_a_table_of_another_length_is_refused_uncharged(house: Home) -> None:
    with pytest.raises(RequestError, match="is not the length of the table"):
        service.run(tiny("longer", data={"source": "adult", "n": 32_000}), home=house)
    assert reservations(house, "longer") == ["released"]
    assert not (house.vault / "longer").exists()


@pytest.mark.parametrize("resources", [{"gpu": 64.0}, {"cpu": 999.0}])
def test_what_no_node_can_hold_is_refused_uncharged(house: Home, resources: dict[str, float]) -> None:
    name = f"large-{next(iter(resources))}"
    with pytest.raises(RequestError, match="this machine has"):
        service.run(tiny(name, resources=resources), home=house)
    assert reservations(house, name) == ["released"]
    assert not (house.vault / name).exists()


def test_a_secret_chosen_by_the_user_cannot_protect_private_data(house: Home) -> None:
    with pytest.raises(RequestError, match="a secret given by the user cannot protect private data"):
        service.run(tiny("chosen"), home=house, secret=bytes(32))
    assert reservations(house, "chosen") == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_what_ends_before_the_sealing_is_not_charged(
    house: Home, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(Driver, "_seal", fail)
    with pytest.raises(error):
        service.run(tiny(f"early-{error.__name__}"), home=house)
    assert reservations(house, f"early-{error.__name__}") == ["released"]


def test_what_ends_right_after_the_sealing_stays_charged(house: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Driver._seal

    def seal_then_stop(self: Driver, *given: Any) -> None:
        real(self, *given).close()
        raise KeyboardInterrupt

    monkeypatch.setattr(Driver, "_seal", seal_then_stop)
    with pytest.raises(KeyboardInterrupt):
        service.run(tiny("late"), home=house)
    assert reservations(house, "late") == ["reserved"]
    assert service.status("late", home=house)[0]["phase"] == "sealed"


def test_of_two_drivers_that_start_at_once_the_second_is_refused_uncharged(house: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both found the name free; the other one sealed first."""
    real, first = Driver._seal, "1" * 32

    def seal_too_late(self: Driver, plan: Any, secret: bytes, reservation: str) -> Vault:
        real(self, plan, secret, first).close()
        return real(self, plan, secret, reservation)

    monkeypatch.setattr(Driver, "_seal", seal_too_late)
    with pytest.raises(RequestError, match="sweep race exists: sweeper resume race, or choose another name"):
        service.run(tiny("race"), home=house)
    assert reservations(house, "race") == ["released"]
    with vault_of(house, "race") as vault:
        assert vault.meta("reservation") == first


def test_nothing_runs_whose_charge_is_not_in_the_ledger(house: Home) -> None:
    plan = service.plan(tiny("uncharged"))
    Driver(house, silent)._seal(plan, bytes(32), "0" * 32).close()
    with pytest.raises(RequestError, match="the charge of sweep uncharged is not in the ledger"):
        service.resume("uncharged", home=house)
    with vault_of(house, "uncharged") as vault:
        assert [row.attempts for row in vault.rows()] == [0] * vault.count()


def test_no_tuning_releases_its_one_run_even_if_the_store_fails_once(house: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise StoreError("the MLflow store at x failed: y")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "publish", fail)
        with pytest.raises(WorkFailed, match="Nothing is lost: sweeper resume outage publishes again"):
            service.run(tiny("outage", protocol={"kind": "no-tuning"}, space=FIXED), home=house)
    assert reservations(house, "outage") == ["committed"]
    monkeypatch.setattr(driver_module.Driver, "_run_stages", None)  # nothing is left to run
    finished = service.resume("outage", home=house)
    assert finished.best is not None
    assert (finished.best.clip_norm, finished.best.learning_rate) == (0.5, 4.0)
    assert finished.plan.guarantee.epsilon == finished.plan.epsilon_one_trial
    assert service.resume("outage", home=house) == finished
    assert len(service.trials("outage", home=house)) == 1


def test_a_sweep_whose_every_trial_fails_is_charged_and_says_so(house: Home, capsys: pytest.CaptureFixture[str]) -> None:
    spec = replace(spec_of("doomed"), trainer=Failing(batch_size=64, steps=20))
    finished = Driver(house, silent).run(service.plan(spec), secret_drawing(3, spec), "test")
    assert finished.best is None
    assert reservations(house, "doomed") == ["committed"]
    assert cli._finish(finished, cli._parser().parse_args(["resume", "doomed"])) == 1
    assert capsys.readouterr().err.count("\n") == 1
    frame = service.trials("doomed", home=house)
    assert len(frame) == 1
    assert frame["score"].isna().all()
    assert frame["clip_norm"].notna().all()  # drawn publicly and released with the winner, whatever became of its run
    with pytest.raises(RequestError, match="no released trial of sweep doomed has a finite score"):
        service.best("doomed", home=house)
    open_files = [f for f in house.path.rglob("*") if f.is_file() and "vault" not in f.relative_to(house.path).parts[0]]
    assert not [f for f in open_files if POISON.encode() in f.read_bytes()]
    assert POISON.encode() in (house.vault / "doomed" / "vault.db").read_bytes()
