"""Every clip policy x every step policy x every trainer x every backend: it runs and keeps what it states, or is refused by name.

A new kind needs no row here: `everything` asks the catalog. What is refused is written out, so that a refusal cannot spread.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from small import blobs, spoilt, without

from sweeper import catalog
from sweeper.backends.choice import problem_of
from sweeper.backends.closed_form import LinearProblem, evaluate
from sweeper.checks import FieldError
from sweeper.launch.part import PartProblem
from sweeper.models.linear import Logistic, Softmax
from sweeper.models.mlp import Mlp
from sweeper.models.module import ModuleModel
from sweeper.privacy.events import AdaptiveQuantileStep, Composed, Event, Gaussian, PoissonSubsampled, Repeated
from sweeper.seeds import Streams, secret_from_seed
from sweeper.trainers import line_searched_run, minibatch

ROWS, STEPS = 120, 8
CLIPS: dict[str, dict[str, Any]] = {
    "fixed": {"clip_norm": 0.5},
    "percentile": {"percentile": 40.0},
    "private-quantile": {"quantile": 0.5, "epsilon": 3.0},
    "adaptive-quantile": {"clip_norm": 0.5},
    "normalise": {"r": 0.01},
    "decay": {"clip_norm": 0.5, "schedule": "exponential"},
    "decay (raise)": {"clip_norm": 0.5, "schedule": "raise"},
    "per-layer": {"clip_norm": 0.5},
    "heavy-tail": {"moment_order": 2.0, "moment": 3.0, "gamma": 0.5},
    "none": {},
}
STEPPERS: dict[str, dict[str, Any]] = {
    "fixed": {"learning_rate": 0.5},
    "coupled": {"c": 0.5},
    "theory": {"distance": 2.0, "theorem": "5.4"},
    "theory (6.2)": {"distance": 2.0, "theorem": "6.2"},  # with the clip norm of that theorem
    "exponential-search": {"initial": 8.0, "candidates": 10},
    "backtracking": {"initial": 8.0, "candidates": 10, "alpha": 0.01},
    "backtracking (gaussian)": {"initial": 8.0, "candidates": 5, "alpha": 0.01, "noise": "gaussian"},
    "noisy-min": {"initial": 8.0, "candidates": 10},
    "none": {},
}
TRAINERS: dict[str, dict[str, Any]] = {
    "dp-sgd": {"batch_size": 40, "steps": STEPS},
    "dp-sgd (fixed size)": {"batch_size": 40, "steps": STEPS, "sampling": "without-replacement"},
    "dp-adam": {"batch_size": 40, "steps": STEPS, "bias_correct_noise": True},
    "dp-nsgd": {"batch_size": 40, "steps": STEPS},
    "dp-blsgd": {"batch_size": 40, "steps": STEPS},
    "dp-blsgd-ac": {"batch_size": 40, "steps": STEPS},
    "dp-blgd": {"steps": STEPS},
    "dp-agd": {"steps": STEPS},
    "output-perturbation-sgd": {"batch_size": 40, "steps": STEPS},
    "output-perturbation-gd": {"steps": STEPS},
    "objective-perturbation": {},
    "privgene": {"steps": STEPS, "population": 10, "parents": 2},
    "majority": {},
    "non-private": {"steps": STEPS},
    "non-private (sgd)": {"method": "sgd", "batch_size": 40, "steps": STEPS},
}
SEARCHES = {"exponential-search", "backtracking", "backtracking (gaussian)", "noisy-min"}
BLSGD = {"dp-blsgd", "dp-blsgd-ac", "dp-blgd", "dp-agd"}
UNCLIPPED = {  # trainers that clip nothing -> the step policies that go with them; see test_trainer_unclipped.py
    "output-perturbation-sgd": {"fixed", "none"},
    "output-perturbation-gd": {"fixed", "none"},
    "objective-perturbation": {"none"},
    "privgene": {"none"},
    "majority": {"none"},
    "non-private": {"none"},
    "non-private (sgd)": {"fixed"},
}
MODELS = {"logistic": (Logistic(), 2), "softmax": (Softmax(l2=0.01), 4)}
SECRET = secret_from_seed("matrix")


def build(family: str, name: str, fields: dict[str, Any]) -> Any:
    return catalog.resolve(family, name.split(" ")[0])(**fields)


def expected_refusal(trainer: str, clip: str, step: str) -> str | None:
    """The field that a refusal must name; None: it runs."""
    if step.startswith("theory") and (step == "theory (6.2)") != (clip == "heavy-tail"):
        return "space.step.theorem"
    if trainer in UNCLIPPED:
        if clip != "none":
            return "space.clip.policy"
        if step not in UNCLIPPED[trainer] or (trainer == "output-perturbation-sgd" and step == "none"):  # the latter: no l2 here
            return "space.step.policy"
        return None
    if clip == "none":
        return "space.clip.policy"
    if step == "none":
        return "space.step.policy"
    if trainer == "dp-sgd (fixed size)" and step in SEARCHES:
        return "trainer.sampling"
    if trainer == "dp-nsgd" and clip != "normalise":
        return "space.clip.policy"
    if trainer not in BLSGD and clip == "decay (raise)":
        return "space.clip.policy"
    if trainer == "dp-adam" and step in ("coupled", "theory", "theory (6.2)"):
        return "space.step.policy"
    if trainer in BLSGD and (step not in SEARCHES or step == "exponential-search"):
        return "space.step.policy"
    if (trainer == "dp-blsgd-ac") != (clip == "decay (raise)"):
        return "space.clip.policy"
    if trainer == "dp-agd" and step != "noisy-min":
        return "space.step.policy"
    return None


ALL = list(itertools.product(TRAINERS, CLIPS, STEPPERS))
RUNNING = [case for case in ALL if expected_refusal(*case) is None and case[0] not in UNCLIPPED]
every_case = pytest.mark.parametrize(("trainer", "clip", "step"), ALL, ids=[" x ".join(case) for case in ALL])
every_run = pytest.mark.parametrize(("trainer", "clip", "step"), RUNNING, ids=[" x ".join(case) for case in RUNNING])
every_model = pytest.mark.parametrize("model", MODELS)


class Case:
    """A trainer with its policies, ready to run on small tables."""

    def __init__(self, trainer: str, clip: str, step: str, model: str = "softmax") -> None:
        self.trainer = build("trainer", trainer, TRAINERS[trainer])
        self.clip, self.step = build("clip", clip, CLIPS[clip]), build("step", step, STEPPERS[step])
        self.model, self.classes = MODELS[model]
        self.full, self.description = blobs(ROWS, 6, self.classes)

    def problem(self, table: Any = None) -> LinearProblem:
        table = self.full if table is None else table
        return LinearProblem(model=self.model, description=self.description, table=table, rows=np.arange(ROWS))

    def fit(self, problem: Any = None, *, noise: float = 1.0, trial: int = 0, **more: Any) -> Any:
        problem = self.problem() if problem is None else problem
        return self.trainer.fit(problem, self.clip, self.step, noise, Streams(SECRET, trial), **more)


def test_everything_in_the_catalog_is_in_the_matrix():
    for family, table in (("clip", CLIPS), ("step", STEPPERS), ("trainer", TRAINERS)):
        assert set(catalog.KINDS[family]) == {name.split(" ")[0] for name in table}, family


@every_case
def test_it_runs_or_is_refused_by_name(trainer: str, clip: str, step: str) -> None:
    """What a user meets: a spec that loads, or one line that names the field and both of what do not go together."""
    field = expected_refusal(trainer, clip, step)
    spec = {
        "name": "matrix",
        "data": {"source": "adult", "public": True},
        "model": {"kind": "logistic"},
        "trainer": {"kind": trainer.split(" ")[0], **TRAINERS[trainer]},
        "privacy": {"epsilon": 1.0, "delta": 1e-5},
        "protocol": {"kind": "no-tuning"},
        "space": {
            "clip": {"policy": clip.split(" ")[0], **CLIPS[clip]},
            "step": {"policy": step.split(" ")[0], **STEPPERS[step]},
        },
    }
    if field is None:
        loaded = catalog.sweep_from_dict(spec)
        assert loaded.trainer.event(1000, 1.0, loaded.space.clip.middle(), loaded.space.step.middle()).relation is not None
        return
    with pytest.raises(FieldError) as refused:
        catalog.sweep_from_dict(spec)
    error = refused.value
    assert error.field == field
    assert error.hint.startswith(("Use ", "See: sweeper kinds "))
    assert any(
        word in error.rule for word in (trainer.split(" ")[0], step.split(" ")[0], "batch", "gradient", "theorem", "clip policy")
    )


@every_run
@every_model
def test_sums_stay_within_the_sensitivity_whatever_the_rows(trainer: str, clip: str, step: str, model: str) -> None:
    """No noise, outliers of all sizes: the norm of a sum is at most its number of records times what the policy stated."""
    case = Case(trainer, clip, step, model)
    wild = spoilt(spoilt(case.full, 3, 1e4), 5, -1e6)
    sums: list[tuple[float, int, float]] = []

    class Batch:
        def __init__(self, inner: Any, records: int) -> None:
            self.inner, self.records = inner, records

        def sum(self, params_P: Any, factors: Any, **more: Any) -> Any:
            found = self.inner.sum(params_P, factors, **more)
            sums.append((float(found.double().norm()), self.records, 0.0))
            return found

        def sum_and_count(self, params_P: Any, factors: Any, counted: Any) -> Any:
            found, count = self.inner.sum_and_count(params_P, factors, counted)
            sums.append((float(found.double().norm()), self.records, count))
            return found, count

        def losses_along(self, *args: Any) -> Any:
            return self.inner.losses_along(*args)

    class Watched(LinearProblem):
        def batch(self, rows_B: Any) -> Any:
            return Batch(super().batch(rows_B), len(rows_B))

    watched = Watched(model=case.model, description=case.description, table=wild, rows=np.arange(ROWS))
    fitted = case.fit(watched, noise=0.0 if trainer not in BLSGD else 0.05)
    largest = max(fitted.trace["clip_norm"])  # of the steps traced; all of them, as STEPS is small
    assert len(sums) >= 2
    for norm, records, count in sums:
        assert norm <= records * largest * (1 + 1e-4)
        assert abs(count) <= records / 2


def events_of(event: Event) -> Iterator[Event]:
    yield event
    for inner in event.inside:
        yield from events_of(inner)


@every_run
def test_the_noise_of_a_sum_is_what_the_event_says(trainer: str, clip: str, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every noise draw, against the multiplier in the event and the clip norm of that step; 2/3 and 3/2 of it are far off."""
    case, stds = Case(trainer, clip, step), []
    for module in (minibatch, line_searched_run):
        true = module.gaussian_
        monkeypatch.setattr(module, "gaussian_", lambda out, std, g, true=true: (stds.append(std), true(out, std, g))[1])
    fitted = case.fit(noise=1.3)
    asked = case.clip.sum_event(case.step.gradient_noise(1.3))
    multiplier = asked.gradient_noise_multiplier if isinstance(asked, AdaptiveQuantileStep) else asked.noise_multiplier
    assert isinstance(asked, (Gaussian, AdaptiveQuantileStep))
    if trainer in BLSGD:  # its budgets move, and the allowance pays for what they move to
        assert stds[0] == pytest.approx(multiplier * fitted.trace["clip_norm"][0], rel=1e-9)
        return
    assert stds == pytest.approx([multiplier * norm for norm in fitted.trace["clip_norm"]], rel=1e-9)
    event = case.trainer.event(ROWS, 1.3, case.clip, case.step)
    repeated = [found for found in events_of(event) if isinstance(found, Repeated)]
    assert [found.count for found in repeated] == [STEPS]
    inner = repeated[0].event.event
    parts = inner.events if isinstance(inner, Composed) else (inner,)
    assert parts[0] == asked
    assert len(parts) == 1 + case.step.searches
    if case.step.searches:
        assert isinstance(repeated[0].event, PoissonSubsampled)
        assert parts[1] == case.step.event(1.3)


