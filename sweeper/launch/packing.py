"""Whether the trials of a sweep go in packs, how many to one, and how they are run. Chosen once, and kept in the Vault."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

from sweeper.checks import FieldError
from sweeper.launch.candidate import trial_spec
from sweeper.spec.sweep import AUTO, DataSpec, SweepSpec, TrialSpec

if TYPE_CHECKING:
    from sweeper.backends.vmapped import Pack
    from sweeper.launch.open_data import OpenData
    from sweeper.launch.pack import Claim, Settle
    from sweeper.store.vault import Vault

META = "pack"  # in the Vault
CPU, GPU = "cpu", "cuda"
_MANY = 128  # trials, where a protocol states no most


@dataclass(frozen=True, kw_only=True)
class Packing:
    """seats: trials of one pack; lengths: rows of a trial's round, by arm. All are public, and change the last bits of results."""

    device: str
    seats: int
    lengths: Mapping[str, int]


OnWorker = Callable[[Callable[..., Any], Mapping[str, Any]], Any]  # calls a function with these arguments where trials run


def packing_of(vault: Vault, spec: SweepSpec, noises: Mapping[str, float], data: DataSpec, rows: int, on_worker: OnWorker) -> Any:
    """The packing of a sweep on `rows` training rows; None: each trial by itself. Asks nothing of the data.

    on_worker: where packs on a GPU are measured.

    Raises:
      FieldError: packs are asked for, and the model, trainer or protocol has none.
    """
    kept = vault.meta(META)
    if kept is None:
        kept = _chosen(spec, noises, data, rows, on_worker)
        vault.set_meta(META, kept)
    return Packing(**kept) if kept else None


def _chosen(spec: SweepSpec, noises: Mapping[str, float], data: DataSpec, rows: int, on_worker: OnWorker) -> dict[str, Any]:
    from sweeper.launch.pack_size import chosen, length_for, packable

    asked, device = spec.resources.pack, GPU if spec.resources.gpu > 0 else CPU
    if asked == 1 or (asked in (None, AUTO) and device == CPU):
        return {}
    trials = {arm: _some(one, noises[arm], data, arm) for arm, one in spec.by_arm().items()}
    if spec.protocol.kind == "subsample-tune" or not all(map(packable, trials.values())):
        if asked in (None, AUTO):
            return {}
        rule = f"has no packs: {spec.model.kind} models, trainers without minibatches and subsample-tune go trial by trial"
        raise FieldError("resources.pack", asked, rule, "Leave it out.")
    description, pixels = data.source.description, bool(getattr(data.source, "pixels", False))
    lengths = {arm: length_for(trial.trainer, trial.model, description, rows) for arm, trial in trials.items()}
    seats = asked
    if asked in (None, AUTO):
        most = getattr(spec.protocol, "max_trials", None) or getattr(spec.protocol, "trials", None) or _MANY
        given = {"description": description, "rows": rows, "pixels": pixels, "device": device, "trials": most}
        share = min(1.0, spec.resources.gpu)
        found = [on_worker(chosen, {"trial": trial, "share": share, **given})[0] for trial in trials.values()]
        seats = min(found)
    return asdict(Packing(device=device, seats=int(seats or 1), lengths=lengths))


def _some(spec: SweepSpec, noise: float, data: DataSpec, arm: str) -> TrialSpec:
    """A trial of an arm, at the middle of its space: they all take the same time."""
    return trial_spec(spec, noise, 0, spec.space.draw(repeat(0.5)), data, arm=arm)


class Packs:
    """The packs of one worker: one for every arm that it meets."""

    def __init__(self, packing: Packing, spec: SweepSpec, data: OpenData) -> None:
        self._packing, self._spec, self._data = packing, spec, data
        self._packs: dict[str, Pack] = {}

    def run(self, arm: str, rows: Sequence[int], claim: Claim, settle: Settle) -> None:
        """Run rows of one arm together.

        Raises:
          PackFailed: the joint work failed; what was settled stays.
        """
        from sweeper.launch.pack import run_pack

        run_pack(self._pack(arm), self._data, rows, claim, settle)

    def _pack(self, arm: str) -> Pack:
        from sweeper.backends.vmapped import Pack

        if arm not in self._packs:
            source = self._data.spec.source
            self._packs[arm] = Pack(
                model=self._spec.model,
                description=source.description,
                table=self._data.table,
                rows=self._data.train_rows,
                pixels=bool(getattr(source, "pixels", False)),
                seats=self._packing.seats,
                length=self._packing.lengths[arm],
                device=self._packing.device,
            )
        return self._packs[arm]
