"""DP-BLSGD and its kin: what a run asks of data against its event, on paths that are written beforehand; and real searches."""

from __future__ import annotations

import itertools
import math
import os
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from heard import HeardSearch
from oracles import FALSE_ALARM, REJECTED, scale_p_value
from small import blobs, without
from test_round_price import amplified, curve

from sweeper.backends.closed_form import LinearProblem, evaluate
from sweeper.checks import FieldError
from sweeper.clip.adaptive_quantile import AdaptiveQuantileClip
from sweeper.clip.decay import Decay
from sweeper.clip.fixed import FixedClip
from sweeper.clip.per_layer import PerLayerClip
from sweeper.clip.private_quantile import PrivateQuantileClip
from sweeper.models.linear import Softmax
from sweeper.privacy import accountant
from sweeper.privacy.events import Composed, PrivateQuantile, RenyiBound, ZeroConcentrated
from sweeper.seeds import Streams, secret_from_seed
from sweeper.step.backtracking import Backtracking
from sweeper.step.exponential_search import ExponentialSearch
from sweeper.step.fixed import FixedStep
from sweeper.step.noisy_min import NoisyMinSearch
from sweeper.trainers import line_searched_run
from sweeper.trainers.blsgd import DpBlgd, DpBlsgd, DpBlsgdAc
from sweeper.trainers.budget_rule import AGAIN, ANEW, REFINE

STREAMS = Streams(secret_from_seed("dp-blsgd"), 0)
ROWS, Z, SHARE, XI, VARSIGMA, PSI = 100, 1.5, 0.2, 0.3, 1.2, 0.8
GRADIENT, EPSILON = Z / math.sqrt(1 - SHARE), math.sqrt(4 * SHARE) / Z  # eps^2/8 = share / (2 z^2)
CLIP = FixedClip(clip_norm=1.0)
TOOK = "took a step"
PHI = {ANEW: 0.8, REFINE: 2.0, AGAIN: 0.1}
RUNS = {
    "never": DpBlsgd(batch_size=10, steps=12, budget="never"),
    "always": DpBlsgd(batch_size=10, steps=12, budget="always"),
    "angle": DpBlsgd(batch_size=10, steps=12),
    "always-retries": DpBlsgd(batch_size=10, steps=12, budget="always", retries=4),
    "angle-retries": DpBlsgd(batch_size=10, steps=12, retries=3),
    "ac": DpBlsgdAc(batch_size=10, steps=12),
    "table-never": DpBlgd(steps=12, budget="never"),
    "table": DpBlgd(steps=12),
    "table-angle": DpBlgd(steps=12, budget="angle"),
}
every_run = pytest.mark.parametrize("trainer", RUNS.values(), ids=RUNS)


class Toy:
    """Three parameters and no data. It keeps what is asked, batch by batch."""

    rows, layers, nonfinite = ROWS, (3,), 0

    def __init__(self) -> None:
        self.asked: list[list[tuple[str, float]]] = []

    def start(self, streams):
        return torch.zeros(3)

    def batch(self, rows_B):
        self.asked.append([])
        return self

    def sum(self, params_P, factors, *, by_layer=False):
        return torch.ones(3)

    def add_penalty_(self, gradient_P, params_P):
        pass


@dataclass(frozen=True, kw_only=True)
class ToldClip(FixedClip):
    """A clip that tells with which multiplier the sum is asked."""

    toy: Toy | None = field(default=None, compare=False, repr=False)
    falls: bool = False

    @property
    def raises(self) -> bool:
        return self.falls

    def raised(self):
        return replace(self, clip_norm=self.clip_norm / 1.05)

    def sum_noise(self, noise_multiplier):
        if self.toy.asked:  # else the run has not begun
            self.toy.asked[-1].append(("look", noise_multiplier))
        return noise_multiplier


@dataclass(frozen=True, kw_only=True)
class ToldSearch(HeardSearch):
    """A search whose answers, and the angles after them, follow a script."""

    toy: Toy | None = field(default=None, compare=False, repr=False)
    script: itertools.cycle | None = field(default=None, compare=False, repr=False)
    last: ClassVar[dict[str, float]] = {}

    def search(self, look, epsilon, bound):
        super().search(look, epsilon, bound)
        self.toy.asked[-1].append(("search", epsilon))
        word = next(self.script)
        self.last["phi"] = PHI.get(word, 0.8)
        return 0.1 if word == TOOK else 0.0


