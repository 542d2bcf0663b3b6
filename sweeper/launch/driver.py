"""A sweep from its plan to its release. The driver is the only writer of the ledger; whatever kills it, `resume` goes on.

Order, and why: reserve (so that a crash leaves a charge), seal K and the candidates (so that nothing can be redrawn), open data,
run, commit, publish.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sweeper import catalog, planning, seeds
from sweeper.checks import RequestError
from sweeper.launch.alone import alone
from sweeper.launch.examined import examination_of, examine_model
from sweeper.launch.outcome import Finished, Say, WorkFailed
from sweeper.launch.progress import Progress
from sweeper.planning import Plan
from sweeper.privacy.account import COMMITTED, RESERVED
from sweeper.privacy.ledger import Ledger
from sweeper.seeds import SWEEP, Streams, of_arm
from sweeper.spec.sweep import DataSpec
from sweeper.store.home import Home
from sweeper.store.release import StoreError
from sweeper.store.vault import Vault
from sweeper.store.vault_files import directory_of
from sweeper.store.vault_rows import FINAL, RELEASED, SEARCH


class Driver:
    """Runs or resumes one sweep of a home. `say` gets lines for a person; none of them depends on what is sealed."""

    def __init__(self, home: Home, say: Say) -> None:
        self.home, self.say = home, say

    def run(self, plan: Plan, secret: bytes, who: str, held: str | None = None) -> Finished:
        """The whole of a new sweep. `held`: a reservation made earlier for this very sweep, instead of a new one."""
        spec = plan.spec
        self.home.ensure()
        if directory_of(self.home.path, spec.name).exists():
            raise RequestError(f"sweep {spec.name} exists: sweeper resume {spec.name}, or choose another name")
        examine_model(spec, self.say)
        reservation = None
        if not spec.data.public:
            ledger = Ledger(self.home.ledger_uri)
            if held is None:
                reservation = ledger.reserve(spec.budget_of, spec.name, plan.fingerprint, plan.event, plan.guarantee, who)
                self.say(f"reserved epsilon {plan.guarantee.epsilon:.2f} of {spec.budget_of}")
            else:
                reservation = self._held(ledger, held, plan)
        elif held is not None:
            raise RequestError("data.public is true: nothing is charged, so the run takes no reservation; leave it out")
        try:
            vault = self._seal(plan, secret, reservation)
        except BaseException:
            if reservation is not None and held is None and not self._sealed(spec.name, reservation):
                ledger.release(reservation, "refused before any data was opened")
            raise
        with vault:
            return self._go_on(vault, plan)

    def resume(self, sweep: str) -> Finished:
        """What a sweep left unsettled, and its release if that did not happen."""
        with Vault.open(self.home.path, sweep) as vault:
            spec = catalog.sweep_from_dict(vault.meta("spec"))
            plan = planning.again(spec, vault.meta("plan"))
            if plan.fingerprint != vault.meta("fingerprint"):
                raise RequestError(f"sweep {sweep} was sealed by another version of sweeper, which must finish it")
            return self._go_on(vault, plan)

    def _held(self, ledger: Ledger, held: str, plan: Plan) -> str:
        """A reservation that pays for this plan and that nobody runs on yet; `Ledger.start` settles races later."""
        found = ledger.find(held)
        if found.state != RESERVED or found.started:
            state = "is in use by another run" if found.state == RESERVED else f"is {found.state}"
            raise RequestError(f"reservation {held[:12]} of sweep {found.sweep} {state}; run without --reservation to reserve anew")
        if found.fingerprint != plan.fingerprint or found.data_set != plan.spec.budget_of:
            raise RequestError(
                f"reservation {held[:12]} was made for another sweep or another version of this file, and pays for nothing else. "
                f"Reserve again: sweeper plan FILE --reserve, and: sweeper ledger release {held[:12]}"
            )
        self.say(f"reserved earlier: epsilon {plan.guarantee.epsilon:.2f} of {plan.spec.budget_of}")
        return held

    def _seal(self, plan: Plan, secret: bytes, reservation: str | None) -> Vault:
        """K and every candidate, of each arm, in one transaction. Only a law that was accepted with it draws none at all."""
        spec, streams = plan.spec, Streams(secret, SWEEP)
        sealed: list[tuple[str, dict[str, Any]]] = []
        for arm, own in spec.by_arm().items():
            count = own.protocol.draw_count(streams.bits(of_arm(seeds.COUNT, arm)).uniforms())
            uniforms = streams.bits(of_arm(seeds.CANDIDATES, arm)).uniforms()
            sealed += [(arm, candidate) for candidate in own.search.candidates(own.space, count, uniforms)]
        return Vault.create(
            self.home.path,
            spec.name,
            spec=plan.to_dict()["spec"],
            plan=plan.to_dict(),
            fingerprint=plan.fingerprint,
            secret=secret,
            reservation=reservation,
            candidates=[candidate for _, candidate in sealed],
            arms=[arm for arm, _ in sealed],
        )

    def _sealed(self, sweep: str, reservation: str) -> bool:
        """Whether a vault holds this very reservation, so that whoever resumes it counts on the charge."""
        try:
            with Vault.open(self.home.path, sweep) as vault:
                return bool(vault.meta("reservation") == reservation)
        except RequestError:
            return False

    def _go_on(self, vault: Vault, plan: Plan) -> Finished:
        """From sealed candidates to the release, wherever an earlier driver stopped."""
        with alone(vault):
            if vault.phase != RELEASED:
                self._charged(vault)
                if vault.meta("started") is None:
                    vault.set_meta("started", time.time())
                counts = plan.spec.protocol.releases_all or plan.spec.data.public
                with Progress(self.say, plan.spec.name, counts=counts) as progress:  # to the end of the wait: it must not show K
                    if self._left(vault, plan):
                        with self._given_back_if_refused(vault, plan), self._store_prepared_meanwhile():
                            self._run_stages(vault, plan, progress)
                    self._wait_for_release(vault, plan)
                self._commit(vault)
                self._fix_release(vault, plan)
            return self._publish(vault, plan)

    def _charged(self, vault: Vault) -> None:
        """Nothing runs whose charge is not in the ledger."""
        reservation = vault.meta("reservation")
        if reservation is None:
            return
        known = {r.id: r.state for r in Ledger(self.home.ledger_uri).reservations()}
        if known.get(reservation) not in (RESERVED, COMMITTED):
            raise RequestError(
                f"the charge of sweep {vault.sweep} is not in the ledger at {self.home.ledger}, so it cannot go on: restore that "
                f"file, or run the sweep under another name"
            )

    def _left(self, vault: Vault, plan: Plan) -> bool:
        """Whether a run is left: one that is sealed and not settled, or the final one of a search that found something."""
        return bool(vault.unsettled() or self._without_final(vault, plan))

    def _without_final(self, vault: Vault, plan: Plan) -> list[str]:
        """The arms whose search found something, and whose final run is not sealed yet."""
        if not plan.spec.protocol.final_run:
            return []
        return [arm for arm in plan.noises if vault.count(SEARCH, arm) and not vault.count(FINAL, arm)]

    @contextmanager
    def _given_back_if_refused(self, vault: Vault, plan: Plan) -> Iterator[None]:
        """A request refused before any charged trial ran leaves no vault and no charge: nothing of the data is in any answer."""
        try:
            yield
        except RequestError:
            reservation, run = vault.meta("reservation"), vault.meta("run")
            charged = vault.rows(FINAL if _proxy(plan) else None, params=False)
            if all(row.attempts == 0 for row in charged):
                vault.destroy()  # first: a vault never outlives its charge
                if reservation is not None:
                    self._give_back(reservation, run)
            raise

    def _give_back(self, reservation: str, run: str | None) -> None:
        """The charge of a run that was refused, unless another run is using it: then it was this one that came too late."""
        ledger = Ledger(self.home.ledger_uri)
        started = ledger.find(reservation).started
        if started and started == run:
            ledger.recover(reservation, "refused before any trial of it was claimed")
        elif not started:
            ledger.release(reservation, "refused before any data was opened")

    def _run_stages(self, vault: Vault, plan: Plan, progress: Progress) -> None:
        spec, proxy = plan.spec, _proxy(plan)
        for data in filter(None, (proxy, spec.data)):
            self._same_as_before(vault, data, self._admit(data, spec.budget_of))
        from sweeper.launch.cluster import ray_for_one_sweep, room_for

        with ray_for_one_sweep(vault.directory / "ray"):
            room_for(spec.resources)  # asked before any data is opened
            self._stage(vault, plan, proxy or spec.data, SEARCH, progress)
            if spec.protocol.final_run:
                for arm in self._without_final(vault, plan):
                    best = vault.winner(Streams(vault.secret(), SWEEP).bits(of_arm(seeds.TIES, arm)), arm=arm)
                    vault.add(vault.row(best).candidate, FINAL, arm)
                self._stage(vault, plan, spec.data, FINAL, progress)

    def _same_as_before(self, vault: Vault, data: DataSpec, digest: str) -> None:
        """One sweep runs on one table: the price is that of runs on the same rows, and rows that differ may be other people's."""
        key = f"digest of {data.source.kind}"
        if vault.meta(key) is None:
            vault.set_meta(key, digest)
        elif vault.meta(key) != digest:
            raise RequestError(
                f"the table of source {data.source.kind} is not the one that sweep {vault.sweep} began on, so the rest cannot run: "
                "put that one back and resume, or run a new sweep under another name"
            )

    def _admit(self, data: DataSpec, budget_of: str) -> str:
        """The files of a table, fetched if they are not here; their digest.

        Refuses what is charged under another name, and what is declared public and was charged as private.
        """
        source, cache = data.source, str(self.home.cache)
        if not source.present(cache):
            source.fetch(cache)
        digest = source.digest(cache)
        if not data.public:
            Ledger(self.home.ledger_uri).bind(budget_of, digest)
        elif self.home.ledger_exists() and (name := Ledger(self.home.ledger_uri).charged_as(digest)):
            raise RequestError(
                f'source {source.kind} is used as public, and its file is charged as private under "{name}" in this ledger: '
                "publishing trials of it uncharged would undo those guarantees. Use it as private, or another SWEEPER_HOME for a "
                "benchmark"
            )
        return digest

    def _stage(self, vault: Vault, plan: Plan, data: DataSpec, stage: str, progress: Progress) -> None:
        """Run the unsettled rows of a stage on a table, which is opened only now."""
        from sweeper.launch.open_data import OpenData
        from sweeper.launch.tune import Stage, run_stage

        left = set(vault.unsettled())
        indices = tuple(index for index in vault.indices(stage) if index in left)
        if not indices:
            return
        vault.start()
        if not data.public:
            self._started(vault)
        table = data.source.load(str(self.home.cache))
        if table.rows != data.rows:
            raise RequestError(f"data.n = {data.rows:,}, stated by {data.rows_stated_by}, is not the length of the table")
        progress.expect(len(indices))
        open_data = OpenData.of(data, table)
        found = examination_of(plan.spec)
        work = Stage(spec=plan.spec, noises=plan.noises, data=data, open_data=open_data, indices=indices, examination=found)
        if not run_stage(vault, self.home.path, work, progress.settled if progress.counts else None):
            raise WorkFailed(
                f"sweep {plan.spec.name}: workers or nodes were lost too often to finish; nothing is lost or redrawn: "
                f"sweeper resume {plan.spec.name}"
            )

    def _started(self, vault: Vault) -> None:
        """The ledger's start row, before data is opened: from now on a charge needs proof from this vault to be given back."""
        reservation = vault.meta("reservation")
        if reservation is not None:
            if vault.meta("run") is None:
                vault.set_meta("run", os.urandom(16).hex())
            Ledger(self.home.ledger_uri).start(reservation, vault.meta("run"))

    def _wait_for_release(self, vault: Vault, plan: Plan) -> None:
        every = getattr(plan.spec.protocol, "release_every", None)
        if every:
            elapsed = time.time() - vault.meta("started")
            time.sleep(max(0.0, every * -(-elapsed // every) - elapsed))

    def _commit(self, vault: Vault) -> None:
        """The charge becomes final: exactly what was reserved, whatever K was."""
        reservation = vault.meta("reservation")
        if reservation is not None:
            Ledger(self.home.ledger_uri).commit(reservation)

    def _fix_release(self, vault: Vault, plan: Plan) -> None:
        """Choose what is released and under which fresh ids, once; publishing can then be repeated safely."""
        if vault.meta("release") is None:
            winners, stage = {}, FINAL if plan.spec.protocol.final_run else SEARCH
            for arm in plan.noises:
                if vault.count(stage, arm):  # else nothing was drawn, and nothing is released
                    ties = Streams(vault.secret(), SWEEP).bits(of_arm(seeds.TIES, arm))
                    winners[arm] = vault.winner(ties, stage=stage, arm=arm)
            shown = list(winners.values())
            if plan.spec.protocol.releases_all or plan.spec.data.public:
                shown = vault.indices()
            ids = {str(index): os.urandom(8).hex() for index in shown}
            record = {"submission": os.urandom(8).hex(), "released_at": time.time(), "winners": winners, "ids": ids}
            if not plan.spec.data.public:
                head = Ledger(self.home.ledger_uri).head()
                record["ledger_head"] = f"{head.seq}:{head.hash}"  # the commit, or a later row
            vault.set_meta("release", record)
        vault.release()

    def _publish(self, vault: Vault, plan: Plan) -> Finished:
        from sweeper.launch.release import build_release
        from sweeper.store import queries
        from sweeper.store.mlflow import Store

        release = build_release(vault, plan)
        try:
            Store(self.home).publish(release)
        except StoreError as error:
            raise WorkFailed(f"{error}. Nothing is lost: sweeper resume {vault.sweep} publishes again") from error
        best = None
        if any(trial.is_best and trial.score is not None for trial in release.trials):
            best = queries.best(plan.spec.name, self.home)
        return Finished(plan=plan, best=best, submission=release.submission, drew_nothing=not release.trials)

    @contextmanager
    def _store_prepared_meanwhile(self) -> Iterator[None]:
        """The store's schema and the imports of publishing take seconds, which this process else spends waiting for others."""

        def prepare() -> None:
            from sweeper.launch import release  # noqa: F401  (torch)
            from sweeper.store.mlflow import Store

            try:
                Store(self.home).prepare()
            except StoreError as error:
                logging.getLogger(__name__).debug("%s", error)  # publishing meets it again, and reports it

        thread = threading.Thread(target=prepare, daemon=True)
        thread.start()
        try:
            yield
        finally:
            thread.join()  # always: a process that ends in the middle of an import may crash


def _proxy(plan: Plan) -> DataSpec | None:
    """The public table a public-proxy sweep searches on."""
    if plan.spec.protocol.kind != "public-proxy":
        return None
    return DataSpec(source=catalog.resolve("data", plan.spec.protocol.proxy)(), public=True)
