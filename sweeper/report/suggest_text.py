"""What `plan --suggest` shows in a terminal: pure functions of its JSON."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from sweeper.report.tables import sig, table

COLUMNS = ("", "way", "searches", "dims", "chance", "runs", "sigma", "gradient", "one trial", "tuning")
PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
RESERVED = ("true", "false", "null", "yes", "no", "on", "off")


def suggest_text(found: Mapping[str, Any], file: str, width: int = 120) -> str:
    """The table of ways, the recommended one with its reason, what to paste, and what this sweep does not allow."""
    chance = f"{found['chance']:.0%}"
    lines = [
        f"{found['name']} · ways to spend epsilon {found['epsilon']:.4g} at delta {sig(found['delta'], 3)}, "
        f"for a chance of {chance} to draw a good setting",
        "",
        table(COLUMNS, [_row(option, found) for option in found["options"]], align="lllrrrrrrr", width=width),
        "",
        *_legend(found),
        "",
    ]
    if found["recommended"] is None:
        lines.append(f"no way reaches a chance of {chance}; ask for less: sweeper plan {file} --suggest --chance 0.5")
    else:
        lines.append(textwrap.fill(f"recommended: {found['recommended']}. {found['reason']}", width))
        lines += _paste(found, file)
    if found["skipped"]:
        lines += ["", "not possible in this sweep:"]
        for row in found["skipped"]:
            indents = {"initial_indent": "  ", "subsequent_indent": "    ", "break_long_words": False, "break_on_hyphens": False}
            lines.append(textwrap.fill(f"{row['name']}: {row['reason']}", width, **indents))
    return "\n".join(lines)


def recommended(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((option for option in found["options"] if option["name"] == found["recommended"]), None)


def yaml_text(paste: Mapping[str, Any]) -> str:
    """Sections of a sweep file as YAML, one line each; a space has one for each policy.

    >>> print(yaml_text({"protocol": {"kind": "no-tuning"}, "space": {"clip": {"policy": "fixed", "value": 0.5}}}))
    protocol: {kind: no-tuning}
    space:
      clip: {policy: fixed, value: 0.5}
    """
    lines = []
    for name in sorted(paste):
        section = paste[name]
        if name == "space":
            lines += ["space:", *(f"  {part}: {_flow(policy)}" for part, policy in section.items())]
        else:
            lines.append(f"{name}: {_flow(section)}")
    return "\n".join(lines)


def _row(option: Mapping[str, Any], found: Mapping[str, Any]) -> list[Any]:
    tuning = option["epsilon"] - option["epsilon_one_trial"]
    return [
        "*" if option["name"] == found["recommended"] else "",
        option["name"],
        ", ".join(name.split(".", 1)[1] for name in option["searched"]) or "nothing",
        f"{option['dimensions']:.2f}",
        "-" if option["chance"] is None else f"{option['chance']:.0%}",
        sig(option["expected_trials"], 3),
        f"{option['noise_multiplier']:.3f}",
        f"{option['gradient_noise']:.3f}",
        f"{option['epsilon_one_trial']:.2f}",
        f"{tuning:.2f}" if option["searched"] else "-",
    ]


def _legend(found: Mapping[str, Any]) -> list[str]:
    quarter = math.log(found["good_coupled"]) / math.log(found["good"])
    lines = [
        f"  dims: one for each searched range, {quarter:.2f} for a clip norm beside a coupled step",
        f"  chance: of a setting in the good part, one third of every range and {found['good_coupled']:.0%} of such a clip norm;",
        "    of what is fixed by guess, the same share; what a policy finds by itself is taken to be good",
        "  sigma: noise multiplier of a step that meets the bill; gradient: of what is left for the gradient, least first",
    ]
    short = [option for option in found["options"] if not option["reaches"]]
    for option in short:
        why = f": {', '.join(option['guessed'])} by guess" if option["guessed"] else ""
        lines.append(
            f"  {option['name']} falls short of {found['chance']:.0%}{why}" if option["chance"] is not None else _unknown(option)
        )
    return lines


def _unknown(option: Mapping[str, Any]) -> str:
    return f"  {option['name']} has no chance to quote: its candidates are no random draws"


def _paste(found: Mapping[str, Any], file: str) -> list[str]:
    best = recommended(found)
    assert best is not None
    if best["name"] == "as written":
        return ["", f"keep the file as it is. next: sweeper run {file}"]
    replaced = " and ".join(sorted(best["paste"])) if len(best["paste"]) < 3 else "privacy, protocol and space"
    drop = " (and drop its search)" if found["drops_search"] else ""
    return [f"in {file}, in the place of {replaced}{drop}:", "", yaml_text(best["paste"]), "", f"next: sweeper plan {file}"]


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, str) and PLAIN.fullmatch(value) and value.lower() not in RESERVED:
        return value
    return json.dumps(value)
