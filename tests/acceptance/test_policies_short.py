"""The cheapest rows of `make acceptance`'s table of policies and their broken twins; the whole table is policies.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
import twins
from runs import Table

POLICIES = ("clip adaptive-quantile", "clip normalise", "step coupled", "step fixed")


@pytest.fixture(scope="module")
def adult(data_cache: str) -> Table:
    return Table("adult", data_cache)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_beats_its_broken_twin_on_adult(policy: str, adult: Table) -> None:
    (pair,) = [pair for pair in twins.pairs("adult") if pair.policy == policy]
    assert twins.measure(adult, pair).passes
    assert not twins.measure(adult, replace(pair, good=pair.twin, twin=pair.good, noise=1 / pair.noise)).passes
