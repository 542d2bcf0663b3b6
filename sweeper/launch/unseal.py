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
from sweeper.launch.outcome import Say, WorkFailed, winners_of
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
        plan, most = self.plan, self._most()
        price = self._guarantee(plan.everything(most))
        name, budget = plan.spec.budget_of, self.ledger.budget(plan.spec.budget_of)
        assert budget is not None  # the sweep ran, so there was one
        done = self.vault.meta(RECORD) is not None
        spent = self.ledger.spent(name).epsilon
        after = spent if done else self.ledger.after_unseal(self.reservation, plan.everything(most), price).epsilon
        return {
            "sweep": plan.spec.name,
            "data_set": name,
            "epsilon": _finite(plan.guarantee.epsilon),
            "unsealed_epsilon": _finite(price.epsilon),
            "delta": price.delta,
            "most": sum(most.values()),
            "arms": len(plan.arms),
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
            event = self.plan.everything(self._most())
            self.ledger.unseal(self.reservation, event, self._guarantee(event), who)
            record = self._record()
            say(f"publishing {len(record['ids'])} trials")
            runs = {arm: self.vault.count(SEARCH, arm) for arm in self.plan.noises}
            ran = self.plan.everything(runs)
            price = self._guarantee(ran)
            self._publish(ran, price, record, runs)
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
        plan = planning.again(spec, self.vault.meta("plan"))
        if plan.fingerprint != self.vault.meta("fingerprint"):
            raise RequestError(f"sweep {spec.name} was sealed by another version of sweeper, which must unseal it")
        return plan

    def _most(self) -> dict[str, int]:
        """The most runs that each arm could have made."""
        return dict.fromkeys(self.plan.noises, self.plan.spec.protocol.max_trials)

    def _guarantee(self, event: Event) -> Guarantee:
        return replace(self.plan.guarantee, epsilon=accountant.epsilon(event, self.plan.guarantee.delta))

    def _record(self) -> dict[str, Any]:
        """What is published and under which fresh ids, fixed once. All trials share one time, as in every release."""
        record = self.vault.meta(RECORD)
        if record is None:
            ids = {str(row.index): os.urandom(8).hex() for row in self.vault.rows(params=False)}
            winners = winners_of(self.vault.meta("release"))
            record = {"submission": os.urandom(8).hex(), "released_at": time.time(), "winners": winners, "ids": ids}
            self.vault.set_meta(RECORD, record)
        return cast(dict[str, Any], record)

    def _publish(self, event: Event, price: Guarantee, record: dict[str, Any], runs: dict[str, int]) -> None:
        from sweeper.launch.release import build_unsealed
        from sweeper.store.mlflow import Store

        head = self.ledger.head()
        arms = [
            replace(arm, event=(own := self.plan.unsealed(arm.name, runs[arm.name])), epsilon=accountant.epsilon(own, price.delta))
            for arm in self.plan.arms
        ]
        told = replace(self.plan, event=event, guarantee=price, epsilon_unsealed=price.epsilon, arms=tuple(arms))
        release = build_unsealed(self.vault, told, record, f"{head.seq}:{head.hash}")
        try:
            Store(self.home).publish(release)
        except StoreError as error:
            raise WorkFailed(
                f"{error}. Nothing is lost: sweeper unseal {self.vault.sweep} publishes again, at no charge"
            ) from error


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None
