"""What `plan --suggest` prints: pure text from JSON, written out here."""

from __future__ import annotations

import io
from typing import Any

import pytest
from ruamel.yaml import YAML

from sweeper.report.suggest_text import recommended, suggest_text, yaml_text


def option(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "searched": ["clip.clip_norm", "step.c"],
        "dimensions": 1.262,
        "guessed": [],
        "chance": 0.8,
        "reaches": True,
        "expected_trials": 9.06,
        "law": None,
        "noise_multiplier": 1.4961,
        "gradient_noise": 1.5,
        "epsilon_one_trial": 1.3,
        "epsilon": 2.0,
        "removes": [],
        "paste": {"protocol": {"kind": "no-tuning"}, "space": {"clip": {"policy": "normalise"}, "step": {"policy": "noisy-min"}}},
    } | fields


def found(**fields: Any) -> dict[str, Any]:
    short = option("middle setting", searched=[], dimensions=0.0, chance=0.25, reaches=False, guessed=["clip.clip_norm", "step.c"])
    return {
        "name": "adult-clip",
        "epsilon": 2.0,
        "delta": 1e-5,
        "chance": 0.8,
        "good": 1 / 3,
        "good_coupled": 3 / 4,
        "recommended": "best way",
        "reason": "It leaves the least noise.",
        "options": [option("best way"), option("as written", chance=None, reaches=False), short],
        "skipped": [{"name": "line search", "reason": "trainer.sampling is refused. " * 6}],
        "drops_search": False,
    } | fields


def test_the_whole_text():
    assert (
        suggest_text(found(), "a.yaml", width=110)
        == """\
adult-clip · ways to spend epsilon 2 at delta 1e-05, for a chance of 80% to draw a good setting

   way             searches      dims  chance  runs  sigma  gradient  one trial  tuning
-  --------------  ------------  ----  ------  ----  -----  --------  ---------  ------
*  best way        clip_norm, c  1.26     80%  9.06  1.496     1.500       1.30    0.70
   as written      clip_norm, c  1.26       -  9.06  1.496     1.500       1.30    0.70
   middle setting  nothing       0.00     25%  9.06  1.496     1.500       1.30       -

  dims: one for each searched range, 0.26 for a clip norm beside a coupled step
  chance: of a setting in the good part, one third of every range and 75% of such a clip norm;
    of what is fixed by guess, the same share; what a policy finds by itself is taken to be good
  sigma: noise multiplier of a step that meets the bill; gradient: of what is left for the gradient, least first
  as written has no chance to quote: its candidates are no random draws
  middle setting falls short of 80%: clip.clip_norm, step.c by guess

recommended: best way. It leaves the least noise.
in a.yaml, in the place of protocol and space:

protocol: {kind: no-tuning}
space:
  clip: {policy: normalise}
  step: {policy: noisy-min}

next: sweeper plan a.yaml

not possible in this sweep:
  line search: trainer.sampling is refused. trainer.sampling is refused. trainer.sampling is refused.
    trainer.sampling is refused. trainer.sampling is refused. trainer.sampling is refused."""
    )


def test_what_else_the_file_must_lose_or_get():
    text = suggest_text(found(drops_search=True), "a.yaml")
    assert "in the place of protocol and space (and drop its search):" in text
    privacy = option("best way", paste={"privacy": {"epsilon": 2.0}, "protocol": {"kind": "no-tuning"}, "space": {}})
    text = suggest_text(found(options=[privacy]), "a.yaml")
    assert "in the place of privacy, protocol and space:\n\nprivacy: {epsilon: 2.0}\nprotocol: {kind: no-tuning}\nspace:" in text


def test_a_file_that_is_best_as_it_is_is_kept():
    text = suggest_text(found(recommended="as written", options=[option("as written")], skipped=[]), "a.yaml")
    assert text.endswith("keep the file as it is. next: sweeper run a.yaml")
    assert "in the place of" not in text


def test_no_way_that_reaches_the_chance():
    text = suggest_text(found(recommended=None, options=[option("as written", reaches=False)]), "a.yaml")
    assert "no way reaches a chance of 80%; ask for less: sweeper plan a.yaml --suggest --chance 0.5" in text
    assert recommended(found(recommended=None)) is None
    assert recommended(found())["name"] == "best way"


@pytest.mark.parametrize(
    "value",
    [
        *("5.4", "on", "true", "null", "g-min", "a: b", "", "1e-5", "0x10", "~", "{x}", "#", "é", "two words", "-", "No"),
        *(5.4, 1e-05, 1e300, 0.1, 12.0, 7, True, False, None, [0.05, 2.0], ["g-min", 0.1], {"range": [0.1, 0.5], "scale": "log"}),
    ],
    ids=repr,
)
def test_what_is_written_is_read_back(value):
    paste = {"protocol": {"kind": value}, "space": {"clip": {"policy": "fixed", "value": value}, "step": {"policy": value}}}
    again = YAML(typ="safe", pure=True).load(io.StringIO(yaml_text(paste)))
    assert again == paste
    assert type(again["protocol"]["kind"]) is type(value)
