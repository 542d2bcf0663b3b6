"""The least noise that meets a price: a guess by coarse prices, then the price itself.

Everything is in logs, where a price falls with the noise almost along a line: of slope -1 where epsilon is small, -2 where it is
large, and 0 where what carries its own noise is nearly all of it. Only prices decide what is taken; slopes only say where to look.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from sweeper.privacy.event import LEAST_NOISE

Price = Callable[[float], float]
MOST_NOISE = 1e7
LEAST, MOST = math.log(LEAST_NOISE) + 1e-9, math.log(MOST_NOISE)
CHEAP = -5.0  # stands for the log of price over target where the price is 0
NEAR = 0.05  # log distance from the target at which coarse prices have done their work
AIM, WINDOW = -2.5e-4, -7e-4  # log of price over target: what is tried for, and the least that is taken
CLOSE = 8e-3  # a noise less by this log distance must miss the target, where the price is flat
STEEP = 0.4  # slope of coarse prices beyond which WINDOW says as much
NARROW = 1e-4  # a bracket narrower than this ends the search: the price jumps there
LEAP = 2.0
ATTEMPTS = 100


class Point(NamedTuple):
    """Log noise multiplier, log(price / target): above 0 the price is too high."""

    x: float
    gap: float


class Bracket:
    """The largest noise known to be too little, the least known to be enough, and the slope of the price between or near them."""

    def __init__(self, price: Price, target: float, slope: float) -> None:
        self.price, self.target, self.slope = price, target, slope
        self.little: Point | None = None
        self.enough: Point | None = None
        self.tried, self.step, self.last = 0, 0.0, math.inf

    def ask(self, x: float) -> Point:
        """The price there."""
        value = self.price(math.exp(x))
        here = Point(x, max(math.log(value / self.target), CHEAP) if value > 0 else CHEAP)
        last = self.little if here.gap <= 0 else self.enough
        other = last or self.little or self.enough
        if other is not None and other.x != x and math.isfinite(here.gap) and math.isfinite(other.gap):
            self.slope = min(max((here.gap - other.gap) / (x - other.x), -50.0), -0.05)
        if here.gap > 0:
            self.little = here
        else:
            self.enough = here
        self.tried += 1
        return here

    def next(self, here: Point, aim: float) -> float:
        """Where the price should meet `aim`: along the slope, held to the bracket, which is halved at least every fourth time.

        While there is no bracket and a step did not halve the gap, the next is at least twice as long.
        """
        move = (here.gap - aim) / -self.slope
        slow = abs(here.gap) > 0.5 * abs(self.last)
        self.step, self.last = min(max(abs(move), 2 * self.step if slow else 0.0), LEAP), here.gap
        x = min(max(here.x + math.copysign(self.step, move), LEAST), MOST)
        if self.little is not None and self.enough is not None:
            width = self.enough.x - self.little.x
            if self.tried % 4 == 3 or not math.isfinite(self.little.gap):
                return self.little.x + 0.5 * width
            return min(max(x, self.little.x + 0.02 * width), self.enough.x - 0.02 * width)
        return x

    @property
    def width(self) -> float:
        return math.inf if self.little is None or self.enough is None else self.enough.x - self.little.x


def least_noise(coarse: Price, price: Price, target: float) -> float:
    """A noise multiplier whose price is in [0.9993, 1] of `target`, or is at most that while 1% less noise costs more.

    `price` falls with the noise; `coarse` is near it and quicker. Infinite when no noise is enough, 0 when next to none is.
    """
    guess = Bracket(coarse, target, -1.5)
    here = guess.ask(0.0)
    while abs(here.gap) > NEAR and guess.width > CLOSE and guess.tried < ATTEMPTS and not _ended(here):
        here = guess.ask(guess.next(here, 0.0))
    if here.x == LEAST and here.gap <= 0:
        return 0.0
    bracket = Bracket(price, target, guess.slope)
    here = bracket.ask(min(max(here.x + (here.gap - AIM) / -guess.slope, LEAST), MOST) if abs(here.gap) <= NEAR else here.x)
    step = CLOSE
    while bracket.tried < ATTEMPTS and bracket.width > NARROW and not _ended(here):
        if bracket.enough is None or bracket.enough.gap < WINDOW:
            here = bracket.ask(bracket.next(here, AIM))
        elif bracket.width <= CLOSE or (step == CLOSE and _steep(guess, bracket.enough.x)):
            break
        elif bracket.little is not None:  # the price is flat: halve
            here = bracket.ask(0.5 * (bracket.little.x + bracket.enough.x))
        else:
            here, step = bracket.ask(max(bracket.enough.x - step, LEAST)), 2 * step
    return math.exp(bracket.enough.x) if bracket.enough is not None else math.inf


def _steep(guess: Bracket, x: float) -> bool:
    return guess.ask(x - CLOSE).gap - guess.ask(x).gap > STEEP * CLOSE


def _ended(here: Point) -> bool:
    return (here.x == MOST and here.gap > 0) or (here.x == LEAST and here.gap <= 0)
