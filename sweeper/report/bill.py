"""What `plan` and `price` show in a terminal: pure functions of their JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeper.report.tables import sig

TUNED = ("select-best", "subsample-tune", "release-all")  # protocols whose bill is more than that of the run it ends with


def plan_text(plan: Mapping[str, Any], budget: Mapping[str, Any] | None, file: str) -> str:
    """The price table of a sweep. `budget`: as service.budget_for gives it."""
    spec, trainer = plan["spec"], plan["spec"]["trainer"]
    average = ", tail average" if trainer.get("average") == "tail" else ""
    openness = ", data public" if plan["public"] else ""
    lines = [
        f"{plan['name']} · {spec['model']['kind']} on {spec['data']['source']} (n = {plan['train_rows']:,} train / "
        f"{plan['holdout_rows']:,} hold-out, stated by {plan['n_stated_by']}{openness}) · {trainer['kind']}, "
        f"{plan['steps']:,} steps of {plan['batch_size']}{average}",
        "",
        "  dimension          values                     paid as",
    ]
    for row in plan["dimensions"]:
        lines.append(f"  {row['name']:<17}  {row['values']:<25}  {row['paid_as']}")
    lines += [f"  {'runs':<17}  {_runs(plan):<25}  {_runs_note(plan)}", *_choice(plan), ""]
    lines += [
        f"  sampling probability q = {sig(plan['sampling_probability'], 4)} · noise multiplier sigma = "
        f"{sig(plan['noise_multiplier'], 5)} ({'calibrated' if plan['calibrated'] else 'given'}) · "
        f"relation {plan['guarantee']['relation']}, unit {plan['guarantee']['unit']}",
        "",
    ]
    width = 42
    lines.append(f"  {'bill at delta ' + sig(plan['delta'], 3):<{width}}  epsilon")
    lines.append(f"  {'one trial':<{width}}  {_eps(plan['epsilon_one_trial'])}")
    extra = _minus(plan["epsilon"], plan["epsilon_one_trial"])
    if plan["protocol"] in TUNED:
        lines.append(f"  {'+ tuning by ' + plan['protocol']:<{width}}  {_eps(extra)}")
    lines.append(f"  {'= this sweep':<{width}}  {_eps(plan['epsilon'])}   {_budget(plan, budget)}".rstrip())
    for row in plan["alternatives"]:
        lines.append(f"  {'the same sweep as ' + row['name']:<{width}}  {_eps(row['epsilon'])}   ({row['note']})")
    if plan["protocol"] in TUNED:
        lines.append(f"  {'what a single-run report would say':<{width}}  {_eps(plan['epsilon_one_trial'])}   (not the truth)")
    sealed = "nothing: the data is public" if plan["public"] else "everything else"
    if plan["public"]:
        seen = "every trial"
    else:
        seen = plan["visible"]
    lines += ["", f"  visible afterwards: {seen}.  Sealed: {sealed}."]
    if budget is not None and budget.get("head"):
        lines.append(f"  ledger head {budget['head']}")
    lines.append(f"  next: sweeper run {file}")
    return "\n".join(lines)


def _runs(plan: Mapping[str, Any]) -> str:
    law = plan["run_count_law"]
    return f"{plan['max_trials']}" if law is None else law_text(law)


def law_text(law: Mapping[str, Any]) -> str:
    """A law of the number of runs, as its JSON names it, with what it is told."""
    if law["law"] == "fixed":
        return f"K = {law['trials']}"
    if law["law"] == "binomial":
        return f"K ~ binomial({law['trials']}, {sig(law['probability'], 3)})"
    name = law["law"]
    if name == "tnb":
        name = {0.0: "logarithmic", 1.0: "geometric"}.get(law["eta"], f"tnb({sig(law['eta'], 3)})")
    return f"K ~ {name}, mean {sig(law['mean'], 3)}"


def _runs_note(plan: Mapping[str, Any]) -> str:
    if plan["run_count_law"] is None:
        if plan["protocol"] == "no-tuning":
            return "public"
        if plan["chance_of_top"] is None:
            return f"public; every point of the {plan['search']}, once"
        return f"public; {_chance(plan)}"
    most = "fixed: no secret" if plan["run_count_law"]["law"] == "fixed" else f"secret, at most {plan['max_trials']}"
    empty = (
        f"; no run and no answer in {sig(100 * plan['chance_of_nothing'], 1)}% of all cases" if plan["chance_of_nothing"] else ""
    )
    return f"{most}; {_chance(plan)}{empty}"


def _choice(plan: Mapping[str, Any]) -> list[str]:
    """Why law: auto chose this law: what was asked, and the laws that came nearest."""
    choice = plan["law_choice"]
    if choice is None:
        return []
    what = f"chance of {choice['chance']:.0%}" if choice["chance"] is not None else f"bill of at most {choice['max_epsilon']:g}"
    best = "smallest bill" if choice["chance"] is not None else "largest chance"
    lines = ["", f"  law: auto asked for a {what} to see a top-{choice['top']:.0%} setting, at the {best}:"]
    if choice["chance"] is None:
        lines[-1] = f"  law: auto asked for the {best} to see a top-{choice['top']:.0%} setting, at a {what}:"
    head = f"epsilon at noise {sig(choice['noise_multiplier'], 4)}"
    lines.append(f"    {'law':<26}  {'expected runs':>13}  chance  {head}")
    for row in choice["table"]:
        lines.append(
            f"    {law_text(row['law']):<26}  {sig(row['mean_trials'], 3):>13}  {row['chance']:>6.1%}  {_eps(row['epsilon'])}"
            f"{'   chosen' if row is choice['table'][0] else ''}"
        )
    return lines


def _chance(plan: Mapping[str, Any]) -> str:
    return f"{plan['chance_of_top']:.0%} chance to see a top-{plan['top']:.0%} setting"


def _budget(plan: Mapping[str, Any], budget: Mapping[str, Any] | None) -> str:
    if plan["public"]:
        return "as if private: the data is public, nothing is charged"
    name = plan["spec"]["privacy"].get("budget_of", plan["spec"]["data"]["source"])
    if budget is None:
        enough, delta = max(8.0, 4 * (plan["epsilon"] or 0.0)), 10 * plan["delta"]
        return f"no budget of {name} is set: sweeper ledger set-budget {name} --epsilon {enough:.3g} --delta {delta:.0e}"
    at = f"budget of {name} at delta {budget['delta']:.0e}"
    return f"{at}: {budget['epsilon']:.2f}, spent {_spent(budget)}, {_verdict(budget)}"


def _spent(budget: Mapping[str, Any]) -> str:
    return "infinite" if budget["spent"] is None else f"{budget['spent']:.2f}"


def _verdict(budget: Mapping[str, Any]) -> str:
    if budget["after"] is None:
        return "OVER any budget"
    left = budget["epsilon"] - budget["after"]
    return f"left {left:.2f} after" if left >= 0 else f"OVER by {-left:.2f}"


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _eps(value: float | None) -> str:
    if value is None:
        return "infinite"
    return f"{value:7.3f}" if value < 0.1 else f"{value:7.2f}"
