import hashlib
import math

import numpy as np
import pytest
from releases import release, trial

from sweeper.checks import FieldError
from sweeper.store.release import synthetic_rows


@pytest.mark.parametrize("protocol", ["select-best", "subsample-tune"])
def test_a_loser_cannot_be_released_by_a_protocol_that_pays_for_winners(protocol):
    loser = trial("l1", is_best=False)
    with pytest.raises(ValueError, match="pays for winners only"):
        release(trial("w1"), loser, protocol=protocol)
    assert len(release(trial("w1"), loser, protocol=protocol, public=True).trials) == 2
    assert len(release(trial("w1"), loser, protocol="release-all").trials) == 2


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, None])
def test_a_score_that_is_no_number_is_no_score(score):
    assert trial(score=score).score is None


def test_ids_are_unique_and_safe():
    with pytest.raises(ValueError, match="same id"):
        release(trial("a"), trial("a"))
    with pytest.raises(FieldError, match="submission = "):
        release(submission="x' or 1=1")
    with pytest.raises(ValueError, match="build_model"):
        release(build_model=None)


def test_synthetic_rows_are_a_fixed_public_stream():
    rows = synthetic_rows(104, 3)
    assert rows.dtype == np.float32
    assert rows.shape == (3, 104)
    first = int.from_bytes(hashlib.shake_256(b"sweeper input example").digest(4), "little") // 256 / 2**24
    assert rows[0, 0] == pytest.approx(first, rel=1e-6)
    assert np.array_equal(rows, synthetic_rows(104, 3))


def test_synthetic_rows_are_uniform_on_the_unit_interval():
    values = synthetic_rows(50_000, 2)
    assert 0 <= values.min() < values.max() < 1
    # Kolmogorov distance of 100,000 uniforms passes 0.0085 once in a million (Dvoretzky, Kiefer, Wolfowitz, Massart).
    ordered = np.sort(values.ravel().astype(np.float64))
    grid = (np.arange(ordered.size) + 0.5) / ordered.size
    assert np.abs(ordered - grid).max() < 0.0086
    for wrong in (2 / 3, 3 / 2):
        assert np.abs(ordered * wrong - grid).max() > 0.0086
