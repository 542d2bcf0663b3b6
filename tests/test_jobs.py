"""Every file of jobs/ is planned: it says what it asks, is named after it, meets its bill, and opens no data on the way."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest

from sweeper import catalog
from sweeper.catalog import load_spec
from sweeper.planning import plan

ROOT = Path(__file__).resolve().parents[1]
JOBS = sorted((ROOT / "jobs").glob("*.yaml"))
LONGEST = 132
every_job = pytest.mark.parametrize("path", JOBS, ids=[path.stem for path in JOBS])
QUESTIONS = {  # of the three papers: each has a job whose first lines name it
    "Das et al. 2023, section 5.2",
    "Das et al. 2023, Table 3",
    "Chen and Lee 2020, Figure 1",
    "Chen and Lee 2020, Figure 3",
    "Chen and Lee 2020, Figure 4",
    "Chen and Lee 2020, Figure 5",
    "Yang et al. 2022, Figure 2",
}


@every_job
def test_a_job_says_what_it_asks_and_is_named_after_it(path: Path) -> None:
    lines, spec = path.read_text().splitlines(), load_spec(path)
    said = list(itertools.takewhile(lambda line: line.startswith("#"), lines))
    assert said
    assert any(mark in " ".join(said) for mark in ".?")
    assert max(map(len, lines)) <= LONGEST
    data, model, question = path.stem.split("_", 2)
    assert spec.data.source.kind.startswith(data)
    assert {"cnn": "convnet"}.get(model, model) == spec.model.kind
    assert question


def test_no_two_jobs_have_one_name_and_the_papers_questions_are_all_there() -> None:
    names = [load_spec(path).name for path in JOBS]
    assert len(set(names)) == len(names)
    texts = "\n".join(path.read_text() for path in JOBS)
    assert {question for question in QUESTIONS if question not in texts} == set()


@every_job
def test_a_job_is_planned_without_opening_data(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: Any, **__: Any) -> None:
        raise AssertionError("a plan opened data")

    for kind in catalog.KINDS["data"]:
        for method in ("load", "fetch", "digest", "present"):
            monkeypatch.setattr(catalog.resolve("data", kind), method, opened)
    spec = load_spec(path)
    found = plan(spec)
    assert math.isfinite(found.guarantee.epsilon)
    if spec.privacy.epsilon is not None:
        bills = [arm.epsilon for arm in found.arms] if spec.data.public else [found.guarantee.epsilon]
        assert all(0.95 * spec.privacy.epsilon <= bill <= spec.privacy.epsilon for bill in bills)
    elif not spec.arms:
        assert found.epsilon_one_trial == pytest.approx(_stated(path), rel=0.01)


def _stated(path: Path) -> float:
    """The epsilon of one run that the comment of a job with a given noise promises."""
    words = path.read_text().split("one run at epsilon ")
    assert len(words) == 2, "a job with noise_multiplier says what one run costs"
    return float(words[1].split()[0].rstrip(".,;"))
