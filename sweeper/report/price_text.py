"""What `price` shows in a terminal: pure functions of its JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from sweeper.report.bill import law_text
from sweeper.report.tables import human_epsilon, sig

Json = Mapping[str, Any]
TUNED = ("select-best", "release-all", "subsample-tune")
WORDS = {  # numbers of a derivation's step, in the order shown
    "epsilon_one_run": "one run {}",
    "expected_runs_m": "m = E[K] = h(0) = {}",
    "chance_of_one_run_h1": "P[K = 1] = h(1) = {}",
    "gamma": "gamma {}",
    "chance_of_top_10_percent": "chance to see a top-10% setting {}",
}
LOOSER = {"closed_form": "closed form", "renyi": "Renyi"}


def price_text(price: Json) -> str:
    """The calculator's answer."""
    guarantee = price["guarantee"]
    lines = [
        _row("epsilon", f"{_eps(price['epsilon'])}   at delta {sig(price['delta'], 3)}, {price['protocol']}, whole bill"),
        _row("relation", f"{guarantee['relation']}, unit {guarantee['unit']}"),
    ]
    if "epsilon_one_trial" in price:
        note = "   (what a report of that run alone would say: not the truth)" if price["protocol"] in TUNED else ""
        lines.append(_row("one trial", _eps(price["epsilon_one_trial"]) + note))
    if "noise_multiplier" in price:
        lines.append(
            _row("noise multiplier", sig(price["noise_multiplier"], 6) + ("   (calibrated)" if price["calibrated"] else ""))
        )
    if "line_search" in price:
        lines.append(_row("line search", _search(price["line_search"])))
    if price["epsilon_renyi"] is not None:
        lines.append(_row("by Renyi alone", f"{_eps(price['epsilon_renyi'])}   ({_which(price)})"))
    if "law" in price:
        lines.append(_row("runs", f"{law_text(price['law'])}{_most(price['law'])}; not released"))
        lines.append(
            f"chance to see a top-10% setting  {price['chance_of_top_10_percent']:.0%}   (mean {price['mean_trials']:.3g} runs)"
        )
    if "chance_of_top" in price:
        lines.append(f"chance to see a top-{100 * price['top']:.3g}% setting  {price['chance_of_top']:.0%}")
    if "chance_of_no_answer" in price:
        lines.append(f"chance of no run and no answer   {price['chance_of_no_answer']:.2g}")
    return "\n".join(lines + [f"note: {note}" for note in price["notes"]])


def explain_text(price: Json, *, width: int = 100) -> str:
    """The derivation of an answer, step by step; `price` as `sweeper price --explain --json` gives it."""
    lines = [f"derivation, epsilons at delta {sig(price['delta'], 3)}"]
    for step in price["explanation"]:
        lines += [
            "",
            *(
                line
                for text in _step(step)
                for line in textwrap.wrap(text, width, subsequent_indent="      ", break_on_hyphens=False)
            ),
        ]
    return "\n".join(lines)


def _step(step: Json) -> list[str]:
    numbers, indent = step["numbers"], "    "
    head = f"{step['number']:>2}. {step['title']}"
    lines = [f"{head}: epsilon {_eps(numbers['epsilon'], 4)}" if "epsilon" in numbers else head]
    lines.append(f"{indent}{step['theorem']}  [{step['source']}]")
    parts = [words.format(_number(name, numbers[name])) for name, words in WORDS.items() if name in numbers]
    if parts:
        lines.append(indent + "; ".join(parts))
    if numbers.get("attained") is not None:
        attained, ratio = _eps(numbers["attained"], 4), numbers["price_over_attained"]
        said = f"attained by an explicit ordering of the outcomes: {attained}; price / attained = {_ratio(ratio)}."
        claim = f"No analysis that does not know the score can charge less than {attained} for runs of this loss."
        lines.append(f"{indent}{said} {claim}")
    found = [f"{words} {_eps(numbers[name], 4)}" for name, words in LOOSER.items() if numbers.get(name) is not None]
    if found:
        lines.append(f"{indent}looser bounds: {', '.join(found)}" if "epsilon" in numbers else f"{indent}{', '.join(found)}")
    return lines


def _number(name: str, value: float | None) -> str:
    if name.startswith("epsilon"):
        return _eps(value, 4)
    if name == "chance_of_top_10_percent" and value is not None:
        return f"{value:.0%}"
    return "infinite" if value is None else f"{value:.4g}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.5f}"


def _which(price: Mapping[str, Any]) -> str:
    smaller = price["epsilon"] is None or price["epsilon_renyi"] < price["epsilon"]
    return "valid too, and smaller here" if smaller else "a looser bound, for comparison"


def _row(name: str, text: str) -> str:
    return f"{name:<18} {text}"


def _search(event: Json) -> str:
    if event["kind"] == "exponential-mechanism":
        return f"exponential mechanism, epsilon {sig(event['epsilon'], 4)}, on the step's own minibatch"
    most = f", at most {event['searches']} candidates" if "searches" in event else ""
    noise = f"threshold noise {sig(event['threshold_noise'], 4)}, query noise {sig(event['query_noise'], 4)}"
    return f"{event['kind']}, {noise}{most}, on the step's own minibatch"


def _most(law: Json) -> str:
    most = law.get("max_trials")
    return "" if most is None or most == law.get("trials") else f", given K <= {most}"


def _eps(value: float | None, digits: int = 2) -> str:
    if value is not None and 0 < value < 0.1:
        return sig(value, max(digits, 3))
    return human_epsilon(value) if digits == 2 or value is None else f"{value:,.{digits}f}"
