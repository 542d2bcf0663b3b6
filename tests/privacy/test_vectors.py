"""Reference values computed outside this project (tests/golden/accounting.json): the accountant's answers lie where they must."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sweeper.privacy import accountant
from sweeper.privacy.events import (
    AboveThresholdGaussian,
    ApproximateDp,
    Composed,
    Event,
    ExponentialMechanism,
    Gaussian,
    PoissonSubsampled,
    PrivateQuantile,
    RandomPart,
    Repeated,
    SelectBest,
)
from sweeper.privacy.laws import TruncatedNegativeBinomial

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "accounting.json").read_text())
PRINTED = 6e-4  # relative: half a unit of the last printed digit, of numbers near 1


def vectors(*sections: str) -> list[Any]:
    return [pytest.param(row, id=f"{section}-{number}") for section in sections for number, row in enumerate(GOLDEN[section])]


def trial_of(row: dict[str, Any]) -> Event:
    if "q" not in row:
        return Gaussian(row["sigma"])
    return Repeated(PoissonSubsampled(row["q"], Gaussian(row["sigma"])), row["steps"])


def law_of(row: dict[str, Any]) -> TruncatedNegativeBinomial:
    mean = row.get("mean_before_truncation", row["mean"])
    return TruncatedNegativeBinomial(eta=row["eta"], mean=mean, max_trials=row.get("k_max"))


@pytest.mark.parametrize("row", vectors("single_run"))
def test_one_run(row):
    found = accountant.epsilon(trial_of(row), row["delta"])
    assert found == pytest.approx(row["epsilon_pld"], rel=row.get("rel_tol", 2e-4))
    if "epsilon_rdp" in row:
        assert accountant.renyi_epsilon(trial_of(row), row["delta"]) == pytest.approx(row["epsilon_rdp"], rel=1e-3)


@pytest.mark.parametrize("row", vectors("release_all"))
def test_all_runs_released(row):
    found = accountant.epsilon(Repeated(trial_of(row), row["k"]), row["delta"])
    assert found == pytest.approx(row["epsilon"], rel=PRINTED)


@pytest.mark.parametrize("row", vectors("select_best_gaussian_trial", "select_best_dpsgd_trial"))
def test_the_best_run_released(row):
    found = accountant.epsilon(SelectBest(trial_of(row), law_of(row)), row["delta"])
    assert row["never_below"] <= found <= row["epsilon"] * 1.003
    if "epsilon_closed_form" in row:
        assert found < row["epsilon_closed_form"] < row["epsilon_renyi"]


@pytest.mark.parametrize("row", vectors("select_best_gaussian_trial", "select_best_dpsgd_trial"))
def test_published_bounds_are_reproduced(row):
    """The looser bounds of the same rows, from the package's own cross-checks."""
    from sweeper.privacy.selection import closed_form_epsilon

    law, trial = law_of(row), trial_of(row)
    if law.max_trials is not None:
        assert law.mean_trials() == pytest.approx(row["mean"], rel=1e-5)
        assert accountant.renyi_epsilon(SelectBest(trial, law), row["delta"]) is None
        return
    closed = closed_form_epsilon(accountant.privacy_loss(trial, 2e-3), law, row["delta"])
    assert closed == pytest.approx(row["epsilon_closed_form"], rel=5e-3)
    assert accountant.renyi_epsilon(SelectBest(trial, law), row["delta"]) == pytest.approx(row["epsilon_renyi"], rel=5e-3)


@pytest.mark.parametrize("eta", sorted(GOLDEN["tnb_gamma_of_mean_10"]))
def test_gamma_of_mean_ten(eta):
    law = TruncatedNegativeBinomial(eta=float(eta), mean=10.0)
    assert law.gamma == pytest.approx(GOLDEN["tnb_gamma_of_mean_10"][eta], rel=2e-7)


@pytest.mark.parametrize("row", vectors("shared_subsample_joint_charge"))
def test_four_trials_on_their_own_batches(row):
    found = accountant.epsilon(Repeated(trial_of(row), row["trials"]), row["delta"])
    assert found == pytest.approx(row["epsilon_independent_batches_pld"], rel=PRINTED)


