"""Event -> numbers. The only module that turns events into losses; everything it returns is an upper bound on the truth.

Relation: zero-out throughout. numpy, scipy and dp_accounting are loaded only when a number is not in the disk cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy.cache import cached
from sweeper.privacy.events import (
    Composed,
    DiscreteLaplace,
    Disjoint,
    Event,
    Gaussian,
    PoissonSubsampled,
    Repeated,
    SelectBest,
)

if TYPE_CHECKING:
    from sweeper.privacy.loss import PrivacyLoss

TOLERANCE = 5e-4  # relative change in epsilon (of 0.01 if it is smaller) between two grids below which the finer is returned
LARGEST_GRID = 4_000_000  # cells; beyond it a coarser, still pessimistic grid is kept
CUT = 1e-10  # mass of an event's highest losses that its Renyi cost counts as delta
LEAST_NOISE = 1e-2  # a smaller noise multiplier costs thousands of nats and arrays of gigabytes: its price is given as infinite


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

    `make` maps a noise multiplier to the event of the whole bill and depends on nothing else.

    Raises:
      FieldError: no noise reaches the target, because parts of the event that carry their own noise cost more.
    """
    checks.positive(epsilon=target)
    checks.probability(delta=delta)
    question = {"what": "noise_multiplier", "event": make(1.0).to_dict(), "epsilon": float(target), "delta": float(delta)}
    return float(cached(question, lambda: _calibrate(make, target, delta)))


def renyi(event: Event, order: float) -> tuple[float, float]:
    """(rho, delta0): outside an event of mass delta0 the (order)-Renyi divergence is at most rho, in both directions.

    Additive under composition at one order, also when later events are chosen after seeing earlier answers (Feldman and
    Zrnic 2021), which plain PLD composition is not. Gaussian parts by their exact Renyi curve; the rest from the loss law.
    """
    checks.real(1.0, open_low=True, order=order)
    answer = cached({"what": "renyi", "event": event.to_dict(), "order": float(order)}, lambda: list(_renyi(event, order)))
    rho, delta0 = answer
    return (math.inf if rho is None else float(rho)), float(delta0)


def renyi_epsilon(event: Event, delta: float) -> float | None:
    """Epsilon by Renyi accounting alone (dp_accounting's orders), a cross-check; None where no Renyi bound is known."""
    answer = cached(
        {"what": "renyi-epsilon", "event": event.to_dict(), "delta": float(delta)}, lambda: _renyi_epsilon(event, delta)
    )
    return None if answer is None else float(answer)


def unprotected(event: Event) -> bool:
    """Whether the event releases something with no noise, or with next to none."""
    if isinstance(event, Gaussian):
        return event.noise_multiplier < LEAST_NOISE
    if isinstance(event, PoissonSubsampled):
        return event.sampling_probability > 0 and unprotected(event.event)
    if isinstance(event, Repeated):
        return event.count > 0 and unprotected(event.event)
    if isinstance(event, SelectBest):
        return unprotected(event.trial)
    if isinstance(event, (Composed, Disjoint)):
        return any(unprotected(part) for part in (event.events if isinstance(event, Composed) else event.parts))
    return False


def privacy_loss(event: Event, interval: float) -> PrivacyLoss:
    """The discretised loss of an event on a grid of `interval` nats.

    Raises:
      FieldError: an event kind that has no loss law here.
    """
    from sweeper.privacy import loss as losses
    from sweeper.privacy.selection import select_best

    if isinstance(event, Gaussian):
        return losses.subsampled_gaussian(event.noise_multiplier, 1.0, interval)
    if isinstance(event, PoissonSubsampled):
        if event.sampling_probability == 0:
            return losses.point(interval)
        return losses.subsampled_gaussian(event.event.noise_multiplier, event.sampling_probability, interval)
    if isinstance(event, DiscreteLaplace):
        return losses.discrete_laplace(event.epsilon, interval)
    if isinstance(event, Repeated):
        return privacy_loss(event.event, interval).self_compose(event.count) if event.count else losses.point(interval)
    if isinstance(event, Composed):
        total = losses.point(interval)
        for part in event.events:
            total = total.compose(privacy_loss(part, interval))
        return total
    if isinstance(event, Disjoint):
        total = privacy_loss(event.parts[0], interval)
        for part in event.parts[1:]:
            total = total.union(privacy_loss(part, interval))
        return total
    if isinstance(event, SelectBest):
        return select_best(privacy_loss(event.trial, interval), event.law)
    raise FieldError("event", event.kind, "has no loss law")


