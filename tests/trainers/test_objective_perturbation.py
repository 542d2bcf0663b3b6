"""Objective perturbation: the two halves of its proof on small tables, record by record; its solver; its noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from convex import REACH, described, summed, tables
from oracles import FALSE_ALARM, REJECTED, scale_p_value
from scipy import optimize, stats
from small import without

from sweeper.backends.closed_form import LinearProblem
from sweeper.checks import FieldError
from sweeper.clip.none import NoClip
from sweeper.models.linear import Logistic, Softmax, Svm
from sweeper.privacy.events import ApproximateDp, Composed, Gaussian
from sweeper.seeds import Streams, secret_from_seed
from sweeper.step.none import NoStep
from sweeper.trainers.objective_perturbation import TOLERANCE_NOISE, ObjectivePerturbation, minimised, passes_for

ROWS, DELTA = 16, 1e-4
TABLES = tables(ROWS)
TRAINER = ObjectivePerturbation(delta=DELTA)
MODELS = {
    "logistic": Logistic(),
    "logistic, scaled": Logistic(l2=0.01, penalise_bias=True, scale="unit-norm"),
    "svm": Svm(),
    "svm, scaled": Svm(scale="unit-norm", l2=0.05),
}
every_model = pytest.mark.parametrize("name", MODELS)


def problem(name: str, full) -> LinearProblem:
    return LinearProblem(model=MODELS[name], description=described(ROWS, 2), table=full, rows=np.arange(ROWS))


def penalised(name: str, params_P: np.ndarray) -> np.ndarray:
    model = MODELS[name]
    return model.l2 * (params_P if model.penalise_bias else np.r_[params_P[:-1], 0.0])


def pull(name: str, full, params_P: np.ndarray, ridge: float) -> np.ndarray:
    """The b for which these parameters are the minimiser: minus the gradient of n times all the rest."""
    length = REACH if MODELS[name].scale else 1.0
    data_P = summed(MODELS[name].kind, params_P, full, np.arange(ROWS), length)
    return -(data_P + ROWS * penalised(name, params_P) + ridge * params_P)


def jacobian(name: str, full, params_P: np.ndarray, ridge: float) -> np.ndarray:
    """Of `pull`, by central differences in float64."""
    h = 1e-6
    columns = [pull(name, full, params_P + h * e, ridge) - pull(name, full, params_P - h * e, ridge) for e in np.eye(3)]
    return np.array(columns).T / (2 * h)


@every_model
@pytest.mark.parametrize("noise", [0.5, 3.0, 20.0])
def test_no_record_moves_b_or_the_determinant_by_more_than_the_proof_says(name, noise):
    """At parameters all over, every record of every table: ||b - b'|| <= L, and 1 <= det/det' <= 1 + e0/2; both come close."""
    curvature = MODELS[name].curvature(REACH)
    epsilon, ridge = TRAINER.epsilon(noise), TRAINER.objective(ROWS, curvature, noise).ridge
    draws = np.random.default_rng(0)
    moves, ratios = [], []
    for full in TABLES.values():
        for size in (0.0, 0.3, 3.0):
            params_P = size * draws.standard_normal(3)
            if size == 0.3 and MODELS[name].kind == "svm":  # margins of 1, where a hinge bends
                x_P = np.r_[full.features[0].astype(float), 1.0] / (REACH if MODELS[name].scale else 1.0)
                params_P = x_P / (x_P @ x_P)
            whole, det = pull(name, full, params_P, ridge), np.linalg.det(jacobian(name, full, params_P, ridge))
            for row in np.flatnonzero(full.valid)[:6]:
                other = without(full, row)
                moves.append(np.linalg.norm(whole - pull(name, other, params_P, ridge)))
                ratios.append(det / np.linalg.det(jacobian(name, other, params_P, ridge)))
    assert curvature.lipschitz / 1.5 < max(moves) <= curvature.lipschitz
    assert min(ratios) >= 1 - 1e-6
    assert max(ratios) <= 1 + epsilon / 2 + 1e-6
    if ridge > 0 and (not MODELS[name].l2 or MODELS[name].penalise_bias):  # else the penalty bends more than the proof wants
        assert max(ratios) > 1 + epsilon / 2 / 1.5


@pytest.mark.parametrize("noise", [0.5, 3.0, 20.0, 300.0])
def test_the_noise_of_b_is_what_e0_wants(noise):
    """Exact normal tails: log densities of b move by more than e0/2 with chance at most d0; noise 1.5 times smaller breaks it."""
    epsilon = TRAINER.epsilon(noise)
    assert noise == pytest.approx(math.sqrt(8 * math.log(2 / DELTA) + 4 * epsilon) / epsilon, rel=1e-12)

    def beyond(sigma: float) -> float:
        """P[|<b, u>| / s^2 + 1 / (2 s^2) > e0/2], s = sigma L, for a record that moves b by all of L."""
        return float(2 * stats.norm.sf(sigma * (epsilon / 2 - 1 / (2 * sigma**2))))

    assert beyond(noise) <= DELTA
    assert beyond(noise / 1.5) > DELTA


def test_the_promise_holds_on_a_whole_problem():
    """Log likelihood ratios of the exact minimiser, D against D minus one record, over 20,000 draws of b: beyond e0 hardly ever."""
    name, noise = "logistic", 3.0
    curvature = MODELS[name].curvature(REACH)
    epsilon, ridge = TRAINER.epsilon(noise), TRAINER.objective(ROWS, curvature, noise).ridge
    full, draws, s = TABLES["together"], np.random.default_rng(1), noise * curvature.lipschitz
    rows_nD, signs_n = np.c_[full.features.astype(float), np.ones(ROWS)], 2.0 * full.labels - 1
    b_NP = s * draws.standard_normal((20_000, 3))
    params_NP = np.zeros_like(b_NP)
    for _ in range(60):  # Newton's method for all draws at once
        chances_Nn = 1 / (1 + np.exp(signs_n * (params_NP @ rows_nD.T)))
        gradient_NP = -(chances_Nn * signs_n) @ rows_nD + ridge * params_NP + b_NP
        curved_NPP = np.einsum("Nn,nD,nE->NDE", chances_Nn * (1 - chances_Nn), rows_nD, rows_nD) + ridge * np.eye(3)
        params_NP -= np.linalg.solve(curved_NPP, gradient_NP[..., None])[..., 0]
    assert np.abs(gradient_NP).max() < 1e-9
    x, chance_N, bend_N = rows_nD[0], chances_Nn[:, 0], (chances_Nn * (1 - chances_Nn))[:, 0]
    other_NP = b_NP - (chance_N * signs_n[0])[:, None] * x  # b of the table without record 0, at the same parameters
    det = np.linalg.det(curved_NPP) / np.linalg.det(curved_NPP - bend_N[:, None, None] * np.outer(x, x))
    logs_N = ((other_NP**2).sum(axis=1) - (b_NP**2).sum(axis=1)) / (2 * s**2) + np.log(det)
    assert np.abs(logs_N).max() <= epsilon  # 1e-4 of 20,000 would be two; the bound is loose where gradients are below L
    assert np.abs(logs_N).max() > epsilon / 4


@every_model
def test_the_solver_reaches_its_tolerance_whatever_the_rows(name):
    """||grad|| <= g by a gradient of our own, at the number of steps that follows from public numbers."""
    curvature = MODELS[name].curvature(REACH)
    for noise in (0.5, 3.0, 200.0):
        objective = TRAINER.objective(ROWS, curvature, noise)
        for table, full in TABLES.items():
            b_P = noise * curvature.lipschitz * np.random.default_rng(3).standard_normal(3)

            def gradient(params_P, full=full, b_P=b_P, objective=objective):
                left = -pull(name, full, params_P.numpy(), objective.ridge) + b_P
                return torch.from_numpy(left / ROWS)

            wanted = TRAINER.tolerance * curvature.lipschitz / ROWS
            first = curvature.lipschitz + np.linalg.norm(b_P) / ROWS
            found = minimised(gradient, torch.zeros(3, dtype=torch.float64), objective, passes_for(objective, first, wanted))
            assert float(gradient(found).norm()) <= wanted, (table, noise)


@every_model
def test_the_answer_is_the_minimiser_but_for_what_is_paid_for(name):
    """Against scipy's minimiser for the same b, read off a run on null records, whose minimiser is -b / (n gamma + Lambda)."""
    noise, streams, model = 3.0, Streams(secret_from_seed("objective"), 0), MODELS[name]
    curvature = model.curvature(REACH)
    objective = TRAINER.objective(ROWS, curvature, noise)
    nobody = without(TABLES["random"], *range(ROWS))
    rest = TOLERANCE_NOISE * noise * TRAINER.left_over(curvature, objective)
    empty_P = TRAINER.fit(problem(name, nobody), NoClip(), NoStep(), noise, streams).params_P.double().numpy()
    b_P = pull(name, nobody, empty_P, objective.ridge)
    found = TRAINER.fit(problem(name, TABLES["random"]), NoClip(), NoStep(), noise, streams).params_P.double().numpy()
    best = optimize.root(lambda w: pull(name, TABLES["random"], w, objective.ridge) - b_P, np.zeros(3), tol=1e-13)
    assert best.success
    assert np.linalg.norm(found - best.x) < 20 * rest  # two draws of noise in three coordinates
    assert rest < 0.05 * np.linalg.norm(empty_P)


