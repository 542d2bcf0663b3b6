"""A sweep from its plan to its release. The driver is the only writer of the ledger; whatever kills it, `resume` goes on.

Order, and why: reserve (so that a crash leaves a charge), seal K and the candidates (so that nothing can be redrawn), open data,
run, commit, publish.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sweeper import catalog, seeds
from sweeper import plan as planning
from sweeper.checks import RequestError
from sweeper.launch.outcome import Finished, Say, WorkFailed
from sweeper.launch.release import build_release
from sweeper.plan import Plan
from sweeper.privacy.events import NOTHING
from sweeper.privacy.ledger import Ledger
from sweeper.seeds import SWEEP, Streams
from sweeper.spec.sweep import DataSpec
from sweeper.store.home import Home
from sweeper.store.vault import Vault
from sweeper.store.vault_files import directory_of
from sweeper.store.vault_rows import FINAL, RELEASED, SEARCH


class Driver:
    """Runs or resumes one sweep of a home. `say` gets lines for a person; none of them depends on what is sealed."""

    def __init__(self, home: Home, say: Say) -> None:
        self.home, self.say = home, say

    def run(self, plan: Plan, secret: bytes, who: str) -> Finished:
        """The whole of a new sweep."""
        spec = plan.spec
        self.home.ensure()
        if directory_of(self.home.path, spec.name).exists():
            raise RequestError(f"sweep {spec.name} exists: sweeper resume {spec.name}, or choose another name")
        reservation = None
        if not spec.data.public:
            ledger = Ledger(self.home.ledger)
            reservation = ledger.reserve(spec.budget_of, spec.name, plan.fingerprint, plan.event, plan.guarantee, who)
            self.say(f"reserved epsilon {plan.guarantee.epsilon:.2f} of {spec.budget_of}")
        try:
            vault = self._seal(plan, secret, reservation)
        except RequestError:
            if reservation is not None:
                ledger.commit(reservation, NOTHING, reason="refused before any data was opened")
            raise
        with vault:
            return self._go_on(vault, plan)

    def resume(self, sweep: str) -> Finished:
        """What a sweep left unsettled, and its release if that did not happen."""
        with Vault.open(self.home.path, sweep) as vault:
            spec = catalog.sweep_from_dict(vault.meta("spec"))
            stored = vault.meta("plan")
            plan = planning.plan(spec, seeded=stored["guarantee"]["seeded"], noise_multiplier=stored["noise_multiplier"])
            if plan.fingerprint != vault.meta("fingerprint"):
                raise RequestError(f"sweep {sweep} was sealed by another version of sweeper, which must finish it")
            return self._go_on(vault, plan)

    def _seal(self, plan: Plan, secret: bytes, reservation: str | None) -> Vault:
        """K and every candidate, i.i.d. with replacement, in one transaction."""
        streams = Streams(secret, SWEEP)
        count = plan.spec.protocol.draw_count(streams.bits(seeds.COUNT).uniforms())
        uniforms = streams.bits(seeds.CANDIDATES).uniforms()
        return Vault.create(
            self.home.path,
            plan.spec.name,
            spec=plan.to_dict()["spec"],
            plan=plan.to_dict(),
            fingerprint=plan.fingerprint,
            secret=secret,
            reservation=reservation,
            candidates=[plan.spec.space.draw(uniforms) for _ in range(count)],
        )

    def _go_on(self, vault: Vault, plan: Plan) -> Finished:
        """From sealed candidates to the release, wherever an earlier driver stopped."""
        with _alone(vault):
            if vault.meta("started") is None:
                vault.set_meta("started", time.time())
            if vault.phase != RELEASED:
                preparing = threading.Thread(target=self._prepare_store, daemon=True)
                preparing.start()  # a fresh store takes seconds to make; trials need none of it
                self._run_stages(vault, plan)
                preparing.join()
                self._wait_for_release(vault, plan)
                self._commit(vault, plan)
                self._fix_release(vault, plan)
            return self._publish(vault, plan)

    def _run_stages(self, vault: Vault, plan: Plan) -> None:
        from sweeper.launch.tune import local_ray

        spec = plan.spec
        started = time.monotonic()
        with local_ray(spec.resources), self._progress(vault, plan, started) as heard:
            proxy = _proxy(plan)
            self._stage(vault, plan, proxy or spec.data, SEARCH, heard)
            if proxy is not None:
                if not vault.count(FINAL):
                    best = vault.winner(Streams(vault.secret(), SWEEP).bits(seeds.TIES))
                    vault.add(vault.row(best).candidate, FINAL)
                self._stage(vault, plan, spec.data, FINAL, heard)

    def _stage(self, vault: Vault, plan: Plan, data: DataSpec, stage: str, heard: Any) -> None:
        """Run the unsettled rows of a stage on a table, which is opened only now."""
        from sweeper.launch.tune import Stage, run_stage
        from sweeper.launch.worker import OpenData

        left = set(vault.unsettled())
        indices = tuple(row.index for row in vault.rows(stage, params=False) if row.index in left)
        if not indices:
            return
        open_data = OpenData.of(data, self._open(vault, plan, data))
        work = Stage(spec=plan.spec, noise_multiplier=plan.noise_multiplier, data=data, open_data=open_data, indices=indices)
        if not run_stage(vault, self.home.path, work, heard):
            raise WorkFailed(
                f"sweep {plan.spec.name}: workers or nodes were lost too often to finish; nothing is lost or redrawn: "
                f"sweeper resume {plan.spec.name}"
            )

    def _open(self, vault: Vault, plan: Plan, data: DataSpec) -> Any:
        """The table. Refuses, uncharged, what is charged under another name or is not the table that was stated."""
        source, cache = data.source, str(self.home.cache)
        if not source.present(cache):
            source.fetch(cache)
        reservation = vault.meta("reservation")
        fresh = reservation is not None and vault.phase == "sealed"
        try:
            if not data.public:
                Ledger(self.home.ledger).bind(plan.spec.budget_of, source.digest(cache))
            table = source.load(cache)
            if table.rows != data.rows:
                raise RequestError(f"data.n = {data.rows:,}, stated by {data.rows_stated_by}, is not the length of the table")
        except RequestError as error:
            if fresh:  # no trial ran, so nothing of the data is in any answer
                Ledger(self.home.ledger).commit(reservation, NOTHING, reason="refused before any trial ran")
                vault.destroy()
            raise error
        vault.start()
        return table

    def _wait_for_release(self, vault: Vault, plan: Plan) -> None:
        every = getattr(plan.spec.protocol, "release_every", None)
        if every:
            elapsed = time.time() - vault.meta("started")
            time.sleep(max(0.0, every * -(-elapsed // every) - elapsed))

    def _commit(self, vault: Vault, plan: Plan) -> None:
        """The charge becomes final: exactly what was reserved, whatever K was."""
        reservation = vault.meta("reservation")
        if reservation is not None:
            Ledger(self.home.ledger).commit(reservation)

    def _fix_release(self, vault: Vault, plan: Plan) -> None:
        """Choose what is released and under which fresh ids, once; publishing can then be repeated safely."""
        if vault.meta("release") is None:
            stage = FINAL if vault.count(FINAL) else SEARCH
            winner = vault.winner(Streams(vault.secret(), SWEEP).bits(seeds.TIES), stage=stage)
            shown = [winner]
            if plan.spec.protocol.releases_all or plan.spec.data.public:
                shown = [row.index for row in vault.rows(params=False)]
            ids = {str(index): os.urandom(8).hex() for index in shown}
            record = {"submission": os.urandom(8).hex(), "released_at": time.time(), "winner": winner, "ids": ids}
            vault.set_meta("release", record)
        vault.release()

    def _publish(self, vault: Vault, plan: Plan) -> Finished:
        from sweeper.store import queries
        from sweeper.store.mlflow import Store

        release = build_release(vault, plan)
        Store(self.home).publish(release)
        best = None
        if any(trial.score is not None for trial in release.trials):
            best = queries.best(plan.spec.name, self.home)
        return Finished(plan=plan, best=best, submission=release.submission)

    def _prepare_store(self) -> None:
        from sweeper.store.mlflow import Store

        Store(self.home).prepare()

    @contextmanager
    def _progress(self, vault: Vault, plan: Plan, started: float) -> Iterator[Any]:
        """Lines about time and state; counts only where every trial is visible anyway."""
        public = plan.spec.protocol.releases_all or plan.spec.data.public
        total = len(vault.unsettled())
        state = {"settled": 0}
        stop = threading.Event()

        def tick() -> None:
            while not stop.wait(1.0):
                seconds = f"{time.monotonic() - started:4.0f} s"
                count = f"  {state['settled']} of {total} trials" if public else "  trials sealed"
                self.say(f"\r{plan.spec.name}  running  {seconds}{count}")

        def heard(settled: int) -> None:
            state["settled"] = settled

        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield heard if public else None
        finally:
            stop.set()
            thread.join()
            self.say("\r")


def _proxy(plan: Plan) -> DataSpec | None:
    """The public table a public-proxy sweep searches on."""
    if plan.spec.protocol.kind != "public-proxy":
        return None
    return DataSpec(source=catalog.resolve("data", plan.spec.protocol.proxy)(), public=True)


@contextmanager
def _alone(vault: Vault) -> Iterator[None]:
    """One driver per sweep. The kernel frees the lock when its holder is killed."""
    descriptor = os.open(vault.directory / "driver.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise RequestError(f"sweep {vault.sweep} is being run by another process; wait for it, or stop it first") from None
    try:
        yield
    finally:
        os.close(descriptor)
