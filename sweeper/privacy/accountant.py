"""Event -> numbers. The only module that turns events into losses; everything it returns is an upper bound on the truth.

Relation: that of the event. numpy and scipy are loaded only when a number is not in the disk cache, dp_accounting only for Renyi.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy.cache import cached
from sweeper.privacy.calibration import MOST_NOISE, least_noise
from sweeper.privacy.event import Event

if TYPE_CHECKING:
    from sweeper.privacy.loss import PrivacyLoss

TOLERANCE = 2e-4  # of epsilon, or of 0.01 if that is larger: what a finer grid may still seem to gain
COARSE_TOLERANCE = 1e-2  # the same while a noise multiplier is looked for
COARSEST = 0.32  # nats, the first grid
HOPELESS = 1e-2  # nats; a grid on which an infinite epsilon is believed
FINE = 2e-3  # of epsilon: a grid on which also a law of few losses has settled
LARGEST_GRID = 4_000_000  # cells; beyond it a coarser, still pessimistic grid is kept
PROBES = (1.0, math.sqrt(2), 1 / math.pi)  # noise multipliers at which two ways to make an event are told apart


def epsilon(event: Event, delta: float) -> float:
    """Smallest epsilon such that `event` is (epsilon, delta)-DP, from above, within about 0.1%.

    Relation: zero-out. Units: nats. Infinite when nothing is protected (noise_multiplier 0).
    Source: privacy loss distributions (Koskela et al. 2020; Doroshenko et al. 2022); selection by README.md, "Selection".
    """
    checks.probability(delta=delta)
    answer = cached({"what": "epsilon", "event": event.to_dict(), "delta": float(delta)}, lambda: _finite(_epsilon(event, delta)))
    return math.inf if answer is None else float(answer)


def calibrate(make: Callable[[float], Event], target: float, delta: float) -> float:
    """The smallest noise_multiplier whose event costs at most `target` at delta, within 0.3% (epsilon in [0.997, 1] target).

    `make` maps a noise multiplier to the event of the whole bill and depends on nothing else. Answers on disk are found by its
    events at PROBES, and hold the event that was priced: a `make` that agrees there, but gives another event at the answer, gets an
    answer of its own.

    Raises:
      FieldError: no noise reaches the target, because parts of the event that carry their own noise cost more.
    """
    checks.positive(epsilon=target)
    checks.probability(delta=delta)
    events = [make(probe).to_dict() for probe in PROBES]
    question = {"what": "noise_multiplier", "events": events, "epsilon": float(target), "delta": float(delta)}

    def answer() -> dict[str, Any]:
        found = _calibrate(make, target, delta)
        return {"noise_multiplier": found, "event": make(found).canonical()}

    stored = cached(question, answer)
    if make(stored["noise_multiplier"]).canonical() != stored["event"]:
        stored = answer()
    return float(stored["noise_multiplier"])


def renyi(event: Event, order: float) -> tuple[float, float]:
    """(rho, delta0): outside an event of mass delta0 the (order)-Renyi divergence is at most rho, in both directions.

    Additive under composition at one order, also when later events are chosen after seeing earlier answers (Feldman and
    Zrnic 2021), which plain PLD composition is not. Gaussian parts by their exact Renyi curve; the rest from the loss law.
    """
    checks.real(1.0, open_low=True, order=order)
    answer = cached({"what": "renyi", "event": event.to_dict(), "order": float(order)}, lambda: _renyi(event, order))
    rho, delta0 = answer
    return (math.inf if rho is None else float(rho)), float(delta0)


def renyi_epsilon(event: Event, delta: float) -> float | None:
    """Epsilon by Renyi accounting alone (dp_accounting's orders), a cross-check; None where no Renyi bound is known."""
    answer = cached(
        {"what": "renyi-epsilon", "event": event.to_dict(), "delta": float(delta)}, lambda: _renyi_epsilon(event, delta)
    )
    return None if answer is None else float(answer)


def privacy_loss(event: Event, interval: float) -> PrivacyLoss:
    """The discretised loss of an event on a grid of `interval` nats; see event_loss.py."""
    from sweeper.privacy import event_loss

    return event_loss.privacy_loss(event, interval)


def settled_interval(event: Event, delta: float, tolerance: float) -> float:
    """The grid on which `epsilon` of an event at delta has settled to a relative `tolerance`."""
    return _settled(event, delta, tolerance / 4).interval


def forget() -> None:
    """Drop what this process remembers; the disk cache stays."""
    _settled.cache_clear()


def _epsilon(event: Event, delta: float) -> float:
    """Epsilon on ever finer grids until it settles."""
    return math.inf if event.unprotected else _settled(event, delta, TOLERANCE).epsilon


class Settled(NamedTuple):
    """An epsilon, the grid that gave it, how far above the limit it seems to be, and whether rounding outgrew delta before that."""

    interval: float
    epsilon: float
    excess: float
    drowned: bool = False


@lru_cache(maxsize=64)
def _settled(event: Event, delta: float, tolerance: float) -> Settled:
    """Epsilon on ever finer grids, until what is left to gain seems to be below `tolerance` of it (of 0.01 if it is smaller).

    Every grid gives an upper bound, and the least of them is returned. Its excess falls with the square of the interval once that
    is below the loss's own spread, and at least with the interval before; the last two moves tell how fast and how much is left.
    A law of few losses may not move at all, because one grid point lies above them on both grids: a move far below what a smooth
    law makes counts only when the grid is fine. Infinite on a grid of HOPELESS is infinite for good: a delta below the mass at
    infinity grows no better. (On coarser ones many rounded steps may add up to more nats than float64 can raise e to.)
    """
    interval, best, last, order, finer = COARSEST, math.inf, math.inf, 1.0, 4.0
    while True:
        loss = privacy_loss(event, interval)
        value = loss.epsilon(delta)
        move = best - value if math.isfinite(best) else math.inf
        if 0 < move < last < math.inf and finer == 4.0:
            order = 0.5 * (2.0 + min(max(math.log(last / move, 4), 1.0), 2.0))  # it only grows
        excess = max(move, 0.0) / (finer**order - 1.0)
        scale = max(value, 1e-2)
        telling = math.isfinite(value) and (interval <= FINE * scale or move * scale >= interval * interval)
        hopeless = math.isinf(value) and interval <= HOPELESS
        best, last = min(best, value), move
        allowed = tolerance * scale
        finer = min(max((1.4 * excess / allowed) ** (1 / order), 1.5), 4.0) if telling and math.isfinite(excess) else 4.0
        size = max((len(pmf.mass) for part in loss.parts for pmf in part), default=0)
        if (excess <= allowed and telling) or best == 0.0 or hopeless or size * finer > LARGEST_GRID:
            return Settled(interval, best, excess if math.isfinite(excess) else 0.0, hopeless and math.isfinite(best))
        interval /= finer


def _calibrate(make: Callable[[float], Event], target: float, delta: float) -> float:
    def price(sigma: float) -> float:
        event = make(sigma)
        return math.inf if event.unprotected else _settled(event, delta, TOLERANCE).epsilon

    def estimate(sigma: float) -> float:
        """Near the price, from a coarser grid; not a bound."""
        event = make(sigma)
        if event.unprotected:
            return math.inf
        found = _settled(event, delta, COARSE_TOLERANCE)
        return found.epsilon - found.excess

    sigma = least_noise(estimate, price, target)
    if math.isinf(sigma):
        floor = price(MOST_NOISE)
        if math.isinf(floor):
            raise _too_small(delta)
        raise FieldError(
            "epsilon",
            target,
            f"cannot be reached: the parts that carry their own noise (the score) cost {floor:.3g} by themselves",
            "Lower score.epsilon, or raise privacy.epsilon.",
        )
    if sigma == 0.0 or make(sigma * 0.99).unprotected:
        raise FieldError("epsilon", target, "is so large that no noise would be needed", "Give privacy.noise_multiplier.")
    found = _settled(make(sigma), delta, TOLERANCE)  # rounding drowns delta, maybe until the noise is far too large
    if found.drowned or (found.epsilon < 0.9 * target and target > 1e-3):
        raise _too_small(delta)
    return sigma


def _too_small(delta: float) -> FieldError:
    return FieldError("delta", delta, "is too small for an account in double precision", "Try delta: 1e-9.")


def _renyi(event: Event, order: float) -> list[float | None]:
    from sweeper.privacy.event_renyi import renyi_cost

    rho, lost = renyi_cost(event, order)
    return [_finite(rho), lost]


def _renyi_epsilon(event: Event, delta: float) -> float | None:
    from sweeper.privacy.convention import dp_event, renyi_accountant
    from sweeper.privacy.simplify import simplified

    if event.unprotected or dp_event(simplified(event)) is None:
        return None
    return _finite(float(renyi_accountant(simplified(event)).get_epsilon(delta)))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