def test_noise_of_the_objective_and_of_the_rest_by_their_scales():
    """On null records the answer is -b / Lambda and the rest's noise. Scales 1.5 times off are rejected."""
    name, noise = "logistic", 3.0
    curvature = MODELS[name].curvature(REACH)
    objective, nobody = TRAINER.objective(ROWS, curvature, noise), without(TABLES["random"], *range(ROWS))
    shared, secret = problem(name, nobody), secret_from_seed("objective")
    ends = [TRAINER.fit(shared, NoClip(), NoStep(), noise, Streams(secret, t)).params_P.numpy() for t in range(100)]
    std = noise * curvature.lipschitz / objective.ridge
    drawn = np.concatenate(ends).astype(float)
    assert scale_p_value(drawn, std) > FALSE_ALARM
    for wrong in (2 / 3, 3 / 2):
        assert scale_p_value(drawn, std * wrong) < 1e-9
    rough = ObjectivePerturbation(delta=DELTA, tolerance=0.1)  # so that the rest's noise is seen beside the other
    extra = TOLERANCE_NOISE * noise * rough.left_over(curvature, objective)
    many = [rough.fit(shared, NoClip(), NoStep(), noise, Streams(secret, t)).params_P.numpy() for t in range(400)]
    assert scale_p_value(np.concatenate(many).astype(float), math.hypot(std, extra)) > FALSE_ALARM
    assert extra > std
    assert scale_p_value(np.concatenate(many).astype(float), math.hypot(std, extra / 1.5)) < REJECTED