class ToldAngles:
    def __init__(self, window):
        pass

    def mean(self, gradient_P):
        return ToldSearch.last["phi"]

    def hear(self, gradient_P):
        pass


@pytest.fixture
def drive(monkeypatch):
    """Runs a trainer on a script: what every batch was asked, and what the run gave."""
    monkeypatch.setattr(line_searched_run, "Angles", ToldAngles)

    def run(trainer, script, z=Z):
        toy = Toy()
        search = ToldSearch(share=SHARE, toy=toy, script=itertools.cycle(script))
        fitted = trainer.fit(toy, ToldClip(clip_norm=1.0, toy=toy, falls=trainer.raises_clip), search, z, STREAMS)
        return toy.asked, fitted, search.heard

    return run


def cost(trainer, asked, order) -> float:
    """What a batch's questions cost, by formulas of this file's own: composed, and then amplified once."""
    looks = [curve(m, 0.0) for what, m in asked if what == "look"]
    searches = [curve(math.inf, epsilon) for what, epsilon in asked if what == "search"]
    if trainer.kind == "dp-blgd":  # zCDP
        return sum(1 / (2 * m**2) for what, m in asked if what == "look") + sum(e**2 / 8 for what, e in asked if what == "search")
    return amplified(lambda a: sum(part(a) for part in (*looks, *searches)), trainer.batch_size / ROWS, order)


def scripts(count: int):
    words = (TOOK, ANEW, REFINE, AGAIN)
    yield from ([word] for word in words)
    yield from ([REFINE] * 3 + [AGAIN] * 3, [TOOK, REFINE, TOOK, AGAIN])
    for seed in range(count):
        draw = random.Random(seed)
        yield draw.choices(words, weights=[draw.random() for _ in words], k=40)


@every_run
def test_what_a_run_asks_never_costs_more_than_its_event(trainer, drive):
    """Adversarial and random answers: the sum over batches is at most the event's figure, and nearly all of it is used."""
    clip = Decay(clip_norm=1.0, schedule="raise") if trainer.raises_clip else CLIP
    event = trainer.event(ROWS, Z, clip, HeardSearch(share=SHARE))
    order = getattr(event, "order", None)
    assert (order is None) == (trainer.kind == "dp-blgd")
    totals = []
    for script in scripts(40):
        asked, fitted, _ = drive(trainer, script)
        totals.append(sum(cost(trainer, batch, order and int(order)) for batch in asked))
        assert totals[-1] <= event.rho * (1 + 1e-9)
        assert fitted.sealed["steps"] == len(asked)
    assert max(totals) > (0.9 if trainer.attempts is None else 0.5) * event.rho  # retries that were not needed are paid for too


@every_run
def test_the_event_is_that_of_steps_rounds_at_the_start(trainer):
    """By formulas of this file's own; with several attempts on a batch, over all ways in which they may go."""
    clip = Decay(clip_norm=1.0, schedule="raise") if trainer.raises_clip else CLIP
    event = trainer.event(ROWS, Z, clip, HeardSearch(share=SHARE))
    if trainer.kind == "dp-blgd":
        assert event == ZeroConcentrated(event.rho)
        assert event.rho == pytest.approx(12 / (2 * Z**2), rel=1e-9)
        return
    assert event == RenyiBound(event.order, event.rho)
    moves = {"never": (), "always": (REFINE,), "angle": (REFINE, AGAIN)}[trainer.budget]
    paths = []
    for path in itertools.product(moves, repeat=(trainer.attempts or 1) - 1):
        asked, gradient, epsilon = [("look", GRADIENT), ("search", EPSILON)], 1.0, EPSILON
        for move in path:
            if move == REFINE:
                asked.append(("look", GRADIENT / math.sqrt(XI * gradient)))
                gradient *= 1 + XI
            else:
                epsilon *= VARSIGMA
            asked.append(("search", epsilon))
        paths.append(asked)

    def dearest(a: int) -> float:
        return max(sum(curve(x, 0.0)(a) if what == "look" else curve(math.inf, x)(a) for what, x in path) for path in paths)

    order = int(event.order)
    expected = 12 * amplified(dearest, 0.1, order)
    assert expected * (1 - 1e-9) <= event.rho <= expected * 1.002


