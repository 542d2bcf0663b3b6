"""Houses, and the pairs of sweeps that several modules look at: of each, one that drew 2 runs in secret and one that drew 30."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from program import House, run_both
from sweep_pairs import SWEEP, TUNED
from tiny_sweeps import secret_drawing, spec_of

BUDGET = ("ledger", "set-budget", "adult", "--epsilon", "100", "--delta", "1e-4")


@pytest.fixture(scope="session")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the price calculations of all houses came to: they depend on nothing but the question."""
    return tmp_path_factory.mktemp("prices")


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory, data_cache: str, prices: Path) -> Iterator[Callable[..., House]]:
    houses: list[House] = []

    def make(name: str, shared_prices: bool = True) -> House:
        house = House(tmp_path_factory.mktemp(name), f"{data_cache}/data", prices if shared_prices else None)
        houses.append(house)
        assert house.run(*BUDGET).code == 0
        return house

    yield make
    for house in houses:
        house.close()


@pytest.fixture(scope="session")
def secrets() -> dict[int, bytes]:
    spec = spec_of("pair", trainer=SWEEP["trainer"])
    return {count: secret_drawing(count, spec) for count in (2, 30)}


@pytest.fixture(scope="session")
def pair(build: Callable[..., House], secrets: dict[int, bytes]) -> dict[int, House]:
    """The same private sweep, run to its end with secrets that draw K = 2 and K = 30. What it said is in `said`."""
    return run_both(build, SWEEP, secrets)


@pytest.fixture(scope="session")
def tuned(build: Callable[..., House], secrets: dict[int, bytes]) -> dict[int, House]:
    """The same under subsample-tune: 2 and 30 runs on a part of the rows, and one more on the others."""
    return run_both(build, TUNED, secrets)
