"""What no bill covers is refused on the command line: exit 2, one line with the field, the reason and the way out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_sweeps import FIXED, tiny

from sweeper import cli, planning
from sweeper.catalog import sweep_from_dict
from sweeper.privacy import accountant
from sweeper.privacy.events import Repeated, SelectBest
from sweeper.privacy.laws import FixedCount

pytestmark = pytest.mark.timeout(120)

Refused = Callable[..., str]
NOISE = {"noise_multiplier": 1.0, "delta": 1e-5}  # nothing to calibrate


@pytest.fixture
def refused(tmp_path: Path, prices: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """What both `plan` and `run` say of a sweep that they refuse; nothing is left behind."""
    (tmp_path / "home" / "cache").mkdir(parents=True)
    (tmp_path / "home" / "cache" / "prices").symlink_to(prices)
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def words(**sections: Any) -> str:
        Path("a.yaml").write_text(json.dumps(tiny(**sections)))
        said = set()
        for verb in ("plan", "run"):
            capsys.readouterr()
            assert cli.main([verb, "a.yaml"]) == 2
            out, err = capsys.readouterr()
            assert out == ""
            assert err.count("\n") == 1
            assert err.startswith("a.yaml: ")
            said.add(err.removeprefix("a.yaml: ").rstrip("\n"))
        assert not list((tmp_path / "home").rglob("*.db"))
        return said.pop() if len(said) == 1 else f"plan and run differ: {said}"

    return words


def figures(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"\d+\.\d\d", text)]


def bills(trials: int, **sections: Any) -> tuple[float, float, float]:
    """Epsilon of so many released trials, of the sweep as it would run with random candidates, and of a fixed number."""
    plan = planning.plan(sweep_from_dict(tiny(privacy=NOISE, **sections)))
    one = plan.trial_event
    events = (Repeated(one, trials), plan.event, SelectBest(one, FixedCount(trials=trials)))
    released, selected, fixed = (round(accountant.epsilon(event, 1e-5), 2) for event in events)
    return released, selected, fixed


@pytest.mark.parametrize("kind", ["asha", "tpe", "pbt", "hyperband", "bayesian", "optuna"])
def test_select_best_with_a_search_that_reads_scores(refused: Refused, kind: str) -> None:
    said = refused(privacy=NOISE, search={"kind": kind})
    assert said.startswith(
        f"protocol select-best cannot use search {kind}: it reads scores while trials run, which select-best does not pay for. "
        "Use protocol release-all (bill "
    )
    assert "for 9 trials), or put the search on public data." in said
    released, selected, _ = bills(9)  # the mean of the law, once it is cut at 40
    assert figures(said) == [released, selected]
    assert released > 1.2 * selected


def test_subsample_tune_with_a_search_that_reads_scores(refused: Refused) -> None:
    tune = {"kind": "subsample-tune", "law": "geometric", "mean_trials": 10, "max_trials": 40}
    said = refused(privacy=NOISE, protocol=tune, search={"kind": "tpe"})
    assert said.startswith("protocol subsample-tune cannot use search tpe: it reads scores while trials run")
    assert figures(said) == list(bills(9, protocol=tune)[:2])


def test_select_best_with_a_grid(refused: Refused) -> None:
    said = refused(privacy=NOISE, search={"kind": "grid", "points": 3})
    assert said.startswith(
        "protocol select-best cannot use search grid: its candidates are not independent draws from one law, which the price of "
        "select-best counts on. Use protocol release-all (bill "
    )
    assert "for 9 trials), or search random with law: fixed, trials: 9, which is priced, and dear: bill" in said
    released, selected, fixed = bills(9)
    assert figures(said) == [released, fixed]
    assert selected < fixed <= released


def test_a_refused_search_without_a_finite_price_is_refused_without_figures(refused: Refused) -> None:
    said = refused(privacy={"noise_multiplier": 1e-3, "delta": 1e-5}, search={"kind": "asha"})
    assert said.startswith("protocol select-best cannot use search asha: it reads scores")
    assert "Use protocol release-all, or put the search on public data" in said
    said = refused(privacy={"epsilon": 0.01, "delta": 1e-5}, search={"kind": "grid"})  # no noise reaches it: the score costs more
    assert "Use protocol release-all, or search random with law: fixed, trials: 9, which is priced, and dear." in said


@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize("kind", ["asha", "optuna"])
def test_adaptive_searches_are_not_in_this_version_where_they_could_be_paid_for(refused: Refused, kind: str, public: bool) -> None:
    said = refused(protocol={"kind": "release-all", "trials": 4}, search={"kind": kind}, data={"source": "adult", "public": public})
    assert said == (
        f"protocol release-all cannot use search {kind} in this version: only random and grid run. Use search: {{kind: random}}; "
        "every candidate is then drawn beforehand, and the bill is the same."
    )


def test_public_data_does_not_make_a_grid_a_select_best(refused: Refused) -> None:
    said = refused(privacy=NOISE, search={"kind": "grid"}, data={"source": "adult", "public": True})
    assert said.startswith("protocol select-best cannot use search grid")


@pytest.mark.parametrize("key", ["trial", "protocol", "inner"])
@pytest.mark.parametrize("kind", ["select-best", "public-proxy"])
def test_a_selection_inside_another(refused: Refused, kind: str, key: str) -> None:
    said = refused(protocol={"kind": kind, "proxy": "fashion-mnist", key: {"kind": "select-best", "mean_trials": 3}})
    assert said.startswith(f"protocol.{key} = ")
    assert said.endswith(
        "is refused: a selection inside a selection has a price of its own, and no protocol here states it. "
        "Use one protocol with more trials."
    )


@pytest.mark.parametrize("key", ["best_of", "restarts", "early_stopping", "keep_best"])
def test_a_selection_hidden_in_a_trial(refused: Refused, key: str) -> None:
    said = refused(trainer={"kind": "dp-sgd", "batch_size": 64, "steps": 20, key: 3})
    assert said == (
        f"trainer.{key} = 3 is refused: it chooses by scores inside a trial, a selection of its own that the price of protocol "
        "select-best does not cover. Leave it out, or give the protocol more trials."
    )


@pytest.mark.parametrize(("epsilon", "shown"), [("none", "'none'"), (0, "0"), (0.0, "0"), (None, "None"), (False, "False")])
def test_a_score_without_noise_of_its_own(refused: Refused, epsilon: Any, shown: str) -> None:
    said = refused(score={"epsilon": epsilon})
    assert said == (
        f"score.epsilon = {shown} is refused: a score without noise of its own is an exact answer about the scored rows, at no "
        "finite price. Use score: {epsilon: 0.1}, or choose on a public table: protocol public-proxy, or data.public: true."
    )


def test_an_infinite_score_epsilon(refused: Refused) -> None:
    assert refused(score={"epsilon": float("inf")}).startswith("score.epsilon = ")  # JSON's Infinity is text in YAML
    assert refused(score={"epsilon": 1e9}).startswith("score.epsilon = 1e+09 must be at least 1e-06 and at most 100")


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"data": {"source": "adult", "normalise": "zscore"}}, "data.normalise = 'zscore'"),
        ({"data": {"source": "adult", "standardize": True}}, "data.standardize = True"),
        ({"data": {"source": "adult", "vocabulary": 1000}}, "data.vocabulary = 1000"),
        ({"data": {"source": "adult", "class_weights": "balanced"}}, "data.class_weights = 'balanced'"),
        ({"trainer": {"kind": "dp-sgd", "batch_size": 64, "steps": 20, "class_weights": "balanced"}}, "trainer.class_weights"),
        ({"model": {"kind": "logistic", "class_weight": "balanced"}}, "model.class_weight = 'balanced'"),
        ({"space": FIXED | {"clip": {"policy": "percentile", "values": [10, 50]}}}, "space.clip.policy = 'percentile'"),
        ({"space": FIXED | {"clip": {"policy": "median", "value": 0.5}}}, "space.clip.policy = 'median'"),
        ({"space": FIXED | {"clip": {"policy": "quantile", "value": 0.5}}}, "space.clip.policy = 'quantile'"),
        ({"space": FIXED | {"clip": {"policy": "fixed", "percentile": 50}}}, "space.clip.percentile = 50"),
        ({"space": FIXED | {"clip": {"policy": "fixed", "quantile": 0.5}}}, "space.clip.quantile = 0.5"),
        ({"space": FIXED | {"clip": {"policy": "private-quantile", "median": True, "value": 0.5}}}, "space.clip.median = True"),
        ({"space": FIXED | {"clip": {"policy": "fixed", "clip_norm": {"percentile": 50}}}}, "space.clip.clip_norm.percentile"),
    ],
)
def test_statistics_of_private_rows(refused: Refused, sections: dict[str, Any], field: str) -> None:
    said = refused(**sections)
    assert said.startswith(field)
    assert "is refused: it is computed from the rows, and of private rows that is a release which nothing here pays for. " in said
    assert re.search(r"\. (Use|Leave|Give) ", said)
    assert ("private-quantile, which is priced" in said) == field.startswith("space.clip")


def test_statistics_of_public_rows_are_only_unknown(refused: Refused) -> None:
    said = refused(data={"source": "adult", "public": True, "normalise": "zscore"})
    assert said.startswith("data.normalise is not a field")


def test_a_delta_of_one_record_in_n(refused: Refused) -> None:
    said = refused(privacy={"epsilon": 2.0, "delta": 1e-4})
    assert said == ('privacy.delta = 0.0001 must be below 1/n = 3.1e-05 (n = 32,561, stated by source "adult"). Try delta: 1e-05.')


@pytest.mark.parametrize(
    ("sampling", "relation", "other"),
    [("poisson", "replace-one", "without-replacement"), ("without-replacement", "zero-out", "poisson")],
)
def test_a_relation_that_does_not_match_the_sampler(refused: Refused, sampling: str, relation: str, other: str) -> None:
    trainer = {"kind": "dp-sgd", "batch_size": 64, "steps": 20, "sampling": sampling}
    said = refused(trainer=trainer, privacy={"epsilon": 2.0, "delta": 1e-5, "relation": relation})
    priced = {"replace-one": "zero-out", "zero-out": "replace-one"}[relation]
    assert said == (
        f"privacy.relation = '{relation}' does not match the sampler: trainer.sampling {sampling} is priced for {priced}. "
        f"Leave relation out, or use trainer.sampling: {other}."
    )


@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize(
    "sections",
    [
        {"seed": 1},
        {"secret": "00" * 32},
        {"trainer": {"kind": "dp-sgd", "batch_size": 64, "steps": 20, "seed": 7}},
        {"privacy": {"epsilon": 2.0, "delta": 1e-5, "random_state": 0}},
    ],
)
def test_a_seed_given_by_the_user(refused: Refused, sections: dict[str, Any], public: bool) -> None:
    said = refused(**sections, data={"source": "adult", "public": public})
    assert "is refused: whoever knows the seed sees through the noise, so that no guarantee is left. Leave it out" in said
    assert "sweeper.run(spec, secret=...)" in said


@pytest.mark.parametrize("sampling", ["weighted", "shuffle", "epochs"])
def test_a_sampler_that_is_not_priced(refused: Refused, sampling: str) -> None:
    said = refused(trainer={"kind": "dp-sgd", "batch_size": 64, "steps": 20, "sampling": sampling})
    assert said.startswith(f"trainer.sampling = '{sampling}' is refused: the bill counts on every record having the same chance")


def test_a_law_that_may_return_nothing(refused: Refused) -> None:
    said = refused(protocol={"kind": "select-best", "law": "poisson"})
    assert said == (
        "protocol.law = 'poisson' is refused: it may draw no run at all, and then there is no answer, although the bill is paid. "
        "Use law: tnb, or accept that with may_return_nothing: true."
    )


def test_without_replacement_with_a_part_of_the_rows(refused: Refused) -> None:
    trainer = {"kind": "dp-sgd", "batch_size": 64, "steps": 20, "sampling": "without-replacement"}
    said = refused(trainer=trainer, protocol={"kind": "subsample-tune"})
    assert said.startswith("trainer.sampling = 'without-replacement' is priced for replace-one, and subsample-tune draws its part")
