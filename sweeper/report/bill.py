"""What `plan` and `price` show in a terminal: pure functions of their JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeper.report.arms_text import arm_bills, arm_dimensions, arms_lines
from sweeper.report.tables import sig

PAID = {"changes-event": "changes the event"}
TUNED = ("select-best", "subsample-tune", "release-all")  # protocols whose bill is more than that of the run it ends with


def plan_text(plan: Mapping[str, Any], budget: Mapping[str, Any] | None, file: str) -> str:
    """The price table of a sweep. `budget`: as service.budget_for gives it."""
    spec, arms = plan["spec"], plan["arms"]
    openness = ", data public" if plan["public"] else ""
    lines = [
        f"{plan['name']} · {spec['model']['kind']} on {plan['table']} (n = {plan['train_rows']:,} train / "
        f"{plan['holdout_rows']:,} hold-out, stated by {plan['n_stated_by']}{openness}) · "
        f"{_trainer(plan)}",
        "",
        *_dimensions({**plan, "dimensions": arm_dimensions(plan)} if arms else plan),
        *_choice(plan),
        "",
        *(arms_lines(plan) if arms else [f"  {_noise(plan)}"]),
        "",
    ]
    width = 42
    lines.append(f"  {'bill at delta ' + sig(plan['delta'], 3):<{width}}  epsilon")
    if arms:
        lines += arm_bills(plan, width)
    else:
        lines.append(f"  {'one trial':<{width}}  {_eps(plan['epsilon_one_trial'])}")
    extra = _minus(plan["epsilon"], plan["epsilon_one_trial"])
    if plan["protocol"] in TUNED and not arms:
        lines.append(f"  {'+ tuning by ' + plan['protocol']:<{width}}  {_eps(extra)}")
    total = "= the dearest arm" if arms and plan["public"] else "= this sweep"
    lines.append(f"  {total:<{width}}  {_eps(plan['epsilon'])}   {_budget(plan, budget)}".rstrip())
    for row in plan["alternatives"]:
        lines.append(f"  {'the same sweep as ' + row['name']:<{width}}  {_eps(row['epsilon'])}   ({row['note']})")
    if plan["protocol"] in TUNED:
        lines.append(f"  {'what a single-run report would say':<{width}}  {_eps(plan['epsilon_one_trial'])}   (not the truth)")
    sealed = "nothing: the data is public" if plan["public"] else "everything else"
    if plan["public"]:
        seen = "every trial"
    else:
        seen = f"of each arm {plan['visible']}" if arms else plan["visible"]
    lines += ["", f"  visible afterwards: {seen}.  Sealed: {sealed}."]
    if budget is not None and budget.get("head"):
        lines.append(f"  ledger head {budget['head']}")
    lines.append(f"  next: sweeper run {file}")
    return "\n".join(lines)


def _trainer(plan: Mapping[str, Any]) -> str:
    if plan["arms"]:
        return f"{len(plan['arms'])} arms, one selection each"
    trainer = plan["spec"]["trainer"]
    average = ", tail average" if trainer.get("average") == "tail" else ""
    return f"{trainer['kind']}, {plan['steps']:,} steps of {plan['batch_size']}{average}"


def _noise(plan: Mapping[str, Any]) -> str:
    return (
        f"sampling probability q = {sig(plan['sampling_probability'], 4)} · noise multiplier sigma = "
        f"{sig(plan['noise_multiplier'], 5)} ({'calibrated' if plan['calibrated'] else 'given'}) · "
        f"relation {plan['guarantee']['relation']}, unit {plan['guarantee']['unit']}"
    )


def _dimensions(plan: Mapping[str, Any]) -> list[str]:
    """Every setting, every question of a policy, the number of runs: how each is paid for."""
    rows = [("dimension", "values", "paid as")]
    for row in plan["dimensions"]:
        paid = PAID.get(row["paid"], row["paid"])
        rows.append((row["name"], row["values"], f"{paid}: {row['note']}" if row["note"] else paid))
    rows.append(("runs", _runs(plan), f"in each arm: {_runs_note(plan)}" if plan["arms"] else _runs_note(plan)))
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = [f"  {name:<{first}}  {values:<{second}}  {paid}" for name, values, paid in rows]
    if any("if fixed" in row["note"] for row in plan["dimensions"]):
        lines += _if_fixed(plan)
    return lines


def _if_fixed(plan: Mapping[str, Any]) -> list[str]:
    """What is compared where a row says what its dimension costs."""
    if plan["chance_of_top"] is None:
        return [f"  (if fixed: the bill of the {plan['search']} without that dimension, at the same noise)"]
    coupled = any("nearly one dimension" in row["note"] for row in plan["dimensions"])
    return [
        "  (if fixed: the bill without that dimension, at the same noise and the same chance of a setting in the best third of",
        f"  every range{', or three quarters of a clip norm beside a coupled step' if coupled else ''})",
    ]


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
    name = plan["budget_of"]
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