def _epsilon(event: Event, delta: float) -> float:
    """Epsilon on ever finer grids until it settles."""
    return math.inf if unprotected(event) else _interval(event, delta, TOLERANCE)[1]


def _interval(event: Event, delta: float, tolerance: float) -> tuple[float, float]:
    """(grid interval, epsilon) at which epsilon moved by less than `tolerance` from a grid four times coarser.

    Infinite on two grids is infinite for good: a delta below the mass that rounding moves to infinity grows no better.
    """
    interval, previous, coarsest = 2e-2, math.inf, True
    while True:
        loss = privacy_loss(event, interval)
        value = loss.epsilon(delta)
        size = max((len(pmf.mass) for part in loss.parts for pmf in part), default=0)
        settled = previous - value <= tolerance * max(value, 1e-2) or (math.isinf(value) and not coarsest)
        if settled or value == 0.0 or size * 4 > LARGEST_GRID:
            return interval, min(value, previous)
        previous, coarsest = value, False
        interval /= 4


def _calibrate(make: Callable[[float], Event], target: float, delta: float) -> float:
    """Bracket on a coarse grid, then regula falsi in log-log, then the answer checked on the grid that `epsilon` uses."""
    low, high = _bracket(make, target, delta)
    sigma = high
    for tolerance in (2e-2, TOLERANCE):
        interval, _ = _interval(make(sigma), delta, tolerance)
        sigma = _solve(lambda s, grid=interval: privacy_loss(make(s), grid).epsilon(delta), low, high, target)  # type: ignore[misc]
        low, high = sigma * 0.9, sigma * 1.1
    for _ in range(40):  # `epsilon` may settle on another grid: step up until its own answer keeps the promise
        reached = epsilon(make(sigma), delta)
        if math.isinf(reached) or (
            reached < 0.9 * target and target > 1e-3
        ):  # rounding drowns delta until the noise is far too large
            raise _too_small(delta)
        if reached <= target:
            return sigma
        sigma *= 1 + max(2e-4, 0.7 * (reached / target - 1))
    raise FieldError("epsilon", target, "could not be calibrated: the price does not settle", "Report this spec.")


def _too_small(delta: float) -> FieldError:
    return FieldError("delta", delta, "is too small for an account in double precision", "Try delta: 1e-9.")


def _bracket(make: Callable[[float], Event], target: float, delta: float) -> tuple[float, float]:
    """Noise multipliers below and above the answer, by doubling on a coarse grid."""

    def price(sigma: float) -> float:
        return _interval(make(sigma), delta, 0.1)[1]

    low = high = 1.0
    if price(1.0) > target:
        while price(high) > target:
            low, high = high, high * 2
            if high > 1e7:
                floor = price(1e7)
                if math.isinf(floor):
                    raise _too_small(delta)
                raise FieldError(
                    "epsilon",
                    target,
                    f"cannot be reached: the parts that carry their own noise (the score) cost {floor:.3g} by themselves",
                    "Lower score.epsilon, or raise privacy.epsilon.",
                )
        return low * 0.9, high * 1.1
    while price(low) <= target:
        low, high = low / 2, low
        if low < LEAST_NOISE:
            raise FieldError("epsilon", target, "is so large that no noise would be needed", "Give privacy.noise_multiplier.")
    return low * 0.9, high * 1.1


