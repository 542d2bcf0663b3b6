"""Every test that the table of traps names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NAMED = re.findall(r"\| (tests/\S+\.py)::(test_\w+) \|", (HERE / "README.md").read_text())


def test_the_table_is_read() -> None:
    assert len(NAMED) > 40
    assert len(NAMED) == sum(line.startswith("| ") for line in (HERE / "README.md").read_text().splitlines()) - 1


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_it_is_there(file: str, name: str) -> None:
    assert f"def {name}(" in (ROOT / file).read_text()
