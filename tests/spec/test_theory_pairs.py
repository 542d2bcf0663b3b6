"""A theorem's step size goes with the clip norm of the same theorem, with the same constants, on losses that it speaks of."""

from __future__ import annotations

import pytest
from tiny_sweeps import spec_of

from sweeper.checks import FieldError

TAILS = {"policy": "heavy-tail", "value": 3.0, "theorem": "N.1", "gamma": 0.2, "moment": 2.0, "distance": 5.0, "smoothness": 9.0}
STEP = {"policy": "theory", "theorem": "N.1", "value": 5.0, "smoothness": 9.0}
ONCE = {"kind": "no-tuning"}


def test_one_theorem_with_its_constants_goes():
    assert spec_of(space={"clip": TAILS, "step": STEP}, protocol=ONCE).space.step.middle().theorem == "N.1"
    six = {"policy": "heavy-tail", "value": 2.0, "theorem": 6.2, "gamma": 0.1, "moment": 2.0}  # unquoted, as a person writes it
    assert spec_of(space={"clip": six, "step": {"policy": "theory", "theorem": 6.2, "value": 1.0}}, protocol=ONCE)


@pytest.mark.parametrize(
    ("clip", "step", "words"),
    [
        (TAILS, STEP | {"smoothness": 4.0}, "space.step.smoothness = 4 is not the smoothness of the clip norm, 9"),
        (TAILS, STEP | {"value": 2.0}, "space.step.distance = 2 is not the distance of the clip norm, 5"),
        (TAILS, {"policy": "theory", "theorem": "6.5", "value": 5.0}, "6.5' is not the theorem of the clip norm, N.1"),
        ({"policy": "fixed", "value": 0.5}, {"policy": "theory", "theorem": "6.2", "value": 1.0}, "gives the clip norm too"),
        (TAILS | {"cap": 3.0}, STEP, "space.clip.cap = 3 is of a moment estimated from the rows, and moment is given"),
        (
            {"policy": "heavy-tail", "value": 2.0, "theorem": "6.5", "gamma": 0.1, "moment": 2.0},
            {"policy": "theory", "theorem": "6.5", "value": 1.0},
            "space.clip.gamma = 0.1 has no part in theorem 6.5",
        ),
    ],
)
def test_others_are_refused_by_name(clip, step, words):
    with pytest.raises(FieldError, match=words):
        spec_of(space={"clip": clip, "step": step}, protocol=ONCE)


def test_a_convex_theorem_is_refused_for_a_network():
    step = {"policy": "theory", "theorem": "5.4", "value": 1.0}
    with pytest.raises(FieldError, match="speaks of convex losses, and model mlp has none"):
        spec_of(space={"clip": {"policy": "fixed", "value": 0.5}, "step": step}, protocol=ONCE, model={"kind": "mlp"})