@every_run
@every_model
def test_a_broken_record_is_left_out(trainer: str, clip: str, step: str, model: str) -> None:
    """NaN in one record: the run is, to the bit, the one where that record is null."""
    case = Case(trainer, clip, step, model)
    broken, null = case.fit(case.problem(spoilt(case.full, 4, np.nan))), case.fit(case.problem(without(case.full, 4)))
    assert broken.params_P.isfinite().all()
    assert torch.equal(broken.params_P, null.params_P)
    assert broken.trace == null.trace
    assert broken.chosen == null.chosen
    assert broken.sealed["nonfinite"] > 0 == null.sealed["nonfinite"]


@every_run
def test_the_same_streams_replay_the_same_bits_anywhere(trainer: str, clip: str, step: str) -> None:
    """Run again, on a problem that served others meanwhile, or on a fresh copy of table and policies: the same bits."""
    case, shared = Case(trainer, clip, step), Case(trainer, clip, step).problem()
    once = case.fit(shared)
    other = case.fit(shared, trial=1)
    again, elsewhere = case.fit(shared), Case(trainer, clip, step).fit()
    assert torch.equal(once.params_P, again.params_P)
    assert torch.equal(once.params_P, elsewhere.params_P)
    assert once.trace == again.trace == elsewhere.trace
    if once.params_P.any() and other.params_P.any():  # a search that takes no step stays at the start, with any streams
        assert torch.isclose(once.params_P, other.params_P).float().mean() < 0.2