def test_a_run_asks_what_the_rule_says(drive):
    """Budgets by hand: two raises of the gradient's, one of the search's, a success, and a new iteration at relaxed budgets."""
    asked, fitted, heard = drive(RUNS["angle"], [REFINE, REFINE, AGAIN, TOOK, ANEW, TOOK])
    expected = [
        [("look", GRADIENT), ("search", EPSILON)],
        [("look", GRADIENT / math.sqrt(XI)), ("search", EPSILON)],
        [("look", GRADIENT / math.sqrt(XI * 1.3)), ("search", EPSILON)],
        [("search", VARSIGMA * EPSILON)],  # the search alone, with the same gradient
        [("look", GRADIENT / math.sqrt(PSI * 1.69)), ("search", EPSILON)],  # 0.8 * 1.2 is below the start
        [("look", GRADIENT / math.sqrt(PSI * 1.69)), ("search", EPSILON)],  # a new iteration relaxes nothing
    ]
    assert len(asked) > len(expected)
    for found, batch in zip(asked, expected, strict=False):
        assert [what for what, _ in found] == [what for what, _ in batch]
        assert [x for _, x in found] == pytest.approx([x for _, x in batch])
    assert torch.equal(heard.gradients[2], heard.gradients[3])
    assert fitted.trace["step_size"][:6] == [0, 0, 0, 0.1, 0, 0.1]
    shown = [1, 1.3, 1.69, 1.69, PSI * 1.69, PSI * 1.69]
    assert fitted.trace["rho_gradient"][:6] == pytest.approx([g / (2 * GRADIENT**2) for g in shown])
    assert fitted.trace["search_epsilon"][:5] == pytest.approx([EPSILON, EPSILON, EPSILON, VARSIGMA * EPSILON, EPSILON])


def test_retries_stay_on_their_batch_and_end_with_it(drive):
    asked, fitted, _ = drive(replace(RUNS["always-retries"], steps=100), [REFINE] * 6 + [TOOK])
    looks = [[x for what, x in batch if what == "look"] for batch in asked]
    multiples = [[(GRADIENT / x) ** 2 for x in batch] for batch in looks]
    assert multiples[0] == pytest.approx([1, XI, XI * 1.3, XI * 1.69])  # four attempts, then a new iteration at the raised budget
    assert multiples[1] == pytest.approx([1.3**3, XI * 1.3**3, XI * 1.3**4])
    assert fitted.sealed["attempts_refine"] == sum(len(batch) - 1 for batch in looks)


def test_a_budget_that_is_never_raised_pays_for_exactly_its_steps(drive):
    for trainer in (RUNS["never"], RUNS["table-never"]):
        for script in ([TOOK], [REFINE], [TOOK, AGAIN]):
            asked, fitted, _ = drive(trainer, script)
            assert len(asked) == fitted.sealed["steps"] == trainer.steps
            assert 0 <= fitted.trace["budget_left"][-1] < 1e-9
    assert len(drive(RUNS["always"], [REFINE])[0]) < 12 < len(drive(replace(RUNS["angle"], search_raise=1.01), [AGAIN])[0])


def test_a_refined_gradient_is_averaged_by_inverse_variance(drive, monkeypatch):
    """Null records: noise of the average has the scale of the raised budget, at every raise; without raising it is rejected."""
    monkeypatch.setattr(line_searched_run, "Angles", ToldAngles)
    full, description = blobs(10, 2000, 10)
    nothing = LinearProblem(model=Softmax(), description=description, table=without(full, *range(10)), rows=np.arange(10))
    script = itertools.cycle([REFINE])
    toy = Toy()
    toy.asked.append([])
    search = ToldSearch(share=SHARE, toy=toy, script=script)
    DpBlsgd(batch_size=5, steps=30, budget="always").fit(nothing, FixedClip(clip_norm=0.6), search, Z, STREAMS)
    noise = [gradient_P.double().numpy() * 5 for gradient_P in search.heard.gradients[:4]]
    assert len(noise) == 4
    for k, of_sum in enumerate(noise):
        std = 0.6 * GRADIENT / math.sqrt(1.3**k)
        assert scale_p_value(of_sum, std) > FALSE_ALARM
        for wrong in (2 / 3, math.sqrt(1.3), 3 / 2):
            assert scale_p_value(of_sum, std * wrong) < REJECTED
    kept = np.dot(noise[1], noise[0]) / np.dot(noise[0], noise[0])
    assert kept == pytest.approx(1 / 1.3, abs=0.02)  # of the old one; 20,010 coordinates


