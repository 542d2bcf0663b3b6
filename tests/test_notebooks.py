"""Notebooks are run, and what they show is what they give: their own assert cells, the committed figures, nothing left behind.

And the privacy engine's README says what the notebook prints, and names the files that there are.
"""

from __future__ import annotations

import base64
import importlib.util
import re
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

from sweeper.privacy import events

ROOT = Path(__file__).resolve().parents[1]
PRIVACY = ROOT / "sweeper" / "privacy"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*(?:e-?\d+)?")
IMAGES = 150_000  # bytes, all pictures of one notebook
OUTSIDE = {"itertools", "math", "os", "tempfile", "numpy", "matplotlib.pyplot"}

spec = importlib.util.spec_from_file_location("execute", ROOT / "notebooks" / "execute.py")
execute = importlib.util.module_from_spec(spec)
spec.loader.exec_module(execute)


def read(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def codes(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts(notebook: nbformat.NotebookNode) -> list[str]:
    return [output.text for cell in codes(notebook) for output in cell.outputs if output.output_type == "stream"]


def pictures(notebook: nbformat.NotebookNode) -> list[bytes]:
    shown = [output.data for cell in codes(notebook) for output in cell.outputs if output.output_type == "display_data"]
    return [base64.b64decode(data["image/png"]) for data in shown]


def numbers(text: str) -> list[float]:
    return [float(found.replace(",", "").rstrip(".")) for found in NUMBER.findall(text)]


def words(text: str) -> list[str]:
    return NUMBER.sub("#", text).split()


def test_there_are_notebooks_and_a_readme_that_names_them():
    readme = (ROOT / "notebooks" / "README.md").read_text()
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        assert path.name in readme


@pytest.mark.timeout(240)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_gives_what_is_committed(path, tmp_path, monkeypatch):
    """From the top, in an empty folder, with an empty folder for temporary files: both are empty afterwards."""
    temporary, kernel = tmp_path / "temporary", tmp_path / "kernel"
    temporary.mkdir()
    kernel.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.delenv("SWEEPER_HOME")
    before = sorted((ROOT / "notebooks").rglob("*"))
    fresh = execute.executed(read(path), kernel)
    committed = read(path)
    assert not [output for cell in codes(fresh) for output in cell.outputs if output.get("name") == "stderr"]
    assert len(texts(fresh)) == len(texts(committed)) > 0
    for now, then in zip(texts(fresh), texts(committed), strict=True):
        assert words(now) == words(then)
        assert numbers(now) == pytest.approx(numbers(then), rel=3e-3, abs=1.1e-2)
    assert len(pictures(fresh)) == len(pictures(committed)) > 0
    assert not list((kernel / "work").iterdir())
    assert not list(temporary.iterdir())
    assert sorted((ROOT / "notebooks").rglob("*")) == before


@pytest.mark.timeout(120)
@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_its_own_checks_reject_the_price_of_another_number_of_runs(factor, tmp_path):
    notebook = read(ROOT / "notebooks" / "selection_prices.ipynb")
    wrong = (
        "from dataclasses import replace\n"
        "right = selection.select_best\n"
        f"selection.select_best = lambda trial, law: right(trial, replace(law, mean=law.mean * {factor}))"
    )
    first = next(i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code")
    notebook.cells.insert(first + 1, nbformat.v4.new_code_cell(wrong))
    with pytest.raises(CellExecutionError, match="AssertionError") as caught:
        execute.executed(notebook, tmp_path)
    assert "is not within 0.3% of 3.595" in str(caught.value)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_committed_is_a_whole_run_without_traces(path):
    notebook = read(path)
    assert [cell.execution_count for cell in codes(notebook)] == list(range(1, len(codes(notebook)) + 1))
    assert sum(len(picture) for picture in pictures(notebook)) < IMAGES
    assert all(picture.startswith(b"\x89PNG") for picture in pictures(notebook))
    assert dict(notebook.metadata) == execute.METADATA
    assert not any(cell.metadata for cell in notebook.cells)
    assert not any(output.output_type == "error" for cell in codes(notebook) for output in cell.outputs)
    assert not re.search(r"/(home|root|tmp|work|Users|usr|var)/|[A-Z]:\\\\", path.read_text())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_uses_the_public_interface_only(path):
    source = "\n".join(cell.source for cell in codes(read(path)))
    modules = re.findall(r"^(?:import|from) ([\w.]+)", source, re.M)
    assert len(modules) > 5
    assert not [name for name in modules if name not in OUTSIDE and not re.fullmatch(r"sweeper(\.privacy(\.[a-z]\w*)?)?", name)]
    assert not re.search(r"\._[a-z]", source)
    assert "assert" in source


def test_the_privacy_readme_compares_bounds_as_the_notebook_prints_them():
    (table,) = [text for text in texts(read(ROOT / "notebooks" / "selection_prices.ipynb")) if "composition" in text]
    printed = {line[:43].strip(): line[43:].split() for line in table.splitlines()[1:]}
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in (PRIVACY / "README.md").read_text().splitlines()]
    stated = {cells[0]: cells[1:] for cells in rows if cells[0] in printed}
    assert len(printed) == 6
    assert stated == printed


def test_the_privacy_readme_says_what_law_auto_picks_as_the_notebook_prints_it():
    (printed,) = [text for text in texts(read(ROOT / "notebooks" / "selection_prices.ipynb")) if "law: auto" in text]
    picks = re.findall(r"chance ([\d.]+): eta ([\d.]+), (\d+) runs, epsilon ([\d.]+)", printed)
    names = {"1": "geometric", "0": "logarithmic"}
    rows = [f"| {chance} | {names.get(eta, f'TNB, eta {eta}')} | {runs} | {bill} |" for chance, eta, runs, bill in picks]
    lines = (PRIVACY / "README.md").read_text().splitlines()
    assert len(rows) == 5
    assert [line for line in lines if line in rows] == rows


def test_the_privacy_readme_says_what_every_event_is():
    section = (PRIVACY / "README.md").read_text().split("## Events")[1].split("\n## ")[0]
    cells = [line.split("|") for line in section.splitlines() if line.startswith("| ")][1:]
    assert {kind.strip() for row in cells for kind in row[1].split(",")} == set(event_kinds())
    assert all(len(row) == 6 for row in cells)
    assert all(text.strip() for row in cells for text in row[1:5])


def event_kinds() -> list[str]:
    return [cls.kind for cls in vars(events).values() if isinstance(cls, type) and issubclass(cls, events.Event) and cls.kind]


def test_the_privacy_readme_names_every_file_and_no_other():
    section = (PRIVACY / "README.md").read_text().split("\n## ")[0]
    patterns = re.findall(r"[\w*]+\.py", section)
    files = {path.name for path in PRIVACY.glob("*.py")} - {"__init__.py"}
    named = {path.name for pattern in patterns for path in PRIVACY.glob(pattern)}
    assert len(patterns) > 20
    assert all(list(PRIVACY.glob(pattern)) for pattern in patterns)
    assert named == files
