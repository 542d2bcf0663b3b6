"""SweepSpec -> Plan: everything about a sweep that is known before any data is opened, its whole price first of all."""

from __future__ import annotations

from sweeper.planning.priced import TOP, Plan, plan
from sweeper.planning.trial import trial_event

__all__ = ["TOP", "Plan", "plan", "trial_event"]
