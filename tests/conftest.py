"""Fixtures that every part of the suite may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.data.adult import Adult
from sweeper.data.fashion_mnist import FashionMnist


@pytest.fixture(scope="session")
def data_cache() -> str:
    """A cache with the real files in it, kept between runs in a folder that git ignores."""
    cache = str(Path(__file__).resolve().parents[1] / ".sweeper" / "cache")
    Adult().fetch(cache)
    FashionMnist().fetch(cache)
    return cache