@every_run
def test_an_empty_table_runs_on_noise_alone(trainer: str, clip: str, step: str) -> None:
    """Null records only: every batch is empty but for them. The run goes on, and what comes out is finite and moved by noise."""
    case = Case(trainer, clip, step)
    nobody = case.problem(without(case.full, *range(ROWS)))
    if clip == "percentile":  # on public data only, where it may say that there is no row to read
        with pytest.raises(FieldError, match="percentile"):
            case.fit(nobody)
        return
    fitted = case.fit(nobody)
    assert fitted.params_P.isfinite().all()
    assert len(fitted.trace["step"]) >= 1
    if trainer not in BLSGD:  # there a step that does not lower the loss is not taken, and no step lowers the loss of nobody
        assert fitted.sealed["steps"] == STEPS
        assert step in SEARCHES or (fitted.params_P != 0).all()


@every_run
def test_a_million_times_the_noise_destroys_accuracy(trainer: str, clip: str, step: str) -> None:
    case = Case(trainer, clip, step)
    right = [evaluate(case.model, case.fit(noise=1e6, trial=t).params_P, case.full, np.arange(ROWS)) / ROWS for t in range(6)]
    assert np.mean(right) < 0.55  # of four classes; with noise 0.01 the textbook settings are right nine times in ten


