"""DP-AGD: what sets it apart from dp-blgd. Noise, filter and budgets are tested with the trainers that it shares them with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small import blobs, without

from sweeper.backends.closed_form import LinearProblem, evaluate
from sweeper.checks import FieldError
from sweeper.clip.fixed import FixedClip
from sweeper.models.linear import Logistic
from sweeper.privacy.events import ZeroConcentrated
from sweeper.seeds import Streams, secret_from_seed
from sweeper.step.backtracking import Backtracking
from sweeper.step.noisy_min import NoisyMinSearch
from sweeper.trainers import line_searched_run
from sweeper.trainers.dp_agd import DpAgd

ROWS, STREAMS = 80, Streams(secret_from_seed("agd"), 0)
CLIP, STEP = FixedClip(clip_norm=1.0), NoisyMinSearch(initial=2.0, candidates=15)


def problem(full, description) -> LinearProblem:
    return LinearProblem(model=Logistic(), description=description, table=full, rows=np.arange(ROWS))


def test_steps_go_along_the_normalised_noisy_gradient(monkeypatch):
    """Every update is as long as the step size that was found; the direction is the noisy gradient's."""
    full, description = blobs(ROWS, 5, 2)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    true = NoisyMinSearch.search
    monkeypatch.setattr(
        NoisyMinSearch,
        "search",
        lambda self, look, epsilon, bound: (
            seen.append((look.params_P.clone(), look.gradient_P.clone())),
            true(self, look, epsilon, bound),
        )[1],
    )
    fitted = DpAgd(steps=12).fit(problem(full, description), CLIP, STEP, 2.0, STREAMS)
    sizes = fitted.trace["step_size"]
    assert sum(size > 0 for size in sizes) >= 3
    for (here, gradient), (there, _), size in zip(seen, seen[1:], sizes, strict=False):
        assert torch.allclose(here - size * gradient / gradient.norm(), there, atol=1e-5)


def test_a_choice_to_stay_raises_the_gradients_budget_and_refines_the_gradient(monkeypatch):
    """Nobody's loss falls anywhere, so that a search without noise stays: looks cost rho, then gamma rho, each at its own noise."""
    full, description = blobs(ROWS, 5, 2)
    stds: list[float] = []
    true = line_searched_run.gaussian_
    monkeypatch.setattr(line_searched_run, "gaussian_", lambda out, std, g: (stds.append(std), true(out, std, g))[1])
    trainer, z = DpAgd(steps=6, gradient_raise=0.5), 0.2
    trainer.fit(problem(without(full, *range(ROWS)), description), CLIP, NoisyMinSearch(candidates=1, initial=1.0), z, STREAMS)
    rhos = [1 / (2 * (std / CLIP.clip_norm) ** 2) for std in stds]
    start = (1 - STEP.share) / (2 * z**2)
    assert rhos[0] == pytest.approx(start, rel=1e-9)
    allowed = {round(start * 1.5**k, 9) for k in range(20)} | {round(start * 0.5 * 1.5**k, 9) for k in range(20)}
    assert all(round(rho, 9) in allowed for rho in rhos)  # no success brings a budget down: psi would be no power of 1.5
    assert any(rho == pytest.approx(0.5 * start, rel=1e-9) for rho in rhos)


def test_it_is_accounted_in_zcdp():
    event = DpAgd(steps=50).event(1000, 5.0, CLIP, STEP)
    assert isinstance(event, ZeroConcentrated)
    assert event.rho == pytest.approx(50 / (2 * 5.0**2), rel=1e-6)  # gradient and search share a step's rho
    laplace = DpAgd(steps=50).event(1000, 5.0, CLIP, NoisyMinSearch(noise="laplace"))
    assert laplace.rho == pytest.approx(50 / (2 * 5.0**2), rel=1e-6)


def test_it_learns():
    full, description = blobs(ROWS, 5, 2)
    built = problem(full, description)
    assert evaluate(Logistic(), DpAgd(steps=15).fit(built, CLIP, STEP, 0.05, STREAMS).params_P, full, np.arange(ROWS)) > 0.9 * ROWS


def test_what_makes_it_another_trainer_is_refused():
    with pytest.raises(FieldError, match="budget = 'never' is refused"):
        DpAgd(steps=5, budget="never")
    (fault,) = DpAgd(steps=5).faults(CLIP, Backtracking())
    assert fault.field == "space.step.policy"
    assert list(DpAgd(steps=5).faults(CLIP, STEP)) == []