def _solve(price: Callable[[float], float], low: float, high: float, target: float) -> float:
    """The multiplier in [low, high] where price(multiplier) meets the target from below, within 0.05%."""

    def gap(log_sigma: float) -> float:
        return math.log(max(price(math.exp(log_sigma)), 1e-12) / target)

    a, b = math.log(low), math.log(high)
    gap_a, gap_b = gap(a), gap(b)
    while gap_a < 0:
        a -= 0.2
        gap_a = gap(a)
    while gap_b > 0:
        if b > math.log(1e8):
            return 1e8  # no grid of this kind reaches it; `epsilon` will say so
        b += 0.2
        gap_b = gap(b)
    flat = False  # the price hardly falls with the noise: what carries its own noise is nearly all of it
    for _ in range(60):
        if b - a < 1e-5:
            break
        if -1e-3 <= gap_b <= 0:
            gap_less = gap(b - 0.01) if b - 0.01 > a else 1.0
            if gap_less > 0:
                break
            b, gap_b, flat = b - 0.01, gap_less, True
        if flat or gap_a == gap_b:
            middle = 0.5 * (a + b)
        else:
            middle = min(max(b - (gap_b - -3e-4) * (b - a) / (gap_b - gap_a), a + 0.02 * (b - a)), b - 0.02 * (b - a))
        gap_m = gap(middle)
        if gap_m > 0:
            a, gap_a = middle, gap_m
        else:
            b, gap_b = middle, gap_m
    return math.exp(b)


def _renyi(event: Event, order: float) -> tuple[float | None, float]:
    if unprotected(event):
        return None, 0.0
    if isinstance(event, Composed):
        costs = [_renyi(part, order) for part in event.events]
        return math.fsum(rho or 0.0 for rho, _ in costs), math.fsum(delta for _, delta in costs)
    if isinstance(event, Disjoint):
        parts = [_renyi(part, order) for part in event.parts]
        return max(rho or 0.0 for rho, _ in parts), max(delta for _, delta in parts)
    if isinstance(event, Repeated) and not isinstance(event.event, (PoissonSubsampled, Gaussian)):
        rho, delta0 = _renyi(event.event, order)
        return (rho or 0.0) * event.count, delta0 * event.count
    if isinstance(event, SelectBest):
        interval, _ = _interval(event, 1e-6, 2e-3)
        found = [pmf.renyi(order, CUT) for part in privacy_loss(event, interval).parts for pmf in part]
        return max(rho for rho, _ in found), max(delta for _, delta in found)
    if isinstance(event, DiscreteLaplace):
        e, shrink = event.epsilon, math.exp(-event.epsilon)  # loss +e with mass 1/(1 + shrink), -e with the rest
        moment = (order - 1) * e + math.log((1 + math.exp(-2 * (order - 1) * e) * shrink) / (1 + shrink))
        return max(0.0, moment / (order - 1)), 0.0
    from dp_accounting.rdp import rdp_privacy_accountant

    accountant = rdp_privacy_accountant.RdpAccountant([order])
    accountant.compose(_dp_event(event))
    return max(0.0, float(accountant.rdp[0])), 0.0  # rounding may leave -1e-17


def _renyi_epsilon(event: Event, delta: float) -> float | None:
    from dp_accounting.rdp import rdp_privacy_accountant

    if unprotected(event) or _dp_event(event) is None:
        return None
    accountant = rdp_privacy_accountant.RdpAccountant()
    accountant.compose(_dp_event(event))
    return _finite(float(accountant.get_epsilon(delta)))


def _dp_event(event: Event) -> Any:
    """dp_accounting's event for its Renyi accountant (add/remove, equal in cost to zero-out), or None where it has none."""
    from dp_accounting import dp_event as dp

    if isinstance(event, Gaussian):
        return dp.GaussianDpEvent(event.noise_multiplier)
    if isinstance(event, PoissonSubsampled):
        return dp.PoissonSampledDpEvent(event.sampling_probability, dp.GaussianDpEvent(event.event.noise_multiplier))
    if isinstance(event, Repeated):
        if event.count == 0:
            return dp.NoOpDpEvent()
        inner = _dp_event(event.event)
        return None if inner is None else dp.SelfComposedDpEvent(inner, event.count)
    if isinstance(event, Composed):
        parts = [_dp_event(part) for part in event.events]
        return None if any(part is None for part in parts) else dp.ComposedDpEvent(parts)
    if isinstance(event, SelectBest) and event.law.max_trials is None:
        inner = _dp_event(event.trial)
        return None if inner is None else dp.RepeatAndSelectDpEvent(inner, event.law.mean, event.law.eta)
    return None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