def test_its_event_pays_for_both():
    event = TRAINER.event(ROWS, 3.0, NoClip(), NoStep())
    assert event == Composed((ApproximateDp(TRAINER.epsilon(3.0), DELTA), Gaussian(TOLERANCE_NOISE * 3.0)))
    assert TRAINER.event(ROWS, 0.05, NoClip(), NoStep()).unprotected  # e0 is beyond 600 nats


def test_with_much_noise_it_is_still_solved_and_with_little_it_finds_the_best_point():
    full = TABLES["random"]
    model = Logistic(l2=0.1, penalise_bias=True)
    rows_nD, signs = np.c_[full.features.astype(float), np.ones(ROWS)], 2.0 * full.labels - 1
    best = optimize.minimize(lambda w: np.logaddexp(0, -signs * (rows_nD @ w)).mean() + 0.05 * w @ w, np.zeros(3), tol=1e-12).x
    built = LinearProblem(model=model, description=described(ROWS, 2), table=full, rows=np.arange(ROWS))
    streams = Streams(secret_from_seed("objective"), 0)
    found = TRAINER.fit(built, NoClip(), NoStep(), 0.0, streams).params_P
    assert found.numpy() == pytest.approx(best, abs=1e-3)


def test_softmax_is_refused():
    built = LinearProblem(model=Softmax(), description=described(ROWS, 2), table=TABLES["random"], rows=np.arange(ROWS))
    with pytest.raises(FieldError, match="more than one logit"):
        TRAINER.fit(built, NoClip(), NoStep(), 1.0, Streams(secret_from_seed("objective"), 0))