def test_the_clip_norm_and_the_bound_fall_together_once_per_update(drive):
    script = [REFINE, REFINE, AGAIN, ANEW, REFINE, TOOK, REFINE, TOOK]
    _, fitted, heard = drive(replace(RUNS["ac"], steps=100), script)
    levels = [0, 1, 1, 1, 1, 1, 1, 2]  # how often they have fallen when each search is asked
    assert heard.bounds[:8] == pytest.approx([1.05**-k for k in levels])
    looked = [0, 1, 1, 1, 1, 1, 1, 2]  # the clip norm of the last look at the gradient
    assert fitted.trace["clip_norm"][:8] == pytest.approx([1.05**-k for k in looked])
    _, fitted, heard = drive(RUNS["angle"], script)
    assert set(heard.bounds) == {1.0} == set(fitted.trace["clip_norm"])


def test_the_fallen_clip_norm_scales_the_noise():
    """With the real policy: noise of the gradient after one fall is the smaller sensitivity's."""
    full, description = blobs(10, 2000, 10)
    nothing = LinearProblem(model=Softmax(), description=description, table=without(full, *range(10)), rows=np.arange(10))
    search = HeardSearch(share=SHARE, answers=itertools.chain([0.0, 0.1], itertools.repeat(0.1)))
    trainer, clip = DpBlsgdAc(batch_size=5, steps=30, budget="always"), Decay(clip_norm=0.6, schedule="raise", zeta=1.0)
    trainer.fit(nothing, clip, search, Z, STREAMS)
    third = search.heard.gradients[2].double().numpy() * 5  # a new iteration; its rho is 0.8 * 1.3 of the start
    std = 0.3 * GRADIENT / math.sqrt(PSI * 1.3)
    assert scale_p_value(third, std) > FALSE_ALARM
    assert scale_p_value(third, 2 * std) < REJECTED


SEARCHES = [Backtracking(), Backtracking(noise="gaussian"), NoisyMinSearch(), NoisyMinSearch(noise="laplace")]
every_search = pytest.mark.parametrize("step", SEARCHES, ids=repr)


@every_search
@pytest.mark.parametrize("name", ["angle", "angle-retries", "table"])
def test_events_exist_at_every_noise_and_fall_with_it(step, name):
    trainer = RUNS[name]
    noises = [0.0, 1e-4, 0.00999, 0.01, 0.03, 0.3, 1.0, 3.0, 30.0, 1e7]
    events = [trainer.event(ROWS, z, CLIP, step) for z in noises]
    assert [event.unprotected for event in events] == [True] * 5 + [event.unprotected for event in events[5:]]
    assert not any(event.unprotected for event in events[7:])
    prices = [math.inf if event.unprotected else accountant.epsilon(event, 1e-5) for event in events]
    assert all(a >= b for a, b in itertools.pairwise(prices))
    assert prices[-1] < 1e-3


@every_search
def test_candidates_of_a_sweep_run_at_one_order_and_the_dearest_bounds_them(step):
    trainer, kind = RUNS["angle-retries"], getattr(step, "kind", "")
    changes = [{}, {"initial": 3.0}, {"ratio": 0.5}, {"bound": 2.0}, {"candidates": 7}, {"candidates": 90}]
    changes += [{"alpha": 0.1}] if kind == "backtracking" else []
    events = [trainer.event(ROWS, Z, CLIP, replace(step, **change)) for change in changes]
    assert len({event.order for event in events}) == 1
    longer = [trainer.event(ROWS, Z, CLIP, replace(step, candidates=k)).rho for k in (1, 5, 20, 90)]
    assert longer == sorted(longer)


@every_search
@pytest.mark.parametrize("name", ["angle", "always", "ac", "table", "angle-retries"])
def test_it_learns_and_a_million_times_the_noise_destroys_accuracy(step, name):
    full, description = blobs(1000, 20, 10)
    shared = LinearProblem(model=Softmax(), description=description, table=full, rows=np.arange(1000))
    trainer = replace(RUNS[name], steps=60, **({} if name == "table" else {"batch_size": 100}))
    settings = {"initial": 30.0, "bound": 2.5} | ({"alpha": 0.05} if step.kind == "backtracking" else {})
    clip = Decay(clip_norm=1.0, schedule="raise") if trainer.raises_clip else CLIP

    def accuracy(z: float, trial: int) -> float:
        fitted = trainer.fit(shared, clip, replace(step, **settings), z, Streams(STREAMS.secret, trial))
        return evaluate(Softmax(), fitted.params_P, full, np.arange(1000)) / 1000

    assert accuracy(0.5, 0) > 0.9
    assert np.mean([accuracy(1e6, trial) for trial in range(4)]) < 0.4  # guessing is right one time in ten


