"""What a run writes down on its way, at a choice of its steps that reads no data, in two parts: inside its price, and sealed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy
    from torch import Tensor

MOST_TRACED = 100  # steps written down; which ones depends on the number of steps alone
QUANTILES = (0.1, 0.5, 0.9)  # of the gradient norms of a batch


class Watch:
    """Sealed: clipped fraction, quantiles of gradient norms and size of a batch. Traced: what depends on released values only."""

    def __init__(self, steps: int | None = None) -> None:
        """steps: how many there will be; None where nobody knows: then every second one is dropped whenever there are too many."""
        self._open = steps is None
        self._every = 1 if steps is None else -(-steps // MOST_TRACED)
        self._last = -1 if steps is None else steps - 1
        self._newest: dict[str, float] = {}
        self.trace: dict[str, list[float]] = {}
        self.sealed: dict[str, list[float]] = {}
        self._norms: list[numpy.ndarray] = []
        self._clipped = self._seen = self._records = self._steps = 0

    def due(self, step: int) -> bool:
        return step % self._every == 0 or step == self._last

    def factors(self, factors: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """The same factors, with what they clip counted."""

        def watched(squared_norms_BL: Tensor) -> Tensor:
            found = factors(squared_norms_BL)
            if not len(found):
                return found
            norms_B = squared_norms_BL.sum(dim=1).sqrt_().numpy()
            self._norms.append(norms_B[norms_B > 0])
            self._seen += len(norms_B)
            self._clipped += int((found.numpy().reshape(len(norms_B), -1) < 1.0).any(axis=1).sum())
            return found

        return watched

    def drew(self, records: int) -> None:
        self._records += records
        self._steps += 1

    def seal(self, step: int, records: int) -> None:
        """The batch just summed through `factors`."""
        import numpy as np

        row: dict[str, float] = {"step": step, "batch_size": records}
        row["clipped_fraction"] = self._clipped / self._seen if self._seen else 0.0
        norms = np.sort(np.concatenate(self._norms)) if self._norms else None
        for q in QUANTILES:
            row[f"gradient_norm_{q:g}"] = float(norms[int(q * (len(norms) - 1))]) if norms is not None and len(norms) else 0.0
        _append(self.sealed, row)
        self._norms, self._clipped, self._seen = [], 0, 0

    def release(self, step: int, **values: float) -> None:
        """Values that are in the trial's price: noisy, or made of noisy ones. Of a run of unknown length: at every step."""
        self._newest = {"step": step, **values}
        if not self._open or self.due(step):
            _append(self.trace, self._newest)
        if self._open and len(self.trace["step"]) >= MOST_TRACED:
            self._every *= 2
            self.trace, self.sealed = self._thinned(self.trace), self._thinned(self.sealed)

    def end(self) -> None:
        """A run of unknown length is over: its last step is in the trace."""
        if self._newest and self.trace["step"][-1] != self._newest["step"]:
            _append(self.trace, self._newest)

    def diagnostics(self) -> dict[str, Any]:
        """Sealed: sums over the whole run, and the lists."""
        clipped = self.sealed.get("clipped_fraction")
        return {
            "steps": self._steps,
            "mean_batch_size": self._records / self._steps if self._steps else 0.0,
            "clipped_fraction_last_step": clipped[-1] if clipped else None,
            "by_step": self.sealed,
        }

    def _thinned(self, table: dict[str, list[float]]) -> dict[str, list[float]]:
        kept = [at for at, step in enumerate(table.get("step", [])) if self.due(int(step))]
        return {key: [column[at] for at in kept] for key, column in table.items()}


def _append(table: dict[str, list[float]], row: dict[str, float]) -> None:
    for key, value in row.items():
        table.setdefault(key, []).append(float(value))
