"""The Vault's one writer while trials run. Loads neither torch nor Ray: it starts before the workers that need it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from sweeper.launch.candidate import trial_spec
from sweeper.seeds import Streams
from sweeper.spec.result import TrialResult
from sweeper.spec.sweep import DataSpec, SweepSpec, TrialSpec
from sweeper.store.vault import Vault
from sweeper.store.vault_rows import FAILED, FINAL, SETTLED


class Claimed(NamedTuple):
    """What a worker gets to run."""

    trial: TrialSpec
    streams: Streams
    reference: str  # what a kept state of it is signed for
    kept: bytes | None  # its state, if a worker was lost in the middle of it


class Keeper:
    """An actor on the driver's node, with no CPU of its own. Workers reach the Vault through it alone."""

    def __init__(self, root: str, sweep: str, spec: SweepSpec, noises: dict[str, float], data: DataSpec) -> None:
        self._vault = Vault.open(Path(root), sweep)
        self._specs, self._noises, self._data = spec.by_arm(), noises, data
        self._settled = 0

    def claim(self, index: int) -> Claimed | None:
        """The trial and its streams; None when the row is settled (its settlement outlived the worker that made it)."""
        if self._vault.row(index).state in (SETTLED, FAILED):
            return None
        row = self._vault.claim(index)
        final = row.stage == FINAL
        spec, noise = self._specs[row.arm], self._noises[row.arm]
        trial = trial_spec(spec, noise, index, row.candidate, self._data, final=final, arm=row.arm)
        kept = (self._vault.meta("fingerprint"), self._vault.meta("reservation"), self._vault.sweep, index, final, row.arm)
        return Claimed(trial, Streams(self._vault.secret(), index), json.dumps(kept), self._vault.checkpoint(index))

    def arm(self, index: int) -> str:
        """Of a row."""
        return self._vault.row(index).arm

    def keep(self, index: int, content: bytes) -> None:
        """A running trial's state, in the place of an earlier one."""
        self._vault.keep_checkpoint(index, content)

    def settle(self, index: int, result: TrialResult | None, error: str, output: str) -> None:
        """Record how a trial ended; the first record counts."""
        if result is None:
            first = self._vault.fail(index, error, output)
        else:
            sealed = {**result.sealed, "output": output}
            first = self._vault.settle(index, TrialResult(released=result.released, sealed=sealed))
        self._settled += first

    def settled(self) -> int:
        """How many trials this keeper saw settled."""
        return self._settled
