"""Publishing every trial of a sweep that released only its winner, at the price of all of them.

Order, and why: the price of the most trials that could have run is charged first (how many did run is still secret), then
everything is published, then the charge comes down to what ran. Each step is fixed in the vault or the ledger before the next, so
that a second call goes on where a killed one stopped, and costs nothing.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any, cast

from sweeper import catalog, planning
from sweeper.checks import RequestError
from sweeper.launch.alone import alone
from sweeper.launch.outcome import Say, WorkFailed
from sweeper.planning import Plan
from sweeper.privacy import accountant
from sweeper.privacy.events import Event
from sweeper.privacy.guarantee import Guarantee
from sweeper.privacy.ledger import Ledger
from sweeper.store.home import Home
from sweeper.store.release import StoreError
from sweeper.store.vault import Vault
from sweeper.store.vault_rows import RELEASED, SEARCH

BILL = "unsealed_bill"  # what was published with it, once that is done
RECORD = "unsealed"  # the vault's record of what is published, under which fresh ids


class Unsealing:
    """One sweep's unsealing.

    Raises:
      RequestError: no such sweep, nothing released yet, or nothing sealed.
    """

    def __init__(self, home: Home, sweep: str) -> None:
        self.home, self.vault = home, Vault.open(home.path, sweep)
        try:
            self.plan = self._plan()
        except BaseException:
            self.vault.close()
            raise
        self.ledger = Ledger(home.ledger_uri)
        self.reservation: str = self.vault.meta("reservation")

    def __enter__(self) -> Unsealing:
        return self

    def __exit__(self, *_: object) -> None:
        self.vault.close()

    def quote(self) -> dict[str, Any]:
        """Old and new bill, and what the budget would say. Charges nothing."""
        plan, most = self.plan, self.plan.spec.protocol.max_trials
        price = self._guarantee(self._everything(most))
        name, budget = plan.spec.budget_of, self.ledger.budget(plan.spec.budget_of)
        assert budget is not None  # the sweep ran, so there was one
        done = self.vault.meta(RECORD) is not None
        spent = self.ledger.spent(name).epsilon
        after = spent if done else self.ledger.after_unseal(self.reservation, self._everything(most), price).epsilon
        return {
            "sweep": plan.spec.name,
            "data_set": name,
            "epsilon": _finite(plan.guarantee.epsilon),
            "unsealed_epsilon": _finite(price.epsilon),
            "delta": price.delta,
            "most": most,
            "budget": budget.epsilon,
            "budget_delta": budget.delta,
            "spent": _finite(spent),
            "after": _finite(after),
            "over": not after <= budget.epsilon,
            "unsealed": done,
        }

    def run(self, who: str, say: Say) -> dict[str, Any]:
        """Charge, publish, give back. What was done before is not done again."""
        with alone(self.vault):
            most = self.plan.spec.protocol.max_trials
            event = self._everything(most)
            self.ledger.unseal(self.reservation, event, self._guarantee(event), who)
            record = self._record()
            say(f"publishing {len(record['ids'])} trials")
            ran = self._everything(self.vault.count(SEARCH))
            price = self._guarantee(ran)
            self._publish(ran, price, record)
            self.ledger.commit_unsealed(self.reservation, ran, reason="the number of runs is public now")
            self.vault.set_meta(BILL, {"epsilon": _finite(price.epsilon), "delta": price.delta})
        return {
            "sweep": self.plan.spec.name,
            "trials": len(record["ids"]),
            "epsilon": _finite(price.epsilon),
            "delta": price.delta,
            "submission": record["submission"],
        }

    def _plan(self) -> Plan:
        spec = catalog.sweep_from_dict(self.vault.meta("spec"))
        if spec.protocol.releases_all or spec.data.public:
            raise RequestError(
                f"nothing of sweep {spec.name} is sealed: every trial is visible already (sweeper compare {spec.name})"
            )
        if self.vault.phase != RELEASED:
            raise RequestError(f"sweep {spec.name} has released nothing yet: sweeper resume {spec.name}, then unseal it")
        stored = self.vault.meta("plan")
        plan = planning.plan(spec, seeded=stored["guarantee"]["seeded"], noise_multiplier=stored["noise_multiplier"])
        if plan.fingerprint != self.vault.meta("fingerprint"):
            raise RequestError(f"sweep {spec.name} was sealed by another version of sweeper, which must unseal it")
        return plan

    def _everything(self, runs: int) -> Event:
        """The event of `runs` trials, all of them visible."""
        return cast(Event, self.plan.spec.protocol.unsealed(self.plan.trial_event, runs))

    def _guarantee(self, event: Event) -> Guarantee:
        return replace(self.plan.guarantee, epsilon=accountant.epsilon(event, self.plan.guarantee.delta))

    def _record(self) -> dict[str, Any]:
        """What is published and under which fresh ids, fixed once. All trials share one time, as in every release."""
        record = self.vault.meta(RECORD)
        if record is None:
            ids = {str(row.index): os.urandom(8).hex() for row in self.vault.rows(params=False)}
            winner = self.vault.meta("release")["winner"]
            record = {"submission": os.urandom(8).hex(), "released_at": time.time(), "winner": winner, "ids": ids}
            self.vault.set_meta(RECORD, record)
        return cast(dict[str, Any], record)

    def _publish(self, event: Event, price: Guarantee, record: dict[str, Any]) -> None:
        from sweeper.launch.release import build_unsealed
        from sweeper.store.mlflow import Store

        head = self.ledger.head()
        release = build_unsealed(self.vault, self.plan, record, event, price, f"{head.seq}:{head.hash}")
        try:
            Store(self.home).publish(release)
        except StoreError as error:
            raise WorkFailed(
                f"{error}. Nothing is lost: sweeper unseal {self.vault.sweep} publishes again, at no charge"
            ) from error


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None