def test_policies_that_ask_beforehand_count_and_look_at_layers_go_with_it():
    full, description = blobs(300, 6, 10)
    shared = LinearProblem(model=Softmax(l2=0.01), description=description, table=full, rows=np.arange(300))
    quantile = PrivateQuantileClip(quantile=0.5, epsilon=0.7)
    event = RUNS["angle"].event(300, Z, quantile, Backtracking())
    assert event == Composed((PrivateQuantile(0.7), RUNS["angle"].event(300, Z, CLIP, Backtracking())))
    for clip in (quantile, AdaptiveQuantileClip(clip_norm=1.0), PerLayerClip(clip_norm=1.0), Decay(clip_norm=1.0)):
        for name in ("always", "angle-retries", "table"):
            assert list(RUNS[name].faults(clip, Backtracking())) == []
            fitted = RUNS[name].fit(shared, clip, Backtracking(alpha=0.1, initial=20.0, bound=2.0), Z, STREAMS)
            assert fitted.params_P.isfinite().all()
            assert (len(set(fitted.trace["clip_norm"])) > 1) == (clip.kind in ("adaptive-quantile", "decay"))
    assert RUNS["angle"].event(ROWS, Z, AdaptiveQuantileClip(clip_norm=1.0), Backtracking()).rho == pytest.approx(
        RUNS["angle"].event(ROWS, Z, CLIP, Backtracking()).rho, rel=2e-3
    )


def test_a_run_writes_no_price_but_its_own(drive):
    def files() -> set[Path]:
        return set(Path(os.environ["SWEEPER_HOME"]).glob("cache/prices/*"))

    RUNS["angle"].event(ROWS, 1.2345, CLIP, HeardSearch(share=SHARE))
    before = files()
    asked, _, _ = drive(RUNS["angle"], [REFINE, AGAIN, TOOK], z=1.2345)
    assert len(asked) > 5
    assert files() == before


def refusals(trainer, clip, step) -> list[str]:
    return [str(fault) for fault in trainer.faults(clip, step)]


def test_what_it_refuses_and_why():
    plain, decay, step = RUNS["angle"], Decay(clip_norm=1.0, schedule="raise"), Backtracking()
    assert refusals(plain, CLIP, step) == refusals(RUNS["table"], CLIP, NoisyMinSearch()) == refusals(RUNS["ac"], decay, step) == []
    assert refusals(plain, CLIP, FixedStep(learning_rate=1.0)) == [
        "space.step.policy = 'fixed' searches nothing, and trainer dp-blsgd moves its budgets by searches that find no step. "
        "Use policy: backtracking, or noisy-min; or trainer dp-sgd."
    ]
    for other in (ExponentialSearch(), Backtracking(never_zero=True)):
        (said,) = refusals(RUNS["table"], CLIP, other)
        assert f"space.step.policy = '{other.kind}' always takes a step, and trainer dp-blgd" in said
    (said,) = refusals(plain, CLIP, Backtracking(epsilon=0.1))
    assert said.startswith("space.step.epsilon = 0.1 fixes the search's budget")
    (said,) = refusals(plain, decay, step)
    assert said.startswith("space.clip.policy = 'decay' moves when a trainer raises its gradient budget, and under trainer")
    (said,) = refusals(RUNS["ac"], CLIP, step)
    assert said.startswith("space.clip.policy = 'fixed' stays where it is")
    assert said.endswith("Use clip: {policy: decay, schedule: raise}, or trainer dp-blsgd.")
    (said,) = refusals(plain, AdaptiveQuantileClip(clip_norm=1.0, count_noise=3.0), step)
    assert said.startswith("space.clip.count_noise = 3 is one for all steps")


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("batch_size", 0), ("steps", 0), ("sampling", "without-replacement"), ("retries", 1), ("retries", 21), ("budget", "adap"),
        ("average", "mean"), ("radius", 0.0), ("window", 0),
    ],
)  # fmt: skip
def test_fields_are_checked(field, wrong):
    with pytest.raises(FieldError, match=field):
        DpBlsgd(**{"batch_size": 10, "steps": 10, field: wrong})


def test_retries_that_never_happen_are_refused():
    with pytest.raises(FieldError, match="retries = 3 has no use"):
        DpBlsgd(batch_size=10, steps=10, budget="never", retries=3)
