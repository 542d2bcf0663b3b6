"""Guarantees: how they add up and how they are written."""

from __future__ import annotations

import json
import math

import pytest

from sweeper.checks import FieldError
from sweeper.privacy.guarantee import Guarantee


def test_epsilons_and_deltas_add():
    """Exact for two randomised responses: their product pair meets the sum at delta 0."""
    both = Guarantee(epsilon=0.5, delta=1e-6).plus(Guarantee(epsilon=0.25, delta=2e-6))
    assert (both.epsilon, both.delta) == (0.75, pytest.approx(3e-6))
    assert not both.seeded
    assert Guarantee(epsilon=1.0, delta=0.7).plus(Guarantee(epsilon=1.0, delta=0.7)).delta == 1.0


def test_a_seeded_part_makes_the_sum_seeded():
    seeded = Guarantee(epsilon=1.0, delta=0.0, seeded=True)
    assert seeded.plus(Guarantee(epsilon=1.0, delta=0.0)).seeded
    assert Guarantee(epsilon=1.0, delta=0.0).plus(seeded).seeded


@pytest.mark.parametrize("other", [{"relation": "replace-one"}, {"unit": "user"}])
def test_relations_and_units_are_never_mixed(other):
    with pytest.raises(FieldError, match="a bill speaks of one relation and one unit"):
        Guarantee(epsilon=1.0, delta=0.0).plus(Guarantee(epsilon=1.0, delta=0.0, **other))


def test_infinity_is_null_in_json():
    data = json.loads(json.dumps(Guarantee(epsilon=math.inf, delta=1e-5).to_dict(), allow_nan=False))
    assert data == {"epsilon": None, "delta": 1e-5, "relation": "zero-out", "unit": "record", "seeded": False}


@pytest.mark.parametrize("broken", [{"epsilon": -0.1}, {"epsilon": math.nan}, {"delta": -0.1}, {"delta": 1.5}, {"delta": math.nan}])
def test_what_is_no_guarantee(broken):
    with pytest.raises(FieldError, match=next(iter(broken))):
        Guarantee(**{"epsilon": 1.0, "delta": 1e-5, **broken})
