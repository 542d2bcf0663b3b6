"""SweepSpec -> Plan: everything about a sweep that is known before any data is opened, its whole price first of all."""

from __future__ import annotations

from typing import Any

from sweeper.planning.arms import ArmPlan
from sweeper.planning.priced import TOP, Plan, plan
from sweeper.planning.trial import trial_event
from sweeper.spec.sweep import SweepSpec

__all__ = ["TOP", "ArmPlan", "Plan", "again", "plan", "trial_event"]


def again(spec: SweepSpec, stored: dict[str, Any]) -> Plan:
    """The plan of a sweep that was planned before, from its JSON: the same noise, to the digit."""
    noise = {arm["name"]: arm["noise_multiplier"] for arm in stored.get("arms", ())} or stored["noise_multiplier"]
    return plan(spec, seeded=stored["guarantee"]["seeded"], noise_multiplier=noise)
