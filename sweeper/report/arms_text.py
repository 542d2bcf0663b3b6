"""What a terminal shows of a sweep's arms: pure functions of their JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeper.report.tables import human_epsilon, sig, table

Json = Mapping[str, Any]


def arms_lines(plan: Json) -> list[str]:
    """A table of the arms, with what each costs alone, and a sentence on what they cost together."""
    written = plan["spec"]["arms"]
    relations = {arm["relation"] for arm in plan["arms"]}
    headers = [
        "arm",
        "clip",
        "step",
        "trainer",
        "batches",
        "q",
        "noise",
        "one trial",
        "bill",
        *(["relation"] * (len(relations) > 1)),
    ]
    rows = []
    for arm in plan["arms"]:
        parts = written[arm["name"]]
        batches = f"{arm['steps']:,} of {arm['batch_size']:,}"
        bills = (human_epsilon(arm[name]) for name in ("epsilon_one_trial", "epsilon"))
        kinds = (parts["clip"]["policy"], parts["step"]["policy"], parts["trainer"]["kind"])
        noise = (sig(arm["sampling_probability"], 3), sig(arm["noise_multiplier"], 4))
        rows.append([arm["name"], *kinds, batches, *noise, *bills, arm["relation"]][: len(headers)])
    align = "lllllrrrrl"[: len(headers)]
    lines = [f"  {line}" for line in table(headers, rows, align, width=120).splitlines()]
    noise = f"noise {'calibrated' if plan['calibrated'] else 'given'} · unit {plan['guarantee']['unit']}"
    noise += f" · relation {plan['guarantee']['relation']}" if len(relations) == 1 else ""
    return [*lines, "", *(f"  {line}" for line in (noise, *together(plan)))]


def together(plan: Json) -> list[str]:
    """How the arms' bills make that of the sweep."""
    bills = [arm["epsilon"] for arm in plan["arms"]]
    count, whole = len(bills), human_epsilon(plan["epsilon"])
    if plan["public"]:
        return ["Public data: each arm is billed alone, as if private. On private data the bills of the arms would compose."]
    if not plan["calibrated"]:
        return [
            f"Private data: the arms compose. Bills of {', '.join(map(human_epsilon, bills))} come to epsilon {whole} together, "
            "that of this sweep."
        ]
    dearest = human_epsilon(max(bills, default=None) if None not in bills else None)
    return [
        f"Private data: the arms compose. {count} bills of epsilon {dearest} come to {whole} together, that of this sweep:",
        f"the same bill for each arm, as large as privacy.epsilon {plan['spec']['privacy']['epsilon']:g} allows.",
    ]


def arm_bills(plan: Json, width: int) -> list[str]:
    """A line for each arm of the bill."""
    return [f"  {'arm ' + arm['name']:<{width}}  {human_epsilon(arm['epsilon']):>7}" for arm in plan["arms"]]


def arm_dimensions(plan: Json) -> list[Json]:
    """The dimensions of all arms, each under its arm's name."""
    return [{**row, "name": f"{arm['name']}: {row['name']}"} for arm in plan["arms"] for row in arm["dimensions"]]
