"""What `plan` and `price` show in a terminal: pure functions of their JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeper.report.tables import sig


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
    lines += [f"  {'runs':<17}  {_runs(plan):<25}  {_runs_note(plan)}", ""]
    lines += [
        f"  sampling probability q = {sig(plan['sampling_probability'], 4)} · noise multiplier sigma = "
        f"{sig(plan['noise_multiplier'], 5)} ({'calibrated' if plan['calibrated'] else 'given'}) · relation zero-out, unit record",
        "",
    ]
    width = 42
    lines.append(f"  {'bill at delta ' + sig(plan['delta'], 3):<{width}}  epsilon")
    lines.append(f"  {'one trial':<{width}}  {_eps(plan['epsilon_one_trial'])}")
    extra = _minus(plan["epsilon"], plan["epsilon_one_trial"])
    if plan["protocol"] in ("select-best", "release-all"):
        lines.append(f"  {'+ tuning by ' + plan['protocol']:<{width}}  {_eps(extra)}")
    lines.append(f"  {'= this sweep':<{width}}  {_eps(plan['epsilon'])}   {_budget(plan, budget)}".rstrip())
    for row in plan["alternatives"]:
        lines.append(f"  {'the same sweep as ' + row['name']:<{width}}  {_eps(row['epsilon'])}   ({row['note']})")
    if plan["protocol"] in ("select-best", "release-all"):
        lines.append(f"  {'what a single-run report would say':<{width}}  {_eps(plan['epsilon_one_trial'])}   (not the truth)")
    sealed = "nothing: the data is public" if plan["public"] else "everything else"
    if plan["public"]:
        seen = "every trial"
    else:
        seen = plan["visible"]
    lines += ["", f"  visible afterwards: {seen}.  Sealed: {sealed}.", f"  next: sweeper run {file}"]
    return "\n".join(lines)


def price_text(price: Mapping[str, Any]) -> str:
    """The calculator's answer."""
    lines = [
        f"epsilon            {_eps(price['epsilon']).strip()}   at delta {sig(price['delta'], 3)}, {price['protocol']}, whole bill",
        f"one trial          {_eps(price['epsilon_one_trial']).strip()}",
        f"noise multiplier   {sig(price['noise_multiplier'], 6)}",
    ]
    if price["epsilon_renyi"] is not None:
        lines.append(f"by Renyi alone     {_eps(price['epsilon_renyi']).strip()}   (a looser bound, for comparison)")
    if "chance_of_top_10_percent" in price:
        lines.append(
            f"chance to see a top-10% setting  {price['chance_of_top_10_percent']:.0%}   (mean {price['mean_trials']:.3g} runs)"
        )
    return "\n".join(lines)


def _runs(plan: Mapping[str, Any]) -> str:
    law = plan["run_count_law"]
    if law is None:
        return f"{plan['max_trials']}"
    return f"K ~ tnb({law['eta']:g}), mean {law['mean']:g}"


def _runs_note(plan: Mapping[str, Any]) -> str:
    chance = f"{plan['chance_of_top']:.0%} chance to see a top-{plan['top']:.0%} setting"
    if plan["run_count_law"] is None:
        return "public" if plan["protocol"] == "no-tuning" else f"public; {chance}"
    return f"secret, at most {plan['max_trials']}; {chance}"


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