@pytest.mark.parametrize("row", vectors("shuffled_epochs_without_poisson"))
def test_epochs_without_amplification(row):
    """Ten passes, each one Gaussian sum on every record."""
    found = accountant.epsilon(Repeated(Gaussian(row["sigma"]), row["epochs"]), row["delta"])
    assert found == pytest.approx(row["epsilon_provable_without_amplification"], rel=PRINTED)


SAME_BATCH = GOLDEN["same_minibatch"]


def same_batch(*inner: Event) -> Event:
    return Repeated(PoissonSubsampled(SAME_BATCH["q"], Composed(inner)), SAME_BATCH["steps"])


@pytest.mark.parametrize("row", SAME_BATCH["rows"])
def test_a_line_search_inside_the_gradients_batch(row):
    """Gradient and search are one event on one batch; two amplified events of it are dearer by name only, and cost too little."""
    sigma, q, delta, search = SAME_BATCH["sigma"], SAME_BATCH["q"], SAME_BATCH["delta"], row["eps_line_search"]
    ranged = accountant.epsilon(same_batch(Gaussian(sigma), ExponentialMechanism(search)), delta)
    assert row["bounded_range_never_below"] <= ranged <= row["epsilon_bounded_range"] * 1.003
    plain = accountant.epsilon(same_batch(ApproximateDp(search), Gaussian(sigma)), delta)
    assert plain == pytest.approx(row["epsilon_pure"], rel=1e-3)
    apart = Composed((PoissonSubsampled(q, Gaussian(sigma)), PoissonSubsampled(q, ApproximateDp(search))))
    shown = accountant.epsilon(Repeated(apart, SAME_BATCH["steps"]), delta)
    assert shown == pytest.approx(row["invalid_separate_amplification_pld"], rel=1e-3)
    assert shown < 0.97 * plain


def test_ten_gaussian_queries_inside_the_gradients_batch():
    row = SAME_BATCH["ten_gaussian_queries_of_sigma_10"]
    found = accountant.epsilon(same_batch(Gaussian(SAME_BATCH["sigma"]), Repeated(Gaussian(10.0), 10)), SAME_BATCH["delta"])
    assert found == pytest.approx(row["epsilon_pld"], rel=3e-4)
    one = Repeated(PoissonSubsampled(SAME_BATCH["q"], Gaussian(row["sigma_effective"])), SAME_BATCH["steps"])
    assert found == pytest.approx(accountant.epsilon(one, SAME_BATCH["delta"]), rel=3e-4)


@pytest.mark.parametrize("row", vectors("private_quantile_then_dpsgd"))
def test_a_quantile_once_and_then_training(row):
    """Each place of the quantile's range priced by itself: between the limit and the envelope of all places."""
    quantile = PrivateQuantile(row["eps_quantile"])
    found = accountant.epsilon(Composed((quantile, trial_of(row))), row["delta"])
    assert row["epsilon"] * (1 - 1e-4) <= found <= row["epsilon"] * 1.003
    assert found < row["also_valid"]
    envelope = accountant.epsilon(Composed((ExponentialMechanism(row["eps_quantile"]), trial_of(row))), row["delta"])
    assert envelope == pytest.approx(row["also_valid"], rel=1e-3)


@pytest.mark.parametrize("row", vectors("subsample_tune_disjoint"))
def test_tuning_on_a_part_and_training_on_the_rest(row):
    tune = SelectBest(trial_of(row), law_of(row))
    found = accountant.epsilon(RandomPart(row["tune_fraction"], tune, trial_of(row)), row["delta"])
    assert row["epsilon"] * 0.997 <= found <= row["epsilon"] * 1.003  # the selection's own value is on a grid of 0.3% too
    whole = accountant.epsilon(tune, row["delta"])
    assert accountant.epsilon(trial_of(row), row["delta"]) < found < whole


@pytest.mark.parametrize("row", vectors("gaussian_svt_log_v_over_alpha_minus_1"))
def test_renyi_costs_of_a_gaussian_search(row):
    """The event's cost at one order is that of the threshold's noise plus that of the answers."""
    for order, value in zip(row["alpha"], row["value"], strict=True):
        threshold = 2.0 * row["sigma2"]
        found = accountant.renyi(AboveThresholdGaussian(threshold, row["sigma2"], row["k"]), order)
        assert found == (pytest.approx(order / (2 * threshold**2) + value, rel=1e-5), 0.0)
