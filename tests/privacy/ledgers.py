"""What the ledger's tests share: accountants with closed forms, and a ledger with a budget."""

from __future__ import annotations

import math

from scipy import optimize, stats

from sweeper.privacy.events import Composed, Gaussian, Repeated
from sweeper.privacy.guarantee import Guarantee
from sweeper.privacy.ledger import Ledger, OverBudget

DELTA = 1e-4
STATED = Guarantee(epsilon=2.0, delta=1e-5)
BY_RENYI = Guarantee(epsilon=2.0, delta=0.6 * DELTA)  # more than addition may spend: only the Renyi filter counts it


def converted(rho: float, epsilon: float, order: float) -> float:
    """Delta of a Renyi cost at epsilon (Proposition 12 of Canonne, Kamath, Steinke)."""
    return math.exp((order - 1) * (rho - epsilon)) * (1 - 1 / order) ** (order - 1) / order


class Gaussians:
    """An accountant for Gaussian mechanisms and their compositions, in closed form (Balle and Wang 2018; Mironov 2017)."""

    def _precision(self, event):
        if isinstance(event, Composed):
            return sum(self._precision(part) for part in event.events)
        if isinstance(event, Repeated):
            return event.count * self._precision(event.event)
        if not isinstance(event, Gaussian):
            raise NotImplementedError(event.kind)
        return math.inf if event.noise_multiplier == 0 else event.noise_multiplier**-2

    def epsilon(self, event, delta):
        mu = math.sqrt(self._precision(event))
        if mu in (0.0, math.inf):
            return mu

        def excess(e):
            return stats.norm.cdf(mu / 2 - e / mu) - math.exp(e + stats.norm.logcdf(-mu / 2 - e / mu)) - delta

        return 0.0 if excess(0.0) <= 0 else optimize.brentq(excess, 0.0, mu**2 / 2 + 40 * mu)

    def renyi(self, event, order):
        return order * self._precision(event) / 2, 0.0


class Silent:
    """Knows no price at all."""

    def epsilon(self, event, delta):
        raise NotImplementedError(event.kind)

    renyi = epsilon


class Flat:
    """A hundredth of an epsilon for anything, at once."""

    def epsilon(self, event, delta):
        return 0.01

    def renyi(self, event, order):
        return 0.001, 0.0


SMALL = Guarantee(epsilon=0.01, delta=1e-9)


def reserve(
    ledger: Ledger, noise: float = 2.0, *, data_set: str = "adult", sweep: str = "clip", digest: str | None = None, stated=STATED
) -> str:
    return ledger.reserve(data_set, sweep, "f00d", Gaussian(noise), stated, "ann", source_digest=digest)


def follow(ledger: Ledger, refusal: OverBudget) -> None:
    """Type the command that a refusal offers."""
    command = str(refusal)[str(refusal).index("sweeper ledger set-budget") :].split()
    ledger.set_budget(command[3], float(command[5]), float(command[7]), "ann")


def room_for(ledger: Ledger, wanted: int, binding: str) -> None:
    """A first charge that leaves room for `wanted` charges of `Flat` and half of one more, in the filter that binds."""
    order = ledger.set_budget("adult", 8.0, DELTA, "ann").order
    if binding == "renyi":
        room = 8.0 - math.log(1 - 1 / order) + math.log(0.45 * DELTA * order) / (order - 1)
        noise = math.sqrt(order / 2 / (room - (wanted + 0.5) * 0.001))
        reserve(ledger, noise, sweep="big", stated=BY_RENYI)
    else:
        reserve(ledger, sweep="big", stated=Guarantee(epsilon=8.0 - (wanted + 0.5) * 0.01, delta=1e-5))