@every_run
def test_rows_outside_a_part_are_never_asked(trainer: str, clip: str, step: str) -> None:
    """subsample-tune: the run on a part is, to the bit, the run on the table whose other rows are null."""
    if trainer == "dp-sgd (fixed size)":
        return  # refused with subsample-tune: see the contract suite of protocols
    case = Case(trainer, clip, step)
    inside = np.random.default_rng(0).random(ROWS) < 0.5
    part = case.fit(PartProblem(case.problem(), inside), share=0.5)
    null = case.fit(case.problem(without(case.full, *np.flatnonzero(~inside))), share=0.5)
    assert float((part.params_P - null.params_P).norm()) <= 1e-2 * float(null.params_P.norm())  # Adam divides rounding by roots
    assert part.chosen == pytest.approx(null.chosen)


@every_run
def test_what_a_run_tells_is_parted(trainer: str, clip: str, step: str) -> None:
    """Released: numbers made of noisy ones. Sealed: clipped fractions, norms, batch sizes, which appear nowhere else."""
    fitted = Case(trainer, clip, step).fit()
    assert set(fitted.trace) <= {"step", "step_size", "clip_norm", "budget_left", "rho_gradient", "search_epsilon"}
    assert set(fitted.chosen) <= {"clip_norm", "learning_rate"}
    assert {"batch_size", "clipped_fraction", "gradient_norm_0.5"} <= set(fitted.sealed["by_step"])
    lengths = {len(values) for values in fitted.trace.values()}
    assert len(lengths) == 1
    assert lengths.pop() <= 200
    assert all(isinstance(value, float) for values in fitted.trace.values() for value in values)


NETWORKS = {
    "layered": Mlp(hidden=(5,)),
    "opacus": ModuleModel(module="user_nets:head_of", args={"features": 6, "classes": 4}),
}


@every_run
@pytest.mark.parametrize("backend", NETWORKS)
def test_the_other_backends_run_it_and_replay_it(trainer: str, clip: str, step: str, backend: str) -> None:
    """Two workers' problems give the same bits; other streams give others. What networks cannot promise is refused by name."""
    case = Case(trainer, clip, step)
    problems = [
        problem_of(NETWORKS[backend], description=case.description, table=case.full, rows=np.arange(ROWS)) for _ in range(2)
    ]
    if case.clip.lipschitz:  # a file that asks for it is refused earlier, by name
        with pytest.raises(FieldError):
            case.fit(problems[0])
        return
    first, again, other = case.fit(problems[0]), case.fit(problems[1]), case.fit(problems[0], trial=1)
    assert torch.isfinite(first.params_P).all()
    assert torch.equal(first.params_P, again.params_P)
    assert first.sealed == again.sealed
    assert not torch.equal(first.params_P, other.params_P)


class Kept:
    """A place to keep a run's state, due after every round."""

    def __init__(self) -> None:
        self.content: bytes | None = None
        self.resumed_from = 0

    def load(self) -> bytes | None:
        return self.content

    def due(self) -> bool:
        return True

    def save(self, content: bytes) -> None:
        self.content = content


class Lost(Exception):
    pass


def lost_after(rounds: int) -> Any:
    def hear(done: int) -> None:
        if done == rounds:
            raise Lost

    return hear


@every_run
def test_a_run_that_is_lost_twice_goes_on_bit_for_bit(trainer: str, clip: str, step: str) -> None:
    """On a problem of its own each time, as another worker would have. One record is broken, and counted once."""
    case = Case(trainer, clip, step)
    broken = spoilt(case.full, 3, np.nan)
    whole, keep = case.fit(case.problem(broken)), Kept()
    for rounds in (2, 5):
        with pytest.raises(Lost):
            case.fit(case.problem(broken), keep=keep, on_step=lost_after(rounds))
    heard: list[int] = []
    found = case.fit(case.problem(broken), keep=keep, on_step=heard.append)
    assert keep.resumed_from == 5
    assert heard[:1] in ([6], [])  # a search may have ended the run before
    assert torch.equal(found.params_P, whole.params_P)
    assert (found.sealed, found.chosen, found.trace) == (whole.sealed, whole.chosen, whole.trace)
