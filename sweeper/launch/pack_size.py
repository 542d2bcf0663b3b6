"""How many trials share a device, and how many rows of each are worked on at once: public numbers, fixed before a sweep begins.

They change speed, and the last bits of every result: a sweep keeps the ones that it began with (the Vault's meta).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from sweeper.backends.meeting import PackFailed
from sweeper.backends.packed_layers import ALIGNED, floats_of
from sweeper.backends.vmapped import PACKED, Pack
from sweeper.checks import RequestError
from sweeper.data.table import Table
from sweeper.seeds import Streams, secret_from_seed
from sweeper.spec.protocols import Description
from sweeper.spec.sweep import TrialSpec

TOO_LONG = 1e-12  # chance that a batch does not fit one round
MOST_ROWS, MOST_FLOATS = 2048, 2**24  # of one seat in one round
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)  # packs that are tried
KEPT_FREE = 0.2  # of the device's memory, for what nobody counted
GAIN = 0.95  # a larger pack is wanted if it brings a trial's time below this part of a smaller one's


def packable(trial: Any) -> bool:
    """Whether trials like this gain from a pack: sums over minibatches, of a model that has a packed form."""
    return getattr(trial.model, "backend", "closed-form") in PACKED and bool(getattr(trial.trainer, "resumable", False))


def length_for(trainer: Any, model: Any, description: Description, rows: int) -> int:
    """Rows of one round: what a batch has at most, but for a chance of 1e-12, by the sampler's public law and nothing else.

    At most MOST_ROWS, and of a network what fits into MOST_FLOATS: longer batches take several rounds.
    """
    from scipy import stats

    expected = trainer.expected_batch(rows)
    longest = rows if expected >= rows else int(stats.binom.isf(TOO_LONG, rows, expected / rows))
    most = MOST_ROWS
    if hasattr(model, "stack"):
        most = min(most, MOST_FLOATS // floats_of(model.stack(description.features, description.classes)))
    most = max(most // ALIGNED, 1) * ALIGNED
    return min(-(-max(longest, 1) // ALIGNED) * ALIGNED, most)


def bytes_for(model: Any, description: Description, rows: int, *, length: int, pixels: bool) -> tuple[int, int]:
    """(of the rows, which all seats share; of one seat) on the device, about."""
    parameters = model.parameters(description)
    if hasattr(model, "stack"):
        each = floats_of(model.stack(description.features, description.classes)) + 2 * description.features
    else:
        each = 2 * (description.features + 1) + 6 * model.outputs(description)
    shared = rows * ((description.features + 1) * (1 if pixels else 4) + 16)
    return shared, 4 * length * each + parameters * (4 + 4 + 8 + 8 + 4)  # here, moved, the sum, its copy, one block's product


def seats_for(seconds: Mapping[int, float], *, shared: int, each: int, memory: int, trials: int) -> int:
    """How many trials a pack should have, of the sizes measured.

    seconds: number of seats -> of one joint step, as measured. shared, each: bytes for the rows and for one seat.
    memory: bytes of the device that this worker may use. trials: the most that there may be, which is public.
    The smallest pack wins to which no larger one adds much: it loses the least when it fails.

    Raises:
      RequestError: not even one trial fits.
    """
    free = (1 - KEPT_FREE) * memory - shared
    fits = [seats for seats in sorted(seconds) if seats * each <= free and (seats == 1 or seats < 2 * trials)]
    if not fits:
        asked = (shared + min(seconds, default=1) * each) / 2**30
        raise RequestError(
            f"resources: a trial needs about {asked:.2g} GiB on the device, and {memory / 2**30:.2g} GiB are there, of which "
            f"{KEPT_FREE:.0%} are kept free. Use a device with more memory, a smaller batch, or gpu: 0."
        )
    least = min(seconds[seats] / seats for seats in fits)
    return next(seats for seats in fits if GAIN * seconds[seats] / seats <= least)


def chosen(
    trial: TrialSpec, description: Description, rows: int, *, pixels: bool, device: str, share: float, trials: int, hands: int = 1
) -> tuple[int, int]:
    """(seats, rows of a round) for trials like this one, which is what `pack: auto` means. Opens no data.

    share: of the device's memory. A CPU runs one trial at a time: what a pack saves there is less than what its filling costs.
    """
    length = length_for(trial.trainer, trial.model, description, rows)
    if torch.device(device).type == "cpu" or not packable(trial):
        return 1, length
    memory = int(share * torch.cuda.mem_get_info(device)[1])
    seconds = measured(trial, description, length=length, pixels=pixels, device=device, hands=hands)
    shared, each = bytes_for(trial.model, description, rows, length=length, pixels=pixels)
    return seats_for(seconds, shared=shared, each=each, memory=memory, trials=trials), length


def measured(
    trial: TrialSpec,
    description: Description,
    *,
    length: int,
    pixels: bool,
    device: str,
    hands: int = 1,
    sizes: Sequence[int] = SIZES,
    steps: int = 5,
) -> dict[int, float]:
    """Seconds of one joint step of packs of these sizes, with the trial's own trainer and policies, on a table of zeros.

    Nothing of the data is asked. It ends when twice as many take nearly twice as long, and when memory is out.
    """
    rows = min(description.rows, 4 * length)
    few = replace(description, rows=rows, test_rows=None)
    zeros = Table(
        features=np.zeros((rows, description.features), np.float32), labels=np.zeros(rows, np.int64), valid=np.ones(rows, np.bool_)
    )
    found: dict[int, float] = {}
    for size in sizes:
        try:
            pack = Pack(
                model=trial.model,
                description=few,
                table=zeros,
                rows=np.arange(rows),
                pixels=pixels,
                seats=size,
                length=length,
                device=device,
                hands=hands,
            )
            short, long = (_seconds(pack, trial, count) for count in (1, 1 + steps))
        except (torch.OutOfMemoryError, PackFailed) as reason:
            if not isinstance(reason.__cause__ or reason, torch.OutOfMemoryError):
                raise
            return found
        found[size] = max(long - short, 1e-9) / steps
        if found[size] > 1.9 * found.get(size // 2, float("inf")):
            break
    return found


def _seconds(pack: Pack, trial: TrialSpec, steps: int) -> float:
    fewer: dict[str, Any] = {"steps": steps}
    if hasattr(trial.trainer, "batch_size"):
        fewer["batch_size"] = min(trial.trainer.batch_size, pack.alone.rows)
    trainer, secret = replace(trial.trainer, **fewer), secret_from_seed("measure")  # type: ignore[type-var]

    def fit(seat: int) -> None:
        with pack.meeting.at_work(seat):
            trainer.fit(pack.seat(seat), trial.clip, trial.step, trial.noise_multiplier, Streams(secret, seat))

    started = time.perf_counter()
    pack.meeting.run({seat: partial(fit, seat) for seat in range(pack.seats)})
    return time.perf_counter() - started
