"""A table of the user's own from its file to a trial, with row ids: what the commands say, and that nothing moves anybody."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from sweeper import catalog, cli, service
from sweeper.checks import FieldError, RequestError
from sweeper.launch.candidate import trial_spec
from sweeper.launch.driver import Driver
from sweeper.launch.open_data import OpenData
from sweeper.launch.outcome import silent
from sweeper.launch.worker import Worker
from sweeper.privacy.ledger import Ledger
from sweeper.seeds import Streams, secret_from_seed
from sweeper.store.home import Home

ROWS = 3_000
SWEEP = """\
name: own
data:
  source:
    kind: csv
    path: people.csv
    rows: {rows}
    label: income
    classes: [low, high]
    id: key
    columns:
      age: {{low: 17, high: 90}}
      sex: [Female, Male]
      weight: ignored
  holdout: 0.2{more}
model: {{kind: logistic}}
trainer: {{kind: dp-sgd, batch_size: 300, steps: 60}}
privacy: {{noise_multiplier: 1.0, delta: 1e-5}}
protocol: {{kind: no-tuning}}
space:
  clip: {{policy: fixed, value: 1.0}}
  step: {{policy: fixed, value: 4.0}}
"""


def lines(count: int = ROWS) -> list[str]:
    draw = random.Random(11)
    found = []
    for row in range(count):
        age = draw.randint(17, 90)
        found.append(f"p{row},{age},{draw.choice(('Female', 'Male'))},{draw.random()},{'high' if age > 53 else 'low'}")
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    write(tmp_path, lines())
    return tmp_path


def write(folder: Path, records: list[str], n_holdout: int | None = None) -> Path:
    (folder / "people.csv").write_text("\n".join(["key,age,sex,weight,income", *records]) + "\n")
    more = "" if n_holdout is None else f"\n  n_holdout: {n_holdout}"
    (folder / "own.yaml").write_text(SWEEP.format(rows=len(records), more=more))
    return folder / "own.yaml"


def opened(file: Path) -> OpenData:
    data = catalog.load_spec(file).data
    return OpenData.of(data, data.source.load(""))


def test_the_commands_lead_to_a_plan(folder, capsys):
    file = str(folder / "own.yaml")
    assert cli.main(["plan", file]) == 2
    assert "data.n_holdout is missing" in capsys.readouterr().err
    assert cli.main(["data", "split", file, "--json"]) == 0
    held = json.loads(capsys.readouterr().out)["n_holdout"]
    write(folder, lines(), held)
    assert cli.main(["plan", file]) == 0
    said = capsys.readouterr().out
    assert f"logistic on people (n = {ROWS - held:,} train / {held:,} hold-out, stated by the user)" in said
    assert "sweeper ledger set-budget people" in said
    assert cli.main(["data", "show", file]) == 0
    assert "number, clipped to 17 .. 90" in capsys.readouterr().out
    assert cli.main(["data", "split", file]) == 0
    assert f"n_holdout: {held}" in capsys.readouterr().out
    assert cli.main(["data", "describe", str(folder / "people.csv")]) == 0
    assert capsys.readouterr().out.startswith("# Reading a private file to write its declaration is itself a look at the data")


def test_planning_opens_no_file(folder):
    file = write(folder, lines(), 600)
    (folder / "people.csv").unlink()
    assert service.plan(file).holdout_rows == 600


def test_a_split_without_ids_is_counted_from_positions(folder):
    file = write(folder, lines())
    file.write_text(file.read_text().replace("    id: key\n", ""))
    found = service.split(file)
    assert found["n_holdout"] is None
    assert service.plan(file).holdout_rows == found["holdout_rows"]


def test_a_trial_learns_from_it_and_holds_out_whom_the_ids_say(folder):
    file = write(folder, lines(), service.split(folder / "own.yaml")["n_holdout"])
    data, spec = opened(file), catalog.load_spec(file)
    result = Worker(data).run(trial_spec(spec, 1.0, 0, {}), Streams(secret_from_seed("own"), 0))
    assert result.released["score"] > 0.8  # by age alone; guessing gives 0.5


def test_who_leaves_and_who_joins_moves_nobody(folder):
    def sides(records: list[str]) -> dict[str, bool]:
        write(folder, records)
        data = opened(write(folder, records, service.split(folder / "own.yaml")["n_holdout"]))
        return {data.table.ids[row]: held for held, rows in ((False, data.train_rows), (True, data.holdout_rows)) for row in rows}

    everybody, fewer = sides(lines()), sides(lines()[700:1900] + lines()[2000:])
    assert len(everybody) == ROWS
    assert fewer == {name: everybody[name] for name in fewer}


def test_a_record_that_breaks_keeps_its_side_and_everybody_elses_features(folder):
    held = service.split(folder / "own.yaml")["n_holdout"]
    records = lines()
    whole = opened(write(folder, records, held))
    records[17] = "p17,unknown"
    broken = opened(write(folder, records, held))
    np.testing.assert_array_equal(whole.train_rows, broken.train_rows)
    np.testing.assert_array_equal(whole.holdout_rows, broken.holdout_rows)
    others = np.arange(ROWS) != 17
    np.testing.assert_array_equal(whole.table.features[others], broken.table.features[others])
    assert broken.table.valid.tolist() == others.tolist()


def test_the_ledger_knows_the_file_by_its_digest(folder):
    file = write(folder, lines(), 600)
    home, spec = Home().ensure(), catalog.load_spec(file)
    Ledger(home.ledger_uri).set_budget("people", 8.0, 1e-4, "ann")
    Driver(home, silent)._admit(spec.data, spec.budget_of)
    (folder / "people.csv").unlink()
    with pytest.raises(FieldError, match=r"data\.source\.path = .* is no file"):
        Driver(home, silent)._admit(spec.data, spec.budget_of)


def test_a_sweep_goes_on_only_with_the_table_it_began_on(folder):
    file = write(folder, lines(), 600)
    home, spec = Home().ensure(), catalog.load_spec(file)
    Ledger(home.ledger_uri).set_budget("people", 8.0, 1e-4, "ann")
    driver, vault = Driver(home, silent), Remembering()
    driver._same_as_before(vault, spec.data, driver._admit(spec.data, spec.budget_of))
    driver._same_as_before(vault, spec.data, driver._admit(spec.data, spec.budget_of))
    spec = catalog.load_spec(write(folder, lines()[::-1], 600))
    with pytest.raises(RequestError, match="is not the one that sweep own began on"):
        driver._same_as_before(vault, spec.data, driver._admit(spec.data, spec.budget_of))


class Remembering(dict):
    """What a driver uses of a vault here."""

    sweep = "own"
    meta, set_meta = dict.get, dict.__setitem__
