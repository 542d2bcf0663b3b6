"""What the README says is run: every `$ ` command, the sweep it shows, its Python, its price table, its map of the code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sweeper import load_spec, sweep_from_dict
from sweeper.privacy.price import Question, answer

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def home(tmp_path_factory, data_cache):
    place = tmp_path_factory.mktemp("readme")
    shutil.copytree(data_cache, place / "cache")
    return place


def shell(command: str, home: Path, timeout: float = 280) -> str:
    done = subprocess.run(
        ["bash", "-c", f". .venv/bin/activate 2>/dev/null; {command}"],
        cwd=ROOT,
        env={**os.environ, "SWEEPER_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", README, re.S)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


@pytest.mark.timeout(600)
def test_every_command_works_in_the_order_it_stands_in(home):
    assert len(commands()) >= 9
    for command in commands():
        assert shell(command, home).strip()
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert blocks
    for block in blocks:
        script = home / "block.py"
        script.write_text(block)
        shell(f"python {script}", home)


@pytest.mark.timeout(600)
def test_make_quickstart_prints_the_price_the_winner_and_what_is_next(tmp_path, data_cache):
    shutil.copytree(data_cache, tmp_path / "cache")
    text = shell("make quickstart", tmp_path)
    for words in ("= this sweep", "tuning included", "clip_norm", "learning_rate", "model: mlflow model", "next: sweeper ui"):
        assert words in text
    assert "tuning included" in shell("make quickstart", tmp_path), "a second quickstart shows the same winner, charged once"
    assert shell("sweeper ledger --json", tmp_path).count('"sweep": "adult-clip"') == 1


def test_the_other_make_targets_exist():
    for target in ("test", "venv", "lint", "bench", "bench-quick", "bench-many", "bench-gpu", "acceptance", "clean"):
        assert subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, check=False).returncode == 0


def test_the_sweep_it_shows_is_a_sweep(tmp_path):
    block, model, arms = re.findall(r"```yaml\n(.*?)```", README, re.S)
    (tmp_path / "sweep.yaml").write_text(block)
    assert load_spec(tmp_path / "sweep.yaml").name == "my-sweep"
    pictures = block.replace("source: adult", "source: fashion-mnist").replace("model: {kind: logistic}\n", model)
    (tmp_path / "module.yaml").write_text(pictures)
    assert load_spec(tmp_path / "module.yaml").model.shape == (1, 28, 28)
    (tmp_path / "arms.yaml").write_text(block[: block.index("space:")] + arms)  # arms stand in the place of the space
    assert list(load_spec(tmp_path / "arms.yaml").arms) == ["tuned", "quantile"]


def test_every_job_is_a_sweep():
    names = [load_spec(path).name for path in sorted((ROOT / "jobs").glob("*.yaml"))]
    assert len(names) == len(set(names)) > 0


def test_the_price_table_is_what_price_says():
    trial = {"noise_multiplier": 1.0, "sampling_probability": 0.01, "steps": 2000, "delta": 1e-5}
    bills = {
        "3.59": answer(Question(**trial, protocol="select-best", law="logarithmic", mean=10.0)),
        "3.78": answer(Question(**trial, protocol="select-best", law="geometric", mean=10.0)),
        "9.27": answer(Question(**trial, protocol="release-all", trials=10)),
        "2.58": answer(Question(**trial)),
    }
    for text, bill in bills.items():
        assert f"{bill['epsilon']:.2f}" == text
        assert f"| {text}" in README
    assert f"{10 * bills['2.58']['epsilon']:.2f}" == "25.84"


def test_the_map_names_files_that_exist():
    section = README[README.index("## Map of the code") :]
    names = re.findall(r"(sweeper/[\w/]+(?:\.py)?|jobs/|tests/contracts/)", section)
    assert len(names) >= 8
    for name in names:
        assert (ROOT / name).exists(), name


def test_a_spec_from_a_mapping_is_the_spec_from_a_file():
    from ruamel.yaml import YAML

    path = ROOT / "jobs" / "adult_logistic_clip.yaml"
    assert sweep_from_dict(YAML(typ="safe", pure=True).load(path.read_text())) == load_spec(path)
