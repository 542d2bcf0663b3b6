"""PrivGene: scores whose differences one record moves by at most 1; picks by the law that is priced, as many as are priced."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles import FALSE_ALARM, REJECTED, frequency_p_value, losses
from small import blobs, without

from sweeper.backends.closed_form import LinearProblem, evaluate
from sweeper.checks import FieldError
from sweeper.clip.none import NoClip
from sweeper.models.linear import Logistic, Softmax, Svm
from sweeper.privacy.events import ExponentialMechanism, Repeated
from sweeper.seeds import SEARCH, Streams, secret_from_seed
from sweeper.step.none import NoStep
from sweeper.trainers.privgene import PrivGene

ROWS, STREAMS = 40, Streams(secret_from_seed("genes"), 0)
MODELS = {"logistic": (Logistic(l2=0.1), 2), "svm": (Svm(), 2), "softmax": (Softmax(), 4)}


def problem(name: str, full, description) -> LinearProblem:
    return LinearProblem(model=MODELS[name][0], description=description, table=full, rows=np.arange(ROWS))


def scores(bound: float, name: str, people_MP, full, description) -> np.ndarray:
    """Of all people; the reference is the first."""
    built = problem(name, full, description)
    return PrivGene._scores(people_MP, people_MP[0], built.batch(np.arange(ROWS)), built, float(ROWS), bound)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("bound", [0.3, 5.0])
def test_one_record_moves_the_difference_of_two_scores_by_at_most_one(name, bound):
    """Every record is taken out; some record moves a difference by nearly all of that."""
    full, description = blobs(ROWS, 5, MODELS[name][1])
    people_MP = 20 * np.random.default_rng(0).standard_normal((20, MODELS[name][0].parameters(description)))
    whole = scores(bound, name, people_MP, full, description)
    moves_nM = np.array([whole - scores(bound, name, people_MP, without(full, row), description) for row in range(ROWS)])
    widths_n = moves_nM.max(axis=1) - moves_nM.min(axis=1)
    assert 1 / 1.5 < widths_n.max() <= 1 + 1e-9


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_sums_of_clipped_changes_of_loss_and_of_the_penalty(name):
    full, description = blobs(ROWS, 5, MODELS[name][1])
    people_MP = np.random.default_rng(0).standard_normal((5, MODELS[name][0].parameters(description)))
    found = scores(0.8, name, people_MP, full, description)

    def each(person_P):
        return losses(MODELS[name][0].kind, person_P, full.features, full.labels)

    def penalty(person_P):
        return MODELS[name][0].l2 / 2 * (person_P.reshape(-1, 6)[:, :-1] ** 2).sum()

    for person_P, score in zip(people_MP, found, strict=True):
        changes = np.clip(each(person_P) - each(people_MP[0]), -0.8, 0.8).sum()
        expected = (changes + ROWS * (penalty(person_P) - penalty(people_MP[0]))) / 1.6
        assert score == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_bound_and_mutations_shrink_together_and_the_reference_is_the_last_pick(monkeypatch):
    full, description = blobs(ROWS, 5, 2)
    seen, true = [], PrivGene._scores

    def spy(people_MP, reference_P, batch, built, weight, bound):
        seen.append((people_MP.copy(), reference_P.copy(), bound))
        return true(people_MP, reference_P, batch, built, weight, bound)

    monkeypatch.setattr(PrivGene, "_scores", staticmethod(spy))
    trainer = PrivGene(steps=4, population=40, parents=1, bound=0.7, cooling=0.5, mutation_rate=1.0)
    trainer.fit(problem("logistic", full, description), NoClip(), NoStep(), 0.5, STREAMS)
    assert [bound for _, _, bound in seen] == pytest.approx([0.7 * 0.5**g for g in range(5)])
    assert not seen[0][1].any()  # the start
    for generation, (people_MP, reference_P, _) in enumerate(seen):
        spread = (people_MP - reference_P).std()  # 240 draws: a tenth is 2.2 of its standard deviations, a third 7
        assert spread == pytest.approx(0.5 * 0.5**generation, rel=1 / 3)
        if generation:
            assert any((reference_P == person_P).all() for person_P in seen[generation - 1][0])


@pytest.mark.parametrize("epsilon", [0.05, 1.0])
def test_a_pick_has_the_law_that_is_priced(epsilon):
    """Pr[j] ~ exp(-epsilon F_j): one record raises F_j by 1 at most. An epsilon 1.5 times too large is rejected."""
    scores_M, draws = np.array([0.0, 1.0, 2.5, 6.0, 30.0]) / epsilon, STREAMS.generator(SEARCH)
    counts = np.bincount([PrivGene._pick(scores_M, epsilon, draws) for _ in range(40_000)], minlength=5)

    def law(times: float) -> np.ndarray:
        weights = np.exp(-epsilon * times * scores_M)
        return weights / weights.sum()

    assert frequency_p_value(counts, law(1.0)) > FALSE_ALARM
    for wrong in (2 / 3, 3 / 2):
        assert frequency_p_value(counts, law(wrong)) < REJECTED


def test_every_pick_is_in_the_price(monkeypatch):
    full, description = blobs(ROWS, 5, 2)
    trainer, picks, true = PrivGene(steps=3, population=7, parents=4), [], PrivGene._pick
    monkeypatch.setattr(PrivGene, "_pick", staticmethod(lambda s, e, d: (picks.append(e), true(s, e, d))[1]))
    trainer.fit(problem("logistic", full, description), NoClip(), NoStep(), 2.0, STREAMS)
    event = trainer.event(ROWS, 2.0, NoClip(), NoStep())
    assert event == Repeated(ExponentialMechanism(2 / (2.0 * 13**0.5)), 13)
    assert picks == [event.event.epsilon] * event.count
    assert event.count * event.event.epsilon**2 / 8 == pytest.approx(1 / (2 * 2.0**2))  # zCDP of a Gaussian of multiplier 2


def test_children_are_made_of_what_was_picked():
    """Without mutation every coordinate is one of a picked parent's."""
    trainer = PrivGene(population=50, mutation_rate=1e-12)
    parents_RP = np.arange(12.0).reshape(3, 4)
    children_MP = trainer._children(parents_RP, STREAMS.generator("test"), 1.0)
    assert children_MP.shape == (50, 4)
    assert all(set(children_MP[:, p]) == set(parents_RP[:, p]) for p in range(4))


def test_one_coordinate_of_a_child_moves_on_average():
    trainer = PrivGene(population=400)
    moved_MP = trainer._children(np.zeros((1, 50)), STREAMS.generator("test"), 1.0) != 0
    assert moved_MP.sum() / 400 == pytest.approx(1.0, abs=0.3)  # binomial: its standard deviation is 0.05


def test_it_finds_good_parameters():
    full, description = blobs(ROWS, 5, 2)
    built = problem("svm", full, description)
    found = PrivGene(steps=30).fit(built, NoClip(), NoStep(), 0.05, STREAMS).params_P
    assert evaluate(Svm(), found, full, np.arange(ROWS)) >= 0.95 * ROWS
    assert found.dtype == torch.float32


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("steps", 0), ("population", 1), ("parents", 101), ("bound", 0.0), ("cooling", 1.1), ("mutation_rate", 0.0), ("spread", -1.0)],
)
def test_fields_are_checked(field, wrong):
    with pytest.raises(FieldError, match=field):
        PrivGene(**{field: wrong})
