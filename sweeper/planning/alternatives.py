"""What the same number of runs at the same noise would cost in other ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sweeper.planning.arms import ArmPlan, Total, whole
from sweeper.privacy import accountant
from sweeper.privacy.events import ZERO_OUT, Event, Repeated, SelectBest
from sweeper.privacy.release import DrawnRuns, SubsampleTuneProtocol
from sweeper.spec.sweep import SweepSpec


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """One other way."""

    name: str
    epsilon: float
    delta: float
    note: str


def alternatives(spec: SweepSpec, arms: Sequence[ArmPlan]) -> list[Alternative]:
    """The other protocols, the dearest first, and what naive arithmetic says. `arms`: as the sweep is priced."""
    protocol, delta, mean = spec.protocol, spec.privacy.delta, arms[0].expected_trials

    def row(name: str, total: Total, note: str) -> Alternative:
        """The bill where each arm's trials are totalled in this way."""
        event = whole([total(arm.trial_event) for arm in arms], delta, public=spec.data.public)
        return Alternative(name=name, epsilon=accountant.epsilon(event, delta), delta=delta, note=note + each)

    each = " in each arm" if spec.arms else ""
    runs = max(2, round(mean)) if not protocol.runs_one else 12
    drawn = protocol if isinstance(protocol, DrawnRuns) else DrawnRuns(law="geometric", mean_trials=float(runs))
    rows = []
    if protocol.kind != "select-best":
        note = f"mean {runs} secret runs, only the winner visible"
        rows.append(row("select-best", lambda one: SelectBest(one, drawn.run_counts()), note))
    if protocol.kind != "release-all":
        rows.append(row("release-all", lambda one: Repeated(one, runs), f"{runs} runs, every score visible"))
    billed = [arm.epsilon_one_trial for arm in arms]
    count = runs * len(arms) if not spec.data.public else runs
    total = runs * (max(billed) if spec.data.public else sum(billed))
    naive = f"{count} x the epsilon of one run, at delta {count * delta:.2g}"
    rows.append(Alternative(name="naive composition", epsilon=total, delta=min(1.0, count * delta), note=naive))
    if protocol.kind != "subsample-tune" and all(arm.relation == ZERO_OUT for arm in arms):
        tuned = SubsampleTuneProtocol.of(drawn)
        note = f"mean {runs} secret runs on {tuned.tune_fraction:.0%} of the rows, one run on the others"
        rows.append(row("subsample-tune", tuned.total, note))
    if protocol.kind != "public-proxy":
        rows.append(row("public-proxy", _alone, "settings chosen on public data, one private run"))
    if protocol.kind != "no-tuning":
        rows.append(row("no-tuning", _alone, "one setting fixed beforehand"))
    return rows


def _alone(one: Event) -> Event:
    return one
