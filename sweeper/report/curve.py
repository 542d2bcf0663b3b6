"""Epsilon against the expected number of runs, drawn in text. Pure functions of what `sweeper price --curve --json` prints."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sweeper.report.tables import ELLIPSIS, human_epsilon, sig, table

Json = Mapping[str, Any]
HEIGHT = 18  # rows of the plot
NARROWEST, WIDEST = 48, 140
LEFT = 8  # columns of the labels of the vertical axis
MARKS = {"no-tuning": "o", "subsample-tune": "s", "release-all": "A"}  # select-best: the first letter of its law
ASKED = "@"
SHOWN = (2, 10, 30, 100)  # expected runs in the table
STRETCH = 4.0  # largest over smallest epsilon from which the vertical axis is logarithmic
FRAMES = {True: tuple("│┤└─┴"), False: tuple("|+`-+")}


def curve_text(price: Json, *, width: int, unicode: bool) -> str:
    """The plot, its legend with the bills, and what was asked. `width`: columns; `unicode`: whether box letters can be printed."""
    width = min(max(width, NARROWEST), WIDEST)
    curves = price["curves"]
    known = [point["epsilon"] for curve in curves for point in curve["points"] if point["epsilon"] is not None]
    head = (
        f"epsilon at delta {sig(price['delta'], 3)} against the expected number of runs; "
        f"noise multiplier {sig(price['noise_multiplier'], 5)}, {price['guarantee']['relation']}, unit {price['guarantee']['unit']}"
    )
    if not known or max(known) == 0.0:
        rest = "nothing is protected: every bill is infinite" if not known else "nothing is released: every protocol is free"
        return "\n".join([*textwrap.wrap(head, width, break_on_hyphens=False), rest])
    lines = textwrap.wrap(head, width, break_on_hyphens=False)
    lines += ["", *_plot(price, min(known), max(known), width - LEFT - 1, FRAMES[unicode])]
    lines += ["", _legend(curves, width), "", _asked(price)]
    text = "\n".join(lines)
    return text if unicode else text.replace(ELLIPSIS, "~")


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """Numbers between low and high to cells 0 ... cells - 1."""

    low: float
    high: float
    cells: int
    logarithmic: bool

    def place(self, value: float) -> float:
        low, high = self._bent(self.low), self._bent(self.high)
        return (self._bent(value) - low) / (high - low) * (self.cells - 1) if high > low else 0.0

    def _bent(self, value: float) -> float:
        return math.log(value) if self.logarithmic else value


def _plot(price: Json, low: float, high: float, columns: int, frame: tuple[str, ...]) -> Iterator[str]:
    side, tick, corner, floor, foot = frame
    expected = [point["expected_trials"] for curve in price["curves"] for point in curve["points"]]
    across = _Scale(low=min(expected), high=max(expected), cells=columns, logarithmic=True)
    up = _Scale(low=low, high=high, cells=HEIGHT, logarithmic=low > 0 and high / low >= STRETCH)
    cells = _cells(price, across, up)
    labels = _labels(up)
    for row in range(HEIGHT - 1, -1, -1):
        text = "".join(cells.get((row, column), " ") for column in range(columns)).rstrip()
        label = labels.get(row)
        yield f"{label or '':>{LEFT - 1}} {tick if label else side}{text}"
    ticks = {round(across.place(mean)): f"{mean}" for mean in (2, 3, 5, 10, 20, 50, 100) if across.low <= mean <= across.high}
    yield " " * LEFT + corner + "".join(foot if column in ticks else floor for column in range(columns))
    below = [" "] * columns
    for column, label in ticks.items():
        start = max(0, min(column - len(label) // 2, columns - len(label)))
        below[start : start + len(label)] = label
    yield f"{'runs':>{LEFT - 1}}  {''.join(below)}".rstrip()


def _cells(price: Json, across: _Scale, up: _Scale) -> dict[tuple[int, int], str]:
    """(row, column) -> letter. Where curves meet, the cheaper one is seen; what was asked lies on top."""
    cells: dict[tuple[int, int], str] = {}
    for curve in reversed(price["curves"]):
        known = [p for p in curve["points"] if p["epsilon"] is not None]
        points = [(across.place(p["expected_trials"]), up.place(p["epsilon"])) for p in known]
        for column in range(across.cells):
            height = _between(points, column)
            if height is not None:
                cells[round(height), column] = mark(curve)
    asked = _asked_point(price)
    if asked is not None and across.low <= asked[0] <= across.high and up.low <= asked[1] <= up.high:
        cells[round(up.place(asked[1])), round(across.place(asked[0]))] = ASKED
    return cells


def _between(points: Sequence[tuple[float, float]], column: int) -> float | None:
    """The height of the curve at a column: points are joined straight as they are drawn."""
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 - 1e-6 <= column <= x1 + 1e-6:
            return y0 + (y1 - y0) * (column - x0) / (x1 - x0)
    return None


def _labels(up: _Scale) -> dict[int, str]:
    """Row -> number: the lowest and the highest, and round ones between where there is room."""
    labels = {0: sig(up.low, 3), up.cells - 1: sig(up.high, 3)}
    if up.logarithmic:
        decades = range(math.floor(math.log10(up.low)), math.ceil(math.log10(up.high)) + 1)
        rounds = [digit * 10.0**decade for decade in decades for digit in (1, 2, 3, 5)]
    else:
        step = 10.0 ** math.floor(math.log10(max(up.high - up.low, 1e-12) / 2))
        rounds = [step * number for number in range(math.ceil(up.low / step), math.floor(up.high / step) + 1)]
    for value in rounds:
        row = round(up.place(value)) if up.low < value < up.high else -1
        if row > 0 and not any(abs(row - other) < 2 for other in labels):
            labels[row] = sig(value, 3)
    return labels


def mark(curve: Json) -> str:
    """The letter of a curve."""
    return MARKS.get(curve["protocol"]) or str(curve["law"])[0]


def _legend(curves: Sequence[Json], width: int) -> str:
    headers = [
        "",
        "protocol",
        *(f"eps at {mean}" if place == 0 else f"at {mean}" for place, mean in enumerate(SHOWN)),
        "top 10% at 10",
    ]
    rows = []
    for curve in curves:
        near = {round(point["expected_trials"]): point for point in curve["points"]}
        bills = [human_epsilon(near[mean]["epsilon"]) for mean in SHOWN]
        rows.append([mark(curve), curve["label"], *bills, f"{near[10]['chance']:.0%}"])
    return table(headers, rows, align="ll" + "r" * (len(SHOWN) + 1), width=width)


def _asked_point(price: Json) -> tuple[float, float] | None:
    runs = price.get("mean_trials")
    return None if runs is None or price["epsilon"] is None else (runs, price["epsilon"])


def _asked(price: Json) -> str:
    shown = f" ({ASKED})" if _asked_point(price) is not None else ""
    return f"asked{shown}: {price['protocol']}, epsilon {human_epsilon(price['epsilon'])}"
