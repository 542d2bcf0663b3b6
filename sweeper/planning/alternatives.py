"""What the same number of runs at the same noise would cost in other ways."""

from __future__ import annotations

from dataclasses import dataclass

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


def alternatives(spec: SweepSpec, one: Event, epsilon_one: float, mean: float) -> list[Alternative]:
    """The other protocols, the dearest first, and what naive arithmetic says. `mean`: expected number of runs of this sweep."""
    protocol, delta = spec.protocol, spec.privacy.delta
    runs = max(2, round(mean)) if not protocol.runs_one else 12
    drawn = protocol if isinstance(protocol, DrawnRuns) else DrawnRuns(law="geometric", mean_trials=float(runs))
    rows = []
    if protocol.kind != "select-best":
        note = f"mean {runs} secret runs, only the winner visible"
        rows.append(_row("select-best", SelectBest(one, drawn.run_counts()), delta, note))
    if protocol.kind != "release-all":
        rows.append(_row("release-all", Repeated(one, runs), delta, f"{runs} runs, every score visible"))
    naive = f"{runs} x the epsilon of one run, at delta {runs * delta:.2g}"
    rows.append(Alternative(name="naive composition", epsilon=runs * epsilon_one, delta=min(1.0, runs * delta), note=naive))
    if protocol.kind != "subsample-tune" and spec.trainer.relation == ZERO_OUT:
        tuned = SubsampleTuneProtocol.of(drawn)
        note = f"mean {runs} secret runs on {tuned.tune_fraction:.0%} of the rows, one run on the others"
        rows.append(_row("subsample-tune", tuned.total(one), delta, note))
    if protocol.kind != "public-proxy":
        note = "settings chosen on public data, one private run"
        rows.append(Alternative(name="public-proxy", epsilon=epsilon_one, delta=delta, note=note))
    if protocol.kind != "no-tuning":
        rows.append(Alternative(name="no-tuning", epsilon=epsilon_one, delta=delta, note="one setting fixed beforehand"))
    return rows


def _row(name: str, event: Event, delta: float, note: str) -> Alternative:
    return Alternative(name=name, epsilon=accountant.epsilon(event, delta), delta=delta, note=note)
