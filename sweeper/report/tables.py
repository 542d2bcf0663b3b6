"""Text tables for a terminal. Pure functions of their arguments."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from numbers import Integral, Real

GAP = "  "
ELLIPSIS = "…"
NARROWEST = 8  # no column is cut below this


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], align: str | None = None, width: int = 100) -> str:
    """Lines of aligned columns. `align` is one letter, l or r, per column; by default columns of numbers stand right.

    Numbers are written by `sig`, None as a dash. When a line would pass `width`, the widest text column is cut.

    >>> print(table(["clip", "n", "epsilon"], [["fixed", 12, 2.0], ["normalise", 3, None]]))
    clip        n  epsilon
    ---------  --  -------
    fixed      12        2
    normalise   3        -
    """
    for row in rows:
        if len(row) != len(headers):
            raise ValueError(f"a row of {len(row)} cells in a table of {len(headers)} columns")
    columns = range(len(headers))
    if align is None:
        align = "".join("r" if _numeric([row[c] for row in rows]) else "l" for c in columns)
    if len(align) != len(headers) or set(align) - {"l", "r"}:
        raise ValueError(f"align {align!r} must be one l or r for each of {len(headers)} columns")
    texts = [[" ".join(str(header).split()) for header in headers], *([_cell(value) for value in row] for row in rows)]
    widths = [max(_width(line[c]) for line in texts) for c in columns]
    while sum(widths) + len(GAP) * (len(widths) - 1) > width:
        cuttable = [c for c in columns if align[c] == "l" and widths[c] > NARROWEST]
        if not cuttable:
            break  # nothing left to cut: a long line is better than a lost number
        widths[max(cuttable, key=lambda c: widths[c])] -= 1
    texts.insert(1, ["-" * w for w in widths])
    return "\n".join(GAP.join(_pad(line[c], widths[c], align[c]) for c in columns).rstrip() for line in texts)


def sig(x: float, digits: int = 4) -> str:
    """A number to some significant digits, without trailing zeros: 0.0234, 14.3, 12,000, 1e-05.

    >>> [sig(x, 3) for x in (0.02344, 14.26, 12345, 1e-5, 0.0, math.inf)]
    ['0.0234', '14.3', '12,300', '1e-05', '0', 'infinite']
    """
    if math.isnan(x):
        return "-"
    if math.isinf(x):
        return "infinite" if x > 0 else "-infinite"
    if x == 0:
        return "0"
    rounded = float(f"{x:.{digits - 1}e}")
    if not 1e-4 <= abs(rounded) < 1e9:
        return f"{rounded:.{digits}g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    text = f"{rounded:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def human_epsilon(x: float | None) -> str:
    """An epsilon to two decimals; None and infinity are "infinite". A positive price never reads 0.00.

    >>> [human_epsilon(x) for x in (2.0, 0.001, None)]
    ['2.00', '<0.01', 'infinite']
    """
    if x is None or x == math.inf:
        return "infinite"
    if math.isnan(x) or x < 0:
        raise ValueError(f"{x} is no epsilon")
    return "<0.01" if 0 < x < 0.005 else f"{x:,.2f}"


def _numeric(values: Sequence[object]) -> bool:
    given = [value for value in values if value is not None]
    return bool(given) and all(isinstance(value, Real) and not isinstance(value, bool) for value in given)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{int(value):,}"
    if isinstance(value, Real):
        return sig(float(value))
    return " ".join(str(value).split())


def _width(text: str) -> int:
    """Columns of a terminal: wide letters take two, marks that sit on a letter none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _pad(text: str, width: int, align: str) -> str:
    if _width(text) > width:
        while _width(text) > width - 1:
            text = text[:-1]
        text += ELLIPSIS
    space = " " * (width - _width(text))
    return text + space if align == "l" else space + text
