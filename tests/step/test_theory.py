"""Step sizes of theorems, by hand, and against the forms that the paper gives at its own number of steps."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from toy_line import Line, look_at

from sweeper.checks import FieldError
from sweeper.clip.fixed import FixedClip
from sweeper.spec.protocols import Facts
from sweeper.step.theory import TheoryStep, leaves_theorem

# phi^2 = 1^2 * 400 / (100^2 * 300) = 1/7500; S = 1/300 + 1/7500 = 26/7500
FACTS = Facts(rows=1000, batch_size=100, steps=300, parameters=400, noise_multiplier=1.0)
ROOT_S = math.sqrt(26 / 7500)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (TheoryStep(theorem="5.4", distance=2.0), 2.0 / ROOT_S / (300 * 0.25)),
        (TheoryStep(theorem="6.2", distance=0.5), 0.5 / ROOT_S / (300 * 0.25)),
        (TheoryStep(theorem="6.5", distance=2.0), 2.0 / ROOT_S / (300 * 0.25)),
        (TheoryStep(theorem="N.1", distance=2.0, smoothness=9.0), 2.0 / ROOT_S / (300 * 0.25) / 3),
    ],
)
def test_settings_by_hand(policy, expected):
    ready = policy.prepare(FACTS, FixedClip(clip_norm=0.25))
    assert ready.learning_rate == pytest.approx(expected, rel=1e-12)
    look = look_at(Line(lambda size: None), clip=FixedClip(clip_norm=0.25))
    assert ready.size(look) == ready.learning_rate  # the same at every step
    assert ready.size(dataclasses.replace(look, step=9)) == ready.learning_rate


def test_the_number_by_hand():
    """2 / sqrt(26/7500) / 75 = 0.452911."""
    assert TheoryStep(distance=2.0).prepare(FACTS, FixedClip(clip_norm=0.25)).learning_rate == pytest.approx(0.452911, rel=1e-6)


def facts_with(steps: int, phi: float) -> Facts:
    """A run of this many steps with this phi: its noise is what makes it so."""
    return Facts(rows=50_000, batch_size=500, steps=steps, parameters=100, noise_multiplier=phi * 500 * math.sqrt(steps / 100))


@pytest.mark.parametrize("phi", [0.02, 0.1])
def test_the_papers_own_forms_at_its_own_number_of_steps(phi):
    """5.4 at T = 1/(3 phi^2): eta = 3 C phi / (2 tau). The others at T = phi^-2: S = 2 phi^2, eta = C phi / (sqrt 2 tau)."""
    clip = FixedClip(clip_norm=0.7)
    steps = round(1 / (3 * phi**2))
    phi = math.sqrt(1 / (3 * steps))  # of a whole number of steps
    found = TheoryStep(theorem="5.4", distance=4.0).prepare(facts_with(steps, phi), clip).learning_rate
    assert found == pytest.approx(3 * 4.0 * phi / (2 * 0.7), rel=1e-9)
    steps = round(phi**-2)
    phi = steps**-0.5
    for theorem in ("6.2", "6.5"):
        found = TheoryStep(theorem=theorem, distance=4.0).prepare(facts_with(steps, phi), clip).learning_rate
        assert found == pytest.approx(4.0 * phi / (math.sqrt(2) * 0.7), rel=1e-9)
    found = TheoryStep(theorem="N.1", distance=4.0, smoothness=2.0).prepare(facts_with(steps, phi), clip).learning_rate
    assert found == pytest.approx(4.0 * phi / (math.sqrt(2) * math.sqrt(2.0) * 0.7), rel=1e-9)


def test_a_cap_on_the_steps_leaves_theorem_6_5():
    """It needs T >= phi^-2; T = phi^-2 itself is in it."""
    assert not leaves_theorem(facts_with(400, 0.05))
    assert leaves_theorem(facts_with(399, 0.05))
    assert not leaves_theorem(facts_with(401, 0.05))
    assert leaves_theorem(dataclasses.replace(FACTS, noise_multiplier=0.0))  # without noise no number of steps is enough


def test_without_noise_the_size_is_that_of_plain_gradient_descent():
    ready = TheoryStep(distance=2.0).prepare(dataclasses.replace(FACTS, noise_multiplier=0.0), FixedClip(clip_norm=0.5))
    assert ready.learning_rate == pytest.approx(2.0 / (0.5 * math.sqrt(300)), rel=1e-12)


def test_the_theorem_is_named_and_has_what_it_needs():
    assert TheoryStep(theorem=5.4, distance=1.0) == TheoryStep(theorem="5.4", distance=1.0)  # as YAML reads it without quotes
    with pytest.raises(FieldError, match=r"theorem = '5.5' must be one of 5.4, 6.2, 6.5, N.1"):
        TheoryStep(theorem="5.5", distance=1.0)
    with pytest.raises(FieldError, match=r"smoothness is missing: theorem N\.1"):
        TheoryStep(theorem="N.1", distance=1.0)
    with pytest.raises(FieldError, match=r"smoothness = 2 is of theorem N\.1 alone"):
        TheoryStep(theorem="6.2", distance=1.0, smoothness=2.0)
    with pytest.raises(FieldError, match="smoothness"):
        TheoryStep(theorem="N.1", distance=1.0, smoothness=-1.0)


def test_it_has_no_size_before_it_is_prepared():
    with pytest.raises(RuntimeError, match="once it is prepared"):
        TheoryStep(distance=1.0).size(look_at(Line(lambda size: torch.zeros(1).numpy())))
